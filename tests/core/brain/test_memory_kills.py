"""What its memory limit kills gets a larger one, though it lived too short to show what it needs."""

from __future__ import annotations

import msgspec
import pytest
from life_of_jobs import GIB, Job, Life

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.memory_relief import HOST_SHARE, MOST_RAISED
from rover_bus.brain.state import BrainState
from rover_bus.events import facts
from rover_bus.events.identity import Member
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec, RoleSpec, WorkersSpec

LIMIT = GIB // 4


def begun(memory_bytes: int = 8 * GIB, relief: bool = True, limit: int = LIMIT) -> tuple[Life, Job]:
    life = Life(cores=8.0, memory_bytes=memory_bytes)
    spec = JobSpec(
        name="ads",
        program=["train"],
        data=DataSpec(train="t", batch_size=100),
        workers=WorkersSpec(count=2, memory_bytes=limit),
        servers=RoleSpec(count=2, memory_bytes=limit),
        plan=PlanSpec(window_s=4.0, relief=relief),
    )
    job = life.hand_in(spec, lambda workers: 1000.0 * workers)
    life.wait(2)
    return life, job


def kill(life: Life, *members: Member, reason: str = "out_of_memory") -> None:
    for member in members:
        life.notice(facts.MemberLost(job="ads", member=member, reason=reason))
    life.wait(4)


def limits(life: Life) -> list[tuple[int, int]]:
    """Of a worker and of a server, by plan."""
    return [(plan.worker_memory_bytes, plan.server_memory_bytes) for plan in life.found(facts.PlanProposed)]


def withheld(life: Life) -> list[str]:
    return [each.reason for each in life.found(facts.PlanWithheld) if each.constant == Reason.OOM_NO_ROOM]


@pytest.mark.parametrize(("role", "larger"), [("worker", (2, 1)), ("ps", (1, 2))])
def test_a_limit_is_doubled_for_all_of_a_role_each_time_it_kills(role: str, larger: tuple[int, int]) -> None:
    life, _ = begun()
    kill(life, Member(role, 0, 1), Member(role, 1, 1))  # type: ignore[arg-type]
    of_worker, of_server = larger
    assert limits(life)[1:] == [(of_worker * LIMIT, of_server * LIMIT)], "both went by one limit"
    kill(life, Member(role, 0, 2))  # type: ignore[arg-type]
    assert limits(life)[2] == (of_worker**2 * LIMIT, of_server**2 * LIMIT)
    last = list(life.found(facts.PlanProposed))[-1]
    assert last.constant == (Reason.OOM_LARGER_WORKER if role == "worker" else Reason.OOM_LARGER_SERVER)
    assert f"{role}-0.2 was killed at its limit of 512 MiB" in last.reason
    assert life.same()


def test_other_ends_and_jobs_without_relief_change_no_limit() -> None:
    life, _ = begun()
    kill(life, Member("ps", 0, 1), reason="killed")
    assert len(limits(life)) == 1
    life, _ = begun(relief=False)
    kill(life, Member("ps", 0, 1))
    assert len(limits(life)) == 1


def test_a_worker_gets_no_more_than_some_times_what_its_user_said() -> None:
    """One that eats all that it is given takes no host's memory from the others."""
    life, _ = begun()
    for incarnation in range(1, 6):
        kill(life, Member("worker", 0, incarnation))
    assert max(of_worker for of_worker, _ in limits(life)) == int(MOST_RAISED * LIMIT)
    assert (
        withheld(life)[0]
        == "worker-0.3 was killed at its limit of 1,024 MiB, and a worker gets 4 times what its job file says at most"
    )


def test_servers_get_no_more_than_is_there() -> None:
    life, _ = begun(memory_bytes=2 * GIB)
    for incarnation in range(1, 6):
        kill(life, Member("ps", 0, incarnation))
    held = max(2 * of_server + 2 * of_worker for of_worker, of_server in limits(life))
    assert LIMIT * 6 <= held <= HOST_SHARE * 2 * GIB
    assert all(said.endswith("and no more is free") for said in withheld(life))
    assert withheld(life)


def test_a_member_without_a_limit_that_its_host_kills_has_none_to_raise() -> None:
    life, _ = begun(limit=0)
    kill(life, Member("ps", 0, 1))
    assert len(limits(life)) == 1


def test_a_limit_that_was_refused_is_asked_for_at_the_next_kill_all_the_same() -> None:
    """Its job's clock stands while it is killed again and again: no rest would end."""
    life, _ = begun()
    known = life.brain.state.jobs["ads"]
    assert known.held is not None
    known.declined = [(known.held.replace(server_memory_bytes=2 * LIMIT), known.clock_s)]
    kill(life, Member("ps", 0, 1))
    assert limits(life)[1:] == [(LIMIT, 2 * LIMIT)]


def test_a_limit_that_waits_for_a_person_is_not_said_again_at_each_kill() -> None:
    life, job = begun()
    job.spec = job.spec.replace(plan=msgspec.structs.replace(job.spec.plan, mode="approve"))
    life.brain.state.jobs["ads"].spec = job.spec
    for incarnation in range(1, 4):
        kill(life, Member("ps", 0, incarnation))
    assert len(limits(life)) == 2, "one that waits is not said again"


def test_a_job_that_is_forgotten_before_the_next_look_has_no_limit_to_raise() -> None:
    """The rule failed then, and a rule that fails is switched off."""
    life, _ = begun()
    life.notice(facts.MemberLost(job="ads", member=Member("ps", 0, 1), reason="out_of_memory"))
    uid = life.brain.state.jobs["ads"].uid
    life.notice(facts.JobForgotten(job="ads", uid=uid))
    del life.jobs["ads"]
    life.wait(2)
    assert "ads" not in life.brain.state.jobs
    assert life.brain.state.rules_off == BrainState().rules_off
