"""What a worker sends, item by item: each can be encoded for the present routing, again for the next, and takes the replies in.

Made and queued by `exchange`. An item keeps what does not depend on the routing (grouped ids, summed gradients) and derives the
rest, so that repeating it under a new routing table is the same call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import BadMessage
from rover_bus.events.requests import RoutingTable
from rover_bus.ps import messages
from rover_bus.ps.admission import Fence
from rover_bus.ps.catalogue import Catalogue, stored_width
from rover_bus.ps.dense import DenseLayout
from rover_bus.ps.frame import BodyReader, Buffer
from rover_bus.ps.messages import Acked, Declared, Dumped, MessageSection, Reply, ServerStatistics, Values
from rover_bus.ps.parts import assemble
from rover_bus.ps.plan import Group, Partition, Sums, partition, plan_sums, split
from rover_bus.ps.routing import owner_of_slots
from rover_bus.ps.spec import LINE, Table
from rover_bus.ps.store import BatchKey, Exported

Frames = Iterator[
    tuple[int, list[Buffer]]
]  # made one by one: a server works while the next one's frame is made


class Route(NamedTuple):
    """A routing table, ready for use."""

    table: RoutingTable
    owner: npt.NDArray[np.int64]  # (4096,) positions in table.servers
    fences: tuple[Fence, ...]

    @classmethod
    def of(cls, table: RoutingTable) -> Route:
        """Prepare a table. Raises BadMessage for one that leaves slots without an owner."""
        fences = (Fence(table.timeline, table.generation, table.epoch, s.incarnation) for s in table.servers)
        return cls(table, owner_of_slots(table), tuple(fences))


class Item(Protocol):
    """Something sent to servers and not yet answered by all of them."""

    def frames(self, route: Route) -> Frames:
        """Encode for this routing, forgetting replies under any other: a frame for each position in the table's servers."""

    def awaited(self, route: Route) -> list[int]:
        """Return the positions of the servers that were sent a frame and have not answered, in any order."""

    def absorb(self, position: int, reply: Reply, body: BodyReader, /) -> None:
        """Take in a server's reply; arrays are copied out of the body. Raises BadMessage for one that does not fit."""


class ToAll:
    """Items that go to every server: one frame, one reply."""

    def awaited(self, route: Route) -> list[int]:
        return list(range(len(route.fences)))


def _expect(reply: Reply, kind: type[Any]) -> Any:
    if not isinstance(reply, kind):
        raise BadMessage(f"a server answered {type(reply).__name__} where {kind.__name__} belongs")
    return reply


class SparsePart:
    """A group of ids, and what follows from it and the routing asked for last: their servers, how replies and gradients lie."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._route: Route | None = None
        self._partition: Partition | None = None
        self._wanted: npt.NDArray[np.int64] | None = None
        self._sums: dict[int, Sums] = {}

    def by(self, route: Route) -> Partition:
        """Divide the distinct keys over the servers of a routing."""
        if self._partition is None or self._route is not route:
            self._partition, self._route = partition(self.group, route.owner, len(route.fences)), route
            self._wanted, self._sums = None, {}
        return self._partition

    def wanted(self, route: Route) -> npt.NDArray[np.int64]:
        """(n,) where the row of each id is when the servers' replies are laid end to end."""
        location = self.by(route).location
        if self._wanted is None:
            self._wanted = location.take(self.group.inverse)
        return self._wanted

    def sums(self, route: Route, at: int) -> Sums:
        """Return how gradients are summed for one server."""
        members = self.by(route).members[at]
        if at not in self._sums:
            self._sums[at] = plan_sums(self.group, members if len(route.fences) > 1 else None)
        return self._sums[at]


