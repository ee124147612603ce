"""What `rover jobs` says when a job trains on and its checkpoints do not come: after how long, and why."""

from __future__ import annotations

from typing import Any

import pytest

from rover_bus.cli.views.checkpoint_delay import CheckpointDelay
from rover_bus.cli.views.hindrances import Present, hindrance
from rover_bus.cli.views.history import JobRow
from rover_bus.events.checkpoint_facts import (
    CheckpointFailed,
    CheckpointOpened,
    CheckpointPersistOrdered,
    CheckpointReady,
    CheckpointRedundant,
    CheckpointStaged,
    HostStorageBlocked,
)
from rover_bus.events.data_facts import LedgerRewound
from rover_bus.events.facts import JobFact, JobReported, JobSubmitted, PlanProposed
from rover_bus.events.job import CheckpointSpec, DataSpec, JobSpec
from rover_bus.master.phases import Finishing, Training
from rover_bus.master.state import OpenedJob, Seats, State

JOB = OpenedJob(JobSpec(name="j", program=["train"], data=DataSpec(train="t")), "0123456789ab", 1)


def submitted(**spec: Any) -> JobSubmitted:
    data = DataSpec(train="t", batch_size=10, epochs=1)
    job = JobSpec(name="j", program=["train"], data=data, checkpoint=CheckpointSpec(**spec))
    return JobSubmitted(job="j", uid="u", spec=job)


def cut(kind: type[Any], number: int, **more: Any) -> Any:
    return kind(job="j", cut=number, generation=0, **more)


def opened(number: int) -> Any:
    return cut(CheckpointOpened, number)


def ready(number: int) -> Any:
    return cut(CheckpointReady, number, path="/s")


def stored(number: int) -> Any:
    return cut(CheckpointPersistOrdered, number, term=1, parts=[], path="/s")


def failed(number: int, reason: str) -> Any:
    return cut(CheckpointFailed, number, reason=reason)


def reported() -> JobReported:
    return JobReported(job="j", epoch=0, committed=1, dead_lettered=0, total=2)


def told(*timed: tuple[float, JobFact], spec: JobSubmitted | None = None) -> CheckpointDelay:
    delay = CheckpointDelay()
    delay.take(spec or submitted(), 0)
    for seconds, fact in timed:
        delay.take(fact, 1000 + round(seconds * 1000))
    return delay


FULL = "[Errno 28] No space left on device"


def test_a_full_storage_is_named_with_the_age_of_the_newest_checkpoint() -> None:
    delay = told(
        (0, opened(1)),
        (2, ready(1)),
        (20, opened(2)),
        (21, stored(2)),
        (82, failed(2, FULL)),
        (200, reported()),
    )
    assert (
        str(delay) == f"no checkpoint has become ready for 3 min (the newest is cut 1): cut 2 failed: {FULL}"
    )


def test_servers_that_cannot_stage_are_named_before_there_is_any_checkpoint() -> None:
    delay = told((0, opened(1)), (120, failed(1, "ps-0 did not stage in time: their logs say why")))
    assert str(delay) == (
        "no checkpoint has become ready for 2 min (there is none yet): cut 1 failed: ps-0 did not stage in time: their logs say why"
    )


def test_a_failure_that_is_followed_by_a_ready_checkpoint_is_forgotten() -> None:
    assert (
        str(told((0, opened(1)), (80, failed(1, FULL)), (90, opened(2)), (95, ready(2)), (99, reported())))
        == ""
    )


def test_nothing_is_said_of_a_failure_that_has_just_happened() -> None:
    assert str(told((0, opened(1)), (5, failed(1, FULL)), (50, reported()))) == ""


def test_a_shared_memory_that_is_too_small_is_said_at_once_and_until_a_cut_is_staged() -> None:
    reason = "ps-0: a slot needs 60 MiB. The job needs 240 MiB of shared memory on h1 for its 2 servers"
    small = [(0, opened(1)), (1, cut(CheckpointFailed, 1, reason=reason, wanted_bytes=240 << 20))]
    assert str(told(*small)).endswith(f"cut 1 failed: {reason}")
    again = [(3, opened(2)), (4, cut(CheckpointStaged, 2, parts=[]))]
    assert str(told(*small, *again, (50, reported()))) == ""


