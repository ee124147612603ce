"""A server's whole state as plain arrays and a few bytes, and back: rows, optimizer state, ids, declarations, applied sets (P3).

Fed by `staging`, which puts it into shared memory between two pushes; read by restores, of the same server or of others:
`open_part` sees the arrays of a part as tables without copying one, `merge` moves the rows of the slots that are wanted into new
tables. So N parts restore onto M servers. Pure but for the arrays' own memory. Nothing in the bytes names code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import InputError
from rover_bus.ps.admission import SlotGroup
from rover_bus.ps.catalogue import TableEntry
from rover_bus.ps.growing import GrowingStore
from rover_bus.ps.hashing import SLOTS, mix, salt_of
from rover_bus.ps.intervals import Intervals
from rover_bus.ps.spec import Add, Dense, Table
from rover_bus.ps.tables import TableSet

Array = npt.NDArray[Any]
Int = npt.NDArray[np.int64]
Ranges = tuple[tuple[int, int], ...]
SCAN_ROWS = 1 << 16  # moved at a time


class SnapshotGroup(msgspec.Struct, frozen=True, array_like=True):
    """Slots that have applied the same batches: by data epoch, as intervals."""

    slots: list[tuple[int, int]]
    applied: list[tuple[int, list[tuple[int, int]]]]


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """Tables that are stored together: their arrays are `<number>.<column>`. `layout`: see `storage.Store`."""

    number: int
    columns: int
    layout: dict[str, list[int]]


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What the arrays of a part mean: the `extra` bytes of the flash store."""

    format: int = 1
    seed: int
    version: int  # pushes applied
    owned: list[int]  # slots, in the order in which rows lie
    tables: list[tuple[Table, int]]  # with the tag of each
    families: list[Family]
    groups: list[SnapshotGroup]
    closed_before: int = 0
    identity: int = 0  # of the cut


DESCRIPTIONS = msgspec.msgpack.Decoder(Description)  # made once, at import: see journal.py


class Snapshot(NamedTuple):
    """The arrays are views of the live tables: copy them before the next push. `touched`: changed rows, of the arrays where they
    are known; `fixed`: arrays that never grow.
    """

    arrays: dict[str, Array]
    touched: dict[str, Int]
    extra: bytes
    slots: Ranges
    fixed: frozenset[str] = frozenset()


class OpenedPart(NamedTuple):
    """A part seen as tables. `groups` cover its slots."""

    tables: TableSet
    groups: tuple[SlotGroup, ...]
    version: int
    closed_before: int


def arrays_of(tables: TableSet) -> tuple[dict[str, Array], frozenset[str]]:
    """See a server's state as arrays, by name, and which of them never grow. Nothing is copied."""
    arrays: dict[str, Array] = {}
    fixed: set[str] = set()
    for number, (_, store) in enumerate(tables.families()):
        named = {f"{number}.{at}": column for at, column in enumerate(store.columns())}
        arrays |= named
        if not isinstance(store, GrowingStore):
            fixed |= named.keys()
    if not arrays:
        arrays["empty"] = np.zeros(1, np.uint8)  # no table is declared yet: still it is a state
    return arrays, frozenset(fixed)


def take(
    tables: TableSet, groups: Sequence[SlotGroup], version: int, closed_before: int, identity: int = 0
) -> Snapshot:
    """See a server's state as arrays. Nothing is copied. `identity`: of the cut that it is staged for."""
    arrays, fixed = arrays_of(tables)
    touched: dict[str, Int] = {}
    families = []
    for number, (_, store) in enumerate(tables.families()):
        columns, ids = len(store.columns()), store.changed()
        if ids is not None:
            touched |= {f"{number}.{at}": ids for at in range(columns)}
        families.append(Family(number=number, columns=columns, layout=store.layout()))
    described = Description(
        seed=tables.seed,
        version=version,
        owned=tables.owned.tolist(),
        tables=[(entry.table, entry.tag) for entry in tables.catalogue.entries.values()],
        families=families,
        groups=[
            SnapshotGroup(
                list(group.slots),
                [(epoch, list(batches)) for epoch, batches in sorted(group.applied.items())],
            )
            for group in groups
        ],
        closed_before=closed_before,
        identity=identity,
    )
    extra = msgspec.msgpack.encode(described)
    return Snapshot(arrays, touched, extra, ranges_of(tables.owned), fixed)


def may_be_rounded(extra: bytes) -> frozenset[str]:
    """Return the arrays of a part whose values may be stored with a bounded error: the rows of tables that are looked up by id.

    Optimizer state may not: sums near zero divide, and a rounded one makes the next step arbitrary. Nor what is counted (`Add`),
    nor dense arrays: they are small, and every sample uses all of them. A part that says nothing of itself has none.
    """
    try:
        described = describe(extra)
    except InputError:
        return frozenset()
    exact = {
        table.name
        for table, _ in described.tables
        if isinstance(table, Dense) or isinstance(table.optimizer, Add)
    }
    return frozenset(
        f"{family.number}.0" for family in described.families if not exact & family.layout.keys()
    )


