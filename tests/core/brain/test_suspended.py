"""A suspended job holds nothing: others have its room, and when it is resumed it waits for room as any start (docs/design/0079)."""

from __future__ import annotations

import pytest
from life_of_jobs import Life

from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.cli.views.brain_state import note_withheld
from rover_bus.events import facts
from rover_bus.events.facts import PlanProposed, PlanRequested, PlanWithheld
from rover_bus.events.host_facts import HostMemberStalled
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec, RoleSpec, WorkersSpec

GIB = 1 << 30
OPEN = JobSpec(
    name="a",
    program=["train"],
    data=DataSpec(train="t", batch_size=100),
    workers=WorkersSpec(start=4, cores=1.0, max_count=4),
    servers=RoleSpec(start=2, cores=0.5, memory_bytes=GIB, max_count=8),
    plan=PlanSpec(window_s=4.0),
)
OF_THREE = OPEN.replace(workers=OPEN.workers.replace(min_count=3))
RING = OPEN.replace(
    workers=WorkersSpec(count=4, cores=1.0, training="synchronous"), servers=RoleSpec(max_count=0)
)


def speed(workers: int) -> float:
    return 3600.0 * workers


def suspended(spec: JobSpec = OPEN, **how: object) -> Life:
    """A cluster of eight cores on which a job of five trains, and is suspended."""
    life = Life(cores=8.0, memory_bytes=64 * GIB, **how)
    life.hand_in(spec, speed)
    life.wait(60)
    life.pause("a", release=True)
    life.wait(2)
    return life


def begin_other(life: Life, workers: int) -> None:
    """Another job of so many workers and a server, each of one core."""
    life.submit("b", speed, workers=workers, servers=1, cores=1.0)
    life.wait(2)


def counts(life: Life, job: str = "a") -> list[tuple[int, int]]:
    return [(plan.workers, plan.servers) for plan in life.found(PlanProposed) if plan.job == job]


def assert_nothing_is_over_another(life: Life) -> None:
    for host, (cores, size_bytes) in life.brain.state.host_load.items():
        given = life.brain.state.hosts[host]
        assert (cores <= given.cores, size_bytes <= given.memory_bytes) == (True, True)


def test_the_room_of_a_suspended_job_is_another_jobs() -> None:
    life = Life(cores=8.0, memory_bytes=64 * GIB)
    life.hand_in(OPEN.replace(workers=OPEN.workers.replace(count=4, start=0)), speed)
    life.wait(60)
    begin_other(life, 7)
    assert counts(life, "b") == []
    life.pause("a", release=True)
    life.wait(2)
    assert counts(life, "b") == [(7, 1)]
    assert (life.brain.state.jobs["a"].held, life.brain.state.jobs["a"].released) != (None, None)
    assert life.same_from_snapshot()
    assert life.same()


def test_a_pause_that_keeps_the_servers_keeps_the_room() -> None:
    life = Life(cores=8.0, memory_bytes=64 * GIB)
    life.hand_in(OPEN.replace(workers=OPEN.workers.replace(count=4, start=0)), speed)
    life.wait(60)
    life.pause("a")
    begin_other(life, 7)
    assert counts(life, "b") == []


@pytest.mark.parametrize("spec", [OPEN, RING], ids=["with servers", "a ring"])
def test_a_resumed_job_comes_back_as_it_was_where_there_is_room(spec: JobSpec) -> None:
    life = suspended(spec)
    was, before = life.jobs["a"].size, len(counts(life))
    life.wait(60)
    assert len(counts(life)) == before, "a suspended job has no plan"
    life.resume("a")
    life.wait(2)
    plan = [each for each in life.found(PlanProposed) if each.job == "a"][before]
    assert (plan.size, plan.step, plan.rolls_back) == (was, "start", 0)
    assert plan.reason.endswith("it goes on where it was") or spec is RING
    life.wait(30)
    assert life.brain.state.jobs["a"].released is None
    assert len(life.brain.state.jobs["a"].recent) >= 3, "it trains again"
    assert_nothing_is_over_another(life)
    assert life.same()


def test_a_resumed_job_waits_for_the_room_that_another_has_and_says_so() -> None:
    life = suspended(OF_THREE)
    was = life.jobs["a"].size
    begin_other(life, 7)
    before = len(counts(life))
    life.resume("a")
    life.wait(60)
    assert len(counts(life)) == before
    said = [each for each in life.found(PlanWithheld) if each.job == "a"][-1]
    assert said.constant == "no_capacity"
    assert counts(life, "b") == [(7, 1)]
    life.end("b")
    life.wait(2)
    assert [plan.size for plan in life.found(PlanProposed) if plan.job == "a"][before] == was
    assert life.same()


