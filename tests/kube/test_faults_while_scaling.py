"""What a cluster does to a job while it is scaled: it ends with exactly the planned members, and says why where a plan failed."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from kube_cluster import Cluster
from pod_faults import running, until_as_planned
from pod_stacks import PodStack
from small_job import SmallJob


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