def ranges_of(slots: Int) -> Ranges:
    """Return slots as [first, end) ranges, ascending."""
    slots = np.sort(slots)
    if not len(slots):
        return ()
    breaks = np.flatnonzero(np.diff(slots) != 1)
    firsts, lasts = slots[np.r_[0, breaks + 1]], slots[np.r_[breaks, len(slots) - 1]]
    return tuple((int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True))


def describe(extra: bytes) -> Description:
    """Read what a part says of itself. Raises InputError."""
    try:
        described = DESCRIPTIONS.decode(extra)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(
            f"a part of a checkpoint that says nothing of itself ({error}): use another cut"
        ) from None
    owned = np.array(described.owned, np.int64)
    if len(np.unique(owned)) != len(owned) or np.any((owned < 0) | (owned >= SLOTS)):
        raise InputError("a part of a checkpoint names slots that there are not: use another cut")
    return described


def open_part(arrays: Mapping[str, Array], extra: bytes, memory_limit_bytes: int = 0) -> OpenedPart:
    """See a part as tables that live in these very arrays: training them trains the arrays. Raises InputError."""
    described = describe(extra)
    tables = TableSet(np.array(described.owned, np.int64), described.seed, memory_limit_bytes)
    entries = [TableEntry(table, tag, salt_of(table.name)) for table, tag in described.tables]
    by_name = {entry.table.name: entry for entry in entries}
    tables.catalogue.adopt(entries)
    try:
        for family in described.families:
            columns = [arrays[f"{family.number}.{at}"] for at in range(family.columns)]
            tables.adopt([by_name[name] for name in family.layout], family.layout, columns)
    except (KeyError, ValueError, IndexError) as error:
        raise InputError(
            f"a part of a checkpoint does not hold what it names ({error}): use another cut"
        ) from None
    groups = tuple(
        SlotGroup(tuple(group.slots), {epoch: Intervals(batches) for epoch, batches in group.applied})
        for group in described.groups
    )
    return OpenedPart(tables, groups, described.version, described.closed_before)


def merge(parts: Sequence[OpenedPart], slots: Int, memory_limit_bytes: int = 0) -> OpenedPart:
    """Return tables of these slots from the parts that have them; of two copies of a slot the later part's is taken (P10).

    Raises InputError when a slot is in no part.
    """
    wanted = np.zeros(SLOTS, bool)
    wanted[slots] = True
    tables = TableSet(slots, parts[0].tables.seed if parts else 0, memory_limit_bytes)
    groups: list[SlotGroup] = []
    for part in reversed(parts):
        here = np.zeros(SLOTS, bool)
        here[part.tables.owned] = True
        here &= wanted
        if here.any():
            tables.declare(part.tables.catalogue.tables())
            _move_rows(part.tables, tables, here)
            groups += _only(part.groups, here)
            wanted &= ~here
    if wanted.any():
        raise InputError(f"slot {int(np.argmax(wanted))} is in no part of the checkpoint: use another cut")
    closed = min((part.closed_before for part in parts), default=0)
    return OpenedPart(tables, tuple(groups), max((part.version for part in parts), default=0), closed)


def _only(groups: Iterable[SlotGroup], here: npt.NDArray[np.bool_]) -> list[SlotGroup]:
    """Return the groups, cut down to some slots."""
    kept = []
    for group in groups:
        slots = np.concatenate([np.arange(first, end) for first, end in group.slots])
        if len(slots := slots[here[slots]]):
            kept.append(SlotGroup(ranges_of(slots), group.applied))
    return kept


def _move_rows(source: TableSet, target: TableSet, here: npt.NDArray[np.bool_]) -> None:
    """Put the rows of some slots into other tables, optimizer state included."""
    slots = np.flatnonzero(here)
    for _, store in source.families():
        cursor = 0
        while cursor >= 0:
            keys, places, cursor = store.scan(slots, cursor, SCAN_ROWS)
            if len(places):
                theirs = target.store(keys.names)
                theirs.rows.copy_in(theirs.find(keys), store.rows.copy_out(places))


def forget_table(part: OpenedPart, name: str) -> None:
    """Take a table out: a job that starts from another's model has a witness of its own, of its own size."""
    if name in part.tables.catalogue.entries:
        part.tables.forget(name)


def digest(tables: TableSet) -> dict[str, int]:
    """Return a digest of each table's rows here, ids, values and optimizer state. Digests of servers add up (mod 2^64).

    Equal sums mean equal content, whichever server holds which rows in what order (S24).
    """
    found = {}
    for entry in tables.catalogue.entries.values():
        store = tables.store((entry.table.name,))
        ids, places = store.listing(entry.table.name)
        sums = mix(ids.view(np.uint64) ^ np.uint64(entry.salt))
        for column in store.rows.copy_out(places):
            words = np.ascontiguousarray(column).view(np.uint32)
            for at in range(words.shape[1]):
                sums = mix(sums ^ words[:, at].astype(np.uint64))
        found[entry.table.name] = int(sums.sum(dtype=np.uint64))
    return found
