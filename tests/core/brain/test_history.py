"""History is a projection: facts in, one line a job out, and warm starts learn from it."""

from __future__ import annotations

import csv

from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.warm_start import decide_start
from rover_bus.brain.history import History, evolve_history, history_csv, past_jobs, traits_of
from rover_bus.events.facts import (
    Fact,
    HostLeft,
    JobEnded,
    JobReported,
    JobSubmitted,
    PlanApplied,
    PlanProposed,
)
from rover_bus.events.job import DataSpec, JobSpec

SPEC = JobSpec(
    name="clicks",
    program=["python", "train.py"],
    data=DataSpec(train="clicks.csv"),
    labels={"user": "ada", "family": "dlrm"},
)
FACTS: list[Fact] = [
    JobSubmitted(job="clicks-1", spec=SPEC, uid="u1"),
    PlanProposed(job="clicks-1", plan=1, workers=2, servers=1, worker_cores=2.0, server_cores=2.0),
    PlanApplied(job="clicks-1", plan=1, workers=2, servers=1),
    PlanProposed(job="clicks-1", plan=2, workers=8, servers=2, worker_cores=4.0, server_cores=4.0),
    PlanApplied(job="clicks-1", plan=2, workers=8, servers=2),
    PlanProposed(job="clicks-1", plan=3, workers=16, servers=4),
    HostLeft(host="h1"),
    JobReported(
        job="clicks-1", epoch=0, committed=900, dead_lettered=100, total=1000, samples_per_second=50.0
    ),
    JobEnded(job="clicks-1", state="completed"),
    JobEnded(job="unknown", state="failed"),
]


def replay() -> History:
    history: History = {}
    for at_s, fact in enumerate(FACTS):
        history = evolve_history(history, fact, float(at_s))
    return history


def test_the_line_of_a_job_says_what_it_held_and_how_it_ended() -> None:
    line = replay()["clicks-1"]
    assert line.held == Allocation(workers=8, servers=2, worker_cores=4.0, server_cores=4.0)
    assert (line.plans_applied, line.samples_committed, line.samples_dead_lettered) == (2, 900, 100)
    assert (line.state, line.ended_at_s, line.peak_samples_per_s) == ("completed", 8.0, 50.0)


def test_a_replay_rebuilds_the_same_history_and_unknown_jobs_change_nothing() -> None:
    assert replay() == replay()
    assert list(replay()) == ["clicks-1"]


def test_the_next_job_of_the_family_starts_where_the_last_one_ended() -> None:
    start = decide_start(traits_of(SPEC), past_jobs(replay()), 100.0, Allocation(workers=1, servers=1))
    assert start.reason is Reason.WARM_START
    assert (start.allocation.workers, start.allocation.servers) == (8, 2)
    assert "clicks-1" in start.detail


def test_history_leaves_as_csv() -> None:
    (row,) = csv.DictReader(history_csv(replay()).splitlines())
    assert row["job"] == "clicks-1"
    assert (row["held_workers"], row["asked_workers"], row["state"]) == ("8", "0", "completed")
