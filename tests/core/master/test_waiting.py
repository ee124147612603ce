"""Requests that wait cost the master nothing but themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rover_bus.events.deciding import Hold
from rover_bus.events.facts import JobSubmitted, PlanProposed
from rover_bus.events.identity import Member
from rover_bus.events.inputs import Observed, Requested, Ticked, TookOver
from rover_bus.events.job import Dataset, DataSpec, JobSpec
from rover_bus.events.requests import HeartbeatRequest, JoinRequest, LeaseRequest, RegisterRequest
from rover_bus.master.decider import MasterDecider

WORKERS, HOLDING = 30, 20


class Counted(dict[int, Any]):
    """A dictionary that counts walks over it; looking one key up is none."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return super().__iter__()

    def items(self) -> Any:
        self.walks += 1
        return super().items()

    def values(self) -> Any:
        self.walks += 1
        return super().values()


def ask(decider: MasterDecider, index: int, now: float = 0.0, **fields: Any) -> Any:
    member = Member("worker", index, 1)
    request = LeaseRequest(
        **{"member": member, "timeline": decider.timeline, "request": 1, "rate": 0.1, **fields}
    )
    return decider.decide(Requested(request), now)


@pytest.fixture
def decider() -> MasterDecider:
    """A job at the end of its epoch: each of HOLDING workers holds one batch, and there are no more."""
    made = MasterDecider("j")
    spec = JobSpec(name="j", program=["true"], data=DataSpec(train="x", batch_size=10))
    made.decide(TookOver("m", 1), 0.0)
    made.decide(Observed(JobSubmitted(job="j", spec=spec, uid="0123456789ab"), "F:1"), 0.0)
    made.decide(Observed(PlanProposed(job="j", plan=1, workers=WORKERS, servers=0, hosts=["h"]), "F:2"), 0.0)
    for index in range(WORKERS):
        made.decide(Requested(JoinRequest(member=Member("worker", index, 1), nonce=str(index))), 0.0)
    data = Dataset(records=HOLDING * 10, batch_size=10)
    who = {"member": Member("worker", 0, 1), "timeline": made.timeline}
    made.decide(Requested(RegisterRequest(**who, dataset=data)), 0.0)
    for index in range(HOLDING):
        assert ask(made, index).reply.tokens
    assert made.state.ledger is not None
    made.state.ledger.holders = Counted(made.state.ledger.holders)
    return made


def walks(decider: MasterDecider) -> int:
    assert decider.state.ledger is not None
    holders = decider.state.ledger.holders
    assert isinstance(holders, Counted)
    return holders.walks


def test_a_request_that_gets_nothing_walks_over_no_worker(decider: MasterDecider) -> None:
    for index in range(HOLDING, WORKERS):
        assert isinstance(ask(decider, index).reply, Hold)
    assert walks(decider) == 0


def test_a_tick_walks_once_for_all_that_wait(decider: MasterDecider) -> None:
    for index in range(HOLDING, WORKERS):
        ask(decider, index)
    decider.decide(Ticked(), 0.25)
    assert walks(decider) == 1
    assert Counted({1: 2}).walks == 0


def test_who_is_late_is_leased_twice_to_the_fastest_that_waits(decider: MasterDecider) -> None:
    ask(decider, 20, rate=1.0)
    ask(decider, 21, rate=5.0)
    for index in range(1, HOLDING):
        beat = HeartbeatRequest(member=Member("worker", index, 1), timeline=decider.timeline, request=1)
        decider.decide(Requested(beat), 2.0)
    late = decider.unlogged.watch
    for index in range(1, HOLDING):
        late.move(index, 1.0, 30.0)  # all but worker-0 have just moved
    for member in [life.member for life in decider.state.seats.workers()]:
        late.observe(member, 30.0)
    [(key, reply)] = decider.decide(Ticked(), 30.0).released[:1]
    assert key == Member("worker", 21, 1)
    assert reply.firsts == [0]