def test_a_resumed_job_begins_with_what_is_free_on_all_the_servers_of_its_checkpoint() -> None:
    life = suspended()
    was = life.jobs["a"].size
    assert was is not None
    begin_other(life, 4)
    life.resume("a")
    life.wait(2)
    (begun,) = [plan for plan in life.found(PlanProposed) if plan.job == "a" and plan.held is None][1:]
    assert begun.size == was.replace(workers=8 - 5 - was.servers // 2)
    assert_nothing_is_over_another(life)
    assert life.same()


def test_a_resumed_job_keeps_to_the_quota_of_its_tenant() -> None:
    life = suspended(
        OF_THREE.replace(plan=OPEN.plan.replace(tenant="team")), quotas={"team": Budget(6.0, 64.0 * GIB)}
    )
    life.submit("b", speed, workers=4, servers=1, cores=1.0, plan={"tenant": "team"})
    life.wait(2)
    assert counts(life, "b") == [(4, 1)], "a suspended job takes nothing of the quota"
    life.resume("a")
    life.wait(30)
    assert [each.constant for each in life.found(PlanWithheld) if each.job == "a"][-1] == "quota_exceeded"


def test_a_successor_of_the_brain_knows_that_a_resumed_job_waits() -> None:
    life = suspended(OF_THREE)
    begin_other(life, 7)
    life.resume("a")
    life.take_over()
    before = len(counts(life))
    life.end("b")
    life.wait(2)
    assert len(counts(life)) == before + 1
    assert life.same()


def test_a_job_holds_again_what_it_did_where_its_master_brings_its_members_back_by_itself() -> None:
    life = suspended()
    was = life.jobs["a"].size
    life.resume("a", by_itself=True)
    life.wait(20)
    known = life.brain.state.jobs["a"]
    assert (known.held, known.released, known.waits) == (was, None, False)
    assert life.same()


def test_what_a_resumed_job_waits_for_is_said_no_more_once_its_master_brings_its_members_back_by_itself() -> (
    None
):
    life = suspended(OF_THREE)
    begin_other(life, 7)
    life.notice(facts.JobResumed(job="a", workers=4))
    life.wait(2)
    assert said_of(life)["a"].constant == "no_capacity"
    life.resume("a", by_itself=True)
    life.wait(2)
    assert "a" not in said_of(life)


def said_of(life: Life) -> dict[str, PlanWithheld]:
    """Why jobs are left as they are, as `rover explain` reads it in the Brain's log."""
    reader, withheld = BrainDecider(0), dict[str, PlanWithheld]()
    for record in life.log:
        note_withheld(withheld, record, reader.state)
        reader.evolve(record)
    return withheld


def test_a_job_that_a_former_brain_saw_suspended_is_offered_a_start_when_it_is_resumed() -> None:
    life = suspended()
    known, was = life.brain.state.jobs["a"], life.jobs["a"].size
    known.held, known.released, known.releases = was, None, False  # as a snapshot of that Brain has it
    before = len(counts(life))
    life.resume("a")
    life.wait(2)
    assert len(counts(life)) == before + 1


def test_a_person_is_told_to_resume_a_suspended_job_before_it_is_given_a_size() -> None:
    life = suspended()
    life.notice(PlanRequested(job="a", workers=2, by="ann"))
    assert "it is paused" in [each.reason for each in life.found(PlanWithheld)][-1]


def test_a_job_that_ends_while_it_is_suspended_is_remembered() -> None:
    life = suspended()
    life.notice(facts.JobEnded(job="a", state="stopped"))
    assert [past.job for past in life.brain.state.past] == ["a"]


def test_a_resumed_start_below_its_least_is_withdrawn_and_asks_again_for_what_it_had() -> None:
    life = suspended(OF_THREE)
    was, before = life.jobs["a"].size, len(counts(life))
    life.jobs["a"].starts_s = 1e9
    life.resume("a")
    life.wait(1)
    said = {"host": "h", "job": "a", "uid": f"{1:012x}", "reason": "Unschedulable", "why": "0/1 nodes"}
    server = next(member for member in life.jobs["a"].members if member.role == "ps")
    life.notice(HostMemberStalled(**said, member=server))
    life.wait(1)
    assert [plan.constant for plan in life.found(PlanProposed) if plan.job == "a"][before + 1 :] == [
        "below_least"
    ]
    assert life.brain.state.jobs["a"].waits
    life.jobs["a"].starts_s = 1.5
    life.wait(90)
    assert [plan.size for plan in life.found(PlanProposed) if plan.job == "a"][before + 2] == was
    assert life.same_from_snapshot()
    assert life.same()
