"""Where every block of 512 rows starts in a text file.

Fed by one sequential scan of the file in pieces of 4 MiB, feeds the readers, which then read any block with one `pread`.
It is apart because it is the only pass over the whole data set: 8 bytes a block are kept, nothing a row.
A line is a row: the number of the row is that of the line. So a quoted newline, which would break that, is refused by name.
"""

from __future__ import annotations

import csv
import hashlib
import os
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from rover_bus.client.data.order import BLOCK_ROWS
from rover_bus.client.data.schema import Schema
from rover_bus.events.errors import InputError

LF, CR, QUOTE = 10, 13, 34
PIECE_BYTES = 4 << 20
LINE_BYTES = 1 << 20
"""The longest line that is believed to be a row; more than that is not a text file, and would need unbounded memory."""
BOM = b"\xef\xbb\xbf"
DIGEST_BYTES = 16  # of a stored index


@dataclass(frozen=True)
class Index:
    """The blocks of one version of a file: `offsets` int64[blocks + 1] in bytes, the last one is the end of the data."""

    path: Path
    size_bytes: int
    mtime_ns: int
    header: tuple[str, ...] | None
    rows: int
    offsets: NDArray[np.int64]

    def line(self, row: int) -> int:
        """Return the line number of a row, counted from 1 as editors do."""
        return row + 1 + (self.header is not None)

    def read(self, blocks: NDArray[np.int64]) -> bytes:
        """Return the bytes of some blocks laid end to end, each line ended; InputError when the file has changed."""
        with open_text(self.path) as file:
            if (version := _version(file)) != (self.size_bytes, self.mtime_ns):
                raise InputError(
                    f"{self.path} changed while it was read (was {self.size_bytes} bytes, is {version[0]})"
                )
            pieces = [self._read_block(file.fileno(), block) for block in blocks.tolist()]
        return b"".join(pieces)

    def _read_block(self, descriptor: int, block: int) -> bytes:
        begin, end = int(self.offsets[block]), int(self.offsets[block + 1])
        return read_range(descriptor, self.path, begin, end)


def read_range(descriptor: int, path: Path, begin: int, end: int) -> bytes:
    """Return some whole lines of an open file, the last one ended; InputError when they are not all there."""
    piece = os.pread(descriptor, end - begin, begin)
    if len(piece) != end - begin:
        raise InputError(f"{path} was cut short while it was read")
    return piece if piece.endswith(b"\n") else piece + b"\n"


def build_index(path: str | Path, schema: Schema, cache: Path | None = None) -> Index:
    """Scan a file once, or take the offsets from `cache` (a directory; keyed by path, size and time of change).

    A missing or empty file, a directory, a header without rows, a quoted newline: InputError, one line, with the place.
    """
    path = Path(path)
    with open_text(path) as file:
        size, mtime_ns = _version(file)
        if size == 0:
            raise InputError(f"{path} is empty: a click log needs at least one row")
        header, begin = read_header(file, path, schema)
        stored = _cache_path(cache, path, size, mtime_ns, begin, schema)
        offsets = _stored_at(stored) if stored else None
        if offsets is None:
            offsets = _scan(file, path, begin, schema, line=1 + (header is not None))
            if stored:
                _store(stored, offsets)
    if offsets[-1] == 0:
        raise InputError(f"{path} has a header but no rows")
    return Index(path, size, mtime_ns, header, int(offsets[-1]), offsets[:-1])


def open_text(path: Path) -> BinaryIO:
    """Open a file for reading; what cannot be opened is an InputError with the reason."""
    try:
        return path.open("rb", buffering=0)
    except FileNotFoundError as error:
        raise InputError(f"no file {path}") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a directory: name a file") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name
        raise InputError(f"cannot read {str(path)!r}: {error}") from None


