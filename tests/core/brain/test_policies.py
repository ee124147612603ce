"""What a job may choose: Optimus instead of the three stages, and NSGA-II instead of looking at each size."""

from __future__ import annotations

import msgspec
import pytest
from brain_states import cluster, round_of, runs, size, speed, waits

from rover_bus.brain.decisions.optimus import fit_curve, is_worth
from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.decisions.stragglers import WorkerPace
from rover_bus.brain.marginal import stragglers_by_half
from rover_bus.brain.replacing import replace_stragglers
from rover_bus.brain.settling import settle
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.brain.wishes import CapacityLeft, Wish
from rover_bus.events import causes
from rover_bus.events.facts import PlanProposed


def with_plan(job: KnownJob, **plan: str) -> KnownJob:
    spec = msgspec.structs.replace(job.spec, plan=msgspec.structs.replace(job.spec.plan, **plan))
    job.spec = spec
    return job


def optimus(job: KnownJob) -> KnownJob:
    return with_plan(job, policy="optimus")


def test_a_job_is_sized_by_marginal_gain_over_counts_and_keeps_its_containers() -> None:
    state = cluster(optimus(runs("one", size(4))), cores=16.0)
    answer = round_of(state)["one"]
    assert isinstance(answer, Wish)
    assert (answer.constant, answer.size.worker_cores) == ("optimus_marginal_gain", 0.5)
    assert answer.size.workers > 8, "it is not held to twice what it has, as the three stages are"
    assert answer.predicted == pytest.approx(speed(answer.size.workers), rel=0.1)
    assert answer.low_90 <= answer.predicted <= answer.high_90
    (plan,) = settle("one", state.jobs["one"], state, StandingModels(state), answer)
    assert isinstance(plan, PlanProposed)
    assert "by Optimus" in plan.reason


def test_what_comes_next_is_said_among_the_losers_with_the_reason_why_not() -> None:
    crowded = cluster(optimus(runs("one", size(2))), cores=4.0)
    answer = round_of(crowded)["one"]
    assert isinstance(answer, Wish)
    reasons = {(loser.size.workers, loser.size.servers): loser.reason for loser in answer.losers}
    assert reasons[(answer.size.workers + 1, answer.size.servers)] == "no_capacity"


def test_a_change_is_worth_it_when_it_saves_more_than_it_costs_or_gives_back_a_third() -> None:
    curve = fit_curve({(w, 1): speed(w) for w in (1, 2, 4)}, 100.0)
    held = Allocation(workers=4, servers=1)
    more = held.replace(workers=5)
    assert not is_worth(curve, 1_000.0, held, more, change_s=3.0)
    assert is_worth(curve, 1_000_000.0, held, more, change_s=3.0)
    assert is_worth(curve, 1_000_000.0, held, held.replace(workers=2), change_s=3.0)
    assert not is_worth(curve, 1_000_000.0, held, held.replace(workers=3), change_s=3.0)


def test_jobs_of_both_policies_share_a_cluster_and_none_is_promised_what_another_holds() -> None:
    state = cluster(optimus(runs("one", size(4))), runs("two", size(8)), cores=12.0)
    answers = round_of(state)
    wanted = answers["one"]
    assert isinstance(wanted, Wish)
    assert state.jobs["one"].charge(wanted.size).cores <= 12.0 - 4.5


def test_the_job_with_more_left_gets_the_next_worker() -> None:
    short, long = optimus(runs("short", size(2))), optimus(runs("long", size(2)))
    short.committed = short.total - 10_000_000
    state = cluster(short, long, cores=5.0)
    answers = round_of(state)
    grown = {name: answer.size.workers for name, answer in answers.items() if isinstance(answer, Wish)}
    assert grown["long"] > grown.get("short", 2)


def test_a_start_is_sized_by_what_the_family_has_shown() -> None:
    state = cluster(optimus(runs("one", size(2))), optimus(waits("two")), cores=16.0)
    answer = round_of(state)["two"]
    assert isinstance(answer, Wish)
    assert (answer.step, answer.constant) == ("start", "optimus_marginal_gain")
    assert answer.size.workers > 1


def test_a_newcomer_of_which_nothing_is_known_begins_as_under_the_other_policy() -> None:
    answer = round_of(cluster(optimus(waits("one")), cores=16.0))["one"]
    assert isinstance(answer, Wish)
    assert (answer.size.workers, answer.constant) == (1, "cold_start")


def test_a_worker_below_half_of_the_median_is_replaced_at_once() -> None:
    job = optimus(runs("one", size(4)))
    job.paces = {i: WorkerPace(past=100.0, share=0.45 if i == 2 else 1.0) for i in range(4)}
    assert [member.name for member in stragglers_by_half(job)] == ["worker-2"]
    state = cluster(job)
    (plan,) = replace_stragglers("one", job, state)
    assert isinstance(plan, PlanProposed)
    assert (plan.constant, [each.name for each in plan.replaces]) == ("straggler_replace", ["worker-2"])
    assert plan.cause == job.after("window"), "no fact has named a straggler"
    job.stragglers = {2: "straggler_replace"}
    (plan,) = replace_stragglers("one", job, state)
    assert isinstance(plan, PlanProposed)
    assert plan.cause == causes.straggler(plan.replaces[0])
    job.paces[2] = WorkerPace(past=100.0, share=0.55)
    assert not stragglers_by_half(job)


def search_of(search: str) -> tuple[BrainState, Wish]:
    job = with_plan(runs("one", size(4)), search=search)
    job.cores_bind = True
    state = cluster(job, cores=32.0)
    answer = round_of(state)["one"]
    assert isinstance(answer, Wish)
    return state, answer


def test_nsga2_is_a_search_to_choose_and_the_plan_says_so() -> None:
    _, looked_at_each = search_of("exact")
    state, searched = search_of("nsga2")
    assert not looked_at_each.detail
    assert "found by NSGA-II among" in searched.detail
    assert searched.predicted == pytest.approx(looked_at_each.predicted, rel=0.1)
    (plan,) = settle("one", state.jobs["one"], state, StandingModels(state), searched)
    assert isinstance(plan, PlanProposed)
    assert "NSGA-II" in plan.reason


def test_a_job_that_holds_what_its_curve_wants_is_left_as_it_is() -> None:
    state = cluster(optimus(runs("one", size(16))), cores=64.0)
    state.jobs["one"].spec = msgspec.structs.replace(
        state.jobs["one"].spec, servers=msgspec.structs.replace(state.jobs["one"].spec.servers, count=1)
    )
    answer = round_of(state)["one"]
    assert isinstance(answer, CapacityLeft)
    assert answer.constant == "keep"


def test_a_job_without_servers_is_sized_by_the_three_stages() -> None:
    job = optimus(runs("one", size(4, servers=0)))
    job.spec = msgspec.structs.replace(
        job.spec, servers=msgspec.structs.replace(job.spec.servers, max_count=0)
    )
    answer = round_of(cluster(job, cores=16.0))["one"]
    assert isinstance(answer, Wish)
    assert answer.constant != "optimus_marginal_gain"
