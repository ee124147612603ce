"""Storage as the persister sees it: the few operations whose order decides what a power cut leaves behind.

Used by `part`, `manifest` and `persist`; a directory implements it here, `recording` implements it in memory and
can cut the power after every operation. Paths are relative, with `/`. It is a port so that the order of write,
fsync, rename and directory fsync (P14) is plain code that a test can interrupt anywhere.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from rover_bus.events.units import is_text
from rover_bus.flash.errors import NoCheckpoint, StorageFailed
from rover_bus.flash.layout import Array

DAMAGED = "damaged"  # the folder of what is neither trusted nor deleted
SYNC_BYTES = 16 << 20  # written before the disk is asked to begin


def as_view(data: Array | bytes) -> memoryview:
    """The bytes of a uint8 array or of a bytes object."""
    return memoryview(data) if isinstance(data, bytes) else data.data


class Sink(Protocol):
    """A file being written. Its bytes are durable after `sync`, its name after the folder's."""

    def write(self, data: Array | bytes) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class Files(Protocol):
    """A tree of files. Raises StorageFailed (try again) and NoCheckpoint (no such file)."""

    def create(self, path: str) -> Sink: ...
    def size_of(self, path: str) -> int: ...
    def read_into(self, path: str, offset: int, target: Array) -> int:
        """Fill a contiguous uint8 array from `offset`; return how many bytes there were."""
        ...

    def rename(self, old: str, new: str) -> None: ...
    def place(self, old: str, new: str) -> str:
        """Give a finished file its final name, `new` where names can be changed; return the one that it has."""
        ...

    def set_aside(self, path: str) -> None:
        """Move a file below `damaged/`. One that this storage cannot move stays where it is."""
        ...

    def remove(self, path: str) -> None: ...
    def list(self, folder: str) -> list[str]:
        """All files below a folder, as paths, sorted. Names that are not UTF-8 are none of ours, and left out."""
        ...

    def sync_folder(self, folder: str) -> None: ...


class DirectoryFiles:
    """Files under a local (or mounted) directory. One that was there at first is never made anew: its mount is gone then."""

    def __init__(self, root: Path) -> None:
        self._root, self._was_there = root, root.is_dir()

    def create(self, path: str) -> Sink:
        with self._explained(path):
            target = self._root / path
            self._make_folders(target.parent)
            return _FileSink(
                os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), path
            )

    def _make_folders(self, folder: Path) -> None:
        """Create what is missing, each name durable before anything is put below it."""
        if folder.is_dir():
            return
        if folder == self._root and self._was_there:
            raise FileNotFoundError
        self._make_folders(folder.parent)
        folder.mkdir(exist_ok=True, mode=0o700)
        _sync_directory(folder.parent)

    def size_of(self, path: str) -> int:
        with self._explained(path):
            return (self._root / path).stat().st_size

    def read_into(self, path: str, offset: int, target: Array) -> int:
        with self._explained(path), open(self._root / path, "rb", buffering=0) as file:
            file.seek(offset)
            done = 0
            while done < len(target) and (count := file.readinto(target[done:])):  # type: ignore[arg-type]
                done += count
            return done

    def rename(self, old: str, new: str) -> None:
        with self._explained(new):
            os.rename(self._root / old, self._root / new)

    def place(self, old: str, new: str) -> str:
        self.rename(old, new)
        return new

    def set_aside(self, path: str) -> None:
        with self._explained(path):
            target = self._root / DAMAGED / path
            self._make_folders(target.parent)
            os.rename(self._root / path, target)
            _sync_directory(target.parent)

    def remove(self, path: str) -> None:
        with self._explained(path):
            (self._root / path).unlink(missing_ok=True)

    def list(self, folder: str) -> list[str]:
        with self._explained(folder):
            if not self._root.is_dir():
                raise FileNotFoundError
            found = (self._root / folder).rglob("*")
            names = (str(path.relative_to(self._root)) for path in found if path.is_file())
            return sorted(name for name in names if is_text(name))

    def sync_folder(self, folder: str) -> None:
        with self._explained(folder):
            _sync_directory(self._root / folder)

    @contextlib.contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            if self._root.is_dir():
                raise NoCheckpoint(f"{self._root / path} does not exist: use an older checkpoint") from None
            raise StorageFailed(
                f"{self._root} is not there any more: is it still mounted?", delay_s=10.0
            ) from None
        except OSError as error:
            raise _failed(error, str(self._root / path)) from None


class _FileSink:
    """A file whose first bytes go to the disk while the later ones are still being made (`SYNC_BYTES` at a time, on a thread)."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd, self._path = fd, path
        self._unsynced = 0
        self._syncing: threading.Thread | None = None
        self._error: OSError | None = None

    def write(self, data: Array | bytes) -> None:
        view = as_view(data)
        self._unsynced += len(view)
        try:
            while len(view):
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise _failed(error, self._path) from None
        if self._unsynced >= SYNC_BYTES and not (self._syncing and self._syncing.is_alive()):
            self._unsynced = 0
            self._syncing = threading.Thread(target=self._begin_to_sync, name="rover-sync", daemon=True)
            self._syncing.start()

    def _begin_to_sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._error = self._error or error  # the kernel says it once: `sync` would hear nothing of it

    def sync(self) -> None:
        self._settle()
        try:
            if self._error:
                raise self._error
            os.fsync(self._fd)
        except OSError as error:
            raise _failed(error, self._path) from None

    def _settle(self) -> None:
        if self._syncing:
            self._syncing.join()
            self._syncing = None

    def close(self) -> None:
        self._settle()
        os.close(self._fd)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _failed(error: OSError, path: str) -> StorageFailed:
    what = error.strerror or type(error).__name__
    return StorageFailed(
        f"{path}: {what}. What was ready is still ready; free or mount the storage", delay_s=10.0
    )
