"""What `rover jobs` says of a job that does not get on: for whom it waits, and what to do."""

from __future__ import annotations

import pytest

from rover_bus.cli.views.hindrances import Present, hindrance
from rover_bus.cli.views.history import JobRow
from rover_bus.events.facts import JobEnded, PlanProposed, PlanWithheld
from rover_bus.events.identity import DesiredMember, MasterSeat, Member
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.master.phases import Starting, Training
from rover_bus.master.state import Admitted, OpenedJob, Plans, Seats, State

JOB = OpenedJob(JobSpec(name="j", program=["x"], data=DataSpec(train="t")), "0123456789ab", 1)
ALL = Present(hosts={"g", "h"}, leaders={"j": "m"}, brain=True)
PLAN = PlanProposed(job="j", plan=1, workers=1, servers=0, hosts=["h", "g"], masters=["h", "g"])


def view(*facts: object) -> JobRow:
    told = JobRow("j")
    for fact in facts:
        told.take(fact, 1)  # type: ignore[arg-type]
    return told


def planned(*members: tuple[str, str], joined: tuple[str, ...] = ()) -> State:
    state = State(job=JOB, seats=Seats(plan=1, masters=[MasterSeat(host="h"), MasterSeat(host="g")]))
    for place, host in members:
        role, _, index = place.partition("-")
        member = Member(role, int(index), 1)  # type: ignore[arg-type]
        state.seats.wanted[place] = DesiredMember(member=member, host=host, command=["x"])
        if place in joined:
            state.seats.admitted[place] = Admitted(member, "n", host)
    return state


@pytest.mark.parametrize(
    ("facts", "present", "said"),
    [
        ([], Present(), "no host is there: `rover up`"),
        ([], Present(hosts={"h"}), "no Brain leads, so there is no plan: `rover doctor`"),
        ([], ALL, "waits for the Brain's first plan"),
        (
            [PlanWithheld(job="j", constant="no_capacity", reason="8 cores more do not fit the cluster")],
            ALL,
            "8 cores more do not fit the cluster",
        ),
        ([PlanWithheld(job="j", constant="quota_exceeded")], ALL, "quota exceeded"),
    ],
)
def test_a_job_without_a_plan_says_why_there_is_none(
    facts: list[object], present: Present, said: str
) -> None:
    assert hindrance(view(*facts), None, present) == said


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ({"h", "g"}, "no master leads yet"),
        ({"g"}, "no master leads yet"),
        (
            {"f"},
            "no master leads: its masters' hosts g, h are silent: `rover up` there",
        ),
    ],
)
def test_a_job_without_a_master_names_the_hosts_that_it_waits_for(hosts: set[str], said: str) -> None:
    present = Present(hosts=hosts, leaders={"another": "m"}, brain=True)
    assert hindrance(view(PLAN), planned(), present) == said
    assert hindrance(view(PLAN), None, present) == said


def test_members_that_cannot_come_are_named_with_their_host() -> None:
    present = Present(hosts={"h"}, leaders={"j": "m"}, brain=True)
    state = planned(("ps-0", "g"), ("worker-0", "h"), ("worker-1", "g"), joined=("worker-1",))
    said = hindrance(view(PLAN), state, present)
    assert said == "ps-0.1 cannot start: host g is silent: `rover up` there"


def test_a_job_whose_program_never_joins_says_whom_it_waits_for_and_where_to_look() -> None:
    state = planned(("worker-0", "h"), ("ps-0", "g"), joined=("ps-0",))
    state.phase = Starting()
    said = "waits for worker-0.1 to join; where that takes long, `rover logs j worker-0` says why"
    assert hindrance(view(PLAN), state, ALL) == said
    state.phase = Training()
    assert hindrance(view(PLAN), state, ALL) == said
    state = planned(("worker-0", "h"), ("worker-1", "g"), joined=("worker-0",))
    state.phase = Training()
    assert hindrance(view(PLAN), state, ALL) == "", "one worker trains, another one is on its way"


def test_a_job_that_waits_for_a_person_says_for_whose_word() -> None:
    state = State(job=JOB, plans=Plans(waiting=PLAN))
    assert hindrance(view(PLAN), state, ALL) == "plan 1 waits for a person: `rover plan approve j`"
    assert (
        hindrance(view(PLAN), State(job=JOB, seats=Seats(plan=1), paused=True), ALL)
        == "paused: `rover resume j`"
    )


def test_nothing_stands_in_the_way_of_a_job_that_trains_or_is_over() -> None:
    state = planned(("worker-0", "h"), joined=("worker-0",))
    withheld = PlanWithheld(job="j", constant="no_capacity", reason="no room for a second")
    assert hindrance(view(PLAN, withheld), state, ALL) == ""
    assert hindrance(view(JobEnded(job="j", state="completed")), None, Present()) == ""


def test_facts_that_cannot_be_stored_are_said_before_all_else():
    said = hindrance(view(PLAN), State(job=JOB, seats=Seats(plan=1), paused=True), ALL, waiting=700)
    assert "700 facts" in said
    assert "rover doctor" in said
    assert "700" not in hindrance(
        view(PLAN), State(job=JOB, seats=Seats(plan=1), paused=True), ALL, waiting=3
    )
