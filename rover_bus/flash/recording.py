"""Files in memory that remember every operation, and can show what a power cut after any of them may have left.

Fed by the same code as `files.DirectoryFiles`; feeds the power-cut simulation. The model is as hard as POSIX
allows: bytes are certain only after `sync` of their file, names only after `sync_folder` of their folder; what is
not certain may be there, may not, or, for bytes, may be there in part or as zeros. Ordering between files is
promised by nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rover_bus.flash.errors import NoCheckpoint
from rover_bus.flash.files import DAMAGED, Sink, as_view
from rover_bus.flash.layout import Array

Operation = tuple[str, Any, Any]
Pick = Callable[[int], int]  # a number below its argument; what is uncertain is decided by it


class RecordingFiles:
    """Implements `files.Files`; `operations` is everything that was done, in order."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self._start = dict(files or {})
        self._names: dict[str, int] = {}
        self._contents: dict[int, bytearray] = {}
        self.operations: list[Operation] = []
        for inode, (path, content) in enumerate(self._start.items()):
            self._names[path], self._contents[inode] = inode, bytearray(content)

    def create(self, path: str) -> Sink:
        inode = len(self._contents)
        self._names[path], self._contents[inode] = inode, bytearray()
        self.operations.append(("create", path, inode))
        return _RecordingSink(self, inode)

    def append(self, inode: int, data: bytes) -> None:
        self._contents[inode] += data
        self.operations.append(("write", inode, data))

    def size_of(self, path: str) -> int:
        return len(self._content(path))

    def read_into(self, path: str, offset: int, target: Array) -> int:
        data = self._content(path)[offset : offset + len(target)]
        target[: len(data)] = np.frombuffer(data, np.uint8)
        return len(data)

    def _content(self, path: str) -> bytearray:
        if path not in self._names:
            raise NoCheckpoint(f"{path} does not exist: use an older checkpoint")
        return self._contents[self._names[path]]

    def rename(self, old: str, new: str) -> None:
        self._content(old)
        self._names[new] = self._names.pop(old)
        self.operations.append(("rename", old, new))

    def place(self, old: str, new: str) -> str:
        self.rename(old, new)
        return new

    def set_aside(self, path: str) -> None:
        self.rename(path, f"{DAMAGED}/{path}")
        self.sync_folder(path.rpartition("/")[0])

    def remove(self, path: str) -> None:
        if self._names.pop(path, None) is not None:
            self.operations.append(("remove", path, None))

    def list(self, folder: str) -> list[str]:
        return sorted(path for path in self._names if path.startswith(folder.rstrip("/") + "/"))

    def sync_folder(self, folder: str) -> None:
        self.operations.append(("sync_folder", folder, None))

    def files(self) -> dict[str, bytes]:
        """What a reader sees now."""
        return {path: bytes(self._contents[inode]) for path, inode in self._names.items()}

    def cut_power(self, after: int, pick: Pick) -> RecordingFiles:
        """The disk as it may be found when the power failed after the first `after` operations."""
        disk = _Disk(self._start)
        for operation in self.operations[:after]:
            disk.apply(operation)
        return RecordingFiles(disk.survivors(pick))


class _RecordingSink:
    def __init__(self, files: RecordingFiles, inode: int) -> None:
        self._files, self._inode = files, inode

    def write(self, data: Array | bytes) -> None:
        self._files.append(self._inode, bytes(as_view(data)))

    def sync(self) -> None:
        self._files.operations.append(("sync", self._inode, None))

    def close(self) -> None:
        pass


class _Disk:
    """What is certain, and what hangs in caches."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._content = {inode: bytearray(data) for inode, data in enumerate(files.values())}
        self._certain_bytes = {inode: len(data) for inode, data in self._content.items()}
        self._certain_names = {path: inode for inode, path in enumerate(files)}
        self._uncertain: list[Operation] = []

    def apply(self, operation: Operation) -> None:
        match operation:
            case ("write", inode, data):
                self._content[inode] += data
            case ("sync", inode, _):
                self._certain_bytes[inode] = len(self._content[inode])
            case ("sync_folder", folder, _):
                self._settle(folder)
            case (kind, _, inode):
                if kind == "create":
                    self._content[inode], self._certain_bytes[inode] = bytearray(), 0
                self._uncertain.append(operation)

    def _settle(self, folder: str) -> None:
        for operation in self._uncertain:
            if operation[1].rpartition("/")[0] == folder:
                _name(self._certain_names, operation)
        self._uncertain = [item for item in self._uncertain if item[1].rpartition("/")[0] != folder]

    def survivors(self, pick: Pick) -> dict[str, bytes]:
        """One of the possible remains."""
        names = dict(self._certain_names)
        for operation in self._uncertain:
            if pick(2):
                _name(names, operation)
        return {path: self._remains(inode, pick) for path, inode in names.items()}

    def _remains(self, inode: int, pick: Pick) -> bytes:
        content, certain = bytes(self._content[inode]), self._certain_bytes[inode]
        loose = len(content) - certain
        if not loose:
            return content
        there = certain + pick(loose + 1)
        return content[:there] + (bytes(len(content) - there) if pick(2) else b"")


def _name(names: dict[str, int], operation: Operation) -> None:
    kind, first, second = operation
    if kind == "create":
        names[first] = second
    elif kind == "rename" and first in names:
        names[second] = names.pop(first)
    elif kind == "remove":
        names.pop(first, None)