class DensePart:
    """Dense arrays of one family, and which of their lines are where."""

    def __init__(self, catalogue: Catalogue, names: tuple[str, ...]) -> None:
        self.layout = DenseLayout(catalogue, names)
        self._route: Route | None = None
        self._members: tuple[npt.NDArray[np.int64], ...] = ()
        self._catalogue = catalogue

    def narrow(self, names: set[str]) -> DensePart:
        """Return the part for some of the arrays."""
        return DensePart(self._catalogue, tuple(name for name in self.layout.names if name in names))

    def by(self, route: Route) -> tuple[npt.NDArray[np.int64], ...]:
        """Return the lines of each server of a routing."""
        if self._route is not route:
            self._members, self._route = self.layout.members(route.owner, len(route.fences)), route
        return self._members


class DeclareItem(ToAll):
    """All tables, to all servers."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def frames(self, route: Route) -> Frames:
        tables = tuple(self._catalogue.tables())
        for at, fence in enumerate(route.fences):
            yield at, messages.encode(messages.Declare(fence=fence, tables=tables))

    def absorb(self, _position: int, reply: Reply, body: BodyReader) -> None:
        _expect(reply, Declared)
        body.end()


class PullItem(ToAll):
    """Rows of some ids, and dense arrays whole."""

    def __init__(self, sparse: list[SparsePart], dense: list[DensePart], counted: bool) -> None:
        self.sparse, self.dense, self._counted = sparse, dense, counted
        self.route: Route | None = None
        self.versions: dict[int, int] = {}  # of each server, when it answered
        self.pulls: dict[int, int] = {}  # under which number each server remembers the keys
        self.rows: list[npt.NDArray[Any]] = []  # (u, width) a sparse part, servers end to end
        self.lines: list[npt.NDArray[Any]] = []  # (lines, 64) a dense part

    def frames(self, route: Route) -> Frames:
        self.route, self.versions, self.pulls = route, {}, {}
        tables = [part.group.entries[0].table for part in self.sparse]
        self.rows = [
            np.empty((len(part.group.starts), stored_width(table)), table.dtype)
            for part, table in zip(self.sparse, tables, strict=True)
        ]
        self.lines = [np.empty((part.layout.lines, LINE), part.layout.dtype) for part in self.dense]
        for at in range(len(route.fences)):
            yield at, self._frame(route, at, tables)

    def _frame(self, route: Route, at: int, tables: list[Table]) -> list[Buffer]:
        keys = [part.by(route).keys[at] for part in self.sparse]
        header = messages.Pull(
            fence=route.fences[at],
            sections=tuple(messages.section_of(part) for part in keys),
            dense=tuple(part.layout.names for part in self.dense),
            counted=self._counted,
        )
        return messages.encode(
            header, [messages.wire_keys(part, table) for part, table in zip(keys, tables, strict=True)]
        )

    def absorb(self, position: int, reply: Reply, body: BodyReader) -> None:
        values: Values = _expect(reply, Values)
        assert self.route is not None
        for part, rows in zip(self.sparse, self.rows, strict=True):
            members = part.by(self.route).members
            first = sum(map(len, members[:position]))
            mine = rows[first : first + len(members[position])]
            mine[...] = body.read(rows.dtype.name, mine.shape)
        for dense, lines in zip(self.dense, self.lines, strict=True):
            held = dense.by(self.route)[position]
            lines[held] = body.read(lines.dtype.name, (len(held), lines.shape[1]))
        body.end()
        self.versions[position], self.pulls[position] = values.version, values.pull

    def prepare(self) -> None:
        """Work out, while the servers work, what the replies and the push of this batch will need."""
        assert self.route is not None
        for part in self.sparse:
            part.wanted(self.route)
            for at in range(len(self.route.fences)):
                part.sums(self.route, at)

    def values(self) -> dict[str, npt.NDArray[Any]]:
        """Return what was pulled, by table, once every server has answered."""
        assert self.route is not None
        result: dict[str, npt.NDArray[Any]] = {}
        for part, rows in zip(self.sparse, self.rows, strict=True):
            result |= split(part.group, rows.take(part.wanted(self.route), axis=0, mode="clip"))
        for dense, lines in zip(self.dense, self.lines, strict=True):
            result |= dense.layout.unpack(lines)
        return result


class PushItem(ToAll):
    """One batch: gradients of all ids (n, width), summed a server at a time when they are sent; dense gradients as lines."""

    def __init__(
        self,
        batch: BatchKey,
        sparse: list[tuple[SparsePart, npt.NDArray[Any]]],
        dense: list[tuple[DensePart, npt.NDArray[Any]]],
        rate_scale: float,
        pulled: PullItem | None,
    ) -> None:
        self.batch = batch
        self._keys_known = True
        self._sparse, self._dense, self._rate_scale, self._pulled = sparse, dense, rate_scale, pulled
        self.acks: dict[int, Acked] = {}

    def frames(self, route: Route) -> Frames:
        self.acks = {}
        known, self._keys_known = (
            self._keys_known,
            False,
        )  # sent again, it brings its keys: a server may have forgotten
        for at in range(len(route.fences)):
            yield at, self._frame(route, at, known)

    def _frame(self, route: Route, at: int, keys_known: bool) -> list[Buffer]:
        arrays: list[npt.NDArray[Any]] = []
        sections: list[MessageSection] = []
        pulled = self._pulled if self._pulled is not None and self._pulled.route is route else None
        for part, gradients in self._sparse:
            keys = part.by(route).keys[at]
            if pulled is not None and keys_known and part in pulled.sparse:
                sections.append(MessageSection(keys.names, (), pulled.sparse.index(part)))
            else:
                sections.append(messages.section_of(keys))
                arrays.append(messages.wire_keys(keys, part.group.entries[0].table))
            arrays.append(part.sums(route, at).of(gradients))
        arrays += [lines[part.by(route)[at]] for part, lines in self._dense]
        header = messages.Push(
            fence=route.fences[at],
            epoch=self.batch.epoch,
            number=self.batch.number,
            pull=pulled.pulls.get(at, -1) if pulled else -1,
            version=pulled.versions.get(at, -1) if pulled else -1,
            rate_scale=self._rate_scale,
            sections=tuple(sections),
            dense=tuple(part.layout.names for part, _ in self._dense),
        )
        return messages.encode(header, arrays)

    def absorb(self, position: int, reply: Reply, body: BodyReader) -> None:
        self.acks[position] = _expect(reply, Acked)
        body.end()


class DumpItem:
    """The next page of a table from every server that has more. Survives a reconnection: ids only go up."""

    def __init__(self, table: str, dtype: str, width: int) -> None:
        self._table, self._dtype, self._width = table, dtype, width
        self._after: dict[int, int | None] = {}
        self._done: set[int] = set()
        self._pages: list[tuple[npt.NDArray[np.int64], npt.NDArray[Any]]] = []

    def done(self, route: Route) -> bool:
        """Whether no server has more."""
        return len(self._done) == len(route.fences)

    def awaited(self, route: Route) -> list[int]:
        return [at for at in range(len(route.fences)) if at not in self._done]

    def table(self, table: Table) -> Exported:
        """Return the whole table, once `done`."""
        return assemble(table, self._pages)

    def frames(self, route: Route) -> Frames:
        for at in self.awaited(route):
            dump = messages.Dump(fence=route.fences[at], table=self._table, after=self._after.get(at))
            yield at, messages.encode(dump)

    def absorb(self, position: int, reply: Reply, body: BodyReader) -> None:
        dumped: Dumped = _expect(reply, Dumped)
        ids = body.read("int64", (dumped.rows,)).copy()
        values = body.read(self._dtype, (dumped.rows, self._width)).copy()
        body.end()
        self._pages.append((ids, values))
        if dumped.more and len(ids):
            self._after[position] = int(ids[-1])
        else:
            self._done.add(position)


class InspectItem(ToAll):
    """How is every server?"""

    def __init__(self) -> None:
        self.values: dict[int, dict[str, float]] = {}

    def frames(self, route: Route) -> Frames:
        for at in range(len(route.fences)):
            yield at, messages.encode(messages.Inspect())

    def absorb(self, position: int, reply: Reply, body: BodyReader) -> None:
        statistics: ServerStatistics = _expect(reply, ServerStatistics)
        body.end()
        self.values[position] = statistics.values
