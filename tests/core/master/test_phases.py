"""The phases of a job: no edge but those of the table, and each phase bears its own fields alone."""

import itertools

import pytest

from rover_bus.events.facts import JobEnded, JobOpened, MasterElected, MembersDesired
from rover_bus.events.identity import Member
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.log import FinishBegun, ServerFinished
from rover_bus.master.evolution import evolve
from rover_bus.master.phases import (
    EDGES,
    Closed,
    Ended,
    Finishing,
    Searching,
    Starting,
    Training,
    Waiting,
    after,
    name_of,
)
from rover_bus.master.state import State, Unopened, dump, load

SPEC = JobSpec(name="j", program=["train"], data=DataSpec(train="t"))
PHASES = (
    Waiting(),
    Starting(),
    Searching(1, "h", "why"),
    Training(),
    Closed(),
    Finishing(),
    Ended("completed"),
)


@pytest.mark.parametrize(
    ("now", "then"), [*itertools.product(PHASES, PHASES)], ids=lambda phase: name_of(phase)
)
def test_a_phase_is_followed_by_what_the_table_says_and_by_nothing_else(now, then):
    if type(then) in EDGES[type(now)]:
        assert after(now, then) is then
    else:
        with pytest.raises(ValueError, match=f"is {name_of(now)} cannot be {name_of(then)}"):
            after(now, then)


def opened() -> State:
    state = evolve(Unopened(), JobOpened(spec=SPEC, uid="0123456789ab", timeline=7))
    assert isinstance(state, State)
    return state


def test_every_phase_is_named_in_the_table():
    assert set(EDGES) == {type(phase) for phase in PHASES}


def test_what_a_log_says_before_its_job_is_kept_for_it():
    state = evolve(Unopened(), MasterElected(term=3, holder="m"))
    state = evolve(state, JobOpened(spec=SPEC, uid="0123456789ab", timeline=7))
    assert (state.term, state.counts.masters_elected, state.job.timeline) == (3, 1, 7)


@pytest.mark.parametrize(
    "record",
    [MembersDesired(plan=1, members=[], reason="r"), FinishBegun(), JobEnded(state="completed")],
    ids=lambda record: type(record).__name__,
)
def test_a_log_that_begins_with_another_record_is_no_jobs(record):
    with pytest.raises(ValueError, match="before the job was opened"):
        evolve(Unopened(), record)


def test_a_job_is_opened_once():
    with pytest.raises(ValueError, match="is open"):
        evolve(opened(), JobOpened(spec=SPEC, uid="ba9876543210", timeline=8))


def test_a_part_is_written_only_by_a_job_that_finishes():
    with pytest.raises(ValueError, match="does not finish"):
        evolve(opened(), ServerFinished(member=Member("ps", 0, 1), path="p"))


@pytest.mark.parametrize("phase", PHASES, ids=name_of)
def test_a_snapshot_holds_the_phase_with_its_fields(phase):
    state = opened()
    state.phase = phase
    assert load(dump(state)) == state
