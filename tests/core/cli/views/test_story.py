"""Causes: from a fact back to the submission, and on to what it led to."""

from __future__ import annotations

import pytest
from told import told as published
from walked import offenders

from rover_bus.cli.views.history import Happened, JobRow, read_happened
from rover_bus.cli.views.narration import mood, narrate
from rover_bus.cli.views.stories import Links, story_of_event, story_of_member
from rover_bus.events import data_facts, facts, host_facts
from rover_bus.events.bus import Stored
from rover_bus.events.codec import encode
from rover_bus.events.errors import InputError
from rover_bus.events.facts import Fact
from rover_bus.events.identity import DesiredMember, Exit, Member, Process
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.subjects import host_fact, job_fact

UID = "0000000000a1"
WORKER = Member("worker", 0, 1)
SPEC = JobSpec(name="a", program=["python"], data=DataSpec(train="t.csv"))
DESIRED = DesiredMember(member=WORKER, host="h", command=["python"])
HISTORY: list[Fact] = [
    facts.JobSubmitted(job="a", spec=SPEC, uid=UID),
    facts.PlanProposed(job="a", plan=1, workers=1, servers=0, cause=f"job:{UID}", by="brain"),
    facts.MembersDesired(job="a", term=1, plan=1, members=[DESIRED], cause="ROVER_FACTS:2", position=(5, 4)),
    host_facts.HostStarted(host="h", job="a", process=Process(member=WORKER, pid=7, host="h")),
    host_facts.HostExited(host="h", job="a", member=WORKER, exit=Exit(reason="killed", signal=9)),
    facts.MemberLost(job="a", member=WORKER, reason="killed", cause="ROVER_FACTS:5", position=(9, 0)),
    data_facts.EpochOpened(job="a", epoch=0, cause="register:worker-0.1", position=(6, 0)),
]


def happened() -> list[Happened]:
    return stored(HISTORY)


def stored(history: list[Fact]) -> list[Happened]:
    return [read_happened(put(fact, at)) for at, fact in enumerate(history, start=1)]


def put(fact: Fact, at: int) -> Stored:
    if isinstance(fact, host_facts.HostFact):
        return Stored(at, host_fact(fact.host, fact.kind()), encode(fact), time_ms=at)
    assert isinstance(fact, facts.JobFact)
    body, headers = published(fact, at)
    return Stored(at, job_fact(fact.job, fact.kind()), body, headers, time_ms=at)


def told(event: str) -> list[tuple[int, str]]:
    return [(depth, each.id) for depth, _, each in story_of_event(happened(), event)]


def test_a_loss_is_walked_back_to_the_submission_through_processes_that_name_no_cause() -> None:
    assert told("6") == [(at - 1, f"ROVER_FACTS:{at}") for at in range(1, 7)]


def test_what_an_event_led_to_stands_below_it() -> None:
    assert told("ROVER_FACTS:2") == [(at - 1, f"ROVER_FACTS:{at}") for at in range(1, 7)]
    assert told("ROVER_FACTS:4")[-2:] == [(4, "ROVER_FACTS:5"), (5, "ROVER_FACTS:6")]


def test_a_fact_is_found_by_its_place_in_the_log() -> None:
    assert told("a@9.0") == told("6")


def test_a_cause_that_is_no_stored_fact_leads_to_the_submission_all_the_same() -> None:
    assert told("7") == [(0, "ROVER_FACTS:1"), (1, "ROVER_FACTS:7")]


def test_a_timer_is_named_and_what_it_began_with_is_walked_on() -> None:
    """A cut is due some time after the submission; a silent worker is lost some time after its process was started."""
    history: list[Fact] = [
        *HISTORY[:4],
        facts.JobReported(
            job="a", epoch=0, committed=0, dead_lettered=0, total=9, cause=f"timer:report of job:{UID}"
        ),
        facts.MemberLost(job="a", member=WORKER, reason="silent", cause="timer:silence of worker-0.1"),
        facts.MembersDesired(job="a", term=1, plan=2, members=[], cause="lost:worker-0.1"),
    ]
    walked = story_of_event(stored(history), "7")
    assert [each.id for _, _, each in walked] == [f"ROVER_FACTS:{at}" for at in (1, 2, 3, 4, 6, 7)]
    assert [why for _, why, _ in walked][-2:] == ["└─ after silence:", "└─"]
    assert [(why, each.id) for _, why, each in story_of_event(stored(history), "5")][1:] == [
        ("└─ after report:", "ROVER_FACTS:5")
    ]


