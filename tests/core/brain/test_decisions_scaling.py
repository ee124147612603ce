"""Scaling one job and many: bounded, never below one, never above capacity, and every loser named."""

from __future__ import annotations

import numpy as np
from brain_states import choose_size
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_bus.brain.decisions.arbitration import Budget, Claim, arbitrate
from rover_bus.brain.decisions.lifecycle import check_plan
from rover_bus.brain.decisions.plans import GIB, Allocation, PlanSpace, Prices
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.scaling import (
    MOST_ENUMERATED,
    JobView,
    Limits,
    Restraint,
    ScalingRules,
    plan_front,
)
from rover_bus.brain.decisions.stragglers import decide_stragglers, evolve_paces
from rover_bus.brain.models.forms import ASYNCHRONOUS
from rover_bus.brain.models.samples import Configurations
from rover_bus.brain.models.throughput import Prediction

SPACE = PlanSpace()


class Truth:
    """A predictor that knows: the asynchronous form with given coefficients and narrow intervals."""

    def __init__(self, *coefficients: float) -> None:
        self.coefficients = np.array(coefficients)

    def predict(self, at: Configurations) -> Prediction:
        speed = ASYNCHRONOUS.throughput(at, ASYNCHRONOUS.design(at) @ self.coefficients)
        return Prediction(speed, speed * 0.95, speed * 1.05, np.zeros(len(at), dtype=np.bool_))


def job(workers: int = 3, servers: int = 1, cores: float = 2.0, remaining: float = 1e7) -> JobView:
    held = Allocation(
        workers=workers,
        servers=servers,
        worker_cores=cores,
        server_cores=cores,
        worker_memory_bytes=GIB,
        server_memory_bytes=4 * GIB,
    )
    return JobView(held=held, batch_size=64, remaining_samples=remaining, table_bytes=2 * GIB)


def test_more_than_a_million_sizes_are_searched_and_fewer_are_all_looked_at() -> None:
    cores = tuple(float(each) for each in range(1, 41))
    wide = PlanSpace(worker_cores=cores, server_cores=cores)
    rules = ScalingRules(restraint=Restraint(growth=1000.0, core_growth=1000.0))
    truth, held = Truth(1e-4, 1e-2, 1e-3, 1e-4, 1e-2), job(8, 2, 4.0)
    fronts = [plan_front(held, truth, space, rules) for space in (SPACE, wide)]
    assert (len(SPACE) < MOST_ENUMERATED < len(wide), fronts[0].searched, fronts[1].searched) == (
        True,
        0,
        len(wide),
    )
    best = [max(front.speed / front.cost**0.5) for front in fronts]
    assert best[1] > 0.95 * best[0], "what is found is as good as what is there in a part of it"


coefficients = st.lists(st.floats(1e-4, 1.0), min_size=5, max_size=5)


@settings(max_examples=30, deadline=None)
@given(
    c=coefficients,
    workers=st.integers(1, 64),
    servers=st.integers(1, 16),
    cores=st.sampled_from([1.0, 2, 4, 8]),
)
def test_counts_stay_within_twice_and_cores_within_four_times_and_none_goes_below_one(
    c: list[float], workers: int, servers: int, cores: float
) -> None:
    # algorithms.md §5 [ours]: "Bound growth (≤ 2x a round), dead-band, cooldown"; cores of members: docs/design/0056
    before = job(workers, servers, cores)
    after = choose_size(before, Truth(*c), SPACE).allocation
    assert 1 <= after.workers <= 2 * workers
    assert 1 <= after.servers <= 2 * servers
    assert cores / 2 <= after.worker_cores <= 4 * cores
    assert check_plan(after, Limits()) is None


@settings(max_examples=30, deadline=None)
@given(c=coefficients, cores=st.floats(6, 60), workers=st.integers(0, 4))
def test_a_plan_never_passes_a_quota_or_a_pin(c: list[float], cores: float, workers: int) -> None:
    limits = Limits(cores=cores, workers=workers, max_workers=12)
    before = job(workers or 1, 1, 1.0)
    assert check_plan(choose_size(before, Truth(*c), SPACE, limits=limits).allocation, limits) is None


def test_three_workers_with_an_idle_server_do_not_become_54_in_one_step() -> None:
    decision = choose_size(job(3, 1, 1.0), Truth(0.005, 0.001, 0.001, 0.0001, 0.01), SPACE)
    assert decision.reason is Reason.MORE_THROUGHPUT
    assert 3 < decision.allocation.workers <= 6
    assert decision.losers


