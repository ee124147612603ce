"""The rivals are as strong as they can be made: what Optimus learns and mends, and what a rival gets with our mechanisms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from bench.simulation import worlds
from bench.simulation.cluster import Cluster
from bench.simulation.generator import Workload, generate, reference_plan
from bench.simulation.policies.elastic import ElasticScheduler
from bench.simulation.policies.equipped import Equipped
from bench.simulation.policies.optimus import Optimus
from bench.simulation.policies.static import TunedStatic
from bench.simulation.port import Case, ClusterView, JobView, Setting, Size, Wanted, Window
from bench.simulation.weather import CALM, Weather

SETTING = Setting(worlds.W1.menu, 3)


@pytest.fixture(scope="module")
def workload() -> Workload:
    return generate(worlds.W1(), 3, jobs=8)


@pytest.fixture(scope="module")
def case(workload: Workload) -> Case:
    return max((c for c in workload.cases if c.mode == "async"), key=lambda c: c.max_workers)


def view(case: Case, held: Size | None, done: float = 0.0) -> JobView:
    return JobView(case, "running" if held else "waiting", held, held, done, False, 0.0)


def cluster(*jobs: JobView) -> ClusterView:
    return ClusterView(list(jobs), 1e4, 1e5, 1e4, 1e5, 256.0)


def window(case: Case, size: Size, share: float = 1.0, slow: int | None = None, busy: float = 0.3) -> Window:
    """What telemetry says of a job at a size that runs at this share of its true speed."""
    speed = share * float(case.throughput(np.array([size[:4]]))[0])
    rates = np.full(size.workers, speed / size.workers)
    if slow is not None:
        rates[slow] *= 0.4
    servers = np.full(size.servers, 0.3)
    servers[0] = busy
    return Window(case.name, 1000.0, size, speed, rates, servers, 1.0, 1.0, 0.1 * case.samples, True)


def started(case: Case) -> tuple[Optimus, Size]:
    """Optimus with one job that runs at the size that it gave."""
    optimus = Optimus(SETTING, tuned=True)
    assert optimus.plan(cluster(view(case, None)), 0.0, False) == [], "its pre-runs take five minutes"
    ((name, size),) = optimus.plan(cluster(view(case, None)), 300.0, True)
    assert name == case.name
    optimus.plan(cluster(view(case, size)), 600.0, True)
    return optimus, size


def test_optimus_fits_its_curve_anew_to_what_it_measures_while_a_job_runs(case: Case) -> None:
    optimus, size = started(case)
    before = optimus.curves[case.name](size.workers, size.servers)
    for _ in range(10):
        optimus.observe([window(case, size, share=0.25)])
    optimus.plan(cluster(view(case, size)), 1200.0, True)
    assert optimus.curves[case.name](size.workers, size.servers) < 0.8 * before


def test_optimus_starts_a_family_that_it_knows_without_pre_runs(case: Case) -> None:
    optimus, size = started(case)
    optimus.ended(view(case, size), 5000.0, True)
    again = replace(case, name="again")
    assert [name for name, _ in optimus.plan(cluster(view(again, None)), 5000.0, False)] == ["again"]


def test_optimus_replaces_a_worker_below_half_the_median_and_no_other(case: Case) -> None:
    optimus, size = started(case)
    assert size.workers > 2
    assert optimus.observe([window(case, size)]) == []
    found = optimus.observe([window(case, size, slow=1)])
    assert [(remedy.kind, remedy.member) for remedy in found] == [("replace_worker", 1)]


def test_optimus_balances_a_hot_server_where_that_saves_more_than_a_restart(case: Case) -> None:
    optimus, size = started(case)
    hot = window(case, size, share=0.3, busy=0.97)
    assert [remedy.kind for remedy in optimus.observe([hot])] == ["move_slots"]
    nearly_over = replace(hot, samples=case.samples * (1 - 1e-6))
    assert optimus.observe([nearly_over]) == []


def test_a_restart_balances_the_servers_of_a_policy_that_assigns_parameters_anew(
    workload: Workload, case: Case
) -> None:
    alone = replace(workload, cases=(case,))
    for make, still_hot in ((Optimus, False), (TunedStatic, True)):
        engine = Cluster(alone, make(SETTING), CALM)
        job, runtime = engine.jobs[case.name], engine.runtime
        runtime.apply(job, Wanted(case.name, workload.references[case.name]))
        job.hot, job.hot_until = 0.5, 1e9
        runtime.restart(job, workload.references[case.name])
        assert (job.hot < 1.0) is still_hot


@pytest.mark.parametrize("within", [0.9, 0.8, 0.7])
def test_well_tuned_static_holds_the_cheapest_plan_at_its_share_of_the_best(
    case: Case, within: float
) -> None:
    size = TunedStatic(SETTING, within).size(view(case, None))
    best = float(case.throughput(worlds.W1.menu.grid(case.max_workers, case.max_servers)).max())
    assert float(case.throughput(np.array([size[:4]]))[0]) >= within * best
    assert size.cores <= reference_plan(case, worlds.W1.menu)[0].cores


def test_a_rival_with_our_mechanisms_keeps_its_sizes_and_loses_only_the_lost_member(
    workload: Workload, case: Case
) -> None:
    stormy = Weather(failure=2e-5, straggler=0.0, hot_server=0.0)
    alone = replace(workload, cases=(case,))
    plain = Cluster(alone, TunedStatic(SETTING), stormy).run()
    equipped = Cluster(alone, Equipped(SETTING, TunedStatic), stormy).run()
    ours, theirs = equipped.jobs[case.name], plain.jobs[case.name]
    assert theirs.failures > 0
    assert ours.failures > 0
    assert ours.rescales == 0
    assert ours.budget.size_s == pytest.approx(0.0, abs=1e-6), "its size is the rival's"
    assert ours.budget.failure_s / ours.failures < 0.5 * theirs.budget.failure_s / theirs.failures


def test_a_rival_with_our_mechanisms_keeps_the_time_of_its_own_rounds(case: Case) -> None:
    policy = Equipped(SETTING, partial(Optimus, tuned=True, elastic=True))
    assert policy.name == "Optimus, tuned containers, our mechanisms"
    asked = list[tuple[float, bool]]()
    plan = policy.rival.plan

    def watched(now: ClusterView, now_s: float, regular: bool) -> Sequence[tuple[str, Size] | Wanted]:
        asked.append((now_s, regular))
        return plan(now, now_s, regular)

    policy.rival.plan = watched  # type: ignore[method-assign, assignment]
    for minute in range(1, 21):
        policy.plan(cluster(view(case, None)), 60.0 * minute, True)
    assert [now_s for now_s, regular in asked if regular] == [60.0, 660.0]


@pytest.mark.parametrize("make", [partial(Optimus, tuned=True), ElasticScheduler])
def test_a_rival_asks_for_less_where_no_node_had_room_for_what_it_asked(
    case: Case, make: partial[Optimus] | type[ElasticScheduler]
) -> None:
    policy = make(SETTING)
    policy.plan(cluster(view(case, None)), 0.0, False)  # pre-runs begin, and a start is asked for
    counts = [
        dict(policy.plan(cluster(view(case, None)), 600.0 * i, True))[case.name].workers for i in range(1, 7)
    ]
    assert counts[0] > counts[1] >= 1
    assert counts[-1] == 1
