"""Slots on their way from one server to another: what the source still has to send, what the target has received (design/0013).

Fed by `core`: orders of the master, requests of the target (`Fetch`), pushes that change what was copied. Pure but for the
tables. Apart from `admission`, which decides what may be served: here are rows, there are promises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import BadMessage, Refused
from rover_bus.events.requests import MoveOrder
from rover_bus.ps.admission import SlotGroup
from rover_bus.ps.catalogue import Keys
from rover_bus.ps.frame import BodyReader
from rover_bus.ps.growing import GrowingStore
from rover_bus.ps.hashed import HashedStore
from rover_bus.ps.intervals import Intervals
from rover_bus.ps.messages import AppliedSets, Fetch, Fetched, MessageSection, section_of
from rover_bus.ps.ranges import Ranges, mask_of
from rover_bus.ps.rows import Places
from rover_bus.ps.spec import Growing, Table
from rover_bus.ps.storage import Int, Store
from rover_bus.ps.tables import TableSet
from rover_bus.ps.update import Trainable

FEW_ROWS = 4096  # changed since the last look: so many are handed over in a few milliseconds
MERGE_AT = 64  # entries of a change log: then they are made one
MARK_AT = 8  # pushes whose rows are not marked yet: more at once would keep a worker waiting
Arrays = list[npt.NDArray[Any]]


class MovingPart(NamedTuple):
    """Rows of one family, as the last answer named them. Their values are read when it is sent, and again when it is repeated."""

    family: Table
    keys: Keys
    places: Int | None = None  # where known: they stay while the slots are here

    def some(self, which: slice) -> MovingPart:
        """Return some of the rows: one stretch of them."""
        first, end, _ = which.indices(len(self.keys.keys))
        counts = np.diff(np.clip(np.cumsum(np.r_[0, self.keys.counts]), first, end))
        keys = Keys(self.keys.names, counts, self.keys.keys[which])
        return MovingPart(self.family, keys, None if self.places is None else self.places[which])


class ChangeLog:
    """Which rows of some slots were trained since they were last drained: of dense arrays, by their keys."""

    def __init__(self, slots: npt.NDArray[np.bool_]) -> None:
        self._slots = slots
        self._changed: dict[Table, list[Keys]] = {}

    def note(self, family: Table, store: Store, keys: Keys, places: Places) -> None:
        """A push has trained these rows."""
        touched = store.touched(keys, places, self._slots)
        if len(touched.keys):
            entries = self._changed.setdefault(family, [])
            entries.append(touched)
            if len(entries) >= MERGE_AT:
                self._changed[family] = [_merged(entries)]

    def scratch_bytes(self, family: Table, rows: int) -> int:
        """Return what noting so many rows takes at most, merging included."""
        return 64 * (rows + sum(len(entry.keys) for entry in self._changed.get(family, ())))

    def count(self) -> int:
        """Return how many rows have changed."""
        self._changed = {family: [_merged(entries)] for family, entries in self._changed.items()}
        return sum(len(keys.keys) for entries in self._changed.values() for keys in entries)

    def drain(self) -> list[MovingPart]:
        """Return every changed row once, and begin again."""
        parts = [MovingPart(family, _merged(entries)) for family, entries in self._changed.items()]
        self._changed = {}
        return parts


RowStore = GrowingStore | HashedStore


class RowLog:
    """The same for tables of rows: a byte a row, so that a push costs next to nothing however many rows change."""

    def __init__(self, family: Table, store: RowStore, slots: npt.NDArray[np.bool_]) -> None:
        self._family, self._store, self._slots = family, store, slots
        self._changed = np.zeros(store.rows.capacity, bool)
        self._copied = np.zeros(store.rows.capacity, bool)
        self._end = store.rows.capacity  # of what there was when the copy was through
        self._reached = 0  # rows of a growing table from there on the copy has still to meet
        self._noted: list[Int] = []  # not marked yet: that can wait until no worker waits for us

    def note(self, places: Int) -> None:
        """A push has trained these rows, of whatever slots."""
        self._noted.append(places)
        if len(self._noted) >= MARK_AT:
            self._mark()

    def scratch_bytes(self, rows: int) -> int:
        """Return what noting so many rows takes at most, marking included; the table may double before."""
        return 4 * (self._store.rows.capacity + rows) + 64 * (rows + sum(map(len, self._noted)))

    def _mark(self) -> None:
        more = self._store.rows.capacity - len(self._changed)
        if more > 0:
            self._changed, self._copied = (np.pad(each, (0, more)) for each in (self._changed, self._copied))
        if self._noted:
            self._changed[self._ours(np.concatenate(self._noted))] = True
            self._noted.clear()

    def _ours(self, places: Int) -> Int:
        """Return those that must be sent again: of our slots, or, of a hashed table, what the copy has met or never will."""
        if isinstance(self._store, GrowingStore):
            return self._store.within(places[places < self._reached], self._slots)
        return places[self._copied[places] | (places >= self._end)]

    def forget(self, places: Int, cursor: int) -> None:
        """These rows are copied as they are now, and the copy goes on at the cursor."""
        self._mark()
        self._reached = cursor
        self._changed[places] = False
        self._copied[places] = True

    def rows(self) -> Int:
        """Return the changed rows of our slots."""
        self._mark()
        changed = self._changed[: self._store.rows.count]
        return np.concatenate((np.flatnonzero(changed[: self._end]), self._late(changed)))

    def count(self) -> int:
        """Return how many rows have changed."""
        self._mark()
        changed = self._changed[: self._store.rows.count]
        return int(np.count_nonzero(changed[: self._end])) + len(self._late(changed))

    def _late(self, changed: npt.NDArray[np.bool_]) -> Int:
        return self._store.among(np.flatnonzero(changed[self._end :]) + self._end, self._slots)

    def end(self) -> None:
        """The copy is through: rows that lie behind are of tables declared later."""
        self._end, self._reached = self._store.rows.count, np.iinfo(np.int64).max

    def begin_late(self) -> None:
        """The copy was through before the first table of this family was declared: all its rows lie behind."""
        self._end, self._reached = 0, np.iinfo(np.int64).max

    def drain(self) -> MovingPart | None:
        """Return every changed row once, and begin again."""
        rows = self.rows()
        self._changed[:] = False
        return MovingPart(self._family, *self._store.named(rows)) if len(rows) else None


def _merged(entries: list[Keys]) -> Keys:
    """Return each key of each table once, ascending."""
    by_table: dict[str, Arrays] = {}
    for keys in entries:
        for name, some in zip(keys.names, np.split(keys.keys, np.cumsum(keys.counts)[:-1]), strict=True):
            by_table.setdefault(name, []).append(some)
    unique = {name: np.unique(np.concatenate(some)) for name, some in by_table.items()}
    counts = np.array([len(some) for some in unique.values()], np.int64)
    return Keys(tuple(unique), counts, np.concatenate(list(unique.values())))


class Departure:
    """A move away from here. Answers are numbered; a repeated number repeats the same rows, and never takes in new changes:

    the answer that is never read would swallow them.
    """

    def __init__(self, order: MoveOrder) -> None:
        self.order = order
        self.slots: Ranges = tuple(order.slots)
        self._mask = mask_of(self.slots)
        self.list = np.flatnonzero(self._mask)
        self.changes = ChangeLog(self._mask)
        self.number = 0
        self.copied = self.handed_over = False
        self._at, self._cursor = 0, 0  # family, and where in it
        self._copying: set[Table] = set()  # families that the copy has reached
        self._row_logs: dict[Table, RowLog] = {}
        self._last: list[MovingPart] = []
        self._changed: list[MovingPart] = []  # rows of the present round that are still to be sent
        self._rounds = 0
        self._told = self._telling = 0  # declared tables: of how many the former answer told, and this one

    def note(self, family: Table, store: Store, keys: Keys, places: Places) -> None:
        """A push has trained these rows. Families that the copy has not reached are copied as they are then."""
        if not (self.copied or family in self._copying):
            return
        if isinstance(store, RowStore):
            assert not isinstance(places, slice)
            self._row_log(family, store).note(places)
        else:
            self.changes.note(family, store, keys, places)

    def scratch_bytes(self, sections: Sequence[Trainable], families: Mapping[str, Table]) -> int:
        """Return what noting a push takes at most."""
        size = 0
        for store, keys, _, gradients in sections:
            family = families[keys.names[0]]
            if isinstance(store, RowStore):
                size += self._row_log(family, store).scratch_bytes(len(gradients))
            else:
                size += self.changes.scratch_bytes(family, len(gradients))
        return size

    def _row_log(self, family: Table, store: RowStore) -> RowLog:
        if family not in self._row_logs:
            self._row_logs[family] = log = RowLog(family, store, self._mask)
            if self.copied and family not in self._copying:
                log.begin_late()
        return self._row_logs[family]

    def check(self, fetch: Fetch) -> bool:
        """Return whether this is a new request, False when it is the last one again. Raises Refused for any other."""
        target = self.order.target
        if (
            fetch.target != (target.index, target.incarnation)
            or not self.number <= fetch.number <= self.number + 1
        ):
            raise Refused(
                f"request {fetch.number} of move {fetch.move} is over: {self.number} is on", "stale_move"
            )
        if fetch.number == self.number and fetch.hand_over != self.handed_over:
            raise Refused(f"request {fetch.number} of move {fetch.move} was another one", "stale_move")
        return fetch.number == self.number + 1

    def advance(self, fetch: Fetch, tables: TableSet) -> None:
        """Choose the rows of the next answer."""
        self.number, self.handed_over = fetch.number, fetch.hand_over
        self._told, self._telling = self._telling, len(tables.catalogue.entries)
        if fetch.hand_over:
            self._last = self._rest(tables)
        elif not self.copied:
            self._last = self._next_copy(tables, fetch.most_bytes)
        else:
            self._last = self._next_changed(tables, fetch.most_bytes)

    def _next_changed(self, tables: TableSet, most_bytes: int) -> list[MovingPart]:
        if not self._changed:
            self._changed = self._drain()
            self._rounds += 1
        parts: list[MovingPart] = []
        while self._changed and most_bytes > 0:
            part = self._changed.pop()
            row_bytes = tables.store(part.keys.names).rows.row_bytes
            count, most = len(part.keys.keys), max(1, most_bytes // row_bytes)
            parts.append(part.some(slice(None, most)))
            if count > most:
                self._changed.append(part.some(slice(most, None)))
            most_bytes -= min(count, most) * row_bytes
        return parts

    def _left(self) -> int:
        """Return how many rows are to be sent again; while many wait, only these: to count the others costs a look at every row."""
        waiting = sum(len(part.keys.keys) for part in self._changed)
        if waiting > FEW_ROWS:
            return waiting
        return waiting + self.changes.count() + sum(each.count() for each in self._row_logs.values())

    def _drain(self) -> list[MovingPart]:
        """Return what has changed since it was copied, and begin again."""
        grown = [part for each in self._row_logs.values() if (part := each.drain()) is not None]
        return [*self.changes.drain(), *grown]

    def _rest(self, tables: TableSet) -> list[MovingPart]:
        parts, self._changed = [*self._changed, *self._drain()], []
        while not self.copied:
            parts += self._next_copy(tables, 1 << 26)
        return parts

    def _next_copy(self, tables: TableSet, most_bytes: int) -> list[MovingPart]:
        families = tables.families()
        parts: list[MovingPart] = []
        while self._at < len(families) and most_bytes > 0:
            family, store = families[self._at]
            keys, places, cursor = store.scan(
                self.list, self._cursor, max(1, most_bytes // store.rows.row_bytes)
            )
            if len(keys.keys):
                parts.append(MovingPart(family, keys, places))
                most_bytes -= len(keys.keys) * store.rows.row_bytes
            self._copying.add(family)
            if isinstance(store, RowStore):
                self._row_log(family, store).forget(places, cursor)
                if cursor < 0:
                    self._row_log(family, store).end()
            self._at, self._cursor = (self._at, cursor) if cursor >= 0 else (self._at + 1, 0)
            if cursor >= 0:
                break  # looked at as much as one go may
        self.copied = self._at >= len(families)
        return parts

    def answer(
        self, tables: TableSet, applied: tuple[SlotGroup, ...], closed_before: int
    ) -> tuple[Fetched, Arrays]:
        """Return the rows of the last request, with their values of now."""
        arrays: Arrays = []
        for _, keys, places in self._last:
            store = tables.store(keys.names)
            arrays += [keys.keys, *store.rows.copy_out(store.find(keys) if places is None else places)]
        reply = Fetched(
            number=self.number,
            tables=tuple(tables.catalogue.tables()[self._told : self._telling]),
            sections=tuple(section_of(part.keys) for part in self._last),
            copied=self.copied,
            applied=tuple(
                AppliedSets(group.slots, {epoch: tuple(done) for epoch, done in group.applied.items()})
                for group in applied
            ),
            closed_before=closed_before,
            left=self._left() if self.copied and not self.handed_over else 0,
            rounds=self._rounds,
        )
        return reply, arrays


class Arrival:
    """A move to here. What arrives is inert until a routing gives it to us."""

    def __init__(self, order: MoveOrder, tables: TableSet) -> None:
        self.order = order
        self.slots: Ranges = tuple(order.slots)
        self.list = np.flatnonzero(mask_of(self.slots))
        self.rows = self.bytes = 0
        if np.isin(self.list, tables.owned).any():
            raise Refused(f"move {order.move} brings slots that are here already", "cannot_move")
        self._unwritten = {
            table.name for table in tables.catalogue.tables() if not isinstance(table, Growing)
        }

    def take_in(self, fetched: Fetched, body: BodyReader, tables: TableSet, last: bool) -> None:
        """Write rows as they are at the source. Raises BadMessage, NotEnoughMemory.

        Until the source looks for changes it sends every row once: they are new here.
        """
        if fetched.number == 1:  # a table that the source has not: no row of it was ever trained there
            tables.begin(self._unwritten - {table.name for table in fetched.tables}, self.list)
        tables.declare(fetched.tables)
        for section in fetched.sections:
            self._take_section(section, body, tables, fresh=not (fetched.rounds or last))
        body.end()

    def _take_section(self, section: MessageSection, body: BodyReader, tables: TableSet, fresh: bool) -> None:
        store, count = tables.store(section.names), sum(section.counts)
        if len(section.counts) != len(section.names):
            raise BadMessage("a section's names and counts do not belong together")
        ids = body.read("int64", (count,)).copy()
        keys = Keys(section.names, np.array(section.counts, np.int64), ids)
        pieces = [body.read(dtype, shape) for dtype, shape in store.rows.pieces(count)]
        places = store.find(keys, fresh)
        store.rows.copy_in(places, pieces)
        self.rows += count
        self.bytes += count * store.rows.row_bytes


def groups_of(applied: tuple[AppliedSets, ...]) -> tuple[SlotGroup, ...]:
    """Return applied sets as they came over the wire, ready for admission."""
    return tuple(
        SlotGroup(sets.slots, {epoch: Intervals(done) for epoch, done in sets.batches.items()})
        for sets in applied
    )
