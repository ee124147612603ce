"""A job of pods that is of no use below a least of each role: it begins with what fits, all of that or nothing, and says so."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from kube_cluster import Cluster, kubelet
from pod_faults import name_of, running, until_as_planned
from pod_stacks import PodStack
from small_job import SmallJob

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.kube.object import manifest_of

EACH = 3.5  # cores of a member, of the 16 of a node


@pytest.fixture
def job(stack: PodStack, tmp_path: Path) -> SmallJob:
    return SmallJob(
        folder=tmp_path,
        home=stack.home.root,
        rows=2_000,
        epochs=1,
        workers=0,
        servers=1,
        cores=EACH,
        checkpoint='path = "store"\nevery = "1h"',
        top='[plan]\nmode = "observe"',
        worker_lines="min_count = 4",
    )


def hand_in(cluster: Cluster, namespace: str, job: SmallJob, start: int = 0) -> None:
    job.write()
    made = manifest_of(job.folder / "job.toml")
    made["spec"]["data"]["train"] = str(job.folder / made["spec"]["data"]["train"])
    made["spec"]["checkpoint"] = {"every": "1h"}
    if start:
        made["spec"]["workers"] |= {"start": start, "min_count": 2}
    applied = cluster.kubectl("-n", namespace, "apply", "-f", "-", given=json.dumps(made))
    assert applied.returncode == 0, applied.stderr


def condition(cluster: Cluster, namespace: str, job: SmallJob) -> dict[str, Any]:
    """Return whether the object says that its job runs, and why not."""
    shown = json.loads(cluster.kubectl("-n", namespace, "get", "rj", job.name, "-o", "json").stdout)
    said = {each["type"]: each for each in shown.get("status", {}).get("conditions", [])}
    found: dict[str, Any] = said.get("Running", {})
    return found


def test_a_job_waits_without_a_pod_and_starts_when_a_node_comes(
    installed: Cluster, namespace: str, job: SmallJob, tmp_path: Path
) -> None:
    """Four workers and a server of 3.5 cores each: one node has no room for them."""
    hand_in(installed, namespace, job)
    waits = "4 workers and 1 server need 17.5 cores"
    job.until(lambda: waits in condition(installed, namespace, job).get("message", ""), "what it waits for")
    assert condition(installed, namespace, job)["status"] == "False"
    assert job.facts("plan.withheld")[0]["constant"] == Reason.LARGER_THAN_CLUSTER
    assert waits in job.rover("explain", job.name).stdout
    assert waits in job.rover("jobs").stdout
    pods = installed.kubectl("-n", namespace, "get", "pods", "-l", "rover-bus.io/job", "-o", "name").stdout
    assert pods == "", "no member, and no master"
    assert job.facts("plan.proposed") == []
    with kubelet(installed, "node-2", tmp_path):
        until_as_planned(installed, namespace, job, workers=4, servers=1)
        job.until(lambda: condition(installed, namespace, job)["status"] == "True", "that it runs")
        job.complete()
        job.until(lambda: not running(installed, namespace), "no member's pod")
    installed.kubectl("delete", "node", "node-2", "--wait=false")


def test_a_job_begins_with_as_much_of_what_it_asks_for_as_fits(
    installed: Cluster, namespace: str, job: SmallJob
) -> None:
    hand_in(installed, namespace, job, start=6)
    until_as_planned(installed, namespace, job, workers=3, servers=1)
    job.complete()
    job.until(lambda: not running(installed, namespace), "no member's pod")


TAINT = "test/closed=yes:NoSchedule"


@pytest.mark.parametrize(
    "what", ["its taint goes", pytest.param("another node comes", marks=pytest.mark.long)]
)
def test_a_start_that_no_node_takes_is_withdrawn_whole_says_why_and_is_tried_again(
    installed: Cluster, namespace: str, job: SmallJob, tmp_path: Path, what: str
) -> None:
    """The Brain counts a node that was tainted since: on the other one there is room for four of the five members."""
    job.moves = 'start_patience = "10s"'
    second, third = tmp_path / "second", tmp_path / "third"
    second.mkdir()
    third.mkdir()
    with kubelet(installed, "node-2", second):
        job.until(
            lambda: "node-2" in job.rover("events", "-k", "host.registered").stdout, "the node as a host"
        )
        assert installed.kubectl("taint", "node", "node-2", TAINT).returncode == 0
        hand_in(installed, namespace, job)
        until_withdrawn(installed, namespace, job)
        comes: AbstractContextManager[object] = nullcontext()
        if what == "its taint goes":
            assert installed.kubectl("taint", "node", "node-2", f"{TAINT}-").returncode == 0
        else:
            comes = kubelet(installed, "node-3", third)
        with comes:
            until_as_planned(installed, namespace, job, workers=4, servers=1)
            job.until(lambda: condition(installed, namespace, job)["status"] == "True", "that it runs")
            job.complete()
            job.until(lambda: not running(installed, namespace), "no member's pod")
    installed.kubectl("delete", "node", "node-2", "node-3", "--ignore-not-found", "--wait=false")
    plans = [(each["workers"], each["servers"]) for each in job.facts("plan.applied")]
    assert set(plans[::2]) == {(4, 1)}
    assert set(plans[1::2]) == {(0, 0)}
    wanted = [{name_of(each["member"]) for each in said["members"]} for said in job.facts("members.desired")]
    withdrawn = wanted.index(set())
    former, later = set().union(*wanted[:withdrawn]), set().union(*wanted[withdrawn:])
    assert {each.partition(".")[0] for each in former} == {each.partition(".")[0] for each in later}
    assert not former & later, "no incarnation twice"


def until_withdrawn(cluster: Cluster, namespace: str, job: SmallJob) -> None:
    """Wait until the job holds no pod but its masters', and its object and commands say what it waits for."""

    def is_so() -> bool:
        shown = condition(cluster, namespace, job)
        says = "cannot start" in shown.get("message", "") and shown["reason"] == "NoRoom"
        return says and not running(cluster, namespace) and "Unschedulable" in job.rover("jobs").stdout

    job.until(is_so, "that it holds nothing")
    (said, *_) = job.facts("plan.withheld")
    assert said["constant"] == Reason.BELOW_LEAST
    assert "Unschedulable" in said["reason"]
    assert "taint" in said["reason"], "as the scheduler says it"
    job.until(lambda: "Unschedulable" in job.rover("explain", job.name).stdout, "it in what is explained")
