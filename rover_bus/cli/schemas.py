"""The language as files for other languages: a JSON Schema an event, an AsyncAPI document of all subjects, Kubernetes' resource.

    python -m rover_bus.cli.schemas                 write schemas/
    python -m rover_bus.cli.schemas --check         say what has drifted, exit 1 (CI)
    python -m rover_bus.cli.schemas --corpus DIR    encode one of each event, once a release; never over what is there

Fed by the msgspec types of events/ and brain/log.py. The wire is msgpack; a schema describes the map that it holds, and its
example is what `rover decode` prints of the encoded sample.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rover_bus import __version__
from rover_bus.brain.log import BrainBatch
from rover_bus.cli.access import SECURITY, SERVERS, who_may
from rover_bus.cli.decode import describe
from rover_bus.cli.samples import sample
from rover_bus.cli.yaml_text import to_yaml
from rover_bus.events.checkpoints import PartReply, PartRequest
from rover_bus.events.codec import EVENTS
from rover_bus.events.descriptions import undented
from rover_bus.events.envelope import CONTENT_TYPE
from rover_bus.events.facts import JobFact
from rover_bus.events.host_facts import ClusterFact, HostFact
from rover_bus.events.join_requests import AgentJoinRequest, HostJoinReply, HostJoinRequest
from rover_bus.events.log import LogBatch
from rover_bus.events.log_requests import MemberLogReply, MemberLogRequest
from rover_bus.events.profiles import HostProfile, OperatorProfile, Profile
from rover_bus.events.programs import ProgramReply, ProgramRequest
from rover_bus.events.purge_requests import ForgetRequest, PurgeReply, PurgeRequest
from rover_bus.events.requests import METHODS, REPLIES
from rover_bus.events.spare_requests import LoadedReport, SpareQuestion, SpareReply
from rover_bus.kube.crd import definitions, resource_definition

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DIRECTORY = Path(__file__).parents[2] / "schemas"
DEFINITIONS = Path(__file__).parents[2] / "deploy" / "crd"
TYPES: dict[str, type[msgspec.Struct]] = {**EVENTS, str(BrainBatch.__struct_config__.tag): BrainBatch}
PARAMETERS = {
    "job": "the job's name",
    "user": "the public key of the user that asks",
    "host": "the host's name",
    "role": "worker or ps",
    "index": "the member's place in its role",
    "term": "the term of the leading master (bucket ROVER_LEADERS)",
}


def main(arguments: list[str] | None = None) -> int:
    """Write, check, or encode; return the exit code."""
    parser = argparse.ArgumentParser(prog="rover_bus.cli.schemas", description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--dir", type=Path, default=DIRECTORY)
    options = parser.parse_args(arguments)
    if options.corpus:
        return write_corpus(options.corpus)
    files = dict(generate())
    if options.check:
        return max(check(files, options.dir), *map(check_definition, definitions()))
    DEFINITIONS.mkdir(parents=True, exist_ok=True)
    for each in definitions():
        definition_file(each).write_text(definition(each))
    options.dir.mkdir(exist_ok=True)
    for stale in {path.name for path in options.dir.iterdir()} - set(files):
        (options.dir / stale).unlink()
    for name, text in files.items():
        (options.dir / name).write_text(text)
    return 0


def check(files: dict[str, str], directory: Path) -> int:
    """Name the files that differ from what the types say; return 1 when there is one."""
    there = {path.name: path.read_text() for path in directory.iterdir()} if directory.is_dir() else {}
    drifted = sorted(name for name in files.keys() | there.keys() if files.get(name) != there.get(name))
    if drifted:
        sys.stderr.write(f"schemas/ has drifted ({', '.join(drifted)}): run `make schemas` and commit\n")
    return 1 if drifted else 0


def check_definition(made: dict[str, Any]) -> int:
    """Say whether a resource of Kubernetes differs from our types; return 1 where it does."""
    file = definition_file(made)
    if file.exists() and file.read_text() == definition(made):
        return 0
    sys.stderr.write(f"deploy/crd/{file.name} has drifted: run `make schemas` and commit\n")
    return 1


def definition_file(made: dict[str, Any]) -> Path:
    """Return where a resource definition is written."""
    return DEFINITIONS / f"{made['spec']['names']['plural']}.yaml"


def definition(made: dict[str, Any]) -> str:
    """Return the text of a resource definition."""
    source = "crd.py and the types of the job file" if made == resource_definition() else "plan_answers.py"
    head = f"# Written by `make schemas` from rover_bus/kube/{source}.\n"
    return head + "".join(f"{line}\n" for line in to_yaml(made))


def write_corpus(directory: Path) -> int:
    """Encode one of each event; a file that is there is never touched, because a release's corpus is what that release wrote."""
    directory.mkdir(parents=True, exist_ok=True)
    for tag, cls in TYPES.items():
        path = directory / f"{tag}.msgpack"
        if not path.exists():
            path.write_bytes(msgspec.msgpack.encode(sample(cls)))
    return 0


