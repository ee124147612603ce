"""A part file: one part of one cut on storage, whole or as what changed since another part file.

    magic | streams of bytes, each in digested chunks | footer (msgpack: what the streams are) | trailer (length and
    digest of the footer)

Written in one pass, so the footer is last; a file cut short has no trailer and is not a part. Fed by the persister
with arrays (a staged cut) and by compaction; feeds restores. `write_part` is a generator that yields after every
chunk: the caller that drains it sets the pace.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Literal

import msgspec
import numpy as np
import xxhash

from rover_bus.flash.codec import can_encode, decode_rows, encode_rows
from rover_bus.flash.copying import as_bytes, take_rows
from rover_bus.flash.digests import CHUNK_BYTES, Digests, digest_array
from rover_bus.flash.dirty import Ids
from rover_bus.flash.errors import BrokenCheckpoint, NewerCheckpoint
from rover_bus.flash.files import Files, Sink
from rover_bus.flash.layout import Array, plain_dtype, size_of

MAGIC = b"ROVERPRT"
VERSION = 1
TRAILER = struct.Struct("<QQII8s")  # footer bytes, footer digest, version, 0, magic
MAX_FOOTER_BYTES = 1 << 28

Codec = Literal["raw", "int8"]
Pace = Generator[int, None, "PartFile"]  # yields bytes written


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """One array to write: all rows, or the rows `ids` (sorted, distinct) of a delta. `expected`: the digests of all of it in
    memory, if known. What was written is believed only where they still agree *afterwards*: memory can be damaged while it is
    read."""

    name: str
    array: Array
    ids: Ids | None = None
    codec: Codec = "raw"
    expected: Digests | None = None


class PartStream(msgspec.Struct, frozen=True, kw_only=True):
    """A run of bytes in the file, digested every `chunk_bytes` (xxh3, little-endian uint64)."""

    offset_bytes: int
    size_bytes: int
    chunk_bytes: int
    digests: bytes


class PartSection(msgspec.Struct, frozen=True, kw_only=True):
    """One array. `rows` None: all of it; else `ids` names the rows, and `shape` is that of the array afterwards."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    codec: Codec
    rows: int | None
    data: PartStream
    ids: PartStream | None = None
    scale: PartStream | None = None


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Of what this is a part. `base`: digest of the part file that a delta builds on; empty: none, this one is
    whole."""

    job_uid: str
    part: str
    timeline: int
    generation: int
    cut: int
    model: str = ""
    base: str = ""


class Footer(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a part file but its name."""

    identity: Identity
    sections: tuple[PartSection, ...]
    extra: bytes


FOOTERS = msgspec.msgpack.Decoder(Footer)  # made once, at import: see journal.py


class PartFile(msgspec.Struct, frozen=True, kw_only=True):
    """A part file as manifests name it (P14). `digest` covers the footer, and through it every byte."""

    path: str
    identity: Identity
    digest: str
    size_bytes: int

    @property
    def is_delta(self) -> bool:
        return bool(self.identity.base)


# -- writing -----------------------------------------------------------------------------------------------------------


def write_part(
    files: Files, path: str, identity: Identity, contents: Iterable[Content], extra: bytes
) -> Pace:
    """Write and sync a part file under a name that is not read yet. Raises BrokenCheckpoint if memory has changed since
    it was digested."""
    sink = files.create(path)
    try:
        writer = _Writer(sink)
        yield from writer.write(MAGIC + bytes(56))
        sections = []
        for content in contents:
            sections.append((yield from writer.section(content)))
        footer = msgspec.msgpack.encode(Footer(identity=identity, sections=tuple(sections), extra=extra))
        if len(footer) > MAX_FOOTER_BYTES:
            raise BrokenCheckpoint(
                f"the footer of {path} would take {len(footer)} bytes: keep less in `extra`"
            )
        trailer = TRAILER.pack(len(footer), xxhash.xxh3_64_intdigest(footer), VERSION, 0, MAGIC)
        yield from writer.write(footer + trailer)
        sink.sync()
    finally:
        sink.close()
    digest = xxhash.xxh3_128_hexdigest(footer)
    return PartFile(path=path, identity=identity, digest=digest, size_bytes=writer.offset_bytes)


