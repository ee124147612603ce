"""The language as files: nothing has drifted, examples hold, and what an older release wrote is still read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest

from rover_bus.cli.decode import describe
from rover_bus.cli.samples import sample
from rover_bus.cli.schemas import DIRECTORY, TYPES, asyncapi, check, generate, to_yaml, write_corpus
from rover_bus.events.codec import EVENTS, decode_any
from rover_bus.events.later_forms import as_written


def test_schemas_are_what_the_types_say() -> None:
    assert check(dict(generate()), DIRECTORY) == 0


def test_a_drifted_schema_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = dict(generate())
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "plan.applied.v1.json").write_text("{}")
    assert check(files, tmp_path) == 1
    assert "plan.applied.v1.json" in capsys.readouterr().err


@pytest.mark.parametrize("tag", TYPES)
def test_every_event_has_an_example_that_survives_the_wire(tag: str) -> None:
    value = sample(TYPES[tag])
    body = msgspec.msgpack.encode(value)
    assert msgspec.msgpack.encode(read(body, tag)) == body
    assert describe(body)["type"] == tag


def read(body: bytes, tag: str) -> Any:
    """What is read, in the form in which it was written."""
    if tag not in EVENTS:
        return msgspec.msgpack.decode(body, type=TYPES[tag])
    return as_written(decode_any(body), getattr(TYPES[tag], "since_format", 1))


def test_every_event_that_is_published_has_a_channel() -> None:
    made = asyncapi()
    assert set(made["channels"]) - {"replies"} | set(made["channels"]["replies"]["messages"]) == set(TYPES)
    addresses = {channel["address"] for channel in made["channels"].values()}
    assert "rover.job.{job}.plan.applied" in addresses
    assert "rover.host.{host}.exited" in addresses
    assert "rover.rpc.{job}.{term}.lease" in addresses


def references(value: object) -> list[str]:
    match value:
        case {"$ref": str(reference)}:
            return [reference]
        case dict():
            return [each for item in value.values() for each in references(item)]
        case list():
            return [each for item in value for each in references(item)]
        case _:
            return []


def test_every_server_says_how_it_is_reached_and_by_whom_and_every_reference_leads_somewhere() -> None:
    document = asyncapi()
    assert set(document["servers"]) == {"loopback", "network", "foreign"}
    for server in document["servers"].values():
        assert (server["protocol"], bool(server["security"])) == ("nats", True)
        assert {f"{{{name}}}" for name in server["variables"]} == set(re.findall(r"{\w+}", server["host"]))
    for reference in references(document):
        if reference.startswith("#/"):
            place: object = document
            for word in reference.removeprefix("#/").split("/"):
                assert isinstance(place, dict)
                place = place[word]


def test_a_channel_names_the_roles_that_the_broker_lets_speak_there() -> None:
    channels = asyncapi()["channels"]
    assert channels["members.desired.v1"]["x-publishers"] == ["master"]
    assert channels["host_join_asked.v1"] == channels["host_join_asked.v1"] | {
        "x-publishers": ["joiner"],
        "x-subscribers": ["brain", "operator", "observer", "web", "submitter", "viewer"],
    }
    assert channels["log_asked.v1"]["x-publishers"] == ["operator", "submitter", "viewer"]
    silent = [tag for tag, channel in channels.items() if tag != "replies" and not channel["x-publishers"]]
    assert silent == []


def test_yaml_keeps_what_it_is_given() -> None:
    assert list(to_yaml({"a": {"b.c": "x: y", "d": None}, "e": [1]})) == [
        "a:",
        '  "b.c": "x: y"',
        "  d: null",
        "e: [1]",
    ]


def only(kept: Any, had: Any) -> Any:
    """What was there before of a value: fields that are new since, at any depth, are left out."""
    if isinstance(had, dict) and isinstance(kept, dict):
        return {key: only(kept[key], value) for key, value in had.items() if key in kept}
    if isinstance(had, list) and isinstance(kept, list) and len(had) == len(kept):
        return [only(a, b) for a, b in zip(kept, had, strict=True)]
    return kept


RELEASES = sorted((Path(__file__).parents[2] / "upgrade").glob("*/events"))


def assert_read(written: bytes, tag: str) -> None:
    """It is read with every field that it had."""
    kept = json.loads(json.dumps(describe(msgspec.msgpack.encode(read(written, tag)))))
    had = json.loads(json.dumps(describe(written)))
    assert only(kept, had) == had
    assert msgpack.unpackb(written, strict_map_key=False)["type"] == tag


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What this release writes."""
    directory = tmp_path_factory.mktemp("corpus")
    write_corpus(directory)
    return directory


@pytest.mark.parametrize("tag", TYPES)
def test_what_this_release_writes_is_read_with_every_field(corpus: Path, tag: str) -> None:
    assert_read((corpus / f"{tag}.msgpack").read_bytes(), tag)


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.parent.name)
def test_what_a_release_wrote_is_still_read_with_every_field_it_had(release: Path) -> None:
    events = sorted(release.iterdir())
    assert len(events) > 100
    for each in events:
        assert_read(each.read_bytes(), each.name.removesuffix(".msgpack"))


def test_a_corpus_is_never_written_over(tmp_path: Path) -> None:
    first = next(iter(TYPES))
    (tmp_path / f"{first}.msgpack").write_bytes(b"as it was")
    write_corpus(tmp_path)
    assert (tmp_path / f"{first}.msgpack").read_bytes() == b"as it was"
    assert len(list(tmp_path.iterdir())) == len(TYPES)
