"""A RoverJob: the words that both sides of the API use, and the job that an object means.

Fed by manifests and by what the API server returns; feeds the operator and `rover kube render`. The keys are the job file's
(client/job_file.py converts them); what differs is here: an object has a name and an image a directory, so that neither is a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from rover_bus.client.job_file import TABLES, keys_of, read_table, to_job
from rover_bus.client.programs import BUILT_IN
from rover_bus.events.job import JobSpec
from rover_bus.events.units import parse_bytes, parse_seconds
from rover_bus.events.written_settings import NOTHING_CHOSEN, Chosen
from rover_bus.kube.structural import SIZE

GROUP, VERSION, KIND, PLURAL, SHORT = "rover-bus.io", "v1alpha1", "RoverJob", "roverjobs", "rj"
API_VERSION = f"{GROUP}/{VERSION}"
ROLES = ("master", "worker", "server")
CONDITIONS = ("Accepted", "Running", "Degraded", "Suspended", "Complete", "Failed")

# Keys of the job file that an object has no place for, by table: what names them instead.
NOT_KEYS: Mapping[str, frozenset[str]] = {
    "": frozenset({"name"}),  # metadata.name
    "plan": frozenset({"tenant"}),  # the namespace's
    "checkpoint": frozenset({"path"}),  # checkpoint.storage
}
OF_KUBERNETES = frozenset(
    {"suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "priorityClassName", "templates"}
)
STORAGE_MOUNT = "/var/lib/rover/checkpoints"  # where a claim is mounted in each pod that needs it


def job_of(manifest: Mapping[str, Any], stack: Chosen = NOTHING_CHOSEN) -> JobSpec:
    """Return the job that an object means. `stack`: what was set where it will run, for what the object leaves out.

    Raises InputError in the words of the object.
    """
    name = str(manifest.get("metadata", {}).get("name", ""))
    spec = {key: value for key, value in manifest["spec"].items() if key not in OF_KUBERNETES}
    program = spec.get("program")
    if isinstance(program, list) and len(program) == 1:
        spec["program"] = _one_word(program[0])
    if isinstance(checkpoint := spec.get("checkpoint"), dict):
        spec["checkpoint"] = _with_path(checkpoint)
    return to_job(spec, name, f"{KIND} {name}", stack)


def _one_word(word: str) -> str | list[str]:
    """A program of one word is a built-in one where there is such a one."""
    return word if word in BUILT_IN else [word]


def _with_path(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    storage = checkpoint.get("storage") or {}
    path = storage.get("url") or (STORAGE_MOUNT if storage.get("claim") else "")
    return {
        **{key: value for key, value in checkpoint.items() if key != "storage"},
        **({"path": path} if path else {}),
    }


def manifest_of(path: str | Path, name: str = "") -> dict[str, Any]:
    """Return the object that a job file means. Raises InputError for a file that no job, or no object, can be made of.

    Paths stay as the file says them: on Kubernetes they are the image's or a volume's.
    """
    path = Path(path)
    table = read_table(path)
    job = to_job(table, name or str(table.get("name") or path.stem), path.name)
    spec = _written(table, JobSpec, "")
    program = spec.get("program", "dlrm")
    spec["program"] = [program] if isinstance(program, str) else program
    if (where := table.get("checkpoint", {}).get("path")) is not None:
        spec["checkpoint"]["storage"] = (
            {"url": where} if "://" in where else {"claim": f"{job.name}-checkpoints"}
        )
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": job.name}, "spec": spec}


def _written(table: Mapping[str, Any], cls: type[Struct], place: str) -> dict[str, Any]:
    """Return a table without what an object has no place for, its units in the one spelling that the API server reads."""
    made: dict[str, Any] = {}
    fields = keys_of(cls)
    for key, value in table.items():
        if key in NOT_KEYS.get(place, frozenset()):
            continue
        field = fields[key]
        if not place and field in TABLES:
            value = _written(value, TABLES[field], key)
        elif field.endswith("_s"):
            seconds = parse_seconds(value, key)
            value = int(seconds) if seconds.is_integer() else f"{seconds:.9g}s"
        elif field.endswith("_bytes") and not (isinstance(value, str) and SIZE.fullmatch(value)):
            value = parse_bytes(value, key)
        made[key] = value
    return made


def changed_keys(handed: JobSpec, wanted: JobSpec) -> tuple[str, ...]:
    """Return the keys of the job file in which two specs differ, `workers.max_count` for example."""
    found: list[str] = []
    for key, name in keys_of(JobSpec).items():
        here, there = getattr(handed, name), getattr(wanted, name)
        if here == there or key in NOT_KEYS[""]:
            continue
        if key in TABLES and here is not None and there is not None:
            left_out = NOT_KEYS.get(key, frozenset()) - {"path"}
            inner = keys_of(TABLES[key]).items()
            found += [
                f"{key}.{each}"
                for each, field_ in inner
                if each not in left_out and getattr(here, field_) != getattr(there, field_)
            ]
        else:
            found.append(key)
    return tuple(found)
