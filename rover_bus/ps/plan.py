"""From the ids of a batch to distinct keys, from distinct keys to servers, and back.

Fed by `local` and `exchange`; the one heavy computation on the worker's side. Ids are grouped once a batch, by one sort over
all tables of a family; the push of the batch uses the same grouping. What depends on the routing (`Partition`) is apart from
what does not (`Group`), so that a push can be repeated under another routing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import InputError
from rover_bus.ps.catalogue import Catalogue, Keys, TableEntry, stored_width
from rover_bus.ps.conversion import stored_as
from rover_bus.ps.hashing import SLOTS, growing_slots, hashed_slots, mix
from rover_bus.ps.spec import Dense, Growing, Hashed

Int = npt.NDArray[np.int64]


class Group(NamedTuple):
    """The ids of a batch in the tables of one family. n ids, u of them distinct, in the order (table, key)."""

    entries: tuple[TableEntry, ...]
    shapes: tuple[tuple[int, ...], ...]  # of the ids as they were given
    keys: Keys  # the distinct ones
    order: Int  # (n,) positions of the ids, grouped by distinct key
    starts: Int  # (u,) where each distinct key's run in `order` begins

    @property
    def inverse(self) -> Int:
        """(n,) which distinct key each id is."""
        inverse = np.empty(len(self.order), np.int64)
        inverse[self.order] = np.repeat(np.arange(len(self.starts)), self.repeats)
        return inverse

    @property
    def repeats(self) -> Int:
        """(u,) how often each distinct key occurs."""
        return np.diff(self.starts, append=len(self.order))

    def slots(self) -> Int:
        """(u,) the slot of each distinct key."""
        salts: Any = np.repeat(np.array([entry.salt for entry in self.entries], np.uint64), self.keys.counts)
        if isinstance(self.entries[0].table, Growing):
            return growing_slots(self.keys.keys, salts)
        return hashed_slots(self.keys.keys, salts.view(np.int64))


def group_ids(catalogue: Catalogue, ids: Mapping[str, npt.NDArray[Any]]) -> list[Group]:
    """Group the ids of a batch by family. Raises InputError for unknown or dense tables and for ids that are not integers."""
    families: dict[Any, list[tuple[TableEntry, npt.NDArray[Any]]]] = {}
    for name, wanted in ids.items():
        entry = catalogue.entry(name)
        if isinstance(entry.table, Dense):
            raise InputError(f"{name!r} is a dense array: it is pulled whole, without ids")
        array = np.asarray(wanted)
        if array.dtype.kind not in "iu":
            raise InputError(f"ids of {name!r} must be integers, not {array.dtype}")
        families.setdefault(catalogue.families[name], []).append((entry, array))
    return [_group(pairs) for pairs in families.values()]


def _group(pairs: Sequence[tuple[TableEntry, npt.NDArray[Any]]]) -> Group:
    entries = tuple(entry for entry, _ in pairs)
    shapes = tuple(array.shape for _, array in pairs)
    lengths = np.array([array.size for _, array in pairs], np.int64)
    keys = np.concatenate([array.reshape(-1) for _, array in pairs], dtype=np.int64, casting="unsafe")
    if isinstance(entries[0].table, Hashed):
        keys = _hashed_rows(entries, lengths, keys)
    order, ordered = _sort(lengths, keys)
    ends = np.cumsum(lengths)
    is_first = np.empty(len(keys), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    is_first[(ends - lengths)[lengths > 0]] = True
    starts = np.flatnonzero(is_first)
    counts = np.diff(np.searchsorted(starts, ends), prepend=0)
    distinct = Keys(tuple(entry.table.name for entry in entries), counts, ordered[starts])
    return Group(entries, shapes, distinct, order, starts)


def _hashed_rows(entries: tuple[TableEntry, ...], lengths: Int, ids: Int) -> Int:
    """Turn ids into rows: mostly they are rows already, and division is slow."""
    tables = [entry.table for entry in entries]
    sizes = np.array([table.rows for table in tables if isinstance(table, Hashed)], np.int64)
    if isinstance(tables[0], Hashed) and tables[0].mixed:  # equal over a family
        ids = (mix(ids.view(np.uint64)) >> np.uint64(1)).view(np.int64)
    limits = np.repeat(sizes, lengths) if len(sizes) > 1 else sizes
    beyond = np.flatnonzero(ids.view(np.uint64) >= limits.view(np.uint64))
    if len(beyond):
        ids[beyond] = np.mod(ids[beyond], limits[beyond] if len(sizes) > 1 else limits)
    return ids


def _sort(lengths: Int, keys: Int) -> tuple[Int, Int]:
    """Sort by (table, key); return the positions and the keys in that order.

    Where table, key and position fit 63 bits together they are sorted as one integer, without indirection: a third of the
    time of an argsort, which is the way for the wide ids of growing tables.
    """
    position_bits, table_bits = len(keys).bit_length(), (len(lengths) - 1).bit_length()
    key_bits = 63 - position_bits - table_bits
    if len(keys) and int(keys.min()) >= 0 and int(keys.max()) >> key_bits == 0:
        packed = keys << position_bits
        if len(lengths) > 1:
            packed += np.repeat(np.arange(len(lengths)) << (key_bits + position_bits), lengths)
        packed += np.arange(len(keys))
        packed.sort()
        order = packed & ((1 << position_bits) - 1)
        packed >>= position_bits
        packed &= (1 << key_bits) - 1
        return order, packed
    ends = np.cumsum(lengths)
    parts = [np.argsort(keys[end - n : end]) + (end - n) for n, end in zip(lengths, ends, strict=True)]
    order = np.concatenate(parts)
    return order, keys[order]


class Sums(NamedTuple):
    """How the gradients of equal keys are added up: indexes alone, so that it can be made before there are gradients."""

    heads: Int  # (m,) the first id of each distinct key
    several: Int  # which distinct keys occur more than once,
    rest: Int  # (r,) all ids of those, key by key,
    firsts: Int  # and where the ids of each begin in `rest`

    def of(self, gradients: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum gradients (n, width) to (m, width)."""
        sums = gradients.take(self.heads, axis=0, mode="clip")
        if len(self.several):
            repeated = gradients.take(self.rest, axis=0, mode="clip")
            sums[self.several] = np.add.reduceat(repeated, self.firsts, axis=0)
        return sums


