"""In a freeze no running job is changed by the Brain's own choice; what saves a job is done, and what a person asks for."""

from __future__ import annotations

from typing import Any

import pytest
from brain_states import cluster, runs, size, waits
from life_of_jobs import BEGAN_S, GIB, Life

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.freezing import coming, ends_at
from rover_bus.brain.granting import grant_best
from rover_bus.brain.state import Freeze
from rover_bus.brain.wishes import Wish
from rover_bus.events import facts
from rover_bus.events.host_facts import FreezeLifted, FreezeSet
from rover_bus.events.identity import Member

HOUR, DAY = 3600.0, 86_400.0


def step(workers: int) -> float:
    """Faster with each worker up to six."""
    return 128 * {1: 25.0, 2: 49.0, 3: 75.0, 4: 98.0, 5: 120.0, 6: 137.0}.get(workers, 140.0)


def freeze(begins_s: float = 0.0, for_s: float = HOUR, **more: Any) -> FreezeSet:
    """A window, from so many seconds after the beginning of a life."""
    begins = BEGAN_S + begins_s
    return FreezeSet(freeze="sale", begins_s=begins, ends_s=begins + for_s, by="ann", **more)


def changes(life: Life, name: str = "j") -> list[facts.PlanProposed]:
    return [plan for plan in life.found(facts.PlanProposed) if plan.job == name and plan.step != "start"]


def test_a_job_is_left_as_it_is_until_the_window_ends_and_is_sized_then() -> None:
    life = Life()
    life.notice(freeze(0.0, 60.0, reason="the sale"))
    life.submit("j", step)
    life.wait(59)
    assert len(list(life.found(facts.PlanProposed))) == 1, "a job that waits begins"
    (why,) = life.found(facts.PlanWithheld)
    assert why.constant == Reason.FROZEN
    assert why.reason == "frozen by 'sale' until 2027-01-15 08:01 UTC: the sale"
    assert not life.brain.state.freezes or life.brain.state.frozen
    life.wait(60)
    assert changes(life)[0].workers > 1
    assert not life.brain.state.freezes, "what does not come again is forgotten"
    assert life.same()


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_freeze_holds_for_the_next_brain(taken_over: bool) -> None:
    life = Life()
    life.submit("j", step)
    life.notice(freeze())
    life.wait(2)
    if taken_over:
        life.take_over()
    life.wait(60)
    assert not changes(life)
    life.notice(FreezeLifted(freeze="sale"))
    life.wait(60)
    assert changes(life)


def test_a_freeze_of_a_tenant_is_of_its_jobs_alone() -> None:
    life = Life()
    life.submit("frozen", step, plan={"tenant": "ads"})
    life.submit("free", step, plan={"tenant": "maps"})
    life.notice(freeze(tenant="ads"))
    life.wait(60)
    assert not changes(life, "frozen")
    assert changes(life, "free")


def test_memory_is_relieved_in_a_freeze() -> None:
    life = Life()
    life.notice(freeze())
    job = life.submit("j", step, workers=2, server_memory_bytes=GIB // 2, total=1_200_000)
    job.server_bytes, job.grows_by = 0.2 * GIB, 800.0
    life.wait(170)
    assert not job.killed
    assert {plan.step for plan in changes(life)} == {"relief"}


def test_a_change_under_way_is_taken_back_in_a_freeze() -> None:
    life = Life()
    life.submit("j", lambda workers: 128 * (25.0 * workers if workers <= 3 else 40.0))
    while not any(plan.workers > 3 for plan in changes(life)):
        life.wait(1)
        assert life.now < 200
    life.notice(freeze(life.now))
    life.wait(120)
    assert changes(life)[-1].step == "rollback"


def test_slow_workers_are_found_and_stay_in_a_freeze() -> None:
    life = Life()
    job = life.submit("j", lambda workers: 1000.0 * workers, workers=4)
    life.wait(30)
    life.notice(freeze(life.now))
    job.slow[2] = 0.2
    life.wait(120)
    assert list(life.found(facts.StragglerFound))
    assert not changes(life)
    life.notice(FreezeLifted(freeze="sale"))
    life.wait(60)
    assert changes(life)[0].replaces == [Member("worker", 2, 1)]


def test_what_a_person_asks_for_is_done_in_a_freeze() -> None:
    life = Life()
    life.submit("j", step)
    life.notice(freeze())
    life.wait(20)
    life.notice(facts.PlanRequested(job="j", workers=3, by="ann", beyond_limits=True))
    life.wait(10)
    (asked,) = changes(life)
    assert (asked.step, asked.workers) == ("asked", 3)


@pytest.mark.parametrize("holds", [False, True])
def test_a_newcomer_takes_nothing_from_a_frozen_job(holds: bool) -> None:
    state = cluster(runs("old", size(2, cores=1.0), "h"), waits("new"), cores=3.0, hosts="h")
    if holds:
        state.freezes["sale"] = Freeze(begins_s=0.0, ends_s=1.0)
        state.frozen["sale"] = 1.0
    wish = Wish(size=size(1, cores=1.0), step="start", constant=Reason.COLD_START)
    given = grant_best("new", wish, state, {})[0]
    assert bool(given.shrinks) is not holds
    assert given.size is None or not holds


def test_a_window_comes_again() -> None:
    weekly = Freeze(begins_s=BEGAN_S, ends_s=BEGAN_S + HOUR, repeats_s=7 * DAY)
    once = Freeze(begins_s=BEGAN_S, ends_s=BEGAN_S + HOUR)
    for week in (0, 1, 52):
        began = BEGAN_S + week * 7 * DAY
        assert ends_at(weekly, began - 1.0) is None
        assert ends_at(weekly, began) == ends_at(weekly, began + HOUR - 1.0) == began + HOUR
        assert ends_at(weekly, began + HOUR) is None
        assert coming(weekly, began + HOUR) == (began + 7 * DAY, began + 7 * DAY + HOUR)
    assert ends_at(once, BEGAN_S) == BEGAN_S + HOUR
    assert ends_at(once, BEGAN_S + 7 * DAY) is None
    assert ends_at(weekly, BEGAN_S - 7 * DAY) is None, "none comes before the first"