class _Writer:
    def __init__(self, sink: Sink) -> None:
        self._sink, self.offset_bytes = sink, 0

    def write(self, data: Array | bytes) -> Generator[int]:
        size = len(data)
        if size:
            self._sink.write(data)
            self.offset_bytes += size
            yield size

    def stream(self, chunks: Iterable[Array], chunk_bytes: int) -> Generator[int, None, PartStream]:
        """Write chunks, all of `chunk_bytes` but the last, and digest them afterwards: what memory says then was written."""
        start, digests = self.offset_bytes, []
        for chunk in chunks:
            raw = as_bytes(chunk)
            yield from self.write(raw)
            digests.append(xxhash.xxh3_64_intdigest(raw))  # type: ignore[arg-type]
        end, packed = self.offset_bytes, np.array(digests, "<u8").tobytes()
        yield from self.write(bytes(-end % 64))
        return PartStream(offset_bytes=start, size_bytes=end - start, chunk_bytes=chunk_bytes, digests=packed)

    def section(self, content: Content) -> Generator[int, None, PartSection]:
        array, ids, stored_ids = content.array, content.ids, None
        if ids is not None:
            stored_ids = yield from self.stream(_spans(ids.astype("<u8")), CHUNK_BYTES)
        scale = None
        encoded = _encode_all(content) if content.codec == "int8" and can_encode(array) else None
        if encoded:
            levels, scales = encoded
            data = yield from self.stream(_spans(levels), CHUNK_BYTES)
            scale = yield from self.stream(_spans(scales), CHUNK_BYTES)
        elif ids is None:
            data = yield from self.stream(_spans(array), CHUNK_BYTES)
        else:
            rows = _rows_a_chunk(array)
            data = yield from self.stream(_taken(array, ids, rows), max(1, rows * _row_bytes(array)))
        as_it_lies = ids is None and not encoded
        _compare(content, np.frombuffer(data.digests, "<u8") if as_it_lies else None)
        return PartSection(
            name=content.name,
            dtype=array.dtype.str,
            shape=array.shape,
            codec="int8" if encoded else "raw",
            rows=None if ids is None else len(ids),
            data=data,
            ids=stored_ids,
            scale=scale,
        )


def _compare(content: Content, written: Digests | None) -> None:
    """Hold an array against what was digested. `written`: digests of what was written, where that is the array as it lies."""
    if content.expected is None:
        return
    found = digest_array(content.array) if written is None else written
    known = len(found) == len(content.expected)
    for chunk in np.flatnonzero(found != content.expected)[:1] if known else [0]:
        start = int(chunk) * CHUNK_BYTES
        text = f"bytes {start} to {start + CHUNK_BYTES} of {content.name} changed in memory after they were digested"
        raise BrokenCheckpoint(f"{text}: nothing was persisted, the next cut will be")


def _encode_all(content: Content) -> tuple[Array, Array] | None:
    """Levels and scales of all rows; None if some are not finite."""
    array, ids = content.array, content.ids
    count, width = (len(array) if ids is None else len(ids)), array.size // len(array)
    levels, scales = np.empty((count, width), np.uint8), np.empty((count, 2), "<f4")
    step = _rows_a_chunk(array)
    for start in range(0, count, step):
        block = slice(start, start + step)
        encoded = encode_rows(array[block] if ids is None else take_rows(array, ids[block]))
        if encoded is None:
            return None
        levels[block], scales[block] = encoded
    return levels, scales


def _spans(array: Array) -> Iterator[Array]:
    raw = as_bytes(array if array.flags.c_contiguous else np.ascontiguousarray(array))
    for start in range(0, len(raw), CHUNK_BYTES):
        yield raw[start : start + CHUNK_BYTES]


def _taken(array: Array, ids: Ids, rows: int) -> Iterator[Array]:
    for start in range(0, len(ids) if array.nbytes else 0, rows):
        yield take_rows(array, ids[start : start + rows])


def _row_bytes(array: Array) -> int:
    return array.nbytes // max(1, len(array))