def _version(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def read_header(file: BinaryIO, path: Path, schema: Schema) -> tuple[tuple[str, ...] | None, int]:
    """Return the names of the first line, or None, and where the rows begin. `file` stands at its start."""
    begin = len(BOM) if file.read(len(BOM)) == BOM else 0
    if not schema.has_header:
        return None, begin
    file.seek(begin)
    line = file.read(LINE_BYTES)
    line = line[: line.find(b"\n") + 1] or line
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    separator = schema.separator.decode()
    try:
        names = next(csv.reader([text], delimiter=separator), []) if schema.quoting else text.split(separator)
    except csv.Error:
        raise InputError(
            f"{path}, line 1: lines end in CR alone, or a CR stands in a name: end them in LF"
        ) from None
    if not any(names):
        raise InputError(f"{path}, line 1: no column names; set header = false when the file has none")
    return tuple(name.strip() for name in names), begin + len(line)


class LineScan:
    """Where lines and blocks start, gathered piece by piece. A row is a line; blank lines at the very end are no rows.

    `starts`: int64, the offset in bytes of every block of 512 lines so far. `end`: where the last row ends. `offset`: where the
    lines end that were taken.
    """

    def __init__(self, path: Path, begin: int, schema: Schema, line: int) -> None:
        self.starts = array("q")
        self.rows = 0
        self.offset = self.end = begin
        self._lines = 0
        self._path, self._schema, self._line = path, schema, line

    def take(self, piece: NDArray[np.uint8]) -> None:
        """Take the next whole lines. Raises InputError for a quoted newline, by file and line."""
        ends = np.flatnonzero(piece == LF) + 1
        firsts = np.concatenate([[0], ends[:-1]])
        if self._schema.quoting and (piece == QUOTE).any():
            _refuse_quoted_newlines(piece, ends, self._path, self._line + self._lines, self._schema)
        starts = firsts[-self._lines % BLOCK_ROWS :: BLOCK_ROWS] + self.offset
        self.starts.frombytes(starts.astype(np.int64).tobytes())
        filled = np.flatnonzero((ends - firsts > 2) | ((piece[firsts] != LF) & (piece[firsts] != CR)))
        if len(filled):
            self.rows, self.end = self._lines + int(filled[-1]) + 1, self.offset + int(ends[filled[-1]])
        self._lines += len(ends)
        self.offset += len(piece)


def _scan(file: BinaryIO, path: Path, begin: int, schema: Schema, line: int) -> NDArray[np.int64]:
    """Return the start of every block, the end of the data, and the number of rows: int64[blocks + 2]."""
    scan = LineScan(path, begin, schema, line)
    for piece in read_lines(file, path, begin):
        scan.take(piece)
    # Blank lines at the very end are how editors leave files, not rows that went wrong. The last LF may be our own.
    kept = np.array(scan.starts, np.int64)[: -(-scan.rows // BLOCK_ROWS)]
    return np.concatenate([kept, [min(scan.end, _version(file)[0]), scan.rows]]).astype(np.int64)


def read_lines(file: BinaryIO, path: Path, begin: int, *, ended: bool = True) -> Iterator[NDArray[np.uint8]]:
    """Yield the rest of a file as whole lines, in pieces of some MiB, each ending in LF.

    Of a file that has `ended` the last line gets the LF that it lacks; of one that grows, it is left for later.
    """
    file.seek(begin)
    rest = b""
    while data := file.read(PIECE_BYTES):
        cut = data.rfind(b"\n") + 1
        if cut:
            yield np.frombuffer(rest + data[:cut], np.uint8)
            rest = data[cut:]
        else:
            rest += data
        if len(rest) > LINE_BYTES:
            raise InputError(
                f"{path}: a line is longer than {LINE_BYTES} bytes; this does not look like a click log"
            )
    if rest and ended:
        yield np.frombuffer(rest + b"\n", np.uint8)


def _refuse_quoted_newlines(
    piece: NDArray[np.uint8], ends: NDArray[np.int64], path: Path, first_line: int, schema: Schema
) -> None:
    """Raise InputError for the first line that ends inside a quoted field.

    Only lines whose quotes are not plainly paired are looked at one by one: an opening quote follows a delimiter, a
    closing one stands before a delimiter or the line's end, and a doubled quote inside is both.
    """
    separator = schema.separator[0]
    quotes = np.flatnonzero(piece == QUOTE)
    lines = np.searchsorted(ends, quotes, side="right")
    count = np.bincount(lines, minlength=len(ends))
    nth = np.arange(len(quotes)) - (np.cumsum(count) - count)[lines]
    before = np.where(quotes > 0, piece[quotes - 1], LF)
    after = piece[np.minimum(quotes + 1, len(piece) - 1)]
    opens = (before == separator) | (before == LF) | (before == QUOTE)
    closes = (after == separator) | (after == LF) | (after == CR) | (after == QUOTE)
    odd = lines[np.where(nth % 2 == 0, ~opens, ~closes)]
    for number in np.union1d(odd, np.flatnonzero(count % 2)).tolist():
        text = piece[ends[number - 1] if number else 0 : ends[number]].tobytes()
        if ends_inside_quotes(text, schema.separator):
            raise InputError(
                f"{path}, line {first_line + number}: a quoted field goes on in the next line; "
                "quoted newlines are not supported: replace them by a space"
            )


def ends_inside_quotes(line: bytes, separator: bytes) -> bool:
    """Say whether a line ends inside a quoted field, by the rules of the csv module (a quote mid-field is a character)."""
    place, inside = 0, False
    while place < len(line):
        if not inside and line[place] == QUOTE and (place == 0 or line[place - 1 : place] == separator):
            inside = True
        elif inside and line[place] == QUOTE:
            if line[place + 1 : place + 2] == b'"':
                place += 1
            else:
                inside = False
                found = line.find(separator, place)
                place = found if found >= 0 else len(line)
                continue
        place += 1
    return inside


def _cache_path(
    cache: Path | None, path: Path, size: int, mtime_ns: int, begin: int, schema: Schema
) -> Path | None:
    if cache is None:
        return None
    key = (
        f"{path.resolve()}\0{size}\0{mtime_ns}\0{begin}\0{schema.quoting}\0{schema.separator!r}\0{BLOCK_ROWS}"
    )
    return cache / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.index"


def _stored_at(path: Path) -> NDArray[np.int64] | None:
    """Return the offsets that were stored; None where none are, or they are not what was written: rows would begin elsewhere."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    digest, body = raw[:DIGEST_BYTES], raw[DIGEST_BYTES:]
    return np.frombuffer(body, np.int64) if body and _digest(body) == digest else None


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()


def _store(path: Path, offsets: NDArray[np.int64]) -> None:
    """Write beside the place and rename, so that two workers that scan at once do not see half a file.

    A disk that is full or cannot be written costs the next worker a scan, and this one nothing.
    """
    body = offsets.tobytes()
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(_digest(body) + body)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
