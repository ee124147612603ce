"""Storage in an object store (S3, GCS, Azure) as the persister sees it: the port of `files`, without renames and without folders.

Stands on obstore (`pip install rover-bus[objects]`), which is loaded when such a storage is first used. An object appears whole or
not at all, when its upload is complete: `sync` completes it. Every upload has a name of its own, so two writers never meet; a part
keeps that name (its manifest says it), a manifest is copied to the name that belongs to its cut. Credentials and endpoints
come from the environment, as the store's own tools read them (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from rover_bus.events.errors import InputError
from rover_bus.flash.errors import NoCheckpoint, StorageFailed
from rover_bus.flash.files import DAMAGED, Sink, as_view
from rover_bus.flash.layout import Array

PART_BYTES = 8 << 20  # of an upload; ten thousand of them are the most
READ_AHEAD_BYTES = 16 << 20
RETRIES, RETRY_S = 3, 30.0
PARTIAL = ".partial"
MOST_COPIED_BYTES = 5 << 30  # S3 copies no larger object at once


class ObjectFiles:
    """Objects below an address, `s3://bucket/prefix`. Raises InputError where obstore is not installed or the address is none."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._store = _open(address)
        self._named: dict[str, str] = {}  # a file being written -> the object that it became
        self._sizes: dict[str, int] = {}
        self._ahead: tuple[str, int, memoryview] = ("", 0, memoryview(b""))

    def create(self, path: str) -> Sink:
        import obstore

        stem = path.removesuffix(PARTIAL)
        folder, _, name = stem.rpartition("/")
        whole = f"{folder}/{name}-{secrets.token_hex(8)}"
        self._named[path] = whole + (PARTIAL if folder == "manifests" else ".part")
        with self._explained(path, writing=True):
            return _ObjectSink(
                self, path, obstore.open_writer(self._store, self._named[path], buffer_size=PART_BYTES)
            )

    def size_of(self, path: str) -> int:
        import obstore

        if path not in self._sizes:
            with self._explained(path):
                self._sizes[path] = int(obstore.head(self._store, path)["size"])
        return self._sizes[path]

    def read_into(self, path: str, offset: int, target: Array) -> int:
        done = 0
        while done < len(target):
            piece = self._read(path, offset + done)[: len(target) - done]
            if not len(piece):
                break
            target.data[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def _read(self, path: str, offset: int) -> memoryview:
        """What is known from `offset` on; a large piece is fetched when nothing is: a request takes longer than its first bytes."""
        import obstore

        known, start, data = self._ahead
        if known != path or not start <= offset < start + len(data):
            end = min(offset + READ_AHEAD_BYTES, self.size_of(path))
            if end <= offset:
                return memoryview(b"")
            with self._explained(path):
                data = memoryview(obstore.get_range(self._store, path, start=offset, end=end))
            start = offset
            self._ahead = path, start, data
        return data[offset - start :]

    def place(self, old: str, new: str) -> str:
        return self._named.pop(old, new)

    def rename(self, old: str, new: str) -> None:
        import obstore

        with self._explained(new, writing=True):
            whole = self._named.pop(old, old)
            obstore.copy(self._store, whole, new)
            obstore.delete(self._store, whole)
        self._sizes.pop(new, None)

    def set_aside(self, path: str) -> None:
        if self.size_of(path) <= MOST_COPIED_BYTES:
            self.rename(path, f"{DAMAGED}/{path}")

    def remove(self, path: str) -> None:
        import obstore

        with self._explained(path), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, path)

    def written_at_s(self, folder: str) -> dict[str, float]:
        """Every object below a folder, and when it was written (Unix seconds)."""
        import obstore

        with self._explained(folder):
            pages = obstore.list(self._store, prefix=folder or None)
            return {str(item["path"]): item["last_modified"].timestamp() for page in pages for item in page}

    def folders(self) -> list[str]:
        """The names one level below the address."""
        import obstore

        with self._explained(""):
            found = obstore.list_with_delimiter(self._store)["common_prefixes"]
            return sorted(str(each).rstrip("/").rpartition("/")[2] for each in found)

    def sync_folder(self, folder: str) -> None:
        """A store has no folders: a name is durable with its object."""

    def list(self, folder: str) -> list[str]:
        return sorted(self.written_at_s(folder))

    @contextlib.contextmanager
    def _explained(self, path: str, *, writing: bool = False) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except FileNotFoundError as error:
            if writing:
                raise self._failed(path, error) from None
            raise NoCheckpoint(f"{self._address}/{path} does not exist: use an older checkpoint") from None
        except (BaseError, OSError) as error:
            raise self._failed(path, error) from None

    def _failed(self, path: str, error: Exception) -> StorageFailed:
        first = str(error).partition("\n")[0][:300]
        return StorageFailed(
            f"{self._address}/{path}: {first}. What was ready is still ready; are bucket, address and credentials right?",
            delay_s=10.0,
        )


class _ObjectSink:
    """An upload. Given up, nothing of it is ever seen; the store's own rule for unfinished uploads takes its pieces away."""

    def __init__(self, files: ObjectFiles, path: str, writer: Any) -> None:
        self._files, self._path, self._writer = files, path, writer

    def write(self, data: Array | bytes) -> None:
        with self._files._explained(self._path, writing=True):
            self._writer.write(as_view(data))

    def sync(self) -> None:
        with self._files._explained(self._path, writing=True):
            self._writer.close()

    def close(self) -> None:
        self._writer = None


def _open(address: str) -> Any:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise InputError(
            f"{address} is in an object store: pip install 'rover-bus[objects]' on every host that runs servers"
        ) from None
    try:
        return from_url(
            address, retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)}
        )
    except (BaseError, ValueError, OSError) as error:
        raise InputError(
            f"{address} is no address of an object store: {str(error).partition(chr(10))[0]}"
        ) from None