def generate() -> Iterator[tuple[str, str]]:
    """Yield every file's name and text."""
    for tag, cls in TYPES.items():
        yield f"{tag}.json", json.dumps(schema(tag, cls), indent=2) + "\n"
    yield "asyncapi.yaml", "".join(f"{line}\n" for line in to_yaml(asyncapi()))


def schema(tag: str, cls: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of an event, with an example."""
    made = undented(msgspec.json.schema(cls))
    definitions = made.get("$defs", {})
    own = definitions.pop(cls.__name__)
    example = describe(msgspec.msgpack.encode(sample(cls)))
    head = {"$schema": DIALECT, "$id": f"urn:rover-bus:{tag}", **own, "examples": [example]}
    return {**head, "$defs": definitions} if definitions else head


# -- AsyncAPI ----------------------------------------------------------------------------------------------------------


def asyncapi() -> dict[str, Any]:
    """Return what travels on which subject, as AsyncAPI 3.0 has it."""
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for tag, cls in TYPES.items():
        place = address_of(tag, cls)
        if place:
            channels[tag] = _channel(place, [tag], cls)
            operations[f"receive.{tag}"] = _operation("receive", tag)
    answers: tuple[type[msgspec.Struct], ...] = (
        *REPLIES,
        PartReply,
        ProgramReply,
        PurgeReply,
        HostJoinReply,
        MemberLogReply,
        SpareReply,
    )
    replies = [str(cls.__struct_config__.tag) for cls in answers]
    channels["replies"] = {"address": None, "messages": {tag: _message(tag) for tag in replies}}
    for method, cls in METHODS.items():
        tag = str(cls.__struct_config__.tag)
        channels[tag] = _channel(f"rover.rpc.{{job}}.{{term}}.{method}", [tag], cls)
        reply = {"channel": {"$ref": "#/channels/replies"}}
        operations[f"request.{tag}"] = {**_operation("send", tag), "reply": reply}
    asked: dict[type[msgspec.Struct], str] = {
        PartRequest: "rover.daemon.{host}.part",
        ProgramRequest: "rover.daemon.{host}.program",
        MemberLogRequest: "rover.daemon.{host}.log",
        PurgeRequest: "rover.keeper.{job}.purge",
        ForgetRequest: "rover.keeper.{job}.forget",
        HostJoinRequest: "rover.registrar.{user}.join",
        AgentJoinRequest: "rover.registrar.{user}.agent",
        LoadedReport: "rover.daemon.{host}.loaded.{job}",
        SpareQuestion: "rover.daemon.{host}.spares.{job}",
    }
    for cls, address in asked.items():
        tag = str(cls.__struct_config__.tag)
        channels[tag] = _channel(address, [tag], cls)
        reply = {"channel": {"$ref": "#/channels/replies"}}
        operations[f"request.{tag}"] = {**_operation("send", tag), "reply": reply}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "rover_bus", "version": __version__, "license": {"name": "Apache-2.0"}},
        "servers": SERVERS,
        "defaultContentType": CONTENT_TYPE,
        "channels": channels,
        "operations": operations,
        "components": {"securitySchemes": SECURITY},
    }


def address_of(tag: str, cls: type[msgspec.Struct]) -> str:
    """Return the subject of an event, with parameters in braces; "" for requests and replies."""
    kind = tag.rsplit(".", 1)[0]
    if issubclass(cls, HostFact):
        return f"rover.host.{{host}}.{cls.kind()}"
    if issubclass(cls, ClusterFact):
        return f"rover.cluster.{cls.kind()}"
    if issubclass(cls, JobFact):
        return f"rover.job.{{job}}.{kind}"
    if issubclass(cls, HostProfile):
        return "rover.profile.host.{host}"
    if issubclass(cls, OperatorProfile):
        return "rover.profile.operator.{operator}"
    if issubclass(cls, Profile):
        return f"rover.profile.{{job}}.{kind.split('.')[-1]}.{{index}}"
    return {LogBatch: "rover.job.{job}.log", BrainBatch: "rover.brain.log"}.get(cls, "")


def _channel(address: str, tags: list[str], cls: type[msgspec.Struct]) -> dict[str, Any]:
    used = {name: {"description": text} for name, text in PARAMETERS.items() if f"{{{name}}}" in address}
    channel: dict[str, Any] = {"address": address, "description": _first_line(cls), **who_may(address)}
    if used:
        channel["parameters"] = used
    return {**channel, "messages": {tag: _message(tag) for tag in tags}}


def _message(tag: str) -> dict[str, Any]:
    return {"name": tag, "payload": {"$ref": f"./{tag}.json"}}


def _operation(action: str, tag: str) -> dict[str, Any]:
    return {"action": action, "channel": {"$ref": f"#/channels/{tag}"}}


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0] if cls.__doc__ else ""


if __name__ == "__main__":
    sys.exit(main())
