"""Equal shares of a synchronous job in whatever order its workers ask: none waits for a step that another never takes."""

from __future__ import annotations

import random

import pytest

from rover_bus.events.deciding import Hold
from rover_bus.events.facts import JobSubmitted, PlanProposed, WorkerFailed
from rover_bus.events.identity import Member
from rover_bus.events.inputs import Observed, Requested, TookOver
from rover_bus.events.job import Dataset, DataSpec, JobSpec, WorkersSpec
from rover_bus.events.requests import (
    JoinRequest,
    LeaseReply,
    LeaseRequest,
    LeaveRequest,
    Progress,
    RegisterRequest,
)
from rover_bus.master.checks import broken
from rover_bus.master.decider import MasterDecider
from rover_bus.master.stepping import culprits


class Played:
    """A master and workers without a network: each takes its batches in order, and asks for more when it has none."""

    def __init__(self, workers: int, records: int, epochs: int) -> None:
        self.decider = MasterDecider("j")
        self.decide(TookOver("m", 1))
        spec = JobSpec(
            name="j",
            program=["train"],
            data=DataSpec(train="t", batch_size=10, epochs=epochs),
            workers=WorkersSpec(training="synchronous"),
        )
        self.decide(Observed(JobSubmitted(job="j", spec=spec, uid="0123456789ab"), "F:1"))
        self.plan(1, workers)
        self.dataset = Dataset(records=records, batch_size=10, epochs=epochs)
        self.queues: dict[int, list[tuple[int, int, int, int]]] = {}  # (token, batch, group, epoch)
        self.numbers: dict[int, int] = {}
        self.closed: set[int] = set()
        self.leavers: set[int] = set()  # they take what they were granted, then leave
        self.groups: dict[int, int] = {}
        self.done: dict[int, Progress] = {}
        for index in range(workers):
            self.join(index)

    def decide(self, input):
        decision = self.decider.decide(input, 0.0)
        assert broken(self.decider.state) == []
        return decision

    def plan(self, number: int, workers: int) -> None:
        fact = PlanProposed(job="j", plan=number, workers=workers, servers=0, hosts=["h"])
        self.decide(Observed(fact, f"F:{number + 1}"))

    def who(self, index: int):
        seated = self.decider.state.seats.admitted[f"worker-{index}"]
        return {"member": seated.member, "timeline": self.decider.timeline}

    def join(self, index: int) -> None:
        member = self.decider.state.seats.wanted[f"worker-{index}"].member
        self.decide(Requested(JoinRequest(member=member, nonce=f"{member}", host="h")))
        self.decide(Requested(RegisterRequest(**self.who(index), dataset=self.dataset)))
        self.queues[index], self.numbers[index] = [], 1

    def ask(self, index: int, rate: float) -> None:
        progress = self.done.pop(index, Progress())
        held = {token for token, *_ in self.queues[index]} - set(progress.tokens)
        request = LeaseRequest(
            **self.who(index), request=self.numbers[index], rate=rate, progress=progress, held=sorted(held)
        )
        decision = self.decide(Requested(request))
        for member, reply in [(request.member, decision.reply), *decision.released]:
            if isinstance(reply, LeaseReply):
                self.take(member.index, reply)
        assert isinstance(decision.reply, LeaseReply | Hold)

    def leave(self) -> None:
        for index in [index for index in self.leavers if not self.queues[index]]:
            progress = self.done.pop(index, Progress())
            self.decide(Requested(LeaveRequest(**self.who(index), progress=progress)))
            self.leavers.remove(index)
            del self.queues[index]

    def take(self, index: int, reply: LeaseReply) -> None:
        if reply.outcome == "closed":
            self.closed.add(index)
        if reply.outcome == "drain":
            self.leavers.add(index)
        self.numbers[index] += bool(reply.tokens)
        if reply.group is not None:
            self.groups[index] = reply.group.number
        for token, first, count in zip(reply.tokens, reply.firsts, reply.counts, strict=True):
            self.queues[index] += [
                (token, k, self.groups[index], reply.epoch) for k in range(first, first + count)
            ]

    def step(self, members: list[int]) -> list[tuple[int, int, int, int]]:
        """All of a group take one batch each, and say so with their next request."""
        taken = [self.queues[index].pop(0) for index in members]
        for index, (token, batch, _, _) in zip(members, taken, strict=True):
            former = self.done.get(index, Progress())
            uptos = dict(zip(former.tokens, former.uptos, strict=True)) | {token: batch + 1}
            self.done[index] = Progress(tokens=list(uptos), uptos=list(uptos.values()))
        return taken


@pytest.mark.parametrize("seed", range(30))
def test_workers_of_a_group_take_equal_numbers_of_steps_and_every_batch_once(seed: int) -> None:
    chance = random.Random(seed)
    workers, epochs = chance.randint(1, 5), chance.randint(1, 2)
    batches = chance.randint(1, 40)
    it = Played(workers, batches * 10, epochs)
    trained: dict[int, list[int]] = {epoch: [] for epoch in range(epochs)}
    plans = 1
    for _ in range(4000):
        it.leave()
        if len(it.closed) == len(it.queues):
            break
        ready = [index for index in it.queues if it.queues[index]]
        groups = {index: it.queues[index][0][2] for index in ready}
        lockstep = it.decider.state.ledger.lockstep
        whole = sorted(ready) == [member.index for member in lockstep.members]
        if ready and whole and chance.random() < 0.5:
            assert len(set(groups.values())) == 1  # one step is of one group
            taken = it.step(ready)
            trained[taken[0][3]] += [batch for _, batch, _, _ in taken]
            assert len({epoch for _, _, _, epoch in taken}) == 1
            continue
        seats = it.decider.state.seats
        if plans < 3 and seats.admitted.keys() == seats.wanted.keys() and chance.random() < 0.02:
            plans += 1
            more = workers + chance.choice((-1, 1)) * (workers > 1) or 2
            it.plan(plans, more)
            for index in range(more):
                member = it.decider.state.seats.wanted[f"worker-{index}"].member
                if not it.decider.state.seats.has(member):
                    it.join(index)
            continue
        index = chance.choice([index for index in it.queues if index not in it.closed | it.leavers])
        if len(it.queues[index]) <= 1:
            it.ask(index, chance.choice((0.0, 0.5, 1.0, 3.0)))
    assert all(set(done) == set(range(batches)) for done in trained.values())
    assert all(len(done) - batches < workers + 1 for done in trained.values())  # less than a step is repeated


def failed(*fingerprints: str) -> list[WorkerFailed]:
    return [
        WorkerFailed(member=Member("worker", at, 1), exception=name, message="", fingerprint=name)
        for at, name in enumerate(fingerprints)
    ]


def test_the_error_that_the_fewest_have_is_what_broke_a_step() -> None:
    assert [each.member.index for each in culprits(failed("barrier", "mine", "barrier"), 3)] == [1]
    assert [each.member.index for each in culprits(failed("barrier", "mine"), 2)] == [
        0
    ]  # the first of equals


def test_the_same_error_on_all_members_counts_for_all() -> None:
    assert len(culprits(failed("same", "same", "same"), 3)) == 3
    assert len(culprits(failed("same", "same"), 3)) == 1  # the third may have been lost
    assert culprits([], 3) == []
