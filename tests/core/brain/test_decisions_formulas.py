"""Every formula of the decisions against the line of algorithms.md that it stands on, and its invariants."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_bus.brain.decisions.knapsack import (
    EXACT_GAP,
    EXACT_JOBS,
    DoesNotFit,
    Offers,
    choose,
    choose_exactly,
    choose_greedily,
)
from rover_bus.brain.decisions.memory_limits import (
    limit_before_forecast,
)
from rover_bus.brain.decisions.nsga2 import search_front
from rover_bus.brain.decisions.optimus import Capacity, OptimusJob, allocate, is_straggler, marginal_gain
from rover_bus.brain.decisions.pareto import hypervolume, pareto_front
from rover_bus.brain.decisions.placement import Node, place_jobs, split_evenly
from rover_bus.brain.decisions.plans import GIB, Allocation, PlanSpace
from rover_bus.brain.decisions.scoring import (
    Hazard,
    expected_throughput,
    job_weight,
    throughput_gain,
)
from rover_bus.brain.decisions.warm_start import JobTraits, PastJob, decide_start, smooth
from rover_bus.brain.models.forms import ASYNCHRONOUS
from rover_bus.brain.models.samples import Configurations


def held(workers: int, servers: int, cores: float = 1.0) -> Allocation:
    return Allocation(workers=workers, servers=servers, worker_cores=cores, server_cores=cores)


def test_gain_amortises_the_downtime() -> None:
    # algorithms.md §5 [ours]: "TG(A'|A) = Ψ(A')·(1 − t_scale/max(T_rem, t_scale)) − Ψ(A)   downtime amortised, never free"
    assert throughput_gain(200, 100, 300, 30) == pytest.approx(200 * (1 - 30 / 300) - 100)
    assert throughput_gain(200, 100, 10, 30) == pytest.approx(-100)
    assert throughput_gain(200, 100, 1e9, 30) < 100


def test_weight_prefers_short_jobs_only_when_asked() -> None:
    # algorithms.md §5 [ours]: "WG = (T_ref/(T_rem + T_ref))^ρ    ρ = 0 efficiency, ρ = 1 short jobs first"
    assert job_weight(100.0, 50.0, 1.0) == pytest.approx(50 / 150)
    assert job_weight(100.0, 50.0, 0.0) == 1.0


def test_expected_throughput_loses_members_times_hazard_times_recovery() -> None:
    # algorithms.md §5 [ours]: "a job on n members that each fail at rate h loses n·h·t_recover"
    hazard = Hazard(failures_per_member_s=1e-5, recovery_s=600)
    assert expected_throughput(1000, 20, hazard) == pytest.approx(1000 * (1 - 20 * 1e-5 * 600))
    assert expected_throughput(1000, 1e9, hazard) == 0


def test_warm_start_smooths_from_the_least_similar_on() -> None:
    # algorithms.md §4 [recalled]: "A ← μ·A_i + (1−μ)·A over the k most similar, least similar first"
    assert smooth([10.0, 20.0, 40.0], 0.25) == pytest.approx(0.25 * 40 + 0.75 * (0.25 * 20 + 0.75 * 10))


def test_warm_servers_follow_the_production_rule() -> None:
    # algorithms.md §4: "total PS CPU = mean over similar jobs; total PS memory = max; CPU a PS = max; count = ratio"
    finals = [
        Allocation(workers=4, servers=4, server_cores=2, server_memory_bytes=8 * GIB),
        Allocation(workers=4, servers=2, server_cores=6, server_memory_bytes=20 * GIB),
    ]
    traits = JobTraits(user="u", dataset="d", family="f")
    past = [PastJob(job=f"j{i}", traits=traits, final=a, ended_at_s=0) for i, a in enumerate(finals)]
    plan = decide_start(traits, past, 0.0, held(1, 1)).allocation
    assert plan.server_cores == 6
    assert plan.servers == math.ceil((8 + 12) / 2 / 6)
    assert plan.servers * plan.server_memory_bytes == 40 * GIB


def test_optimus_gain_is_time_saved_an_amount_of_the_dominant_resource() -> None:
    # algorithms.md §2 [paper]: "gain max{ (Q/f(p,w) − Q/f(p,w+1))/O_worker , (Q/f(p,w) − Q/f(p+1,w))/O_ps }"
    container = Allocation(workers=0, servers=0, worker_cores=2, server_cores=1)
    job = OptimusJob(speed=lambda w, p: w * math.sqrt(p), remaining=100.0, container=container)
    capacity = Capacity(cores=10, memory_bytes=0)
    by_worker = (100 / 2 - 100 / 3) / (2 / 10)
    by_server = (100 / 2 - 100 / (2 * math.sqrt(2))) / (1 / 10)
    assert marginal_gain(job, 2, 1, capacity) == (pytest.approx(max(by_worker, by_server)), "ps")


def test_optimus_straggler_is_below_half_the_median() -> None:
    # algorithms.md §2 [paper]: "straggler below half the median speed"
    assert is_straggler(4.9, [10, 10, 10, 4.9])
    assert not is_straggler(5.1, [10, 10, 10, 5.1])


def test_optimus_gives_each_job_one_and_one_then_the_best_gain_until_capacity_ends() -> None:
    container = Allocation(workers=0, servers=0, worker_cores=1, server_cores=1)
    jobs = [
        OptimusJob(
            speed=lambda w, p, k=k: k * w / (1 + 0.1 * w + 0.5 * w / p),
            remaining=1e4 * (k + 1),
            container=container,
        )
        for k in range(1, 6)
    ]
    decisions = allocate(jobs, Capacity(cores=40, memory_bytes=1))
    cores = sum(decision.allocation.cores for decision in decisions)
    assert cores == pytest.approx(40)
    assert all(d.allocation.workers >= 1 and d.allocation.servers >= 1 for d in decisions)
    starved = allocate(jobs, Capacity(cores=5, memory_bytes=1))
    assert [d.allocation.members for d in starved] == [3, 2, 0, 0, 0]


def test_a_node_with_memory_but_too_few_cores_does_not_keep_a_job_from_the_others() -> None:
    full = [Node(f"full{i}", 0.0, 200 * GIB) for i in range(20)]  # memory is plenty, cores are not
    nodes = [*full, Node("few", 8.0, 240 * GIB), Node("one", 16.0, 200 * GIB), Node("two", 16.0, 200 * GIB)]
    wanted = Allocation(
        workers=1,
        servers=1,
        worker_cores=16,
        server_cores=16,
        worker_memory_bytes=GIB,
        server_memory_bytes=GIB,
    )
    [placement] = place_jobs([wanted], nodes)
    assert placement.missing == 0
    assert {share.node for share in placement.shares} == {"one", "two"}


def test_placement_takes_the_fewest_nodes_with_equal_shares() -> None:
    # algorithms.md §2 [paper]: "fewest servers that fit, equal PS and workers on each, smallest job first"
    nodes = [Node(f"n{i}", 8.0, 64 * GIB) for i in range(4)]
    large, small = place_jobs([held(12, 4), held(2, 1)], nodes)
    assert [(s.workers, s.servers) for s in small.shares] == [(2, 1)]
    assert [(s.workers, s.servers) for s in large.shares] == [(6, 2), (6, 2)]
    assert split_evenly(7, 3) == [3, 2, 2]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), jobs=st.integers(1, 30), nodes=st.integers(1, 12))
def test_no_node_ever_holds_more_than_it_has_and_jobs_are_placed_whole(
    seed: int, jobs: int, nodes: int
) -> None:
    rng = np.random.default_rng(seed)
    yard = [Node(f"n{i}", float(rng.integers(4, 33)), int(rng.integers(8, 129)) * GIB) for i in range(nodes)]
    wanted = [
        Allocation(
            workers=int(rng.integers(1, 9)),
            servers=int(rng.integers(1, 5)),
            worker_cores=float(rng.integers(1, 5)),
            server_cores=float(rng.integers(1, 5)),
            worker_memory_bytes=int(rng.integers(0, 9)) * GIB,
            server_memory_bytes=int(rng.integers(0, 9)) * GIB,
        )
        for _ in range(jobs)
    ]
    cores, memory = {node.name: node.cores for node in yard}, {node.name: node.memory_bytes for node in yard}
    for job, placement in zip(wanted, place_jobs(wanted, yard), strict=True):
        placed = sum(s.workers for s in placement.shares), sum(s.servers for s in placement.shares)
        assert placed == ((0, 0) if placement.missing else (job.workers, job.servers))
        for share in placement.shares:
            cores[share.node] -= share.workers * job.worker_cores + share.servers * job.server_cores
            memory[share.node] -= (
                share.workers * job.worker_memory_bytes + share.servers * job.server_memory_bytes
            )
    assert min(cores.values()) >= -1e-6
    assert min(memory.values()) >= 0


@settings(max_examples=100, deadline=None)
@given(
    points=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=40),
    scale=st.floats(0.01, 100),
    order=st.randoms(use_true_random=False),
)
def test_a_front_is_exact_and_depends_neither_on_order_nor_on_scale(
    points: list[tuple[int, int]], scale: float, order: object
) -> None:
    costs, gains = np.array(points, dtype=np.float64).T
    front = {points[i] for i in pareto_front(costs, gains)}
    beaten = {p for p in points if any(q != p and q[0] <= p[0] and q[1] >= p[1] for q in points)}
    assert front == set(points) - beaten
    mixed = list(points)
    order.shuffle(mixed)  # type: ignore[attr-defined]
    other_costs, other_gains = np.array(mixed, dtype=np.float64).T
    assert {mixed[i] for i in pareto_front(other_costs * scale, other_gains * scale)} == front


def test_the_search_of_the_paper_comes_near_the_exact_front_and_repeats_with_its_seed() -> None:
    space = PlanSpace(workers=tuple(range(1, 33)), servers=tuple(range(1, 9)))
    coefficients = np.array([0.3, 0.02, 0.01, 0.05, 0.1])

    def objective(at: Configurations) -> tuple[np.ndarray, np.ndarray]:
        cost = at.workers * at.worker_cores + at.ps * at.ps_cores
        return cost, ASYNCHRONOUS.throughput(at, ASYNCHRONOUS.design(at) @ coefficients)

    costs, gains = objective(space.configurations())
    exact = hypervolume(costs, gains, float(costs.max()))
    found = search_front(space, objective, seed=4)
    assert hypervolume(*objective(found), float(costs.max())) > 0.97 * exact
    again = search_front(space, objective, seed=4)
    assert list(again) == list(found)


def offers(seed: int, jobs: int, tight: float = 0.5) -> Offers:
    rng = np.random.default_rng(seed)
    usage = np.cumsum(rng.uniform(0.5, 3, (jobs, 8, 2)), axis=1)
    value = np.cumsum(rng.uniform(0.0, 1, (jobs, 8)) / np.arange(1, 9), axis=1)
    value[rng.random((jobs, 8)) < 0.1] = -np.inf
    value[:, 0] = 0.1
    least, most = usage[:, 0].sum(axis=0), usage[:, -1].sum(axis=0)
    return Offers(value, usage, least + tight * (most - least))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), jobs=st.integers(1, 60), tight=st.floats(0.0, 1.2))
def test_the_greedy_choice_never_passes_capacity_and_stays_within_its_bound(
    seed: int, jobs: int, tight: float
) -> None:
    instance = offers(seed, jobs, tight)
    choice = choose_greedily(instance)
    assert instance.fits(choice.offers)
    assert np.isfinite(choice.worth)
    assert choice.worth <= choice.bound + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_the_greedy_choice_is_near_the_exact_one(seed: int) -> None:
    # algorithms.md §5 [ours]: "prices taken as the duals of the capacities ..., then a greedy fill, leave 0.5 to 1.8 %"
    instance = offers(seed, 40)
    exact = choose_exactly(instance)
    assert choose_greedily(instance).worth >= 0.98 * exact.worth
    assert exact.worth <= exact.bound + 1e-6


def test_few_jobs_are_chosen_exactly_and_many_by_prices() -> None:
    gains = []
    for seed in range(10):
        for jobs in (6, EXACT_JOBS):
            instance = offers(seed, jobs, 0.3)
            choice = choose(instance)
            assert choice.gap <= EXACT_GAP
            gains.append(choice.worth / choose_greedily(instance).worth - 1)
        many = offers(seed, EXACT_JOBS + 1, 0.3)
        assert choose(many).worth == choose_greedily(many).worth
    assert min(gains) >= 0
    assert max(gains) > 0.005


@pytest.mark.parametrize("tight", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_the_greedy_choice_for_one_job_is_the_exact_one(seed: int, tight: float) -> None:
    instance = offers(seed, 1, tight)
    choice = choose_greedily(instance)
    assert choice.worth == choice.bound == pytest.approx(choose_exactly(instance).worth, abs=1e-6)
    assert instance.fits(choice.offers)


def test_more_capacity_is_never_worth_less() -> None:
    worths = []
    for tight in np.linspace(0, 1, 8):
        worths.append(choose(offers(3, 12, float(tight))).worth)
    assert all(b >= a - 1e-3 for a, b in pairwise(worths))


def test_the_choice_depends_neither_on_units_nor_on_the_order_of_jobs() -> None:
    instance = offers(8, 14)
    order = np.random.default_rng(1).permutation(14)
    other = Offers(instance.value[order] * 7, instance.usage[order] * 3, instance.capacity * 3)
    assert choose(other).worth == pytest.approx(7 * choose(instance).worth, rel=1e-3)


def test_what_cannot_fit_is_refused_and_says_what_to_do() -> None:
    instance = offers(1, 5)
    with pytest.raises(DoesNotFit, match="pause jobs of low priority or add capacity"):
        choose(Offers(instance.value, instance.usage, instance.capacity / 100))


def test_before_there_is_a_forecast_a_server_that_fills_up_gets_half_as_much_again_as_it_uses() -> None:
    assert limit_before_forecast(used_bytes=2.0, limit_bytes=4.0) == 4.0
    assert limit_before_forecast(used_bytes=3.6, limit_bytes=4.0) == pytest.approx(5.4)
    assert limit_before_forecast(used_bytes=0.0, limit_bytes=4.0) == 4.0
