"""What a cluster does to a job while it is scaled: it ends with exactly the planned members."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kube_cluster import Cluster
from pod_faults import (
    cause_of_end,
    committed,
    ends,
    job_to_scale,
    pod_of,
    running,
    scale,
    story,
    until_as_planned,
)
from pod_stacks import PodStack
from small_job import SmallJob

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.kube.object import manifest_of


@pytest.fixture
def job(stack: PodStack, tmp_path: Path) -> SmallJob:
    return job_to_scale(stack.home.root, tmp_path, rows=4_000)


PROBING = '[plan]\nwindow = "2s"'


@pytest.mark.long
def test_an_api_server_that_is_killed_ten_times(cluster: Cluster, namespace: str, job: SmallJob) -> None:
    job.submit()
    until_as_planned(cluster, namespace, job, workers=2, servers=1)
    killed = threading.Thread(target=lambda: [cluster.fault("restart-api") for _ in range(10)])
    killed.start()
    sizes = (4, 2)
    for workers in sizes * 3:
        scale(job, workers)
        time.sleep(5.0)
    killed.join()
    until_as_planned(cluster, namespace, job, workers=sizes[-1], servers=1)
    for workers in sizes:  # on a slow machine no pod of the six plans ran before it was desired no more
        scale(job, workers)
        until_as_planned(cluster, namespace, job, workers=workers, servers=1)
    assert {each["exit"]["reason"] for each in job.facts("host.exited")} == {"drained"}
    job.complete()
    job.until(lambda: not running(cluster, namespace), "no member's pod")


def test_an_object_that_is_edited_during_a_scale_out(
    installed: Cluster, namespace: str, job: SmallJob, tmp_path: Path
) -> None:
    """What a running job does not take up is named by its object, and changes nothing of the plan that is carried out."""
    job.write()
    made = manifest_of(tmp_path / "job.toml")
    made["spec"]["data"]["train"] = str(tmp_path / made["spec"]["data"]["train"])
    made["spec"]["checkpoint"] = {"every": "1h"}
    applied = installed.kubectl("-n", namespace, "apply", "-f", "-", given=json.dumps(made))
    assert applied.returncode == 0, applied.stderr
    until_as_planned(installed, namespace, job, workers=2, servers=1)
    scale(job, 4)
    edit = '{"spec": {"workers": {"max_count": 3}}}'
    edited = installed.kubectl("-n", namespace, "patch", "rj", job.name, "--type=merge", "-p", edit)
    assert edited.returncode == 0, edited.stderr
    until_as_planned(installed, namespace, job, workers=4, servers=1)
    path = "jsonpath={.status.conditions[?(@.type=='Accepted')].message}"
    job.until(
        lambda: "workers" in installed.kubectl("-n", namespace, "get", "rj", job.name, "-o", path).stdout,
        "what was edited",
    )
    assert ends(job) == []
    job.complete()
    job.until(lambda: not running(installed, namespace), "no member's pod")


ALONE = {
    "requiredDuringSchedulingIgnoredDuringExecution": [
        {
            "labelSelector": {"matchLabels": {"rover-bus.io/role": "worker"}},
            "topologyKey": "kubernetes.io/hostname",
        }
    ]
}


def begin_alone(
    cluster: Cluster, namespace: str, job: SmallJob, annotations: dict[str, str] | None = None
) -> None:
    """Apply its object, whose workers take each a node of its own, which only the scheduler knows; see its one worker run."""
    job.write()
    made = manifest_of(job.folder / "job.toml")
    made["spec"]["data"]["train"] = str(job.folder / made["spec"]["data"]["train"])
    made["spec"]["checkpoint"] = {"every": "1h"}
    about = {"annotations": annotations or {}}
    made["spec"]["templates"] = {
        "worker": {"metadata": about, "spec": {"affinity": {"podAntiAffinity": ALONE}}}
    }
    applied = cluster.kubectl("-n", namespace, "apply", "-f", "-", given=json.dumps(made))
    assert applied.returncode == 0, applied.stderr
    until_as_planned(cluster, namespace, job, workers=1, servers=1)


def is_rolled_back(
    cluster: Cluster, namespace: str, job: SmallJob, reason: str = "Unschedulable", why: str = "anti-affinity"
) -> None:
    """The plan is taken back for what the cluster says, its members are those of before, and no budget paid for it."""
    job.until(lambda: job.facts("plan.rolled_back"), "a plan that is rolled back")
    said = job.facts("plan.rolled_back")[0]
    assert said["constant"] == Reason.NEVER_LIVE
    until_as_planned(cluster, namespace, job, workers=1, servers=1)
    waited = story(job, "worker-1.1")
    assert [each["type"] for each in waited][:2] == ["members.desired.v1", "host.member_stalled.v1"]
    assert waited[1]["reason"] == reason
    assert why in waited[1]["why"]
    shown = json.loads(cluster.kubectl("-n", namespace, "get", "events", "-o", "json").stdout)["items"]
    (event,) = [each for each in shown if each["reason"] == "MemberStalled"][:1]
    assert waited[1]["why"] in event["message"]
    back = next(each for each in job.facts("plan.proposed") if each["plan"] == said["by_plan"])
    assert waited[1]["why"] in back["reason"]
    assert job.facts("member.lost") == []
    assert {each["incarnation"] for each in ends(job)} == {1}
    assert {each["exit"]["reason"] for each in job.facts("host.exited")} == {"drained"}


def test_a_plan_of_a_person_that_no_node_has_room_for(
    installed: Cluster, namespace: str, job: SmallJob
) -> None:
    alone = replace(job, start=1, moves='start_patience = "6s"')
    begin_alone(installed, namespace, alone)
    scale(alone, 3)
    is_rolled_back(installed, namespace, alone)
    alone.complete()
    alone.until(lambda: not running(installed, namespace), "no member's pod")


def test_a_plan_of_the_brain_that_no_node_has_room_for(
    installed: Cluster, namespace: str, job: SmallJob
) -> None:
    """It trains for longer than a test waits: the Brain has no models of a job whose only batch left waits for its gate."""
    moves = 'start_patience = "6s"'
    own = replace(job, epochs=8, pace_s=0.3, start=1, most=2, most_servers=1, moves=moves, top=PROBING)
    begin_alone(installed, namespace, own)
    is_rolled_back(installed, namespace, own)
    own.complete()
    own.until(lambda: not running(installed, namespace), "no member's pod")


def test_a_plan_whose_image_is_missing(installed: Cluster, namespace: str, job: SmallJob) -> None:
    """On the node that a new worker goes to: its pod waits there, and no other follows it."""
    assert installed.script is not None
    alone = replace(job, start=1, moves='start_patience = "6s"')
    begin_alone(installed, namespace, alone, {"test/outcome": "ImagePullBackOff"})
    made = installed.kubectl("apply", "-f", str(installed.script.with_name("node.yaml")))
    assert made.returncode == 0, made.stderr
    scale(alone, 2)
    is_rolled_back(installed, namespace, alone, "ImagePullBackOff", "no such image")
    alone.complete()
    alone.until(lambda: not running(installed, namespace), "no member's pod")
    installed.kubectl("delete", "node", "fake-1", "--wait=false")


def test_a_start_of_which_nodes_take_a_part(installed: Cluster, namespace: str, job: SmallJob) -> None:
    """One of three workers, which is enough for the job: it begins with that, and asks for no more than there is."""
    whole = replace(job, start=3, moves='start_patience = "6s"')
    begin_alone(installed, namespace, whole)
    whole.until(lambda: whole.facts("plan.settled"), "a plan that is live")
    (said,) = whole.facts("plan.rolled_back")
    assert (said["plan"], said["constant"]) == (1, Reason.NEVER_LIVE)
    back = next(each for each in whole.facts("plan.proposed") if each["plan"] == said["by_plan"])
    assert "2 workers of plan 1 cannot start" in back["reason"]
    assert "anti-affinity" in back["reason"]
    assert whole.facts("member.lost") == []
    until_as_planned(installed, namespace, whole, workers=1, servers=1)
    whole.complete()
    whole.until(lambda: not running(installed, namespace), "no member's pod")


@pytest.mark.long
def test_an_operator_that_is_dead_for_a_minute(
    cluster: Cluster, namespace: str, stack: PodStack, job: SmallJob
) -> None:
    """Its Lease expires and none takes over. Members train on, and what was lost meanwhile is replaced once it is back."""
    slow = replace(job, pace_s=1.0)
    slow.submit()
    until_as_planned(cluster, namespace, slow, workers=2, servers=1)
    before = running(cluster, namespace)
    with stack.no_operator():
        first = committed(slow)
        time.sleep(50.0)
        assert committed(slow) > first, "training goes on"
        assert running(cluster, namespace) == before
        gone = pod_of(cluster, namespace, "worker")
        assert cluster.kubectl("-n", namespace, "delete", "pod", gone, "--wait=false").returncode == 0
        time.sleep(10.0)
    slow.until(lambda: ends(slow), "an end")
    until_as_planned(cluster, namespace, slow, workers=2, servers=1)
    (ended,) = ends(slow)
    assert cause_of_end(slow, ended)["reason"] == "killed"
    slow.complete()
    slow.until(lambda: not running(cluster, namespace), "no member's pod")