def plan_sums(group: Group, members: Int | None = None) -> Sums:
    """Plan the sums of all distinct keys of a group, or of some, (m,) indexes into them."""
    starts, repeats = group.starts, group.repeats
    if members is not None:
        starts, repeats = starts.take(members), repeats.take(members)
    several = np.flatnonzero(repeats > 1)
    runs = repeats.take(several)
    firsts = np.cumsum(runs) - runs
    positions = np.repeat(starts.take(several) - firsts, runs)
    positions += np.arange(len(positions))
    return Sums(group.order.take(starts), several, group.order.take(positions), firsts)


def split(group: Group, values: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Cut the values of all ids, (n, width), into one array a table, shaped as its ids were."""
    result, start = {}, 0
    for entry, shape in zip(group.entries, group.shapes, strict=True):
        end = start + int(np.prod(shape))
        result[entry.table.name] = values[start:end].reshape(*shape, values.shape[1])
        start = end
    return result


def narrow(group: Group, names: frozenset[str]) -> Group:
    """Return the part of a group that concerns these tables: gradients may be pushed for some of the pulled tables only."""
    if names.issuperset(group.keys.names):
        return group
    kept = [i for i, entry in enumerate(group.entries) if entry.table.name in names]
    lengths = np.array([int(np.prod(shape)) for shape in group.shapes], np.int64)
    id_ends, key_ends = np.cumsum(lengths), np.cumsum(group.keys.counts)
    orders, starts, keys, ids_before = [], [], [], 0
    for i in kept:
        first_id, first_key = id_ends[i] - lengths[i], key_ends[i] - group.keys.counts[i]
        orders.append(group.order[first_id : id_ends[i]] - first_id + ids_before)
        starts.append(group.starts[first_key : key_ends[i]] - first_id + ids_before)
        keys.append(group.keys.keys[first_key : key_ends[i]])
        ids_before += lengths[i]
    entries = tuple(group.entries[i] for i in kept)
    distinct = Keys(tuple(e.table.name for e in entries), group.keys.counts[kept], np.concatenate(keys))
    shapes = tuple(group.shapes[i] for i in kept)
    return Group(entries, shapes, distinct, np.concatenate(orders), np.concatenate(starts))


def gather(group: Group, arrays: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Copy the gradients of a group's tables end to end, (n, width). The opposite of `split`. Raises InputError."""
    width, dtype = stored_width(group.entries[0].table), group.entries[0].table.dtype
    flat = []
    for entry, shape in zip(group.entries, group.shapes, strict=True):
        array = np.asarray(arrays[entry.table.name])
        if array.shape != (*shape, width):
            raise InputError(
                f"gradient of {entry.table.name!r} has the shape {array.shape}; its pull had {(*shape, width)}"
            )
        flat.append(stored_as(dtype, array, entry.table.name).reshape(-1, width))
    return np.concatenate(flat)


class Partition(NamedTuple):
    """Which server a group's distinct keys go to, under one routing."""

    members: tuple[Int, ...]  # for each server: indexes into the distinct keys, ascending
    keys: tuple[Keys, ...]  # for each server
    location: Int  # (u,) of each distinct key: its place when the servers' parts are laid end to end


def partition(group: Group, owner: npt.NDArray[Any], servers: int) -> Partition:
    """Divide a group's distinct keys by the owners of their slots. `owner`: (4096,) server positions."""
    assert len(owner) == SLOTS
    u = len(group.keys.keys)
    if servers == 1:
        return Partition((np.arange(u),), (group.keys,), np.arange(u))
    owners = owner.take(group.slots())
    members = tuple(np.flatnonzero(owners == server) for server in range(servers))
    ends = np.cumsum(group.keys.counts)
    location = np.empty(u, np.int64)
    location[np.concatenate(members)] = np.arange(u)
    keys = tuple(
        Keys(group.keys.names, np.diff(np.searchsorted(mine, ends), prepend=0), group.keys.keys.take(mine))
        for mine in members
    )
    return Partition(members, keys, location)
