"""Whole runs of the simulator: its accounts close, its worlds are blind to the Brain, and what must hold of every policy holds."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from bench.simulation import worlds
from bench.simulation.cluster import Cluster
from bench.simulation.example_world import Rough
from bench.simulation.experiment import POLICIES, change_of, load_class, load_world, run_cell
from bench.simulation.gate import GateClosed, check_gate
from bench.simulation.generator import Workload, generate
from bench.simulation.metrics import Result
from bench.simulation.policies.on_the_bus import OnTheBus
from bench.simulation.policies.oracle import clairvoyant_bound
from bench.simulation.port import Kill, Setting, Truth, Window
from bench.simulation.warm import measure_warm_starts, recurring, until
from bench.simulation.weather import CALM, Weather

SEED = 3


@pytest.fixture(scope="module")
def workload() -> Workload:
    print("seed", SEED)
    return generate(worlds.W1(), SEED, jobs=6)


@pytest.mark.parametrize(
    "module", ["worlds.py", "world.py", "memory_laws.py", "weather.py", "port.py", "generator.py"]
)
def test_the_truth_knows_nothing_of_the_brain(module: str) -> None:
    tree = ast.parse((Path(worlds.__file__).parent / module).read_text())
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not [name for name in names if name.startswith("rover_bus")]


class Ran(NamedTuple):
    """A run of the workload under one policy, lived once for all that look at it."""

    result: Result
    least_free: float  # cores or GiB on the fullest node, in the fullest moment


@pytest.fixture(scope="module")
def ran(workload: Workload) -> Callable[[str], Ran]:
    """Live the workload under a policy of this name, once."""

    @cache
    def live(name: str) -> Ran:
        cluster = Cluster(workload, load_class(name)(Setting(worlds.W1.menu, SEED)))
        least, tick = list[float](), cluster._tick

        def watched() -> None:
            tick()
            least.append(min(float(cluster.machines.cores.min()), float(cluster.machines.gib.min())))

        cluster._tick = watched  # type: ignore[method-assign]
        return Ran(cluster.run(), min(least))

    return live


def test_the_same_seed_gives_the_same_run(workload: Workload, ran: Callable[[str], Ran]) -> None:
    again = Cluster(workload, load_class("{1+2+3}")(Setting(worlds.W1.menu, SEED))).run()
    assert again.figures() == ran("{1+2+3}").result.figures()


@pytest.mark.parametrize(
    "name",
    [name for name in POLICIES if name != "static user" and not name.endswith("over the bus")],
)
def test_no_policy_is_given_more_than_there_is_or_beats_the_bound(
    workload: Workload, ran: Callable[[str], Ran], name: str
) -> None:
    figures = ran(name).result.figures()
    assert ran(name).least_free >= -1e-6
    assert figures["samples_lost_share"] == pytest.approx(0.0, abs=1e-5)
    if figures["completion"] == 1.0:
        assert figures["jct_mean_s"] >= clairvoyant_bound(workload, worlds.W1.menu)


def test_a_lost_member_ends_a_job_only_where_nobody_restarts_it(workload: Workload) -> None:
    stormy = Weather(failure=1e-5)
    fatal = Cluster(workload, load_class("static user")(Setting(worlds.W1.menu)), stormy).run().figures()
    tuned = (
        Cluster(workload, load_class("well-tuned static")(Setting(worlds.W1.menu)), stormy).run().figures()
    )
    assert fatal["completion"] < 1.0
    assert tuned["completion"] == 1.0
    assert tuned["stopped_minutes"] > 0


def test_in_calm_weather_a_well_tuned_static_job_takes_what_its_plan_says(workload: Workload) -> None:
    alone = replace(workload, cases=workload.cases[:1])
    case, reference = alone.cases[0], alone.references[alone.cases[0].name]
    result = Cluster(alone, load_class("well-tuned static")(Setting(worlds.W1.menu)), CALM).run()
    job = result.jobs[case.name]
    speed = float(case.throughput(np.array([reference[:4]]))[0])
    assert job.ended_s - job.started_s == pytest.approx(case.samples / speed, rel=1e-6)


def test_pods_start_as_measured() -> None:
    waits = Weather().start_s(np.random.default_rng(0), 200_000) - 60
    # 60 to 300 s of initialisation on top of 0 / 1 / 55 / 104 / 523 s at p50/75/90/95/99 (algorithms.md §8).
    assert np.quantile(waits, 0.5) < 160
    assert np.mean(waits > 523) == pytest.approx(0.015, abs=0.01)


def test_the_load_is_the_reference_plans_work_over_capacity() -> None:
    light, heavy = (generate(worlds.W1(), 1, load) for load in (0.5, 1.0))
    assert len(light.hosts) == pytest.approx(2 * len(heavy.hosts), rel=0.05)
    assert [case.samples for case in light.cases] == [case.samples for case in heavy.cases]


def test_bursty_arrivals_are_bursty() -> None:
    times = [case.arrive_s for case in generate(worlds.W1(), 2, jobs=40, arrivals="bursty").cases]
    gaps = np.diff(times)
    assert np.std(gaps) / np.mean(gaps) > 2


def test_a_closed_gate_names_what_is_off() -> None:
    with pytest.raises(GateClosed, match=r"worker_cpu_use is 0\.900"):
        check_gate(
            {
                "worker_cpu_use": 0.9,
                "server_cpu_use": 0.15,
                "worker_memory_use": 0.14,
                "server_memory_use": 0.13,
                "completion_small": 0.84,
                "completion_large": 0.67,
            }
        )


def test_somebody_elses_world_and_policy_run_through_the_port() -> None:
    theirs = "bench.simulation.policies.static:TunedStatic"
    figures = run_cell(load_world("bench.simulation.example_world:Rough"), 1.0, 5, [theirs])[theirs]
    assert figures["completion"] == 1.0, "each job that its user did not stop completed"
    assert figures["killed_by_users"] > 0
    assert figures["budget_spread_s"] > 0, "hosts are slow"


def test_a_world_that_inherits_nothing_is_refused_with_what_to_do() -> None:
    with pytest.raises(TypeError, match="let it inherit bench"):
        load_world("builtins:object")


def test_bursts_hosts_and_the_number_of_jobs_are_the_worlds_own() -> None:
    found = generate(Rough(), 5)
    assert (len(found.cases), len(found.hosts)) == (20, 16)
    assert found.hosts.paces(5_000.0).min() < 0.8
    bursts = {round(case.arrive_s / 1000) * 1000 for case in found.cases}
    assert bursts == {0, 4000, 9000}


def test_a_users_kill_ends_a_job_at_the_same_share_of_its_work_whatever_the_policy(
    workload: Workload,
) -> None:
    killed = replace(workload.cases[0], kill=Kill(share=0.5))
    impatient = replace(workload.cases[1], kill=Kill(patience_s=30.0))
    short = replace(workload, cases=(killed, impatient))
    for name in ("well-tuned static", "oracle"):
        jobs = Cluster(short, load_class(name)(Setting(worlds.W1.menu, SEED)), CALM).run().jobs
        assert jobs[killed.name].killed
        assert not jobs[killed.name].completed
        assert jobs[killed.name].done_share == pytest.approx(0.5, abs=1e-3)
        assert jobs[impatient.name].killed
        assert jobs[impatient.name].jct_s == pytest.approx(30.0)


def test_what_drifts_drifts_by_the_clusters_time_and_not_by_a_jobs_age(workload: Workload) -> None:
    asked = list[float]()

    class Stopping:
        """The truth of a job whose world stops for an hour."""

        def __init__(self, truth: Truth) -> None:
            self.mode, self.batch_size = truth.mode, truth.batch_size
            self.throughput, self.busy_cores = truth.throughput, truth.busy_cores

        def factor(self, at_s: float) -> float:
            asked.append(at_s)
            return 1.0

    late = max(workload.cases, key=lambda case: case.arrive_s)
    alone = replace(workload, cases=(replace(late, truth=Stopping(late.truth)),))
    Cluster(alone, load_class("well-tuned static")(Setting(worlds.W1.menu, SEED)), CALM).run()
    assert min(asked) >= late.arrive_s > 0


def test_the_oracle_pays_for_workers_that_are_slow_for_good(ran: Callable[[str], Ran]) -> None:
    figures = ran("oracle").result.figures()
    assert figures["budget_spread_s"] > 0
    assert figures["budget_slow_s"] == pytest.approx(0.0, abs=1e-6)


def test_a_change_is_judged_on_paired_seeds() -> None:
    mean, low, high = change_of([1.0, 10.0], [2.0, 20.0])
    assert mean == low == high == -0.5


@pytest.mark.parametrize("name", ["well-tuned static", "{1+2+3}", "oracle"])
def test_every_second_of_a_completion_time_is_in_exactly_one_item_of_the_budget(
    workload: Workload, ran: Callable[[str], Ran], name: str
) -> None:
    result = ran(name).result
    for job in result.jobs.values():
        assert job.budget.total_s == pytest.approx(job.jct_s, rel=1e-6)
    for case in workload.cases:
        reference = np.array([workload.references[case.name][:4]], dtype=np.float64)
        speed = float(case.throughput(reference)[0])
        assert result.jobs[case.name].budget.work_s == pytest.approx(case.samples / speed, rel=1e-5)


@pytest.mark.parametrize("name", ["{1+2+3}"])
def test_over_the_simulated_bus_the_deciders_decide_the_same(name: str) -> None:
    whole = generate(worlds.W1(), SEED, jobs=3)
    short = tuple(replace(case, samples=case.samples / 10) for case in whole.cases)
    workload = replace(whole, cases=short)
    direct = Cluster(workload, load_class(name)(Setting(worlds.W1.menu, SEED))).run()
    behind = load_class(f"{name}, over the bus")(Setting(worlds.W1.menu, SEED))
    try:
        result = Cluster(workload, behind).run()
        assert behind.messages > 500
    finally:
        behind.close()
    assert result.jobs == direct.jobs


def test_a_policy_behind_the_bus_cannot_look_at_the_truth(workload: Workload) -> None:
    behind = OnTheBus(Setting(worlds.W1.menu, SEED), load_class("well-tuned static"))
    try:
        with pytest.raises(AttributeError, match="cannot know the truth"):
            Cluster(workload, behind).run()
    finally:
        behind.close()


def test_what_one_run_of_a_family_shows_is_known_to_the_runs_beside_it(workload: Workload) -> None:
    first = workload.cases[0]
    twin = replace(first, name="twin", arrive_s=first.arrive_s + 60.0)
    beside = replace(
        workload,
        cases=(first, twin),
        references=workload.references | {"twin": workload.references[first.name]},
    )
    policy = load_class("{1+2+3}")(Setting(worlds.W1.menu, SEED))
    cluster = Cluster(beside, policy, CALM)
    inherited = list[int]()
    plan, decider = policy.plan, policy.brain._decider

    def watched(*asked: object) -> object:
        wishes = plan(*asked)
        known = decider.state.jobs.get("twin")
        if known is not None and not decider.state.past:  # no run has ended yet
            inherited.append(len(decider.models.shown(known)) - len(known.tried))
        return wishes

    policy.plan = watched
    cluster.run()
    assert max(inherited) > 0


def test_a_steady_window_measures_the_size_and_nothing_of_a_start_a_stop_or_a_restart(
    workload: Workload,
) -> None:
    quiet = Weather(straggler=0.0, hot_server=0.0, worker_spread=0.0, noise=0.0, failure=3e-6)
    policy = load_class("{1+2+3}")(Setting(worlds.W1.menu, SEED))
    cluster = Cluster(workload, policy, quiet, drift=False)
    observe, seen, stopped = policy.observe, list[tuple[float, float]](), False

    def watched(windows: list[Window]) -> object:
        for window in windows:
            if window.steady:
                seen.append((window.throughput, cluster.jobs[window.job].ideal(window.size)[0]))
        return observe(windows)

    policy.observe = watched
    stopped = cluster.run().figures()["stopped_minutes"] > 0
    assert stopped, "nobody was stopped: nothing is shown"
    measured, true = np.array(seen).T
    np.testing.assert_allclose(measured, true, rtol=1e-6)


@pytest.mark.parametrize("name", ["oracle", "oracle, our mechanisms"])
def test_who_knows_the_truth_does_not_probe(name: str) -> None:
    alone = recurring(SEED, runs=1)
    cluster = Cluster(alone, load_class(name)(Setting(worlds.W1.menu, SEED)), CALM, drift=False)
    job = cluster.run().jobs[alone.cases[0].name]
    assert job.rescales == 0, "on an idle cluster the first size is the best"
    assert job.budget.size_s <= 0


def test_an_oracle_starts_in_smaller_pieces_what_no_node_has_room_for(workload: Workload) -> None:
    case = max(workload.cases, key=lambda c: c.max_workers)
    alone = replace(workload, cases=(case,))
    result = Cluster(alone, load_class("oracle, our mechanisms")(Setting(worlds.W1.menu, SEED)), CALM).run()
    assert result.jobs[case.name].completed


def test_a_family_with_a_history_is_at_full_speed_in_half_the_time_of_a_cold_start() -> None:
    measured = measure_warm_starts(range(1, 3), runs=4)
    print(measured)
    assert (
        measured["warm: seconds to 95 % of the oracle's"]
        <= 0.5 * measured["cold: seconds to 95 % of the oracle's"]
    )


def test_who_never_gets_to_full_speed_is_counted_to_the_end() -> None:
    rates = [(0.0, 0.0), (100.0, 5.0), (200.0, 9.0)]
    assert until(rates, 9.0, 1000.0) == (200.0, False)
    assert until(rates, 9.5, 1000.0) == (1000.0, True)
