"""A decider and the members around it, for histories that need no bus: what they ask, and what the log then holds."""

from __future__ import annotations

import msgspec
import pytest

from rover_bus.events.codec import decode, encode
from rover_bus.events.facts import JobSubmitted, PlanProposed
from rover_bus.events.host_facts import HostExited
from rover_bus.events.identity import Exit, Member
from rover_bus.events.inputs import Observed, Requested, Ticked, TookOver
from rover_bus.events.job import Dataset, DataSpec, JobSpec, LeaseSpec
from rover_bus.events.log import LogBatch
from rover_bus.events.requests import (
    HeartbeatRequest,
    JoinRequest,
    LeaseRequest,
    LeaveRequest,
    Progress,
    RegisterRequest,
)
from rover_bus.master.decider import MasterDecider

BATCH = 10


class Desk:
    """One master's decider, spoken to by hand. `log` is what a real log would hold."""

    def __init__(
        self, decider_type=MasterDecider, *, workers=1, servers=0, records=100, epochs=1, batch=BATCH, **spec
    ):
        self.decider, self.log, self.now = decider_type("j"), [], 0.0
        self.decide(TookOver("m", 1))
        leases = {"target_s": 1000.0, "max_batches": 4, **spec.pop("leases", {})}
        self.job = JobSpec(
            name="j",
            program=["train"],
            data=DataSpec(train="t", batch_size=batch, epochs=epochs),
            leases=LeaseSpec(**leases),
            **spec,
        )
        self.notice(JobSubmitted(job="j", spec=self.job, uid="0123456789ab"))
        self.notice(PlanProposed(job="j", plan=1, workers=workers, servers=servers, hosts=["h"]))
        self.dataset = Dataset(records=records, batch_size=batch, epochs=epochs)
        for index in range(servers):
            self.join("ps", index)
        for index in range(workers):
            self.join("worker", index)
        if workers:
            self.ask(RegisterRequest(**self.who(0), dataset=self.dataset))

    @property
    def state(self):
        return self.decider.state

    @property
    def ledger(self):
        return self.decider.state.ledger

    def decide(self, input):
        records, reply, self.released, _ = self.decider.decide(input, self.now)
        self.log += records
        return reply

    def ask(self, request):
        return self.decide(Requested(request))

    def notice(self, fact):
        return self.decide(Observed(fact, "F:1"))

    def tick(self, seconds, step=0.25):
        for _ in range(round(seconds / step)):
            self.now += step
            self.decide(Ticked())

    def planned(self, role, index):
        return self.state.seats.wanted[f"{role}-{index}"].member

    def join(self, role, index, incarnation=0, nonce=""):
        member = Member(role, index, incarnation) if incarnation else self.planned(role, index)
        return self.ask(
            JoinRequest(member=member, nonce=nonce or f"n-{member}", host="h", addresses=[f"tcp:{member}"])
        )

    def who(self, index, role="worker", **other):
        known = self.state.seats.admitted.get(f"{role}-{index}")
        member = (
            known.member
            if known
            else Member(role, index, self.state.seats.incarnations.get(f"{role}-{index}", 0))
        )
        return {
            "member": member,
            "timeline": self.state.job.timeline,
            "generation": self.state.generation,
            **other,
        }

    def lease(self, index, request, progress=(), held=(), servers=(), wanted=1, rate=0.01, **other):
        return self.ask(
            LeaseRequest(
                **self.who(index, **other),
                request=request,
                wanted=wanted,
                rate=rate,
                progress=report(progress, servers),
                held=list(held),
            )
        )

    def beat(self, index, request=0, progress=(), held=(), servers=(), role="worker", **other):
        return self.ask(
            HeartbeatRequest(
                **self.who(index, role, **other),
                request=request,
                progress=report(progress, servers),
                held=list(held),
            )
        )

    def leave(self, index, progress=()):
        return self.ask(LeaveRequest(**self.who(index), progress=report(progress)))

    def exit(self, member, reason="killed"):
        return self.notice(HostExited(host="h", job="j", member=member, exit=Exit(reason=reason)))

    def take_over(self, decider_type=MasterDecider, records=None):
        """Another master: its state comes from the bytes of the log alone."""
        batch = LogBatch(
            job="j",
            timeline=1,
            term=1,
            holder="m",
            number=1,
            records=self.log if records is None else records,
        )
        successor = Desk.__new__(Desk)
        successor.decider, successor.log, successor.now = decider_type("j"), list(batch.records), self.now
        successor.job, successor.dataset = self.job, self.dataset
        for record in decode(encode(batch), LogBatch).records:
            successor.decider.evolve(record)
        successor.decide(TookOver("n", self.state.term + 1, len(batch.records)))
        return successor

    def records(self, kind):
        return [record for record in self.log if isinstance(record, kind)]


def report(pairs, servers=()):
    return Progress(tokens=[t for t, _ in pairs], uptos=[u for _, u in pairs], servers=list(servers))


def rewrite(input, **fields):
    """Another request than was sent: what a master that ignores a field would see."""
    return Requested(msgspec.structs.replace(input.request, **fields))


@pytest.fixture
def desk():
    return Desk


@pytest.fixture(name="rewrite")
def rewrite_fixture():
    return rewrite
