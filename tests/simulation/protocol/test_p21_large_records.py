"""P21: a record that grows with its job (a ledger of many holes) is stored in pieces; no batch is larger than a message.

The pieces count together or not at all: a leader that dies between two of them has not decided what they hold.
"""

from __future__ import annotations

import asyncio
from functools import cache

import msgspec
import pytest

from rover_bus.events.codec import MAX_BODY_BYTES, encode
from rover_bus.events.data_facts import EpochOpened, LedgerRewound
from rover_bus.events.errors import BadMessage
from rover_bus.events.facts import JobOpened
from rover_bus.events.inputs import TookOver
from rover_bus.events.job import Dataset
from rover_bus.events.journal import MAX_APPEND_BYTES, PieceReader, record_pieces
from rover_bus.events.log import RecordPiece, Rewound
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.memory_links import Faults
from rover_bus.events.shell import Shell
from rover_bus.master.decider import MasterDecider
from rover_bus.master.intervals import IntervalSet
from rover_bus.master.ledger import Ledger

HOLES = 500_000
BATCH = 10


def riddled(generation: int = 1) -> Ledger:
    """The ledger of an epoch of which every second batch is committed."""
    ledger = Ledger.new(Dataset(records=2 * HOLES * BATCH, batch_size=BATCH, epochs=1), generation)
    ledger.begin_epoch(EpochOpened(epoch=0))
    committed = [(at, at + 1) for at in range(0, 2 * HOLES, 2)]
    returned = [(at + 1, at + 2) for at in range(0, 2 * HOLES, 2)]
    ledger.frontier = 2 * HOLES
    ledger.done, ledger.returned = IntervalSet.of(committed), IntervalSet.of(returned)
    return ledger


@cache
def rewound(generation: int = 1) -> Rewound:
    dump = msgspec.msgpack.encode(riddled(generation))
    assert len(dump) > MAX_BODY_BYTES
    return Rewound(generation=generation, ledger=msgspec.Raw(dump), reason="a test", cause="host:h")


class Says(Shell):
    """A master that can be told a decision."""

    def say(self, record):
        self.decider.evolve(record)
        self._pending.append(record)
        self._wake.set()


class RewindsAtFirst(MasterDecider):
    """A master whose take-over goes back, as one does that finds its log without a tail."""

    def decide(self, input, now):
        decision = super().decide(input, now)
        if isinstance(input, TookOver) and not self.state.generation:
            self.evolve(record := rewound())
            return decision._replace(effects=[*decision.effects, record])
        return decision


def slow_broker() -> MemoryBroker:
    return MemoryBroker(1, Faults(delay_s=(0.01, 0.02)))


def holds_it(decider) -> bool:
    done = decider.state.ledger.done if decider.state.ledger else ()
    return decider.state.generation == 1 and sum(1 for _ in done) == HOLES


async def opened(it, name) -> None:
    """Until a master leads a job that it knows."""
    await it.leads(name)
    await it.until(lambda: it.records(JobOpened))


def largest(it) -> int:
    return max(len(stored.body) for stored in it.stored())


def test_a_record_that_no_message_holds_is_stored_in_pieces_and_read_as_one(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0", Says)
        await opened(it, "m0")
        it.shells["m0"].say(rewound())
        await it.until(lambda: it.facts(LedgerRewound))
        pieces, most = it.records(RecordPiece), largest(it)
        it.kill("m0")
        it.master("m1")
        await it.leads("m1")
        await asyncio.sleep(1.0)
        return pieces, most, it.deciders["m1"], it.facts(LedgerRewound), it.ends

    pieces, most, successor, facts, ends = stage(scenario)
    assert ends == {}
    assert [piece.index for piece in pieces] == list(range(pieces[0].count))
    assert len(pieces) > 20
    assert most <= MAX_APPEND_BYTES
    assert holds_it(successor)
    assert len(facts) == 1


def test_the_snapshot_of_such_a_state_is_a_beginning_too(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0", Says)
        await opened(it, "m0")
        it.shells["m0"].say(rewound())
        it.shells["m0"]._take_snapshot()
        await it.until(lambda: it.shells["m0"].journal.snapshot)
        it.kill("m0")
        it.master("m1")
        await it.leads("m1")
        return it.deciders["m1"], largest(it)

    successor, most = stage(scenario)
    assert holds_it(successor)
    assert most <= MAX_APPEND_BYTES


def test_a_leader_that_dies_between_two_pieces_has_decided_nothing(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0", Says)
        await opened(it, "m0")
        it.shells["m0"].say(rewound())
        await it.until(lambda: len(it.records(RecordPiece)) == 3)
        it.kill("m0")
        it.master("m1", Says)
        await it.leads("m1")
        undecided = it.deciders["m1"].state.generation
        it.shells["m1"].say(rewound())
        await it.until(lambda: it.facts(LedgerRewound))
        it.kill("m1")
        it.master("m2")
        await it.leads("m2")
        return undecided, it.deciders["m2"], it.facts(LedgerRewound), it.ends

    undecided, successor, facts, ends = stage(scenario, slow_broker)
    assert ends == {}
    assert undecided == 0
    assert holds_it(successor)
    assert len(facts) == 1


def test_a_take_over_in_pieces_counts_when_all_are_stored(stage):
    """The term that died amid them has taken nothing over: what it was to mend is still to be mended."""

    async def scenario(it):
        await it.begin()
        it.master("first")
        await opened(it, "first")
        it.kill("first")
        it.master("m0", decider=RewindsAtFirst)
        await it.until(lambda: len(it.records(RecordPiece)) == 3)
        it.kill("m0")
        it.master("m1", decider=RewindsAtFirst)
        await it.leads("m1")
        decided = it.shells["m1"].journal.decided
        await it.until(lambda: it.facts(LedgerRewound))
        it.kill("m1")
        it.master("m2")
        await it.leads("m2")
        return decided, it.deciders["m2"], it.ends

    decided, successor, ends = stage(scenario, slow_broker)
    assert ends == {}
    assert decided[0] == 1, "the term that died decided nothing"
    assert holds_it(successor)
    assert successor.state.term == 4


def test_pieces_that_are_not_what_was_cut_are_no_record():
    pieces = record_pieces(encode(rewound()))
    reader = PieceReader()
    assert [reader.take([piece]) for piece in pieces[:-1]] == [b""] * (len(pieces) - 1)
    assert reader.take([pieces[-1]]) == encode(rewound())
    reader.take([pieces[0]])
    with pytest.raises(BadMessage, match="piece 3 of"):
        reader.take([pieces[2]])
    damaged = msgspec.structs.replace(pieces[4], data=pieces[4].data[::-1])
    for piece in (*pieces[:4], damaged, *pieces[5:-1]):
        reader.take([piece])
    with pytest.raises(BadMessage, match="do not match their digest"):
        reader.take([pieces[-1]])
