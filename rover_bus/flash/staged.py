"""A staged cut as its readers see it: locked against overwriting, mapped without a copy.

Fed by slot files; feeds restores (copy-on-write), persisters, mirrors and digests (read only). The first reader puts rows
that the writer packed into their places, in the file; that changes nothing that is read. The lock is kept in
the file description that the mapping keeps, so it is given up when the last array is gone, or with the process, and
never by an oversight. A reader that ends earlier uses `with`: an exception's traceback keeps the arrays of the frames
that it went through, for as long as the exception is kept.
"""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path
from types import TracebackType

import msgspec
import numpy as np

from rover_bus.flash import locks
from rover_bus.flash.errors import BrokenCheckpoint, NewerCheckpoint, NoCheckpoint, OtherModel
from rover_bus.flash.layout import Array, Layout
from rover_bus.flash.packing import fold
from rover_bus.flash.places import numbered
from rover_bus.flash.seal import SEAL_ROOM_BYTES, Head, Seal, is_folded, mark_folded, read_head, read_seal

# What a job put in the place of a slot is neither followed nor waited for.
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class StagedCut:
    """One cut of one part in memory. Its slot is not overwritten while this object, or an array of it, lives, unless it was
    closed. `fd`: the locked description, owned from here on."""

    def __init__(self, path: Path, seal: Seal, head: Head, data: Array, fd: int) -> None:
        self.path, self.seal, self.head, self._data = path, seal, head, data
        self._fd = fd
        self._let_go = weakref.finalize(self, os.close, fd)

    def close(self) -> None:
        """Give the lock up now, even if arrays are still held: none of them may be read afterwards."""
        if self._let_go.alive:
            locks.unlock(self._fd)
            self._let_go()

    def __enter__(self) -> StagedCut:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def cut(self) -> int:
        return self.seal.cut

    @property
    def layout(self) -> Layout:
        return self.head.layout

    @property
    def extra(self) -> bytes:
        """The owner's own bytes of this cut."""
        return self.head.extra

    @property
    def arrays(self) -> dict[str, Array]:
        """Every array, without a copy; read-only unless opened writable."""
        return self.head.layout.views(self._data)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that looked staged when the directory was read."""

    path: Path
    number: int
    seal: Seal


def open_staged(path: Path, *, writable: bool = False) -> StagedCut | None:
    """Lock and map a slot; None if it is being written, holds nothing or is gone. `writable` maps copy-on-write: what is
    written to the arrays never reaches the file. Rows that its writer packed are put into their places first (packing).

    Raises NewerCheckpoint and BrokenCheckpoint.
    """
    try:
        fd = os.open(path, READ)
    except FileNotFoundError:
        return None
    staged = None
    try:
        if not locks.lock_shared(fd):
            return None
        seal = read_slot_seal(path, os.pread(fd, SEAL_ROOM_BYTES, 0))
        if seal is None:
            return None
        try:
            head = read_head(os.pread(fd, min(seal.head_bytes, os.fstat(fd).st_size), SEAL_ROOM_BYTES), seal)
        except BrokenCheckpoint as error:
            raise BrokenCheckpoint(f"{path}: {error}") from None
        if os.fstat(fd).st_size < seal.data_offset_bytes + head.layout.data_bytes:
            raise BrokenCheckpoint(
                f"{path} is shorter than its own head says: use another copy of cut {seal.cut}"
            )
        folded = (
            not head.patches or is_folded(os.pread(fd, SEAL_ROOM_BYTES, 0), seal) or _fold(fd, seal, head)
        )
        # mmap keeps a duplicate of fd: unless it is closed, the lock of this description lives as long as the mapping.
        mapping = mmap.mmap(fd, 0, access=mmap.ACCESS_COPY if writable or not folded else mmap.ACCESS_READ)
        data = np.frombuffer(mapping, np.uint8)[seal.data_offset_bytes :]
        if not folded:
            fold(data, head.layout, head.patches)
            data.flags.writeable = writable
        staged = StagedCut(path, seal, head, data, fd)
        return staged
    finally:
        if staged is None:
            os.close(fd)


def _fold(fd: int, seal: Seal, head: Head) -> bool:
    """Put packed rows into their places in the file itself, as its writer would: the lock keeps a next save away.

    False where the process may not write there: it does so in its own memory.
    """
    try:
        writing = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        slot: Array = np.frombuffer(mmap.mmap(writing, 0), np.uint8)
    finally:
        os.close(writing)
    fold(slot[seal.data_offset_bytes :], head.layout, head.patches)
    mark_folded(slot, seal)
    return True


def read_slot_seal(path: Path, raw: bytes) -> Seal | None:
    """The seal in the first bytes of a slot; None: it holds nothing. Raises NewerCheckpoint, BrokenCheckpoint, naming the file."""
    try:
        return read_seal(raw)
    except NewerCheckpoint as error:
        raise NewerCheckpoint(f"{path} was {error}") from None
    except BrokenCheckpoint as error:
        raise BrokenCheckpoint(f"{path}: {error}") from None


def find_staged(directory: Path, part: str, problems: list[str] | None = None) -> list[Found]:
    """The staged cuts of a part, newest save first, without locking any. `problems` takes a line for each slot with a broken seal.

    Raises NewerCheckpoint.
    """
    found = []
    for number, path in numbered(directory, part, "slot"):
        try:
            with open(os.open(path, READ), "rb") as file:
                seal = read_slot_seal(path, file.read(SEAL_ROOM_BYTES))
        except FileNotFoundError:
            continue
        except OSError as error:
            if problems is not None:
                problems.append(f"{path}: {error.strerror}")
            continue
        except NewerCheckpoint:
            raise
        except BrokenCheckpoint as error:
            if problems is not None:
                problems.append(str(error))
            continue
        if seal is not None:
            found.append(Found(path=path, number=number, seal=seal))
    return sorted(found, key=lambda item: -item.seal.save_number)


def newest_staged(
    directory: Path, part: str, *, cut: int | None = None, model: str = "", writable: bool = False
) -> StagedCut:
    """The newest readable cut of a part, or the given one, unverified: for callers that digest it or check digests themselves.

    A restore opens it by `verified`. Raises NoCheckpoint, OtherModel, or what is wrong with the only one there is.
    """
    broken: BrokenCheckpoint | None = None
    for found in find_staged(directory, part):
        if cut is not None and found.seal.cut != cut:
            continue
        try:
            staged = open_staged(found.path, writable=writable)
        except NewerCheckpoint:
            raise
        except BrokenCheckpoint as error:
            broken = broken or error
            continue
        if staged is None:
            continue
        if staged.head.model != model:
            text = f"cut {staged.cut} of {part} is of model {staged.head.model!r}, not {model!r}"
            raise OtherModel(f"{text}: restore it with its own program, or give the job another name")
        return staged
    which = "no cut" if cut is None else f"no cut {cut}"
    raise broken or NoCheckpoint(
        f"{directory} holds {which} of {part}: restore from peers or storage, or start from nothing"
    )