def _rows_a_chunk(array: Array) -> int:
    return max(1, CHUNK_BYTES // max(1, _row_bytes(array)))


# -- reading -----------------------------------------------------------------------------------------------------------


def read_footer(files: Files, path: str) -> tuple[Footer, str]:
    """The footer of a part file and its digest. Raises NoCheckpoint, NewerCheckpoint, BrokenCheckpoint."""
    size = files.size_of(path)
    if size < TRAILER.size:
        raise BrokenCheckpoint(f"{path} has {size} bytes, which is no part file: use an older checkpoint")
    length, digest, version, _, magic = TRAILER.unpack(_read(files, path, size - TRAILER.size, TRAILER.size))
    if magic != MAGIC:
        raise BrokenCheckpoint(
            f"{path} does not end like a part file: it was cut short, use an older checkpoint"
        )
    if version > VERSION:
        raise NewerCheckpoint(
            f"{path} has format {version}, this release reads up to {VERSION}: restore with the newer one"
        )
    if length > min(size - TRAILER.size, MAX_FOOTER_BYTES):
        raise BrokenCheckpoint(f"{path}: its footer would be {length} bytes long, use an older checkpoint")
    raw = _read(files, path, size - TRAILER.size - length, length)
    if xxhash.xxh3_64_intdigest(raw) != digest:
        raise BrokenCheckpoint(f"{path}: its footer is not what was written, use an older checkpoint")
    try:
        return FOOTERS.decode(raw), xxhash.xxh3_128_hexdigest(raw)
    except msgspec.MsgspecError as error:
        raise BrokenCheckpoint(
            f"{path}: its footer cannot be read ({error}), use an older checkpoint"
        ) from None


def _read(files: Files, path: str, offset: int, size: int) -> bytes:
    target = np.empty(size, np.uint8)
    if files.read_into(path, offset, target) != size:
        raise BrokenCheckpoint(f"{path} is shorter than it says: use an older checkpoint")
    return target.tobytes()


def read_part(
    files: Files, path: str, footer: Footer, base: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """All arrays after this part, every chunk checked. A delta is applied to `base`, whose arrays it takes over.

    Raises BrokenCheckpoint, naming file, array and bytes.
    """
    if bool(footer.identity.base) != (base is not None):
        raise BrokenCheckpoint(f"{path} stands at the wrong place of its chain: use an older checkpoint")
    reader = _Reader(files, path, files.size_of(path))
    return {
        section.name: reader.section(section, (base or {}).get(section.name)) for section in footer.sections
    }


def check_part(files: Files, path: str, footer: Footer) -> Generator[int]:
    """Read every byte of a part file and compare, one chunk in memory at a time. Yields bytes read.

    Raises BrokenCheckpoint, naming file, array and bytes.
    """
    reader = _Reader(files, path, files.size_of(path))
    for section in footer.sections:
        for stream in (section.data, section.ids, section.scale):
            if stream is not None:
                yield from reader.chunks(section, stream)


class _Reader:
    def __init__(self, files: Files, path: str, size_bytes: int) -> None:
        self._files, self._path, self._size_bytes = files, path, size_bytes

    def section(self, section: PartSection, base: Array | None) -> Array:
        if section.rows is None:
            return self._values(section, section.shape)
        rows, shape = section.rows, section.shape
        if (
            base is None
            or section.ids is None
            or base.dtype.str != section.dtype
            or base.shape[1:] != shape[1:]
        ):
            raise self._broken(section, "does not fit the part it builds on")
        ids = self._stream(section, section.ids, 8 * rows).view("<u8")
        if not len(base) <= shape[0] <= len(base) + rows or (rows and ids.max() >= shape[0]):
            raise self._broken(section, "names rows that it cannot have")
        grown = (
            base
            if len(base) == shape[0]
            else np.concatenate([base, np.zeros((shape[0] - len(base), *shape[1:]), base.dtype)])
        )
        grown[ids.astype(np.int64)] = self._values(section, (rows, *shape[1:]))
        return grown

    def _values(self, section: PartSection, shape: tuple[int, ...]) -> Array:
        dtype = plain_dtype(section.dtype)
        if section.codec == "raw":
            return (
                self._stream(section, section.data, size_of(section.dtype, shape)).view(dtype).reshape(shape)
            )
        if section.scale is None or dtype.kind != "f" or len(shape) < 2:
            raise self._broken(section, "has no scales")
        count = size_of("u1", shape)
        levels = self._stream(section, section.data, count).reshape(shape[0], -1 if count else 0)
        scale = self._stream(section, section.scale, 8 * shape[0]).view("<f4").reshape(-1, 2)
        values = np.empty(shape, dtype)
        for start in range(0, shape[0], 4096):
            block = slice(start, start + 4096)
            decode_rows(levels[block], scale[block], values[block])
        return values

    def _stream(self, section: PartSection, stream: PartStream, size_bytes: int) -> Array:
        """The bytes of a stream, checked chunk by chunk while they are in the cache."""
        self._check_bounds(section, stream, size_bytes)
        raw = np.empty(size_bytes, np.uint8)
        for _ in self.chunks(section, stream, raw):
            pass
        return raw

    def _check_bounds(self, section: PartSection, stream: PartStream, size_bytes: int) -> None:
        start = stream.offset_bytes
        if (
            stream.size_bytes != size_bytes
            or not 0 <= start <= start + size_bytes <= self._size_bytes
            or stream.chunk_bytes < 1
        ):
            raise self._broken(section, "is not as long as its shape says")

    def chunks(self, section: PartSection, stream: PartStream, raw: Array | None = None) -> Generator[int]:
        """Read a stream and check it chunk by chunk, into `raw` if that is given. Yields bytes read."""
        size, start, step = stream.size_bytes, stream.offset_bytes, stream.chunk_bytes
        self._check_bounds(section, stream, size)
        digests = np.frombuffer(stream.digests, "<u8")
        if len(digests) != -(-size // step):
            raise self._broken(section, "has not a digest for every chunk")
        spare = np.empty(min(step, size) if raw is None else 0, np.uint8)
        for index, place in enumerate(range(0, size, step)):
            chunk = spare[: size - place] if raw is None else raw[place : place + step]
            count = self._files.read_into(self._path, start + place, chunk)
            if count != len(chunk) or xxhash.xxh3_64_intdigest(chunk) != digests[index]:  # type: ignore[arg-type]
                raise self._broken(section, f"is damaged at bytes {place} to {place + len(chunk)}")
            yield len(chunk)

    def _broken(self, section: PartSection, what: str) -> BrokenCheckpoint:
        return BrokenCheckpoint(
            f"{self._path}: array {section.name} {what}: use an older checkpoint or another copy"
        )
