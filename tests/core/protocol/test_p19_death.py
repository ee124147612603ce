"""P19, P17: who is dead. A process exit that names the incarnation, or silence that a master could have heard."""

from __future__ import annotations

import msgspec
import pytest

from rover_bus.client.worker import Worker
from rover_bus.events.facts import MemberLost, MembersDesired, PlanProposed
from rover_bus.events.host_facts import HostExited
from rover_bus.events.identity import Member
from rover_bus.events.inputs import BusLost, BusRegained, Observed
from rover_bus.events.job import Dataset
from rover_bus.events.log import Granted
from rover_bus.events.requests import JoinReply, JoinRequest, LeaseReply, LeaseRequest, RegisterReply
from rover_bus.master.decider import MasterDecider
from rover_bus.master.watch import Liveness


class CountsItsOwnSleep(Liveness):
    def look(self, now):
        """A pause of the master is the members' silence."""


class CountsOutages(Liveness):
    def regain_bus(self, now):
        self._away_since = None


def lost_members(desk, watch_type, asleep_s=0.0, outage_s=0.0):
    it = desk(workers=2)
    it.decider.unlogged.watch.__class__ = watch_type
    it.tick(1.0)
    for index in range(2):
        it.beat(index)
    it.now += asleep_s
    if outage_s:
        it.decide(BusLost())
        it.tick(outage_s)
        it.decide(BusRegained())
    it.tick(0.5)
    return [str(record.member) for record in it.records(MemberLost)]


def test_a_masters_own_pause_is_nobodys_silence(desk):
    assert lost_members(desk, Liveness, asleep_s=10.0) == []


def test_without_that_every_member_dies_of_a_pause(desk):
    assert len(lost_members(desk, CountsItsOwnSleep, asleep_s=10.0)) == 2


def test_a_bus_outage_is_nobodys_silence(desk):
    assert lost_members(desk, Liveness, outage_s=10.0) == []


def test_without_that_every_member_dies_of_an_outage(desk):
    assert len(lost_members(desk, CountsOutages, outage_s=10.0)) == 2


def test_three_silent_intervals_of_a_waking_master_are_death_and_two_are_not(desk):
    it = desk(workers=2)
    it.tick(2.9)
    it.beat(1)
    assert it.records(MemberLost) == []
    it.tick(0.5)
    assert [str(record.member) for record in it.records(MemberLost)] == ["worker-0.1"]


def test_whoever_is_lost_is_not_waited_for_and_whoever_left_is(desk):
    """The lost one is fenced (P3), its successor needs its place; the program of one that left may still have work of its own."""
    it = desk(workers=2)
    it.tick(2.9)
    it.beat(1)
    it.tick(0.5)
    it.leave(1)
    plan = it.records(MembersDesired)[-1]
    assert [(str(each.member), each.after_loss) for each in plan.members] == [
        ("worker-0.2", True),
        ("worker-1.2", False),
    ]
    it.join("worker", 0)
    it.tick(10.0)
    slow = it.planned("worker", 0)
    it.notice(PlanProposed(job="j", plan=2, workers=2, servers=0, hosts=["h"], replaces=[slow]))
    [replaced] = [each for each in it.records(MembersDesired)[-1].members if each.member.name == slow.name]
    assert (replaced.member.incarnation, replaced.after_loss) == (slow.incarnation + 1, False), (
        "slow, not lost"
    )


class IgnoresIncarnations(MasterDecider):
    def decide(self, input, now):
        if isinstance(input, Observed) and isinstance(input.fact, HostExited):
            life = self.state.seats.admitted[input.fact.member.name].member
            input = Observed(msgspec.structs.replace(input.fact, member=life), input.id)
        return super().decide(input, now)


def exit_heard_twice(desk, decider_type):
    """P17: after a take-over the fact of an exit comes again, when the place has a healthy new life already."""
    it = desk(decider_type)
    dead = it.planned("worker", 0)
    it.exit(dead)
    it.join("worker", 0)
    it.exit(dead)
    return [str(record.member) for record in it.records(MemberLost)], sorted(
        map(str, (x.member for x in it.state.seats.workers()))
    )


def test_an_exit_that_is_heard_twice_leaves_the_replacement_alone(desk):
    assert exit_heard_twice(desk, MasterDecider) == (["worker-0.1"], ["worker-0.2"])


def test_without_the_incarnation_a_healthy_replacement_is_lost(desk):
    assert exit_heard_twice(desk, IgnoresIncarnations) == (["worker-0.1", "worker-0.2"], [])


def test_a_grant_in_the_log_bears_no_time(desk):
    """Deadlines belong to the master that leads; a take-over gives everybody fresh ones."""
    it = desk()
    lease = it.lease(0, 1)
    it.now += 1000.0
    successor = it.take_over()
    assert not {
        name
        for name in Granted.__struct_fields__
        if "time" in name or name.endswith(("_s", "_ms", "deadline"))
    }
    successor.tick(1.0)
    assert successor.records(MemberLost) == []
    assert successor.beat(0, 1, progress=[(lease.tokens[0], 4)]).answers == [0]


class ExpiresItsLeases(Worker):
    def take(self):
        """Ten seconds without a master, and what was leased is no longer touched."""


def batches_without_a_master(worker_type):
    """A worker gets one lease; then no master answers for a day."""
    worker = worker_type(Member("worker", 0, 1), "n")
    reply = {"term": 1, "generation": 0}
    join = worker.next_request(0.0)
    assert isinstance(join, JoinRequest)
    worker.receive(join, JoinReply(**reply, member=worker.member, uid="u", timeline=1, heartbeat_s=1.0), 0.0)
    worker.want(dataset := Dataset(records=100, batch_size=10))
    worker.receive(worker.next_request(0.0), RegisterReply(**reply, dataset=dataset), 0.0)
    ask = worker.next_request(0.0)
    assert isinstance(ask, LeaseRequest)
    worker.receive(
        ask, LeaseReply(**reply, request=1, outcome="granted", tokens=[1], firsts=[0], counts=[3]), 0.0
    )
    worker.next_request(86_400.0)  # nobody answers
    done = 0
    while (assigned := worker.take()) is not None:
        assert worker.holds(assigned)
        worker.finish(assigned, 86_400.0)
        done += 1
    return done


@pytest.mark.parametrize(("worker_type", "done"), [(Worker, 3), (ExpiresItsLeases, 0)])
def test_a_worker_never_expires_its_own_lease(worker_type, done):
    assert batches_without_a_master(worker_type) == done
