"""A RoverJob is a job file in another dress: the same keys, the same bounds, the same job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from rover_bus.client.job_file import TABLES, keys_of, read_job
from rover_bus.events.errors import InputError
from rover_bus.events.job import JobSpec
from rover_bus.kube.crd import resource_definition, spec_schema
from rover_bus.kube.object import NOT_KEYS, STORAGE_MOUNT, job_of, manifest_of
from rover_bus.kube.structural import of_struct

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "jobs").glob("*.toml"))
ONLY_HERE = {
    "": {"suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "priorityClassName", "templates"},
    "checkpoint": {"storage"},
}


def of_file(text: str, folder: Path) -> dict[str, Any]:
    file = folder / "clicks.toml"
    file.write_text(text)
    return manifest_of(file)


@pytest.mark.parametrize("table", ["", *TABLES])
def test_the_keys_are_those_of_the_job_file_and_what_only_kubernetes_has(table: str) -> None:
    schema = spec_schema()["properties"][table] if table else spec_schema()
    keys = set(keys_of(TABLES[table] if table else JobSpec)) - NOT_KEYS.get(table, frozenset())
    assert set(schema["properties"]) == keys | ONLY_HERE.get(table, set())


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_a_job_file_and_its_object_are_the_same_job(file: Path) -> None:
    here = read_job(file)
    made = job_of(manifest_of(file))
    placed = here.data.replace(
        train=Path(here.data.train).name, evaluate=here.data.evaluate and Path(here.data.evaluate).name
    )
    stored = here.checkpoint and here.checkpoint.path and here.checkpoint.replace(path=STORAGE_MOUNT)
    assert made == here.replace(directory="", data=placed, checkpoint=stored or here.checkpoint)


def test_units_are_written_as_the_api_server_reads_them(tmp_path: Path) -> None:
    spec = of_file(
        """
        [data]
        train = "t.csv"
        read_latency = 0.25
        [workers]
        memory = "1.5 gib"
        grace = "2 min"
        [servers]
        memory = "2Gi"
        """,
        tmp_path,
    )["spec"]
    assert spec["data"]["read_latency"] == "0.25s"
    assert spec["workers"] == {"memory": 3 << 29, "grace": 120}
    assert spec["servers"]["memory"] == "2Gi"
    assert job_of({"metadata": {"name": "clicks"}, "spec": spec}).servers.memory_bytes == 2 << 30


def test_checkpoints_go_to_a_claim_or_an_object_store(tmp_path: Path) -> None:
    local = of_file('[data]\ntrain = "t.csv"\n[checkpoint]\npath = "store"\n', tmp_path)
    assert local["spec"]["checkpoint"] == {"storage": {"claim": "clicks-checkpoints"}}
    kept = job_of(local).checkpoint
    assert kept
    assert kept.path == STORAGE_MOUNT
    remote = of_file('[data]\ntrain = "t.csv"\n[checkpoint]\npath = "s3://models/clicks"\n', tmp_path)
    assert remote["spec"]["checkpoint"] == {"storage": {"url": "s3://models/clicks"}}
    kept = job_of(remote).checkpoint
    assert kept
    assert kept.path == "s3://models/clicks"


def test_an_object_that_means_no_job_is_refused_by_its_own_name() -> None:
    with pytest.raises(InputError, match=r"RoverJob clicks: no key 'data.trian'; did you mean 'train'"):
        job_of({"metadata": {"name": "clicks"}, "spec": {"data": {"trian": "t.csv"}}})


def test_a_type_without_a_form_in_the_schema_is_an_error_not_a_gap() -> None:
    class Odd(msgspec.Struct):
        both: int | str = 0

    with pytest.raises(TypeError, match="has no form"):
        of_struct(Odd)


def test_the_definition_sets_no_default() -> None:
    """What is left out is the stack's to say: its settings stand between the job and our defaults."""

    def defaults(schema: Any) -> bool:
        if isinstance(schema, dict):
            return "default" in schema or any(map(defaults, schema.values()))
        return isinstance(schema, list) and any(map(defaults, schema))

    version = resource_definition()["spec"]["versions"][0]
    assert not defaults(version["schema"])