@pytest.mark.parametrize(("after_s", "late"), [(599, False), (601, True)])
def test_without_a_failure_five_intervals_pass_before_anything_is_said(after_s: float, late: bool) -> None:
    spec = submitted(every_s=120.0)
    delay = told((0, opened(1)), (1, stored(1)), (after_s, reported()), spec=spec)
    assert bool(str(delay)) == late
    if late:
        assert str(delay).endswith("cut 1 is being stored")


def test_what_is_being_stored_is_named_not_the_newer_one_that_waits_for_its_room() -> None:
    full = [(0, opened(1)), (1, stored(1)), (2, opened(2)), (4, opened(3)), (70, reported())]
    assert str(told(*full)).endswith("cut 1 is being stored")
    assert str(told(*full[:1], *full[2:])).endswith("servers have not all staged cut 3")


def test_a_disk_that_always_takes_long_is_not_late_for_it() -> None:
    slow = [(0, opened(1)), (1, opened(2)), (90, ready(1)), (91, opened(3)), (92, opened(4))]
    assert str(told(*slow, (300, reported()))) == ""
    assert "no checkpoint has become ready for 5 min" in str(told(*slow, (390, reported())))


def test_a_job_that_commits_nothing_new_opens_no_cut_and_misses_none() -> None:
    assert str(told((0, opened(1)), (2, ready(1)), (9999, reported()))) == ""


def test_a_cut_that_a_rewind_ended_is_no_fault() -> None:
    rewound = LedgerRewound(
        job="j", generation=1, epoch=0, committed_batches=1, reason="ps-0.1 is gone", cut=1
    )
    gone_back = [(2, ready(1)), (3, opened(2)), (4, failed(2, "the job went back to cut 1")), (4, rewound)]
    assert str(told((0, opened(1)), *gone_back, (9999, reported()))) == ""


def test_a_cut_of_before_a_rewind_that_cannot_be_stored_after_it_is_one() -> None:
    rewound = LedgerRewound(
        job="j", generation=1, epoch=0, committed_batches=1, reason="ps-0.1 is gone", cut=2
    )
    began = [(0, opened(1)), (2, ready(1)), (3, opened(2)), (9, rewound), (70, failed(2, FULL))]
    assert str(told(*began, (99, reported()))) == ""
    assert FULL in str(told(*began, (140, reported())))


@pytest.mark.parametrize(
    ("spec", "good", "word"),
    [
        ({"persist": False}, CheckpointStaged, "has been staged"),
        ({"persist": False, "copies": 1}, CheckpointRedundant, "has come to a second host"),
    ],
)
def test_what_is_missed_is_what_the_job_file_asks_for(spec: Any, good: type[Any], word: str) -> None:
    more = {"parts": []} if good is CheckpointStaged else {}
    began = [(0, opened(1)), (1, opened(2))]
    assert f"no checkpoint {word} for 8 min" in str(told(*began, (500, reported()), spec=submitted(**spec)))
    came = [*began, (2, cut(good, 2, **more))]
    assert str(told(*came, (500, reported()), spec=submitted(**spec))) == ""


def test_rover_jobs_says_it_while_the_job_trains_and_not_after() -> None:
    view = JobRow("j")
    plan = PlanProposed(job="j", plan=1, workers=1, servers=0, hosts=["h"], masters=["h"])
    for seconds, fact in enumerate([submitted(), plan, opened(1), failed(1, FULL)]):
        view.take(fact, 1 + seconds * 1000)
    view.take(reported(), 100_000)
    here = Present(hosts={"h"}, leaders={"j": "m"}, brain=True)
    assert FULL in hindrance(view, State(job=JOB, seats=Seats(plan=1), phase=Training()), here)
    assert hindrance(view, State(job=JOB, seats=Seats(plan=1), phase=Finishing()), here) == ""


def blocked(number: int, reason: str) -> HostStorageBlocked:
    return HostStorageBlocked(
        host="h1", job="j", uid="u", cut=number, generation=0, part="ps-0", reason=reason
    )


def test_a_storage_that_takes_nothing_is_named_at_once_until_it_takes_something() -> None:
    delay = told((0, opened(1)), (1, stored(1)))
    assert str(delay) == ""
    delay.take(blocked(1, "No space left on device"), 2500)
    assert str(delay) == "no checkpoint can be stored from host h1: No space left on device"
    delay.take(blocked(1, ""), 3000)
    assert str(delay) == ""
    delay.take(blocked(2, "Read-only file system"), 4000)
    delay.take(ready(3), 5000)
    assert str(delay) == "", "a later checkpoint is ready"