def test_a_name_means_the_newest_fact_before_the_one_that_uses_it() -> None:
    again = facts.PlanProposed(job="a", plan=1, workers=2, servers=0, cause="job:00000000000b", by="brain")
    settled = facts.PlanSettled(job="a", plan=1, cause="timer:window of plan:1")
    history: list[Fact] = [
        *HISTORY[:2],
        settled,
        facts.JobSubmitted(job="a", spec=SPEC, uid="00000000000b"),
        again,
        settled,
    ]
    assert [each.id for _, _, each in story_of_event(stored(history), "3")] == [
        f"ROVER_FACTS:{at}" for at in (1, 2, 3)
    ]
    assert [each.id for _, _, each in story_of_event(stored(history), "6")] == [
        f"ROVER_FACTS:{at}" for at in (4, 5, 6)
    ]


def test_a_fact_that_names_no_cause_is_found_by_the_walk_over_all() -> None:
    history = [
        *HISTORY[:3],
        data_facts.EpochOpened(job="a", epoch=0),
        data_facts.EpochOpened(job="a", epoch=1, cause="tick"),
    ]
    assert offenders(stored(HISTORY[:6])) == []
    assert [line.split(":", 1)[1] for line in offenders(stored(history))] == [
        "4 epoch.opened: it names no cause",
        "5 epoch.opened: its cause is 'tick', which is no fact that is stored",
    ]


def test_causes_that_name_each_other_do_not_walk_for_ever() -> None:
    circle: list[Fact] = [
        facts.MemberLeft(job="a", member=WORKER, cause="ROVER_FACTS:2"),
        facts.MemberLeft(job="a", member=WORKER, cause="ROVER_FACTS:1"),
    ]
    assert 2 <= len(story_of_event(stored(circle), "1")) <= 4


def test_the_life_of_a_member_is_every_fact_that_names_it() -> None:
    assert [each.id for _, _, each in story_of_member(happened(), "a", "worker-0", 0)] == [
        f"ROVER_FACTS:{at}" for at in (3, 4, 5, 6)
    ]
    with pytest.raises(InputError, match="nothing is known of worker-0"):
        story_of_member(happened(), "a", "worker-0", 2)


def test_what_takes_a_member_away_comes_before_its_goodbye_whichever_was_stored_first() -> None:
    goodbye = facts.MemberLeft(
        job="a", member=WORKER, reason="drained", cause="worker-0.1/leave", position=(9, 0)
    )
    taken = host_facts.HostMemberTaken(
        host="h", job="a", uid=UID, member=WORKER, reason="preempted", why="PreemptionByScheduler"
    )
    exited = host_facts.HostExited(host="h", job="a", member=WORKER, exit=Exit(reason="preempted"))
    for ends in ([goodbye, taken, exited], [taken, goodbye, exited]):
        history = stored([*HISTORY[:4], *ends])
        told = [each.fact for _, _, each in story_of_member(history, "a", "worker-0", 1)]
        assert told[-3:] == [taken, goodbye, exited]
        chain = [each.fact for _, _, each in story_of_event(history, "a@9.0")]
        assert chain == [*HISTORY[:4], taken, goodbye]


def test_a_member_that_no_node_takes_waits_for_what_wanted_it() -> None:
    waits = host_facts.HostMemberStalled(
        host="h", job="a", uid=UID, member=WORKER, reason="Unschedulable", why="0/1 nodes"
    )
    chain = [each.fact for _, _, each in story_of_event(stored([*HISTORY[:3], waits]), "4")]
    assert chain == [*HISTORY[:3], waits]


def test_an_unknown_event_says_what_one_may_name() -> None:
    with pytest.raises(InputError, match="take a number"):
        Links(happened()).find("nonsense")


def test_every_fact_has_a_line_of_its_own() -> None:
    for fact in HISTORY:
        assert narrate(fact)
        assert narrate(fact) != fact.kind()
        assert "\n" not in narrate(fact)
        assert mood(fact) in ("green", "red", "dim", "")


def test_foreign_bytes_among_facts_are_shown_as_unreadable() -> None:
    each = read_happened(Stored(sequence=1, subject="rover.job.a.x.y", body=b"junk"))
    assert each.fact is None
    assert each.id == "ROVER_FACTS:1"


def test_a_job_is_what_its_facts_say() -> None:
    view = JobRow("a")
    for at, fact in enumerate(HISTORY):
        if isinstance(fact, facts.JobFact):
            view.take(fact, 100 + at)
    view.take(facts.MasterElected(job="a", term=2, holder="master-1.1"), 200)
    assert (view.state, view.leader, view.term, view.uid) == ("starting", "master-1.1", 2, UID)
    summary = {"samples_committed": 5, "samples_total": 6, "samples_dead_lettered": 1}
    view.take(facts.JobEnded(job="a", state="completed", summary=summary), 300)
    assert (view.state, view.committed, view.total, view.dead_lettered) == ("completed", 5, 6, 1)
