"""P24: a server is lost before checkpoints exist. The job says so and ends, or begins again: never a silent half model."""

from __future__ import annotations

import math

import pytest

from rover_bus.events.facts import JobEnded, MembersDesired
from rover_bus.events.host_facts import HostExited
from rover_bus.events.inputs import Observed
from rover_bus.events.log import Rewound
from rover_bus.master.decider import MasterDecider
from rover_bus.master.phases import name_of
from rover_bus.master.planning import replace_members
from rover_bus.master.watch import Liveness


class HalfModel(MasterDecider):
    def _steps(self, input, now):
        if (
            isinstance(input, Observed)
            and isinstance(input.fact, HostExited)
            and input.fact.member.role == "ps"
        ):
            return iter([replace_members(self.state, [input.fact.member], "", "a new server, empty")])
        return super()._steps(input, now)


def loses_a_server(desk, policy, decider_type=MasterDecider):
    it = desk(decider_type, servers=2, records=40, on_server_lost=policy)
    token = it.lease(0, 1, servers=(1, 1)).tokens[0]
    it.beat(0, 1, progress=[(token, 2)], servers=(1, 1))
    assert it.ledger.samples_done() == (20, 0)
    it.exit(it.planned("ps", 1), "out_of_memory")
    return it


def test_by_default_the_job_ends_by_name(desk):
    it = loses_a_server(desk, "fail")
    [end] = it.records(JobEnded)
    assert (end.state, end.reason) == ("failed", "server_lost")
    assert "ps-1.1" in end.detail


def test_or_it_begins_again_from_nothing_in_a_new_generation(desk):
    it = loses_a_server(desk, "restart")
    assert it.ledger.samples_done() == (0, 0)
    assert it.state.generation == 1
    assert {str(p.member) for p in it.state.seats.wanted.values()} == {"ps-0.2", "ps-1.2", "worker-0.1"}
    assert [record.generation for record in it.records(Rewound)] == [1]


@pytest.mark.parametrize("policy", ["fail", "restart"])
def test_without_the_rule_samples_stay_committed_that_no_server_holds(desk, policy):
    it = loses_a_server(desk, policy, HalfModel)
    assert str(it.planned("ps", 1)) == "ps-1.2"
    assert name_of(it.state.phase) == "training"
    assert it.ledger.samples_done() == (20, 0)  # half of them went with ps-1.1, and nothing says so
    assert it.state.generation == 0


def leave_when_done(it, servers=()):
    """Worker 0 trains all there is, and leaves."""
    progress, request = [], 0
    while name_of(it.state.phase) == "training":
        reply = it.lease(0, request := request + 1, progress=progress, servers=servers)
        progress = [(t, f + c) for t, f, c in zip(reply.tokens, reply.firsts, reply.counts, strict=True)]
    it.leave(0)


def test_a_server_lost_after_the_workers_left_brings_them_back(desk):
    """All is trained and every worker has gone, when a server dies with its part: the work is to be done again."""
    it = desk(servers=1, records=40, on_server_lost="restart")
    leave_when_done(it, servers=(1,))
    assert name_of(it.state.phase) == "finishing"
    assert not [p for p in it.state.seats.wanted.values() if p.member.role == "worker"]
    it.decider.restore(it.decider.dump())  # a snapshot must know of those who are done
    it.exit(it.planned("ps", 0))
    assert {str(p.member) for p in it.records(MembersDesired)[-1].members} == {"ps-0.2", "worker-0.2"}
    it.join("ps", 0)
    it.join("worker", 0)
    assert it.lease(0, 1, servers=(2,)).firsts == [0]


def test_a_new_plan_forgets_the_places_that_were_done(desk):
    it = desk(workers=2, records=40)
    leave_when_done(it)
    assert set(it.state.seats.done) == {"worker-0"}
    assert set(it.take_over().state.seats.done) == {"worker-0"}
    it.decider.evolve(MembersDesired(plan=9, members=[], proposal=2))
    assert set(it.state.seats.done) == set()


def test_after_a_take_over_a_stalled_tail_is_still_noticed():
    """A new master has heard of no progress: its count begins when it first asks, not never."""
    watch = Liveness(1.0)
    assert watch.rate_to_beat(0, 1, 100.0) == math.inf
    assert watch.rate_to_beat(0, 1, 104.0) < 0.0, "any idle worker would be faster"


def test_a_server_lost_before_the_data_set_is_known_is_routed_around_too(desk):
    """No ledger to rewind yet; still the routing named a server that is gone, and nobody would ever find the new one."""
    it = desk(servers=2, workers=0, on_server_lost="restart")
    assert name_of(it.state.phase) == "training"
    it.exit(it.planned("ps", 1))
    assert (it.state.generation, it.state.slots.routing) == (1, None)
    assert it.take_over().state.slots.routing is None
    for index in range(2):
        it.join("ps", index)
    assert [server.incarnation for server in it.state.slots.routing.servers] == [2, 2]
