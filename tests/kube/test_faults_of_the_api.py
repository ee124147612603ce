"""What an API server does to an operator that scales a job: whatever it is, the job ends with exactly the planned members."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from api_proxy import ApiProxy, api_proxy
from kube_cluster import Cluster
from pod_faults import ends, job_to_scale, name_of, planned, running, scale, until_as_planned
from pod_stacks import PodStack, pod_stack
from small_job import SmallJob

from rover_bus.events.identity import IN_ORDER

SIZES = (4, 2)


@pytest.fixture
def proxy(cluster: Cluster, tmp_path: Path) -> Iterator[ApiProxy]:
    with api_proxy(cluster, tmp_path) as made:
        yield made


@pytest.fixture
def stack(proxy: ApiProxy, cluster: Cluster, node: str, namespace: str, tmp_path: Path) -> Iterator[PodStack]:
    """A stack whose operator asks through the proxy."""
    with pod_stack(replace(cluster, config=proxy.config), namespace, tmp_path) as made:
        yield made


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


def test_an_operator_that_is_killed_after_a_write(
    cluster: Cluster, namespace: str, proxy: ApiProxy, stack: PodStack, job: SmallJob
) -> None:
    """The first pod of a scale-out is made, and the operator never learns it."""
    job.submit()
    until_as_planned(cluster, namespace, job, workers=2, servers=1)
    killed = kill_after(proxy, stack, 1)
    scale(job, 3)
    until_as_planned(cluster, namespace, job, workers=3, servers=1)
    assert len(killed) == 1
    ends_once(cluster, namespace, job)


def kill_after(proxy: ApiProxy, stack: PodStack, count: int) -> list[int]:
    """Kill the operator once the server has done so many writes from here on; the returned list grows with each kill."""
    begun, killed = proxy.writes, list[int]()

    def look() -> None:
        if proxy.writes - begun == count:
            pid = stack.services["daemon"].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    proxy.after_write = look
    return killed


def ends_once(cluster: Cluster, namespace: str, job: SmallJob) -> None:
    """Each end is published once, all samples are applied once, and no pod is left."""
    members = [str(each) for each in ends(job)]
    assert len(members) == len(set(members))
    job.complete()
    job.until(lambda: not running(cluster, namespace), "no member's pod")
