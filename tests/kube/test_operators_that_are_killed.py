"""An operator is killed while a whole job is scaled: it ends with exactly the planned members, each sample trained once."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from api_proxy import ApiProxy
from kube_cluster import Cluster
from patience import PATIENCE_S
from pod_faults import (
    committed,
    ends_once,
    job_to_scale,
    kill_after,
    running,
    scale,
    until_as_planned,
    until_quiet,
)
from pod_stacks import PodStack
from small_job import SmallJob

FEW, MORE = 2, 3


@pytest.fixture
def stack(stack_by_proxy: PodStack) -> PodStack:
    return stack_by_proxy


@pytest.fixture
def job(stack: PodStack, tmp_path: Path) -> SmallJob:
    return job_to_scale(stack.home.root, tmp_path, rows=2_000)


def begin(cluster: Cluster, namespace: str, job: SmallJob, workers: int) -> None:
    replace(job, start=workers).submit()
    until_as_planned(cluster, namespace, job, workers=workers, servers=1)


@pytest.mark.parametrize(("before", "after"), [(FEW, MORE), (MORE, FEW)], ids=["scale-out", "scale-in"])
def test_an_operator_that_is_killed_after_the_first_write_of_a(
    before: int,
    after: int,
    cluster: Cluster,
    namespace: str,
    proxy: ApiProxy,
    stack: PodStack,
    job: SmallJob,
) -> None:
    """Of a pod that is made, or asked to leave, and the operator never learns it."""
    begin(cluster, namespace, job, before)
    until_quiet(proxy)
    killed = kill_after(proxy, stack, 1)
    scale(job, after)
    until_as_planned(cluster, namespace, job, workers=after, servers=1)
    assert len(killed) == 1
    ends_once(cluster, namespace, job)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_an_operator_that_is_killed_after_each_write_in_turn(
    cluster: Cluster, namespace: str, proxy: ApiProxy, stack: PodStack, job: SmallJob
) -> None:
    """Of a scale-out and of a scale-in, until each has been carried out without a kill: it has no further write."""
    begin(cluster, namespace, job, FEW)
    kills, left = {MORE: 0, FEW: 0}, {MORE, FEW}
    for writes in count(1):
        for workers in (MORE, FEW):
            until_quiet(proxy)
            killed = kill_after(proxy, stack, writes) if workers in left else []
            scale(job, workers)
            until_as_planned(cluster, namespace, job, workers=workers, servers=1)
            until_quiet(proxy)
            proxy.after_write = lambda: None
            kills[workers] += len(killed)
            left -= {workers} if not killed else set()
        if not left:
            break
    assert kills[MORE] >= 3, "a pod, its credential, its gate"
    assert kills[FEW] >= 4, "asked, deleted, its end written down, let go"
    until_as_planned(cluster, namespace, job, workers=FEW, servers=1)
    ends_once(cluster, namespace, job)


@pytest.mark.parametrize("writes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_lead_that_goes_over_during_a_scale_out(
    writes: int, cluster: Cluster, namespace: str, proxy: ApiProxy, stack: PodStack, job: SmallJob
) -> None:
    """The leader is killed and stays dead: the operator that stands by takes the Lease, and carries the plan out."""
    begin(cluster, namespace, job, FEW)
    until_quiet(proxy)
    with stack.second_operator() as second, stack.no_restart():
        killed = kill_after(proxy, stack, writes)
        scale(job, MORE)
        until_as_planned(cluster, namespace, job, workers=MORE, servers=1)
        assert len(killed) == 1
        assert stack.services["daemon"].pid is None
        assert second.pid is not None
        scale(job, FEW)
        until_as_planned(cluster, namespace, job, workers=FEW, servers=1)
        ends_once(cluster, namespace, job)


@pytest.mark.parametrize(
    "seconds", [5.0, pytest.param(60.0, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_both_operators_are_dead_for(
    seconds: float, cluster: Cluster, namespace: str, stack: PodStack, job: SmallJob
) -> None:
    """Training goes on, and what is planned meanwhile is carried out once they are back."""
    slow = replace(job, pace_s=1.0)
    begin(cluster, namespace, slow, FEW)
    with stack.second_operator() as second:
        with stack.no_operator():
            second.kill()
            second.stop(PATIENCE_S)
            first, before = committed(slow), running(cluster, namespace)
            time.sleep(seconds)
            slow.until(lambda: committed(slow) > first, "training goes on")
            scale(slow, MORE)
            assert running(cluster, namespace) == before
        second.start()
        until_as_planned(cluster, namespace, slow, workers=MORE, servers=1)
        scale(slow, FEW)
        until_as_planned(cluster, namespace, slow, workers=FEW, servers=1)
        ends_once(cluster, namespace, slow)
