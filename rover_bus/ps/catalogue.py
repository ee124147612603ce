"""Which tables a program has declared, and which of them are stored and moved together.

Tables that differ only in name and size are a family: 26 embedding tables of one width are one block of rows, one message
section and one optimizer call. Used on both sides of the wire, which therefore agree on the grouping.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import InputError, Refused
from rover_bus.ps.hashing import salt_of
from rover_bus.ps.spec import CHUNK_LINES, LINE, Dense, Hashed, Table, check_table, difference

MAX_TABLES = 1 << 16


class TableEntry(NamedTuple):
    """A declared table. `tag` tells it from others in this process; the salt does so everywhere."""

    table: Table
    tag: int
    salt: int

    @property
    def chunks(self) -> int:
        """Chunks of a dense array."""
        return -(-self.lines // CHUNK_LINES)

    @property
    def lines(self) -> int:
        """Stored rows of a dense array."""
        assert isinstance(self.table, Dense)
        return self.table.lines


class Keys(NamedTuple):
    """Distinct keys of tables of one family, table after table: rows of hashed tables, ids of growing ones."""

    names: tuple[str, ...]
    counts: npt.NDArray[np.int64]  # keys of each table; their sum is len(keys)
    keys: npt.NDArray[np.int64]


def family_of(table: Table) -> Table:
    """Return the table without name and size: equal for tables that are stored together."""
    if isinstance(table, Dense):
        return msgspec.structs.replace(table, name="-", shape=(1,))
    if isinstance(table, Hashed):
        return msgspec.structs.replace(table, name="-", rows=1)
    return msgspec.structs.replace(table, name="-")


def stored_width(table: Table) -> int:
    """Return the values in one stored row."""
    return LINE if isinstance(table, Dense) else table.width


class Catalogue:
    """The declared tables by name. Declarations only ever add."""

    def __init__(self) -> None:
        self.entries: dict[str, TableEntry] = {}
        self.families: dict[str, Table] = {}

    def declare(self, tables: Iterable[Table]) -> list[TableEntry]:
        """Add tables; return the new ones. Raises Refused (`differs`) or InputError, and then has added none."""
        added = self.new(tables)
        for entry in added:
            self.add(entry)
        return added

    def add(self, entry: TableEntry) -> None:
        """Know one more table."""
        self.entries[entry.table.name] = entry
        self.families[entry.table.name] = family_of(entry.table)

    def new(self, tables: Iterable[Table]) -> list[TableEntry]:
        """Return what declaring these tables would add. Raises Refused (`differs`) or InputError."""
        new: dict[str, Table] = {}
        for table in tables:
            check_table(table)
            known = self.entries[table.name].table if table.name in self.entries else new.get(table.name)
            if known is None:
                new[table.name] = table
            elif known != table:
                text = f"table {table.name!r} is declared differently: {difference(known, table)}"
                raise Refused(
                    f"{text}. All workers of a job declare the same tables, and those of a checkpoint that it starts from.",
                    "differs",
                )
        if len(self.entries) + len(new) > MAX_TABLES:
            raise Refused(f"more than {MAX_TABLES} tables", "too_many")
        first = max((entry.tag for entry in self.entries.values()), default=-1) + 1
        return [TableEntry(table, first + i, salt_of(table.name)) for i, table in enumerate(new.values())]

    def adopt(self, entries: Iterable[TableEntry]) -> None:
        """Know tables as a snapshot describes them, with the tags that its rows bear."""
        for entry in entries:
            self.entries[entry.table.name] = TableEntry(check_table(entry.table), entry.tag, entry.salt)
            self.families[entry.table.name] = family_of(entry.table)

    def withdraw(self, entry: TableEntry) -> None:
        """Know a table no more."""
        del self.entries[entry.table.name], self.families[entry.table.name]

    def entry(self, name: str) -> TableEntry:
        """Return a declared table, or raise InputError naming what is declared."""
        try:
            return self.entries[name]
        except KeyError:
            known = ", ".join(sorted(self.entries)) or "none"
            raise InputError(f"table {name!r} is not declared (declared: {known})") from None

    def tables(self) -> list[Table]:
        """Return all declarations, in the order they were made."""
        return [entry.table for entry in self.entries.values()]

    def dense(self) -> list[tuple[str, ...]]:
        """Return the names of the dense arrays, a tuple for each family."""
        groups: dict[Table, list[str]] = {}
        for name, family in self.families.items():
            if isinstance(family, Dense):
                groups.setdefault(family, []).append(name)
        return [tuple(sorted(names)) for names in groups.values()]
