"""One slot as its writer sees it: a file on a tmpfs, allocated and mapped before the first byte is saved.

Fed by the store; read by `staged`. It is apart because these few calls are what makes a first save as fast as any
other (posix_fallocate, then MAP_POPULATE: the pages exist and are mapped) and a shortage a typed refusal instead of a
SIGBUS.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from rover_bus.events.errors import NotEnoughMemory
from rover_bus.flash import locks
from rover_bus.flash.copying import Piece
from rover_bus.flash.digests import is_digested
from rover_bus.flash.dirty import Ids
from rover_bus.flash.layout import Array, Layout
from rover_bus.flash.packing import Patch, fold, pack
from rover_bus.flash.places import digests_path
from rover_bus.flash.room import LARGER, read_room, require_room
from rover_bus.flash.seal import (
    FOLDED,
    SEAL_ROOM_BYTES,
    VOID,
    Head,
    Seal,
    is_folded,
    mark_folded,
    read_head,
    read_seal,
)

EXTRA_ROOM_BYTES = 1 << 20


def slot_room(layout: Layout, extra_bytes: int, packing_bytes: int) -> tuple[int, int]:
    """Return where the data of a slot begins, and how large its file is."""
    head_room = 2 * len(msgspec.msgpack.encode(Head(layout=layout))) + max(EXTRA_ROOM_BYTES, 2 * extra_bytes)
    offset = -(-(SEAL_ROOM_BYTES + head_room) // mmap.PAGESIZE) * mmap.PAGESIZE
    return offset, max(offset + layout.data_bytes + packing_bytes, offset + 1)


class Slot:
    """A slot file mapped for writing. `layout` is the room it has; what it holds is in `seal` (None: nothing)."""

    def __init__(
        self, path: Path, number: int, fd: int, layout: Layout, data_offset: int, seal: Seal | None
    ) -> None:
        self.path, self.number, self.layout, self.seal = path, number, layout, seal
        self._fd, self._data_offset, self._data_bytes = fd, data_offset, layout.data_bytes
        self._patches: tuple[Patch, ...] = ()
        self._viewed: tuple[Layout, Mapping[str, Array]] | None = (
            None  # views of all arrays take time to make
        )
        size = os.fstat(fd).st_size
        self._mapping = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._bytes: Array = np.frombuffer(self._mapping, np.uint8)

    @classmethod
    def create(
        cls, path: Path, number: int, layout: Layout, extra_bytes: int = 0, packing_bytes: int = 0
    ) -> Slot:
        """Allocate and populate, with room for packed rows behind the data. Raises NotEnoughMemory, leaving nothing behind."""
        offset, size = slot_room(layout, extra_bytes, packing_bytes)
        require_room(size, read_room(path.parent), path.parent)
        digests_path(path).unlink(missing_ok=True)  # of a dead writer's slot of this number
        fresh = path.with_suffix(".new")
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _allocate(fd, size, path.parent)
            os.rename(fresh, path)
            return cls(path, number, fd, layout, offset, None)
        except BaseException:
            os.close(fd)
            fresh.unlink(missing_ok=True)
            raise

    @classmethod
    def adopt(cls, path: Path, number: int) -> Slot | None:
        """Take over the slot of a former process if it holds a whole cut; None if not."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            seal = read_seal(os.pread(fd, SEAL_ROOM_BYTES, 0))
            if seal is not None:
                head = read_head(
                    os.pread(fd, min(seal.head_bytes, os.fstat(fd).st_size), SEAL_ROOM_BYTES), seal
                )
                slot = cls(path, number, fd, head.layout, seal.data_offset_bytes, seal)
                slot._patches = head.patches
                return slot
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def claim(self) -> bool:
        """Keep readers out; False if one is in."""
        return locks.lock_exclusive(self._fd)

    def release(self) -> None:
        """Let readers in again. One that was given up meanwhile has no lock any more."""
        if self._fd >= 0:
            locks.unlock(self._fd)

    @property
    def is_read(self) -> bool:
        """Whether a reader holds it just now."""
        return locks.is_held_elsewhere(self._fd)

    @property
    def save_number(self) -> int:
        """Number of the save it holds; 0: none."""
        return self.seal.save_number if self.seal else 0

    @property
    def is_digested(self) -> bool:
        """Whether what it holds has digests: only then is it a source (P12)."""
        return self.seal is not None and is_digested(self.path, self.seal)

    def invalidate(self) -> None:
        """From here until `stamp` the slot holds nothing, whatever happens to this process, and `unfolded` is forgotten with it."""
        self._bytes[: len(VOID)] = 0
        self._bytes[FOLDED] = 0
        self.seal = None
        digests_path(self.path).unlink(missing_ok=True)

    def stamp(self, head: Head, *, timeline: int, generation: int, cut: int, save_number: int) -> None:
        """Write head, then seal: the cut is staged."""
        raw = msgspec.msgpack.encode(head)
        self._bytes[SEAL_ROOM_BYTES : SEAL_ROOM_BYTES + len(raw)] = np.frombuffer(raw, np.uint8)
        seal = Seal(
            timeline=timeline,
            generation=generation,
            cut=cut,
            save_number=save_number,
            head_bytes=len(raw),
            head_digest=xxhash.xxh3_64_intdigest(raw),
            data_offset_bytes=self._data_offset,
            version=head.version,
        )
        self._bytes[: len(VOID)] = np.frombuffer(seal.encode(), np.uint8)
        self.seal, self.layout, self._patches = seal, head.layout, head.patches

    def holds_head(self, head: Head) -> bool:
        return SEAL_ROOM_BYTES + len(msgspec.msgpack.encode(head)) <= self._data_offset

    def views(self, layout: Layout) -> Mapping[str, Array]:
        """The arrays of a layout that fits this slot's room, writable. Do not keep them."""
        if self._viewed is None or self._viewed[0] is not layout:
            self._viewed = layout, layout.views(self._data)
        return self._viewed[1]

    @property
    def _data(self) -> Array:
        return self._bytes[self._data_offset :]

    # -- packed rows ---------------------------------------------------------------------------------------------------

    def pack(
        self, pieces: Mapping[str, Piece], layout: Layout, head: Head
    ) -> tuple[list[Piece], tuple[Patch, ...]]:
        """What to copy, touched rows behind the data where there is room: see packing. Before `invalidate`."""
        todo, patches = pack(pieces, layout, self._data, self._data_bytes)
        if not patches or self.holds_head(msgspec.structs.replace(head, patches=patches)):
            return todo, patches
        return list(pieces.values()), ()

    @property
    def unfolded(self) -> Mapping[str, Ids]:
        """Ids of rows that are packed, and not in their places: they are as stale as if they had been touched."""
        if self.seal is None or not self._patches or is_folded(self._bytes, self.seal):
            return {}
        return {patch.name: patch.ids(self._data).astype(np.int64) for patch in self._patches}

    def fold(self, hurried: Callable[[], bool]) -> bool:
        """Put packed rows into their places; False if that was cut short. The cut is readable before, meanwhile and after."""
        if self.seal is None or not self._patches or is_folded(self._bytes, self.seal):
            return True
        if not fold(self._data, self.layout, self._patches, hurried):
            return False
        mark_folded(self._bytes, self.seal)
        return True

    @property
    def size_bytes(self) -> int:
        return len(self._bytes)

    def close(self) -> None:
        """Unmap as soon as the last view is gone; the file stays."""
        os.close(self._fd)
        self._fd = -1  # the number may be another file's from here on
        self._viewed = None
        del self._bytes, self._mapping

    def remove(self) -> None:
        """Take the name away: memory is freed when the last reader lets go."""
        self.path.unlink(missing_ok=True)
        digests_path(self.path).unlink(missing_ok=True)
        self.close()


def _allocate(fd: int, size_bytes: int, directory: Path) -> None:
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT):
            raise
        free: Any = os.statvfs(directory)
        raise NotEnoughMemory(
            f"a slot needs {size_bytes >> 20} MiB, {directory} has {free.f_bavail * free.f_frsize >> 20} MiB left: {LARGER}"
        ) from None
