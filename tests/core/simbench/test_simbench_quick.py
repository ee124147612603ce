"""Starts that cost little, in the simulator: a row against itself, with spares and with first servers."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest

from bench.simulation import quick_starts, worlds
from bench.simulation.cluster import Cluster
from bench.simulation.generator import Workload, generate
from bench.simulation.jobs import Job
from bench.simulation.policies.equipped import Equipped
from bench.simulation.policies.static import TunedStatic
from bench.simulation.port import Setting, Size
from bench.simulation.quick_starts import SPARES, WARM_S, QuickRuntime
from bench.simulation.weather import CALM

SETTING = Setting(worlds.W1.menu, 3)
EQUIPPED = partial(Equipped, rival=TunedStatic)


@pytest.fixture(scope="module")
def workload() -> Workload:
    return generate(worlds.W1(), 3, jobs=4)


def placed(workload: Workload, servers: int) -> tuple[QuickRuntime, Job]:
    """A job with so many servers that has been given its room."""
    cluster = Cluster(workload, EQUIPPED(SETTING), CALM)
    runtime = QuickRuntime(cluster.policy.mechanisms, cluster.machines, CALM, spares=True, first=True)
    job = next(job for job in cluster.jobs.values() if job.case.mode == "async")
    size = Size(2, servers, 1.0, 1.0, 1.0, job.case.server_need_gib(1))
    assert cluster.machines.start(job.case.name, size)
    runtime.start(job, size)
    return runtime, job


def test_a_job_begins_with_its_first_server_and_the_others_join_when_they_are_ready(
    workload: Workload,
) -> None:
    _, job = placed(workload, 6)
    assert job.live is not None
    assert job.live.servers < 6
    times, sizes = zip(*job.joins, strict=True)
    assert list(times) == sorted(times)
    assert job.until <= times[0]
    counts = [job.live.servers, *(size.servers for size in sizes)]
    assert (counts, counts[-1]) == (sorted(counts), 6)
    assert sizes[-1].workers == 2


def test_a_job_whose_tables_do_not_fit_one_server_waits_for_as_many_as_they_need(workload: Workload) -> None:
    jobs = Cluster(workload, EQUIPPED(SETTING), CALM).jobs.values()
    job = max(jobs, key=lambda each: each.case.server_need_gib(1, 1.0))
    job.done = float(job.case.samples)
    limits = {count: job.case.server_need_gib(count, job.share) for count in (1, 3, 6)}
    assert len(set(limits.values())) == 3
    for count, limit in limits.items():
        assert quick_starts._needed(job, Size(2, 6, 1.0, 1.0, 1.0, limit)) == count


def test_added_workers_are_what_spares_become_where_the_job_has_workers(workload: Workload) -> None:
    runtime, job = placed(workload, 1)
    runtime._crew(job, 2)
    hosts = len(Counter(job.on))
    assert runtime._take(job, 99) == SPARES * hosts
    assert runtime._take(job, 1) == 0, "others are being made ready"
    runtime.now += 1e4
    runtime.warm = runtime._take(job, 1)
    starts = runtime.weather.start_s(np.random.default_rng(1), 3)
    assert starts[0] == WARM_S
    assert list(starts[1:]) == list(CALM.start_s(np.random.default_rng(1), 3)[1:]), "as much chance is drawn"
