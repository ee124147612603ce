"""What a start and a change take is measured, by job, by family, by cluster; windows and rests follow from it."""

from __future__ import annotations

import pytest
from brain_states import cluster, runs, size, spec_of

from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.evolution import evolve
from rover_bus.brain.log import WindowClosed, WorkerWindow
from rover_bus.brain.proposing import propose
from rover_bus.brain.state import (
    LONGEST_WINDOW_S,
    UNMEASURED_CHANGE_S,
    UNSEEN_SHARE,
    BrainState,
    KnownJob,
    TimeScales,
)
from rover_bus.brain.totals import keep_totals
from rover_bus.brain.wishes import Wish
from rover_bus.events.facts import JobEnded, JobSubmitted, PlanApplied, PlanSettled, Size
from rover_bus.events.inputs import Observed, Ticked

HELD = size(4)


def brain_of(*jobs: KnownJob, looks: bool = True) -> BrainDecider:
    brain = BrainDecider(1)
    brain.state = cluster(*jobs)
    keep_totals(brain.state)
    if looks:
        brain.watch.look(0.0)
    return brain


def change(
    brain: BrainDecider, to: Size, applied_s: float, settled_s: float, windows: tuple[float, ...] = ()
) -> KnownJob:
    """A plan of the Brain that is carried out, with windows that close meanwhile (a throughput each, of four seconds)."""
    job = brain.state.jobs["j"]
    plan = job.plan + 1
    wish = Wish(size=to, step="scale", constant=Reason.MORE_THROUGHPUT, predicted=1.0)
    brain.evolve(propose("j", job, brain.state, wish))
    brain.decide(
        Observed(PlanApplied(job="j", plan=plan, workers=to.workers, servers=to.servers, size=to), "F:1"),
        applied_s,
    )
    for throughput in windows:
        workers = [WorkerWindow(0, 1, throughput, throughput, 0.0)]
        brain.evolve(WindowClosed(job="j", seconds=4.0, clean=False, workers=workers))
    brain.decide(Observed(PlanSettled(job="j", plan=plan), "F:2"), settled_s)
    return job


def test_the_start_of_a_member_is_what_it_took_from_the_plan_until_it_had_joined() -> None:
    job = change(brain_of(runs("j", HELD)), size(6), 10.0, 13.5)
    assert (job.slowest_start_s, job.start_s) == (3.5, 3.5)


def test_members_that_join_beside_others_cost_what_windows_saw_and_no_more() -> None:
    brain = brain_of(runs("j", HELD))
    usual = brain.state.jobs["j"].throughput
    assert change(brain, size(6), 10.0, 19.0, windows=(usual / 2,)).scales.change_s == pytest.approx(2.0)


def test_a_change_that_stops_the_job_costs_also_what_no_window_covered() -> None:
    brain = brain_of(runs("j", HELD))
    usual = brain.state.jobs["j"].throughput
    job = change(brain, size(4, servers=2), 10.0, 19.0, windows=(usual / 2,))
    assert job.scales.change_s == pytest.approx(2.0 + 5.0)


def test_a_change_is_dear_until_any_was_measured_then_as_dear_as_measured() -> None:
    job = runs("j", HELD)
    assert job.change_s == UNMEASURED_CHANGE_S
    changed = change(brain_of(job), size(6), 10.0, 13.0)
    assert changed.change_s == UNSEEN_SHARE * job.spec.plan.window_s, "what windows cannot show is charged"
    asked = job.spec.replace(plan=job.spec.plan.replace(change_s=30.0))
    changed.spec = asked
    assert changed.change_s == 30.0, "a user knows better"


def test_what_one_run_measured_holds_for_the_next_of_its_family_and_for_those_of_which_nothing_is_known() -> (
    None
):
    brain = brain_of(runs("j", HELD))
    change(brain, size(4, servers=2), 10.0, 17.0)
    brain.decide(Observed(JobEnded(job="j", state="completed"), "F:3"), 20.0)
    brain.state.scales[""] = TimeScales(start_s=50.0, change_s=40.0)  # another family has changed since
    for name, train, expected in (("k", "t", 7.0), ("l", "other", 40.0)):
        spec = spec_of(name, train=train)
        brain.decide(Observed(JobSubmitted(job=name, uid=name, spec=spec), "F:4"), 21.0)
        assert brain.state.jobs[name].change_s == expected
    assert brain.state.jobs["l"].start_s == 50.0


def test_a_window_covers_a_few_batches_of_each_worker() -> None:
    job = runs("j", HELD)
    state = cluster(job)
    assert job.window_s == job.spec.plan.window_s
    for seconds_a_batch, expected in ((0.1, 4.0), (5.0, 20.0), (1000.0, LONGEST_WINDOW_S)):
        job.step_s = 0.0
        rate = job.spec.data.batch_size / seconds_a_batch
        workers = [WorkerWindow(i, 1, rate, rate, 0.0) for i in range(4)]
        evolve(state, WindowClosed(job="j", seconds=4.0, clean=True, workers=workers))
        assert job.window_s == pytest.approx(expected)


def test_what_was_said_before_this_brain_first_looked_tells_no_time() -> None:
    brain = brain_of(runs("j", HELD), looks=False)
    job = change(brain, size(6), 10.0, 10.001)  # two old facts, one right after the other
    assert (job.slowest_start_s, job.settled_moves) == (0.0, 0)
    brain.decide(Ticked(), 11.0)
    assert change(brain, size(8), 20.0, 23.0).slowest_start_s == 3.0


def test_a_successor_knows_the_times_that_were_measured() -> None:
    brain = brain_of(runs("j", HELD))
    change(brain, size(4, servers=2), 10.0, 17.0)
    successor = BrainDecider(2)
    successor.restore(brain.dump())
    assert successor.state.scales == brain.state.scales != BrainState().scales
    assert successor.state.jobs["j"].change_s == brain.state.jobs["j"].change_s == 7.0
