"""Where the rows of a text file start, while its writer still appends to it.

Fed by the file, a look at a time; feeds `partitions`. Each look scans only what was added since the last one, and keeps 8 bytes a
block of 512 rows. It is apart from `index`, which indexes one version of a file and refuses any other: here the file may grow, and
only that. A line without its LF is not yet a row, unless the file is sealed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from rover_bus.client.data.index import LINE_BYTES, LineScan, open_text, read_header, read_lines, read_range
from rover_bus.client.data.order import BLOCK_ROWS
from rover_bus.client.data.schema import ColumnLayout, Schema
from rover_bus.events.errors import InputError

SEAL = ".sealed"


class GrowingFile:
    """A click log that grows at its end, until `<name>.sealed` lies beside it. `rows`: complete rows seen by the last look."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path = path
        self.schema = schema
        self.sealed = False
        self._scan: LineScan | None = None  # None until the header is whole
        self._layout: ColumnLayout | None = None
        self._has_header = False
        self._size_bytes = 0
        self._inode = 0

    @property
    def rows(self) -> int:
        return self._scan.rows if self._scan else 0

    @property
    def layout(self) -> ColumnLayout:
        """Where the columns stand; known once there are rows."""
        assert self._layout is not None
        return self._layout

    def look(self) -> None:
        """Take in what was added. Raises InputError when the file shrank, was replaced, or cannot be a click log."""
        if self.sealed:
            return
        # The seal first: what is in the file when its seal has been seen is all that will ever be.
        sealed = self.path.with_name(self.path.name + SEAL).exists()
        with open_text(self.path) as file:
            size_bytes = self._check(os.fstat(file.fileno()))
            if (size_bytes != self._size_bytes or sealed) and self._begin(file, size_bytes, sealed):
                assert self._scan is not None
                for piece in read_lines(file, self.path, self._scan.offset, ended=sealed):
                    self._scan.take(piece)
        self._size_bytes, self.sealed = size_bytes, sealed

    def _check(self, status: os.stat_result) -> int:
        if self._inode and (status.st_ino != self._inode or status.st_size < self._size_bytes):
            raise InputError(
                f"{self.path} was cut short or replaced while it was read: a partition may only be appended to"
            )
        self._inode = status.st_ino
        return status.st_size

    def _begin(self, file: BinaryIO, size_bytes: int, sealed: bool) -> bool:
        """Read the header once it is whole; False while it is not."""
        if self._scan is not None or not size_bytes:
            return self._scan is not None
        beginning = file.read(LINE_BYTES)
        if b"\n" not in beginning and len(beginning) < LINE_BYTES and not sealed:
            return False
        file.seek(0)
        header, begin = read_header(file, self.path, self.schema)
        try:
            self._layout = self.schema.lay_out(header)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from None
        self._has_header = header is not None
        self._scan = LineScan(self.path, begin, self.schema, line=1 + self._has_header)
        return True

    def line(self, row: int) -> int:
        """Return the line number of a row, counted from 1 as editors do."""
        return row + 1 + self._has_header

    def read(self, first_block: int, end_block: int) -> bytes:
        """Return the bytes of blocks of 512 rows, as far as there are rows: blocks [first_block, end_block)."""
        assert self._scan is not None
        starts = self._scan.starts
        end = starts[end_block] if end_block * BLOCK_ROWS < self.rows else self._scan.end
        with open_text(self.path) as file:
            size_bytes = self._check(os.fstat(file.fileno()))
            # The LF of a sealed file's last line may be our own.
            return read_range(file.fileno(), self.path, starts[first_block], min(end, size_bytes))