def test_scaling_settles_and_then_keeps_still() -> None:
    view, truth = job(1, 1, 1.0), Truth(0.005, 0.1, 0.02, 0.003, 0.1)
    for _ in range(20):
        decision = choose_size(view, truth, SPACE)
        if decision.allocation == view.held:
            break
        view = JobView(held=decision.allocation, batch_size=64, remaining_samples=1e7, table_bytes=2 * GIB)
    assert decision.reason is Reason.DEAD_BAND
    assert view.held.workers > 1


def test_more_servers_than_can_help_are_given_back() -> None:
    wasteful = job(4, 8, 2.0)
    limits = Limits(workers=4, cores=24.0)
    decision = choose_size(wasteful, Truth(0.0002, 0.0001, 0.0001, 0.00001, 0.2), SPACE, limits=limits)
    assert decision.reason is Reason.LESS_COST
    assert decision.allocation.servers < 8


def test_a_job_that_is_nearly_done_is_left_alone() -> None:
    decision = choose_size(job(remaining=100), Truth(0.005, 0.001, 0.001, 0.0001, 0.01), SPACE)
    assert decision.allocation == job().held
    assert decision.reason is Reason.DEAD_BAND


def test_a_guess_is_never_acted_upon() -> None:
    class Guess(Truth):
        def predict(self, at: Configurations) -> Prediction:
            said = super().predict(at)
            return Prediction(said.throughput, said.low_90, said.high_90, np.ones(len(at), dtype=np.bool_))

    decision = choose_size(job(), Guess(0.005, 0.001, 0.001, 0.0001, 0.01), SPACE)
    assert decision.allocation == job().held


@settings(max_examples=20, deadline=None)
@given(c=coefficients, scale=st.floats(0.01, 100))
def test_decisions_do_not_depend_on_the_currency_or_the_unit_of_throughput(
    c: list[float], scale: float
) -> None:
    plain = choose_size(job(), Truth(*c), SPACE)
    prices = Prices(core=scale, memory_gib=0.1 * scale)
    assert choose_size(job(), Truth(*c), SPACE, ScalingRules(prices=prices)).allocation == plain.allocation


def test_the_search_of_the_paper_can_be_selected_and_repeats_with_its_seed() -> None:
    truth = Truth(0.005, 0.1, 0.02, 0.003, 0.1)
    exact = choose_size(job(4, 2), truth, SPACE)
    searched = choose_size(job(4, 2), truth, SPACE, ScalingRules(search="nsga2", seed=3))
    assert searched.scores["value"] >= 0.95 * exact.scores["value"]
    assert choose_size(job(4, 2), truth, SPACE, ScalingRules(search="nsga2", seed=3)) == searched


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 10), cores=st.floats(20, 80))
def test_arbitration_never_passes_capacity_nor_takes_a_running_jobs_servers(
    seed: int, count: int, cores: float
) -> None:
    rng = np.random.default_rng(seed)
    one = Allocation(workers=1, servers=1)
    claims = [
        Claim(
            job=f"j{i}",
            wanted=one.replace(workers=int(rng.integers(1, 20))),
            least=one,
            held=one.replace(workers=int(rng.integers(0, 3))) if rng.random() < 0.5 else None,
            priority=int(rng.integers(0, 3)),
        )
        for i in range(count)
    ]
    grants = arbitrate(claims, Budget(cores, 1.0))
    assert sum(grant.allocation.cores for grant in grants) <= cores + 1e-6
    for claim, grant in zip(claims, grants, strict=True):
        assert grant.job == claim.job
        assert not claim.held or grant.allocation.servers >= 1


def test_the_order_of_claims_does_not_matter() -> None:
    one = Allocation(workers=1, servers=1)
    claims = [
        Claim(job=f"j{i}", wanted=one.replace(workers=4 + i), least=one, priority=i % 2) for i in range(6)
    ]
    forwards = {grant.job: grant.allocation for grant in arbitrate(claims, Budget(20, 1))}
    backwards = {grant.job: grant.allocation for grant in arbitrate(claims[::-1], Budget(20, 1))}
    assert forwards == backwards


def test_one_of_two_workers_five_times_slower_is_found_in_ten_seconds() -> None:
    # S18: a rule on the median of all sees nothing with two workers
    paces = evolve_paces({}, {0: 100.0, 1: 100.0})
    for _ in range(2):
        paces = evolve_paces(paces, {0: 100.0, 1: 20.0})
    assert [(r.worker, r.reason) for r in decide_stragglers(paces)] == [(1, Reason.STRAGGLER_SMALLER_LEASES)]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_ordinary_noise_makes_no_straggler(seed: int) -> None:
    rng = np.random.default_rng(seed)
    paces: dict = {}
    for _ in range(50):
        paces = evolve_paces(paces, dict(enumerate(100 * np.exp(0.06 * rng.standard_normal(4)))))
        assert not decide_stragglers(paces)
