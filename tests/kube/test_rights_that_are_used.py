"""What the chart grants its operator is what the operator uses, by the audit log of the API server: no more, and no less."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kube_chart import (
    Release,
    documents,
    example,
    kill,
    long_job,
    pods_of,
    remove_definition,
    rendered,
    values_here,
)
from kube_cluster import Cluster
from patience import until

from rover_bus.kube.plan_answers import answer_of

# Granted, and used where a fault is injected: the tests that do.
ELSEWHERE = {
    "patch pods/resize": "test_pods.py: cores and memory in place",
    "delete secrets": "test_operators_that_die.py: the Secret of a pod that a dead operator left",
    "get roverjobs": "test_objects.py: an object that was freed by force, or that another wrote to",
}


@pytest.fixture
def release(cluster: Cluster, node: str, namespace: str, tmp_path: Path) -> Iterator[Release]:
    made = Release(cluster, namespace, tmp_path)
    yield made
    made.uninstall()
    remove_definition(cluster)


def granted(cluster: Cluster, values: dict[str, Any], folder: Path) -> set[str]:
    """Return each verb that the roles of the operator's account grant, with its resource."""
    objects = documents(rendered(cluster, values, folder).stdout)
    bound = {
        each["roleRef"]["name"]
        for each in objects
        if each["kind"].endswith("RoleBinding")
        and any(subject["name"] == "rover-operator" for subject in each["subjects"])
    }
    rules = [
        rule
        for each in objects
        if each["kind"] in ("Role", "ClusterRole") and each["metadata"]["name"] in bound
        for rule in each["rules"]
    ]
    return {f"{verb} {what}" for rule in rules for what in rule["resources"] for verb in rule["verbs"]}


@pytest.mark.parametrize(
    "wide", [False, pytest.param(True, marks=pytest.mark.long)], ids=("default", "cluster-wide")
)
def test_each_right_is_used_and_none_is_missing(
    wide: bool, cluster: Cluster, release: Release, clicks: str, tmp_path: Path
) -> None:
    """A job trains to its end and is removed by its time to live; another loses a worker, is deleted, comes back, is answered."""
    values = values_here(clicks) | {"clusterWide": wide}
    done = release.install(values)
    assert done.returncode == 0, done.stderr + release.told()
    release.kubectl("apply", "-f", "-", given=example(clicks))
    release.kubectl("patch", "rj", "clicks", "--type=merge", "-p", '{"spec": {"ttlSecondsAfterFinished": 1}}')
    release.kubectl("apply", "-f", "-", given=long_job(clicks))
    until(lambda: workers_of(release, "long"), "a worker", 0.5)
    [worker] = workers_of(release, "long")
    kill(worker)
    again = "rover-bus.io/role=worker,rover-bus.io/job=long,rover-bus.io/incarnation=2"
    until(lambda: release.get("pods", "-l", again)["items"], "the next incarnation", 0.5)
    for _ in range(2):
        release.kubectl("delete", "rj", "long", "--timeout=120s")
        until(lambda: not release.get("pods", "-l", "rover-bus.io/role=ps")["items"], "no server", 0.5)
        release.kubectl("apply", "-f", "-", given=long_job(clicks))
        until(lambda: release.conditions("long").get("Running") == "True", "it runs", 0.5)
    answer = json.dumps(answer_of("long", 99, "Approve", whoami(release)))
    release.kubectl("create", "-f", "-", given=answer)
    until(
        lambda: [each.get("status") for each in release.get("plananswers")["items"]] not in ([], [None]),
        "what becomes of an answer",
        0.5,
    )
    release.kubectl("delete", "rj", "long", "--timeout=120s")
    until(
        lambda: not json.loads(release.kubectl("get", "rj", "-o", "json"))["items"],
        "the end of its time to live",
        0.5,
    )
    allowed = granted(cluster, values, tmp_path)

    def asked() -> list[tuple[str, int]]:
        return list(cluster.requests(f"{release.namespace}:rover-operator"))

    def unused() -> set[str]:
        return allowed - {what for what, _ in asked()} - ELSEWHERE.keys()

    until(lambda: not unused(), "the use of all that is granted", 1.0, lambda: str(unused()))
    assert [what for what, code in asked() if code == 403] == []
    assert ELSEWHERE.keys() <= allowed, "what is used elsewhere is still granted"


def whoami(release: Release) -> str:
    """Return the user's name as the API server has it."""
    return release.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")


def workers_of(release: Release, job: str) -> list[dict[str, Any]]:
    found = pods_of(release, "worker")
    return [each for each in found if each["metadata"]["labels"]["rover-bus.io/job"] == job]
