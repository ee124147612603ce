"""A first server takes in what is safe while others are to come, and lets workers wait for the rest (docs/design/0046)."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rover_bus.events.routing import RoutingTable, ServerAddress
from rover_bus.events.starts import ServerStart
from rover_bus.ps import early, messages
from rover_bus.ps.core import ServerCore
from rover_bus.ps.exchange import Exchange, OperationDone, Receive, Refresh, Reset, Send, advance
from rover_bus.ps.frame import unpack
from rover_bus.ps.messages import RefusedMessage
from rover_bus.ps.spec import Add, Growing, Hashed, Table
from rover_bus.ps.store import BatchKey

MIB = 1 << 20
WIDE = Hashed(name="wide", rows=1 << 16, width=8, optimizer=Add(), dtype="int64")  # 4 MiB
GROWS = Growing(name="grows", width=16, optimizer=Add(), dtype="int64")  # 128 bytes a row


def table(epoch: int, early_bytes: int | None, end: int = 4096) -> RoutingTable:
    owners = [(0, 0, end)] + ([(1, end, 4096)] if end < 4096 else [])
    servers = [ServerAddress(index, 1, []) for index, _, _ in owners]
    return RoutingTable(
        timeline=7, generation=0, epoch=epoch, owners=owners, servers=servers, early_bytes=early_bytes
    )


def server(early_bytes: int | None, free_bytes: int = 0) -> ServerCore:
    core = ServerCore(0, 1)
    core.free_bytes = lambda: free_bytes
    core.admit(timeline=7, generation=0, start=ServerStart("empty", generation=0), seed=1)
    core.route(table(1, early_bytes))
    return core


class Conversation:
    """A worker and one server; `between` is called where the worker waits for news."""

    def __init__(self, core: ServerCore, routing: RoutingTable, patience_s: float = 1.0) -> None:
        self.core, self.waited = core, list[float]()
        self.exchange = Exchange(routing, patience_s=patience_s, in_flight=0)
        self.news = list[
            tuple[int, RoutingTable]
        ]()  # after so many waits: what the server follows from then on

    def run(self, steps):
        replies, result = [], None
        while not isinstance(effect := advance(steps, result, None), OperationDone):
            result = None
            match effect:
                case Send(_, frame):
                    header, body = unpack(b"".join(bytes(part) for part in frame))
                    replies.append(self.core.answer(header, body))
                case Receive():
                    result = unpack(b"".join(bytes(part) for part in replies.pop(0)))
                case Reset():
                    replies.clear()
                case Refresh(after, wait_s):
                    self.waited.append(wait_s)
                    result = after
                    for at, news in self.news:
                        if len(self.waited) == at:
                            self.core.route(news)
                            result = news
        return effect.value


@pytest.mark.parametrize(
    ("early_bytes", "free_bytes", "fits"),
    [
        (0, 0, True),
        (7 * MIB, 0, False),
        (9 * MIB, 0, True),
        (0, 7 * MIB, False),
        (0, 9 * MIB, True),
        (9 * MIB, 7 * MIB, False),
    ],
)
def test_rows_have_half_of_the_limit_and_half_of_what_is_free(
    early_bytes: int, free_bytes: int, fits: bool
) -> None:
    core = server(early_bytes, free_bytes)
    replied = declared(core, WIDE)
    assert isinstance(replied, messages.Declared) == fits
    if not fits:
        assert isinstance(replied, RefusedMessage)
        assert (replied.code, replied.retry_s) == (messages.ROOM_TO_COME, early.AGAIN_S)


def declared(core: ServerCore, *tables: Table) -> object:
    assert core.state.routing is not None
    talk = Conversation(core, core.state.routing)
    talk.exchange.catalogue.declare(tables)
    fence = talk.exchange.route.fences[0]
    frame = messages.encode(messages.Declare(fence=fence, tables=tables))
    header, body = unpack(b"".join(bytes(part) for part in frame))
    header, _ = unpack(b"".join(bytes(part) for part in core.answer(header, body)))
    return messages.decode_reply(header)


def test_a_worker_waits_beyond_its_patience_and_goes_on_when_no_other_server_is_to_come() -> None:
    core = server(7 * MIB)
    talk = Conversation(core, table(1, 7 * MIB))
    talk.news = [(50, table(2, None))]
    talk.run(talk.exchange.declare(WIDE))
    assert sum(talk.waited) > 1.0, "its patience"
    assert [each.name for each in core.tables.catalogue.tables()] == ["wide"]


def test_a_push_that_finds_no_room_changes_nothing_and_passes_later() -> None:
    core = server(256 << 10)
    talk = Conversation(core, table(1, 256 << 10))
    talk.run(talk.exchange.declare(GROWS))
    ids = np.arange(2_000)
    talk.news = [(5, table(2, None))]
    add = {"grows": (ids, np.ones((len(ids), 16), np.int64))}
    talk.run(talk.exchange.push(BatchKey(0, 0), {}, add=add))
    assert len(talk.waited) == 5
    assert core.statistics()["rows"] == 2_000
    assert core.statistics()["pushes"] == 1


def test_a_survivor_of_the_master_is_bound_by_what_the_next_generation_says_alone() -> None:
    core = server(7 * MIB)
    core.admit(timeline=7, generation=1, start=ServerStart("kept", generation=1), seed=1)
    core.route(msgspec.structs.replace(table(2, None), generation=1))
    assert isinstance(declared(core, WIDE), messages.Declared)


def test_a_shortage_is_an_error_once_no_other_server_is_to_come() -> None:
    error = MemoryError()
    assert early.no_room(error, table(1, 0)).code == messages.ROOM_TO_COME
    assert early.no_room(error, table(2, None)).code == "not_enough_memory"
    assert early.no_room(error, None).code == "not_enough_memory"
