"""One move as its target sees it, without sockets and time: what to ask the source, what to do with the answers (design/0013).

A generator of effects (`Ask`, `RunOnTables`, `Rest`, `TransferPace`); `moves` performs them over sockets or over a simulated, lossy
network.
Everything may be repeated: requests are numbered, rows are written as they are, and nothing that arrives is served before the log
says so.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, NamedTuple

from rover_bus.events.errors import BadMessage, RoverError
from rover_bus.events.requests import MoveOrder, MoveStatus, ServerAddress
from rover_bus.ps import messages
from rover_bus.ps.admission import Fence
from rover_bus.ps.core import ServerCore
from rover_bus.ps.exchange import LinkLost
from rover_bus.ps.frame import BodyReader, Buffer
from rover_bus.ps.messages import Fetch, Fetched, RefusedMessage
from rover_bus.ps.moving import FEW_ROWS

CHUNK_BYTES = 3 << 18  # little enough to fit in while a worker computes
LARGEST_CHUNK = 4 * CHUNK_BYTES  # from a source that answers late: it rarely gets to run
NETWORK_BYTES = 125e6  # a second: the slowest network on which a large answer is not taken for a late one
LATE_S = 0.02  # longer than a source may let us wait for its workers' sake
MOST_UNWRITTEN = (
    4  # chunks of such a source: a thread that just ran, and answered, answers the next request at once
)
MOST_ROUNDS = 8  # of catching up: a slot that changes faster than that is handed over as it is
FIRST_REST_S, LONGEST_REST_S = (
    0.02,
    0.5,
)  # after a source that did not answer, or does not know of the move yet


class TransferAnswer(NamedTuple):
    """What a server replied, and how long that took."""

    header: Buffer
    body: Buffer
    seconds: float


class Ask(NamedTuple):
    """Send a frame to the source. Result: its `TransferAnswer`. `last`: from here on the source takes no pushes."""

    server: ServerAddress
    frame: list[Buffer]
    last: bool = False


class RunOnTables(NamedTuple):
    """Run a function where the tables live. Result: what it returned."""

    function: Callable[[], Any]
    patient: bool = False  # workers first


class Rest(NamedTuple):
    """Wait."""

    seconds: float


class TransferPace(NamedTuple):
    """Let so long pass since the last one, unless no worker trains."""

    seconds: float


Effect = Ask | RunOnTables | Rest | TransferPace
Steps = Generator[Effect, Any, None]


class Transfer:
    """Fetches the slots of one order. `status` is what the master is told."""

    def __init__(self, order: MoveOrder, core: ServerCore) -> None:
        self.order, self._core = order, core
        self.status = MoveStatus(move=order.move, phase="copying")
        self._chunk_bytes = CHUNK_BYTES
        self._generation = core.state.generation

    @property
    def is_over(self) -> bool:
        """Whether a routing that came after the move's own is followed: of another generation it says nothing of the move."""
        routing = self._core.state.routing
        return (
            routing is not None
            and routing.generation == self._generation
            and routing.epoch > self.order.epoch
        )

    def steps(self) -> Steps:
        """Fetch everything, then the rest; `status` says how that ended. Goes on for as long as the move is on."""
        try:
            yield RunOnTables(lambda: self._core.begin_arrival(self.order))
            yield from self._fetch_all()
        except LinkLost:
            raise
        except (RoverError, MemoryError) as error:
            why = str(error) or "the server is out of memory"
            self.status = MoveStatus(move=self.order.move, phase="failed", detail=why)

    def _fetch_all(self) -> Steps:
        number, unwritten = 1, []
        fetched, body = yield from self._fetch(number, False)
        while not (fetched.rounds and (fetched.left <= FEW_ROWS or fetched.rounds > MOST_ROUNDS)):
            number += 1
            unwritten.append(self._writing(fetched, body, False))
            if not self._source_is_slow or len(unwritten) == MOST_UNWRITTEN:
                for writing in unwritten:
                    yield writing
                unwritten = []
            yield TransferPace(0.0 if self._source_is_slow else len(body) / self.order.rate_bytes)
            fetched, body = yield from self._fetch(number, False)
        for writing in [*unwritten, self._writing(fetched, body, False)]:
            yield writing
        fetched, body = yield from self._fetch(number + 1, True)
        yield self._writing(fetched, body, True)

    def _writing(self, fetched: Fetched, body: Buffer, last: bool) -> RunOnTables:
        """Write what was fetched. With the last of it the slots are whole here."""

        def write() -> None:
            arrival = self._core.take_in(self.order.move, fetched, BodyReader(memoryview(body)), last)
            self.status = MoveStatus(
                move=self.order.move,
                phase="ready" if last else "copying",
                rows=arrival.rows,
                bytes=arrival.bytes,
            )

        return RunOnTables(write, patient=not last)

    def _fetch(self, number: int, last: bool) -> Generator[Effect, Any, tuple[Fetched, Buffer]]:
        """Ask until there is an answer: the same number again when one is lost."""
        rest_s = FIRST_REST_S
        while True:
            answer: TransferAnswer | None = None
            with suppress(LinkLost):
                answer = yield self._ask(number, last)
            reply = messages.decode_reply(answer.header) if answer is not None else None
            if answer is not None and isinstance(reply, Fetched) and reply.number == number:
                self._adapt(answer.seconds, len(answer.body))
                return reply, answer.body
            if isinstance(reply, RefusedMessage) and not (
                reply.retry_s or reply.code == messages.UNKNOWN_MOVE
            ):
                raise BadMessage(f"server {self.order.source.index} refused: {reply.message}")
            yield Rest(rest_s)
            rest_s = min(2 * rest_s, LONGEST_REST_S)

    @property
    def _source_is_slow(self) -> bool:
        """Whether its answers were late again and again: then workers wait for it anyway, until its slots have left."""
        return self._chunk_bytes > 2 * CHUNK_BYTES

    def _adapt(self, answer_s: float, size_bytes: int) -> None:
        """Ask a source that answers late for more at a time, and for less again, little by little, when it does not.

        What the bytes take on their way is not the source's lateness.
        """
        late = answer_s > LATE_S + size_bytes / NETWORK_BYTES
        wanted = 2 * self._chunk_bytes if late else self._chunk_bytes - CHUNK_BYTES // 8
        self._chunk_bytes = min(max(wanted, CHUNK_BYTES), LARGEST_CHUNK)

    def _ask(self, number: int, last: bool) -> Ask:
        return Ask(self.order.source, self._frame(number, last), last)

    def _frame(self, number: int, last: bool) -> list[Buffer]:
        state = self._core.state
        fetch = Fetch(
            fence=Fence(state.timeline, state.generation, 0, self.order.source.incarnation),
            move=self.order.move,
            number=number,
            target=(state.index, state.incarnation),
            most_bytes=self._chunk_bytes,
            hand_over=last,
        )
        return messages.encode(fetch)

    def conclusion(self) -> Ask:
        """Tell the source of the routing that gives the slots to us; it would learn it by a heartbeat, too."""
        state = self._core.state
        assert state.routing is not None
        fence = Fence(state.timeline, state.generation, 0, self.order.source.incarnation)
        return Ask(self.order.source, messages.encode(messages.Follow(fence=fence, routing=state.routing)))
