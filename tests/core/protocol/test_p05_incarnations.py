"""P5, P8: what happened under another life of a server, or in another generation, is worth nothing now."""

from __future__ import annotations

import msgspec

from rover_bus.events.data_facts import CommitRefused
from rover_bus.events.inputs import Requested
from rover_bus.events.log import Committed
from rover_bus.events.requests import OK, STALE, Progress, RefusedReply
from rover_bus.master.decider import MasterDecider
from rover_bus.master.ledger import TOKEN_BITS

SERVERS = (1, 1)


def rewound(desk, decider_type=MasterDecider):
    """Two servers; a batch is pushed under them; then one dies and both places begin empty, in generation 1."""
    it = desk(decider_type, servers=2, on_server_lost="restart")
    it.before = it.lease(0, 1, servers=SERVERS)
    it.exit(it.planned("ps", 1))
    return it


def brought_up(it):
    for index in range(2):
        it.join("ps", index)
    return it


class ForgetsWhoAcked(MasterDecider):
    def decide(self, input, now):
        if isinstance(input, Requested) and hasattr(input.request, "progress"):
            progress = msgspec.structs.replace(input.request.progress, servers=[])
            input = Requested(msgspec.structs.replace(input.request, progress=progress))
        return super().decide(input, now)


def commit_acked_by_the_dead(desk, decider_type):
    """The lease is of generation 1, but the push behind the report was acked by servers that are gone."""
    it = brought_up(rewound(desk, decider_type))
    lease = it.lease(0, 2)
    return it, it.lease(0, 3, progress=[(lease.tokens[0], lease.counts[0])], servers=SERVERS)


def test_a_commit_that_dead_servers_acked_is_refused_and_recorded(desk):
    it, reply = commit_acked_by_the_dead(desk, MasterDecider)
    assert reply.answers == [STALE]
    assert it.ledger.samples_done() == (0, 0)
    assert "acked by server incarnations [1, 1]" in it.records(CommitRefused)[-1].reason


def test_without_the_incarnations_samples_count_that_no_server_holds(desk):
    it, reply = commit_acked_by_the_dead(desk, ForgetsWhoAcked)
    assert reply.answers == [OK]
    assert it.ledger.samples_done() == (40, 0)


class Generationless(MasterDecider):
    def decide(self, input, now):
        if (
            isinstance(input, Requested)
            and (progress := getattr(input.request, "progress", Progress())).tokens
        ):
            tokens = [t % 2**TOKEN_BITS | self.state.generation << TOKEN_BITS for t in progress.tokens]
            progress = Progress(tokens=tokens, uptos=progress.uptos)
            input = Requested(
                msgspec.structs.replace(input.request, generation=self.state.generation, progress=progress)
            )
        return super().decide(input, now)


def report_of_the_former_generation(desk, decider_type):
    """A paused worker reports what it pushed in generation 0, when its place already holds a lease of generation 1."""
    it = brought_up(rewound(desk, decider_type))
    it.lease(0, 2)
    before = it.before
    return it, it.beat(0, 2, progress=[(before.tokens[0], before.counts[0])], servers=SERVERS, generation=0)


def test_a_report_of_a_former_generation_changes_nothing(desk):
    it, reply = report_of_the_former_generation(desk, MasterDecider)
    assert isinstance(reply, RefusedReply)
    assert reply.code == "stale_generation"
    assert it.ledger.samples_done() == (0, 0)


def test_without_the_generation_it_commits_what_the_new_servers_never_saw(desk):
    it, _ = report_of_the_former_generation(desk, Generationless)
    assert it.ledger.samples_done() == (40, 0)


def test_counters_are_the_ledgers_present_state_and_not_a_sum_of_events(desk):
    """P8: batches that were committed, rewound and committed again are there once."""
    it = desk(servers=2, records=40, on_server_lost="restart")
    lease = it.lease(0, 1)
    it.beat(0, 1, progress=[(lease.tokens[0], 2)], servers=SERVERS, held=[])
    it.exit(it.planned("ps", 0))
    brought_up(it)
    again = it.lease(0, 2)
    it.leave(0, progress=[(again.tokens[0], again.firsts[0] + again.counts[0])])
    summed, known = 0, {}
    for record in it.records(Committed):
        for token, upto in zip(record.tokens, record.uptos, strict=True):
            summed += (upto - known.get(token, 0)) * it.dataset.batch_size
            known[token] = upto
    assert it.ledger.samples_done()[0] == again.counts[0] * 10
    assert summed > it.ledger.samples_done()[0]
