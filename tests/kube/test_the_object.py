"""What a real API server makes of a RoverJob: it takes every example, and refuses what no job can be, in words that help."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kube_cluster import Cluster

from rover_bus.kube.object import API_VERSION, KIND, manifest_of

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "jobs").glob("*.toml"))
SPEC: dict[str, Any] = {
    "program": ["python", "train.py"],
    "data": {"train": "/data/clicks.csv", "batch_size": 64},
    "workers": {"count": 2, "memory": "2Gi"},
    "checkpoint": {"storage": {"claim": "models"}, "every": "30s"},
}
Change = Callable[[dict[str, Any]], object]


def job(change: Change = id, name: str = "clicks") -> str:
    spec = copy.deepcopy(SPEC)
    change(spec)
    return json.dumps({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec})


def tried(cluster: Cluster, manifest: str) -> str:
    """What the API server says against it; "" where it takes it."""
    done = cluster.kubectl("apply", "--dry-run=server", "-f", "-", given=manifest)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_each_example_is_taken(installed: Cluster, file: Path) -> None:
    assert tried(installed, json.dumps(manifest_of(file))) == ""


REFUSED: dict[str, tuple[Change, str]] = {
    "a key that is none": (lambda s: s["data"].update(bach_size=3), 'unknown field "spec.data.bach_size"'),
    "no data": (lambda s: s.pop("data"), "spec.data: Required value"),
    "more workers than are allowed": (
        lambda s: s["workers"].update(count=9, max_count=8),
        "count is larger than max_count",
    ),
    "a least above the most": (
        lambda s: s.update(servers={"min_count": 9, "max_count": 8}),
        "min_count is larger than max_count",
    ),
    "a least of a fixed count": (
        lambda s: s["workers"].update(min_count=2),
        "count is the least already",
    ),
    "a grace of half a second": (
        lambda s: s["workers"].update(grace="500ms"),
        "must be from 1 to 3600 seconds",
    ),
    "a grace of a day": (lambda s: s["workers"].update(grace=86_400), "must be from 1 to 3600 seconds"),
    "a duration without a unit that is known": (
        lambda s: s["checkpoint"].update(every="3 parsecs"),
        "spec.checkpoint.every",
    ),
    "a size without a unit that is known": (
        lambda s: s["workers"].update(memory="much"),
        "spec.workers.memory",
    ),
    "a word that is no choice": (lambda s: s.update(on_server_lost="pray"), 'supported values: "fail"'),
    "parity and copies": (lambda s: s["checkpoint"].update(parity=1, copies=1), "choose one of them"),
    "two places for checkpoints": (
        lambda s: s["checkpoint"]["storage"].update(url="s3://models"),
        "name either a claim or a url",
    ),
    "a secret without an address": (
        lambda s: s["checkpoint"]["storage"].update(secret="keys"),
        "a secret belongs to a url",
    ),
    "an empty program": (lambda s: s.update(program=[]), "spec.program"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses(installed: Cluster, what: str) -> None:
    change, said = REFUSED[what]
    assert tried(installed, job()) == "", "without the change it is taken"
    assert said in tried(installed, job(change))


@pytest.mark.parametrize(
    ("name", "said"), [("clicks.v2", "holds no dot"), ("c" * 53, "at most 52 characters")]
)
def test_a_name_that_pods_cannot_bear_is_refused(installed: Cluster, name: str, said: str) -> None:
    assert said in tried(installed, job(name=name))


FIXED: dict[str, Change] = {
    "program": lambda s: s.update(program=["python", "other.py"]),
    "data.train": lambda s: s["data"].update(train="/data/others.csv"),
    "data.batch_size": lambda s: s["data"].pop("batch_size"),
    "data.epochs": lambda s: s["data"].update(epochs=3),
    "workers.training": lambda s: s["workers"].update(training="synchronous"),
    "checkpoint.storage": lambda s: s["checkpoint"].pop("storage"),
}
FREE: dict[str, Change] = {
    "suspend": lambda s: s.update(suspend=True),
    "workers.max_count": lambda s: s["workers"].update(max_count=8),
    "plan.mode": lambda s: s.update(plan={"mode": "approve"}),
    "checkpoint.every": lambda s: s["checkpoint"].update(every=60),
}


@pytest.fixture(scope="module")
def there(installed: Cluster) -> Cluster:
    done = installed.kubectl("apply", "-f", "-", given=job())
    assert done.returncode == 0, done.stderr
    return installed


@pytest.mark.parametrize("what", FIXED)
def test_what_checkpoints_were_trained_by_stays(there: Cluster, what: str) -> None:
    assert f"{what} cannot be changed" in tried(there, job(FIXED[what]))


@pytest.mark.parametrize("what", FREE)
def test_what_may_change_does(there: Cluster, what: str) -> None:
    assert tried(there, job(FREE[what])) == ""


def test_people_see_it_by_its_short_name_with_its_columns(there: Cluster) -> None:
    shown = there.kubectl("get", "rj")
    assert shown.stdout.split()[:7] == ["NAME", "WORKERS", "SERVERS", "EPOCH", "GOODPUT", "STATE", "AGE"]
    assert there.kubectl("explain", "rj.spec.workers.grace").stdout.count("killed after it") == 1
