"""A worker's conversation with its servers, without sockets: what to send, what to make of the replies, when to begin again.

Each operation is a generator of effects (`Send`, `Receive`, `Reset`, `Refresh`); a driver performs them and throws `LinkLost`
where a connection is gone. `client` drives it with blocking sockets, `simulated` with a simulated network: one protocol, two
transports.

Requests go to all servers at once and replies come back in order, so everything sent and not yet answered stands in one queue.
Any trouble (a lost connection, stale routing) ends in the same place: connect to all servers again, declare, send the queue
again. That is safe because a server applies a batch once (protocol P2). Connections that are whole are kept for it: every move of
slots is a new routing, and must not cost a worker more than the replies that it waits for anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy.typing as npt

from rover_bus.events.errors import AccessDenied, BadMessage, InputError, NotEnoughMemory, Refused, RoverError
from rover_bus.events.requests import RoutingTable, ServerAddress
from rover_bus.ps import messages
from rover_bus.ps.catalogue import Catalogue, stored_width
from rover_bus.ps.frame import BodyReader, Buffer
from rover_bus.ps.gradients import added_parts, pushed_parts
from rover_bus.ps.messages import RefusedMessage
from rover_bus.ps.outgoing import (
    DeclareItem,
    DensePart,
    DumpItem,
    InspectItem,
    Item,
    PullItem,
    PushItem,
    Route,
    SparsePart,
)
from rover_bus.ps.plan import group_ids
from rover_bus.ps.routing import is_newer
from rover_bus.ps.spec import Dense, Table
from rover_bus.ps.store import (
    Acknowledged,
    Additions,
    BatchKey,
    Exported,
    GenerationChanged,
    Pulled,
    ServersUnreachable,
)


class Send(NamedTuple):
    """Send a frame to the server at a position of the routing table. Result: None."""

    position: int
    frame: list[Buffer]


class Receive(NamedTuple):
    """Wait for the next frame from a server. Result: (header, body), valid until the next effect for this server."""

    position: int


class Reset(NamedTuple):
    """Connect to these servers and to no others. Result: None.

    `afresh`: drop every connection first, with whatever is on its way; else those to servers that stay are kept, and nothing is
    on its way on them.
    """

    routing: RoutingTable
    afresh: bool


class Refresh(NamedTuple):
    """Wait up to `wait_s` for a newer routing table. Result: the newest one known, which may be `after` itself."""

    after: RoutingTable
    wait_s: float


Effect = Send | Receive | Reset | Refresh
Frame = tuple[Buffer, Buffer]
Steps = Generator[Effect, Any, Any]


class OperationDone(NamedTuple):
    """An operation has come to its end, and to this."""

    value: Any


class LinkLost(RoverError):
    """A connection could not be made, or broke. Thrown into the generator by its driver."""

    code = "link_lost"


def advance(steps: Steps, result: Any, lost: LinkLost | None) -> Effect | OperationDone:
    """Give an operation what came of its last effect, a result or a lost link; return its next effect, or its end."""
    try:
        return steps.throw(lost) if lost else steps.send(result)
    except StopIteration as stop:
        return OperationDone(stop.value)


class _Trouble(Exception):
    """Begin again: after `wait_s`, under `routing` if that is newer. `costs`: whether the wait takes from our patience."""

    def __init__(
        self, reason: str, wait_s: float, routing: RoutingTable | None = None, *, costs: bool = True
    ) -> None:
        super().__init__(reason)
        self.wait_s, self.routing, self.costs = wait_s, routing, costs


FIRST_WAIT_S, LONGEST_WAIT_S = 0.02, 1.0


class Exchange:
    """The worker's side of the parameter servers. `in_flight`: pushes that may be unacknowledged when `push` returns.

    `patience_s`: how long to look for the servers, in all, before ServersUnreachable is raised.
    """

    def __init__(self, routing: RoutingTable, *, in_flight: int = 1, patience_s: float = 30.0) -> None:
        if in_flight < 0:
            raise InputError(f"in_flight is {in_flight}: at least 0")
        self.catalogue = Catalogue()
        self.route = Route.of(routing)
        self._in_flight, self._patience_s = in_flight, patience_s
        self._queue: deque[Item] = deque()
        self._linked = False
        self._whole = False  # every reply that is owed will come, on connections to the servers of `_owing`
        self._owing: list[tuple[ServerAddress, int]] = []  # by position: server, replies on their way
        self._dense: list[DensePart] = []
        self._acknowledged: list[Acknowledged] = []
        self._latest: PullItem | None = None

    # --- operations ---

    def declare(self, *tables: Table) -> Steps:
        """Declare here and on every server."""
        if not self.catalogue.declare(tables):
            return
        self._dense = [DensePart(self.catalogue, names) for names in self.catalogue.dense()]
        yield from self._complete(DeclareItem(self.catalogue))

    def ask(self, ids: Mapping[str, npt.NDArray[Any]]) -> Generator[Effect, Any, PullItem]:
        """Send a pull; `collect` waits for it. What can be worked out before the replies overlaps with the servers' work."""
        item = PullItem(
            [SparsePart(group) for group in group_ids(self.catalogue, ids)], self._dense, counted=True
        )
        yield from self._submit(item)
        item.prepare()
        return item

    def collect(self, item: PullItem) -> Generator[Effect, Any, Pulled]:
        """Wait for a pull that was sent."""
        yield from self._settle(item)
        pulled = Pulled(item.values())
        pulled.plan = self._latest = item
        return pulled

    def push(
        self,
        batch: BatchKey,
        gradients: Mapping[str, npt.NDArray[Any]],
        *,
        rate_scale: float = 1.0,
        add: Additions | None = None,
        pulled: Pulled | None = None,
    ) -> Steps:
        """Send a batch; wait until no more than `in_flight` are unacknowledged."""
        source: PullItem | None = self._latest if pulled is None else pulled.plan
        self._check_generation(source)
        item = self._push_item(batch, gradients, rate_scale, add or {}, source)
        while sum(isinstance(sent, PushItem) for sent in self._queue) >= max(1, self._in_flight):
            yield from self._settle(self._queue[0])
        yield from self._submit(item)
        if not self._in_flight:
            yield from self._settle(item)

    def flush(self) -> Steps:
        """Wait until everything sent is answered."""
        while self._queue:
            yield from self._settle(self._queue[-1])

    def follow(self, generation: int) -> Steps:
        """Wait until our routing is of this generation or a later one: the leader may say so before the servers are there."""
        waited_s = 0.0
        while self.route.table.generation < generation:
            if waited_s > self._patience_s:
                raise ServersUnreachable(
                    f"no parameter servers of generation {generation} for {waited_s:.0f} s"
                )
            newest = yield Refresh(self.route.table, LONGEST_WAIT_S)
            waited_s += LONGEST_WAIT_S
            if newest and is_newer(newest, self.route.table):
                with suppress(GenerationChanged):  # that it changed is what we wait for
                    self._adopt(newest)

    def read(self, table: str, ids: npt.NDArray[Any] | None) -> Generator[Effect, Any, npt.NDArray[Any]]:
        """Read rows, or a dense array; not a pull of training."""
        if isinstance(self.catalogue.entry(table).table, Dense):
            item = PullItem([], [DensePart(self.catalogue, (table,))], counted=False)
        elif ids is None:
            raise InputError(f"reading {table!r} needs ids: it has rows")
        else:
            groups = group_ids(self.catalogue, {table: ids})
            item = PullItem([SparsePart(group) for group in groups], [], counted=False)
        yield from self._complete(item)
        return item.values()[table]

    def export(self) -> Generator[Effect, Any, dict[str, Exported]]:
        """Fetch every table whole, page by page."""
        result = {}
        for table in self.catalogue.tables():
            item = DumpItem(table.name, table.dtype, stored_width(table))
            while not item.done(self.route):
                yield from self._complete(item)
            result[table.name] = item.table(table)
        return result

    def statistics(self) -> Generator[Effect, Any, dict[int, dict[str, float]]]:
        """Ask every server for its counters, by server index."""
        item = InspectItem()
        yield from self._complete(item)
        return {self.route.table.servers[at].index: values for at, values in item.values.items()}

    def acknowledged(self) -> list[Acknowledged]:
        """Return, once, what all servers have applied."""
        done, self._acknowledged = self._acknowledged, []
        return done

    def interrupt(self) -> None:
        """An operation was left half way: what is on its way is unknown, so begin again next time."""
        self._linked = self._whole = False

    # --- items ---

    def _push_item(
        self,
        batch: BatchKey,
        gradients: Mapping[str, npt.NDArray[Any]],
        rate_scale: float,
        add: Additions,
        source: PullItem | None,
    ) -> PushItem:
        sparse, dense = pushed_parts(self._dense, source, gradients)
        return PushItem(batch, sparse + added_parts(self.catalogue, add), dense, rate_scale, source)

    def _check_generation(self, source: PullItem | None) -> None:
        if source is not None and source.route is not None:
            then, now = source.route.table, self.route.table
            if (then.timeline, then.generation) != (now.timeline, now.generation):
                raise GenerationChanged(
                    f"this batch was pulled in generation {then.generation}; the job is in {now.generation}: ask for a new lease"
                )

    # --- the queue ---

    def _complete(self, item: Item) -> Steps:
        yield from self._submit(item)
        yield from self._settle(item)

    def _submit(self, item: Item) -> Steps:
        """Send an item behind those that are already on their way."""
        if not self._linked:
            yield from self._begin_again(_Trouble("not connected yet", 0.0))
        self._queue.append(item)
        try:
            yield from self._send(item)
        except _Trouble as trouble:
            yield from self._begin_again(trouble)

    def _send(self, item: Item) -> Steps:
        for position, frame in item.frames(self.route):
            try:
                yield Send(position, frame)
            except LinkLost as lost:
                raise self._lost(lost) from None
            self._owe(position, 1)

    def _settle(self, item: Item) -> Steps:
        """Receive replies, oldest first, until this item is answered."""
        while item in self._queue:
            try:
                if not self._linked:
                    raise _Trouble("not connected", 0.0)
                yield from self._receive(self._queue[0])
            except _Trouble as trouble:
                yield from self._begin_again(trouble)
            else:
                self._note(self._queue.popleft())

    def _receive(self, item: Item) -> Steps:
        for position in item.awaited(self.route):
            header, body = yield from self._reply(position)
            self._absorb(item, position, header, body)

    def _reply(self, position: int) -> Generator[Effect, Any, Frame]:
        try:
            frame: Frame = yield Receive(position)
        except LinkLost as lost:
            raise self._lost(lost) from None
        self._owe(position, -1)
        return frame

    def _owe(self, position: int, replies: int) -> None:
        server, owed = self._owing[position]
        self._owing[position] = server, owed + replies

    def _lost(self, lost: LinkLost) -> _Trouble:
        self._whole = False
        return _Trouble(str(lost), FIRST_WAIT_S)

    def _absorb(self, item: Item, position: int, header: Buffer, body: Buffer) -> None:
        try:
            reply = messages.decode_reply(header)
            if not isinstance(reply, RefusedMessage):
                item.absorb(position, reply, BodyReader(memoryview(body)))
        except BadMessage:
            self._linked = self._whole = False  # what follows on this connection cannot be trusted either
            raise
        if isinstance(reply, RefusedMessage):
            self._refused(item, reply)

    def _refused(self, item: Item, refusal: RefusedMessage) -> None:
        """Raise what a refusal means: begin again, or an error of the caller's."""
        if refusal.code == messages.FORGOTTEN:
            raise _Trouble(refusal.message, 0.0)  # sent again, the push brings its keys
        if refusal.code == messages.ROOM_TO_COME:  # it is there, and says when that is over
            raise _Trouble(refusal.message, refusal.retry_s, costs=False)
        if refusal.retry_s > 0 or refusal.code.startswith("stale"):
            raise _Trouble(refusal.message, refusal.retry_s or FIRST_WAIT_S, refusal.routing)
        if item in self._queue:
            self._queue.remove(item)
        self._linked = (
            False  # what the other servers answered to it is of no use: the rest of the queue is sent again
        )
        kinds: dict[str, type[RoverError]] = {
            kind.code: kind for kind in (InputError, NotEnoughMemory, BadMessage, AccessDenied)
        }
        kind = kinds.get(refusal.code)
        raise kind(refusal.message) if kind else Refused(refusal.message, refusal.code)

    def _note(self, item: Item) -> None:
        if isinstance(item, PushItem):
            servers = self.route.table.servers
            acks = [item.acks[at] for at in range(len(servers))]
            self._acknowledged.append(
                Acknowledged(
                    batch=item.batch,
                    generation=self.route.table.generation,
                    incarnations=tuple(server.incarnation for server in servers),
                    repeated=any(ack.repeated for ack in acks),
                    staleness_batches=max((ack.staleness_batches for ack in acks), default=0),
                )
            )

    # --- trouble ---

    def _begin_again(self, trouble: _Trouble) -> Steps:
        """Connect, declare, and send the whole queue again, until that works or patience ends."""
        waited_s = 0.0
        while True:
            if waited_s > self._patience_s:
                raise ServersUnreachable(
                    f"no parameter servers for {waited_s:.0f} s ({trouble}): is the job still running?"
                )
            if trouble.routing and is_newer(trouble.routing, self.route.table):
                self._adopt(trouble.routing)
            elif trouble.wait_s:
                # A server in a hand-over asks for a few milliseconds: longer ones only for what lasts longer anyway.
                wait_s = min(LONGEST_WAIT_S, max(trouble.wait_s, waited_s / 4))
                yield from self._refresh(wait_s)
                waited_s += wait_s if trouble.costs else 0.0
            try:
                yield from self._connect()
                return
            except _Trouble as again:
                trouble = again

    def _refresh(self, wait_s: float) -> Steps:
        newest = yield Refresh(self.route.table, wait_s)
        if newest and is_newer(newest, self.route.table):
            self._adopt(newest)

    def _adopt(self, table: RoutingTable) -> None:
        """Follow a newer table. In a new generation whatever is on its way belongs to the past (P8)."""
        before, self.route, self._linked = self.route.table, Route.of(table), False
        if (before.timeline, before.generation) != (table.timeline, table.generation):
            self._queue.clear()
            self._whole = False
            raise GenerationChanged(
                f"the job was rewound to generation {table.generation}: drop the batch in hand, ask for a new lease"
            )

    def _connect(self) -> Steps:
        self._linked = False
        if self._whole:
            yield from self._drain()
        afresh, self._whole = not self._whole, False
        try:
            yield Reset(self.route.table, afresh)
        except LinkLost as lost:
            raise self._lost(lost) from None
        self._whole, self._owing = True, [(server, 0) for server in self.route.table.servers]
        if self.catalogue.entries:
            declaration = DeclareItem(self.catalogue)
            yield from self._send(declaration)
            yield from self._receive(declaration)
        self._linked = True
        for item in self._queue:
            yield from self._send(item)

    def _drain(self) -> Steps:
        """Take in, unread, what servers that stay have still to answer. Those that leave are not waited for."""
        staying = {(server.index, server.incarnation) for server in self.route.table.servers}
        for position, (server, owed) in enumerate(self._owing):
            for _ in range(owed if (server.index, server.incarnation) in staying else 0):
                yield from self._reply(position)
