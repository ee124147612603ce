"""A stream as a file, and back: JetStream's own snapshots, in the layout of `nats account backup` (`backup.json`, `stream.tar.s2`).

Used by `rover backup` and `rover restore` with the rights of an account's owner. A snapshot is the stream as it is at one moment,
with its sequences; the server sends it in chunks and waits for each to be confirmed, so neither side holds more than a few of them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from rover_bus.events import nats_jetstream as jetstream
from rover_bus.events.errors import BusError, BusTimeout, InputError, NotConnected
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.nats_wire import Raw
from rover_bus.events.served import served

ABOUT, CHUNKS = "backup.json", "stream.tar.s2"
CHUNK_BYTES = 128 << 10
SILENT_S = 30.0  # a server that reads or writes a large stream from a slow disk answers later than others
_OPENED_S = 60.0
_HEARD_S = 10.0


class _Snapshot(msgspec.Struct, frozen=True):
    """What the server says of a snapshot: kept as it is, because it is what a restore gives back."""

    config: dict[str, Any] = {}
    state: dict[str, Any] = {}
    error: jetstream.ApiError | None = None


class _Restore(msgspec.Struct, frozen=True):
    deliver_subject: str = ""
    error: jetstream.ApiError | None = None


async def list_streams(bus: NatsBus) -> list[str]:
    """Return the streams of the account. Raises BusError."""
    names: list[str] = []
    while True:
        answer = await _call(bus, "STREAM.NAMES", {"offset": len(names)}, "list streams")
        page = msgspec.json.decode(answer, type=dict[str, Any]).get("streams") or []
        names += page
        if not page:
            return names


async def list_stored(bus: NatsBus) -> list[str]:
    """Return those that lie on disk: what memory holds is true only while it is renewed. Raises BusError."""
    on_disk = []
    for name in await list_streams(bus):
        about = await bus.api(f"STREAM.INFO.{name}", None, f"look at {name}")
        if about.config.get("storage") == "file":
            on_disk.append(name)
    return on_disk


async def take_snapshot(bus: NatsBus, stream: str, directory: Path) -> int:
    """Write a stream into a directory of its own; return how many bytes. Raises BusError, OSError."""
    what = f"snapshot of {stream}"
    inbox, chunks = bus.new_inbox(), asyncio.Queue[Raw]()
    unlisten = await bus.listen(inbox, chunks.put_nowait)
    try:
        wanted = {"deliver_subject": inbox, "no_consumers": True, "chunk_size": CHUNK_BYTES, "jsck": True}
        answer = msgspec.json.decode(
            await _call(bus, f"STREAM.SNAPSHOT.{stream}", wanted, what), type=_Snapshot
        )
        if answer.error is not None:
            jetstream.refuse(answer.error, what)
        _begin(directory, {"config": answer.config, "state": answer.state})
        return await _write_chunks(bus, chunks, directory / CHUNKS, what)
    finally:
        await unlisten()


def _begin(directory: Path, about: dict[str, Any]) -> None:
    directory.mkdir(parents=True)
    (directory / ABOUT).write_bytes(msgspec.json.format(msgspec.json.encode(about), indent=2))


async def _write_chunks(bus: NatsBus, chunks: asyncio.Queue[Raw], file: Path, what: str) -> int:
    with file.open("xb") as written:
        while True:
            try:
                async with asyncio.timeout(SILENT_S):
                    chunk = await chunks.get()
            except TimeoutError:
                raise BusTimeout(f"{what}: the broker fell silent for {SILENT_S:g} s") from None
            if not chunk.data:
                # A snapshot that stalls ends with the same empty message as a whole one, but says so in its header.
                if status := (chunk.headers or {}).get(jetstream.STATUS, ""):
                    raise BusError(f"{what}: the broker gave it up (status {status}): try again")
                return written.tell()
            written.write(chunk.data)
            if chunk.reply:
                bus.send(chunk.reply, b"")


def read_about(directory: Path) -> dict[str, Any]:
    """Return what stands beside a snapshot: `config` and `state` of its stream. Raises InputError."""
    try:
        about = msgspec.json.decode((directory / ABOUT).read_bytes(), type=dict[str, Any])
        assert about["config"]["name"] == directory.name
    except (OSError, msgspec.DecodeError, KeyError, TypeError, AssertionError) as error:
        raise InputError(
            f"{directory / ABOUT} is not what a backup of {directory.name} has: {error!r}"
        ) from None
    return about


async def put_back(bus: NatsBus, directory: Path) -> None:
    """Make a stream of what lies in a directory; one of that name must not be there. Raises BusError, InputError, OSError.

    It copies from no other stream: the server would not know what it had copied (nats_jetstream.py, `copying_config`). It is kept
    on as many servers as other streams of this broker, however many the backup's had.
    """
    stream, about = directory.name, read_about(directory)
    about["config"].pop("sources", None)
    about["config"]["num_replicas"] = bus.replicas
    what = f"restore of {stream}"
    opened = msgspec.json.decode(
        await _call(bus, f"STREAM.RESTORE.{stream}", about, what, _OPENED_S), type=_Restore
    )
    if opened.error is not None:
        jetstream.refuse(opened.error, what)
    with (directory / CHUNKS).open("rb") as stored:
        while chunk := stored.read(CHUNK_BYTES):
            answer = await _hand_over(bus, opened.deliver_subject, chunk, SILENT_S)
            if answer.data:  # an error; nothing is said of a chunk that was taken
                jetstream.refuse(_error(answer.data, what), what)
    ended = jetstream.read_answer((await _hand_over(bus, opened.deliver_subject, b"", _OPENED_S)).data)
    if ended.error is not None:
        jetstream.refuse(ended.error, what)


async def _hand_over(bus: NatsBus, subject: str, chunk: bytes, timeout_s: float) -> Raw:
    """Give a chunk to the server that restores. In a cluster it is another one, and ours hears a moment later that it listens."""
    return await served(lambda: bus.ask(subject, chunk, timeout_s), _HEARD_S)


def _error(answer: bytes, what: str) -> jetstream.ApiError:
    error = jetstream.read_answer(answer).error
    if error is None:
        raise BusError(f"{what}: the broker said {answer[:200]!r}")
    return error


async def _call(
    bus: NatsBus, call: str, body: dict[str, Any], what: str, timeout_s: float = SILENT_S
) -> bytes:
    asked = jetstream.encode(body)
    try:
        answer = await served(
            lambda: bus.ask(f"{jetstream.API}.{call}", asked, timeout_s),
            not_now=lambda raw: jetstream.is_electing(jetstream.read_answer(raw.data)),
        )
        return answer.data
    except NotConnected as error:
        raise NotConnected(f"{what}: {error}") from error
