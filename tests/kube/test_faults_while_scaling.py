"""What a cluster does to a job while it is scaled: it ends with exactly the planned members."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kube_cluster import Cluster
from pod_faults import cause_of_end, ends, pod_of, running, until_as_planned
from pod_stacks import PodStack
from small_job import SmallJob

from rover_bus.kube.object import manifest_of


@pytest.fixture
def job(stack: PodStack, tmp_path: Path) -> SmallJob:
    return SmallJob(
        folder=tmp_path,
        home=stack.home.root,
        rows=4_000,
        epochs=1,
        workers=0,
        start=2,
        servers=1,
        checkpoint='path = "store"\nevery = "1h"',
        top='[plan]\nmode = "observe"',
    )


def scale(job: SmallJob, workers: int) -> None:
    done = job.rover("scale", job.name, "--workers", str(workers), "--no-wait")
    assert done.returncode == 0, done.stderr


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


def committed(job: SmallJob) -> int:
    """Return how many samples were trained at the last report."""
    return max((each["committed"] for each in job.facts("job.reported")), default=0)
