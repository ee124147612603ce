"""What an API server does to an operator that scales a job: whatever it is, the job ends with exactly the planned members."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from api_proxy import ApiProxy
from kube_cluster import Cluster
from pod_faults import ends_once, job_to_scale, name_of, planned, scale, until_as_planned
from pod_stacks import PodStack
from small_job import SmallJob

from rover_bus.events.identity import IN_ORDER

SIZES = (4, 2)


@pytest.fixture
def stack(stack_by_proxy: PodStack) -> PodStack:
    return stack_by_proxy


@pytest.fixture
def job(stack: PodStack, tmp_path: Path) -> SmallJob:
    return job_to_scale(stack.home.root, tmp_path, rows=2_000)


def admitted(job: SmallJob) -> set[str]:
    return {name_of(each["member"]) for each in job.facts("member.admitted")}


def ends_as_planned(cluster: Cluster, namespace: str, job: SmallJob) -> None:
    """Each member left in order, all samples were applied once, and no pod is left."""
    odd = [each for each in job.facts("host.exited") if each["exit"]["reason"] not in IN_ORDER]
    assert not odd, json.dumps([(each["member"], each["exit"]) for each in odd])
    ends_once(cluster, namespace, job)


def test_watches_that_are_too_old(
    cluster: Cluster, namespace: str, proxy: ApiProxy, stack: PodStack, job: SmallJob
) -> None:
    """Each watch gets 410 once a second while members come and go: what it missed is found by the list after it."""
    job.submit()
    until_as_planned(cluster, namespace, job, workers=2, servers=1)
    for workers in SIZES:
        scale(job, workers)
        for _ in range(6):
            proxy.expire()
            time.sleep(1.0)
        until_as_planned(cluster, namespace, job, workers=workers, servers=1)
        job.until(
            lambda: planned(job) <= admitted(job), "all take part"
        )  # one that is turned away at its start fails
    ends_as_planned(cluster, namespace, job)


def test_an_api_server_that_says_too_many(
    cluster: Cluster, namespace: str, proxy: ApiProxy, stack: PodStack, job: SmallJob
) -> None:
    """Every third write is refused with 429: it comes again when the server has said, and nothing is done twice."""
    job.submit()
    until_as_planned(cluster, namespace, job, workers=2, servers=1)
    proxy.refuse_every = 3
    for workers in SIZES:
        scale(job, workers)
        until_as_planned(cluster, namespace, job, workers=workers, servers=1)
        job.until(
            lambda: planned(job) <= admitted(job), "all take part"
        )  # one that is turned away at its start fails
    assert proxy.refused >= len(SIZES)
    ends_as_planned(cluster, namespace, job)
