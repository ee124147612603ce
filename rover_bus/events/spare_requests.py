"""What a host's daemon is told and asked over the bus about spares in pods: what a worker had loaded, and which member one becomes.

Told on `rover.daemon.<host>.loaded.<job>` by workers (client/loaded.py), asked on `rover.daemon.<host>.spares.<job>` by spares
(node/spare_pod.py); answered by kube/spare_line.py. On one machine the same goes through files and a socket (node/local/warm.py).
See docs/design/0087.
"""

from __future__ import annotations

import json
import zlib
from typing import Literal

import msgspec

from rover_bus.events.errors import BadMessage
from rover_bus.events.identity import Member

MOST_BYTES = 256 << 10  # of a request: names and files of 10,000 modules take about 150 KiB, compressed
MOST_RECORD_BYTES = 4 << 20  # of what they are once they are unpacked
HELD_S = 5.0  # a question waits so long for an admission; then it is asked again


class LoadedReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="spares_loaded.v1"):
    """A worker had loaded this when it joined, `start_s` after its process began. `record`: packed, empty: only asks whether it is
    known here.
    """

    uid: str
    member: Member
    start_s: float
    record: bytes = b""


class SpareQuestion(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="spares_asked.v1"):
    """A spare in a pod asks what it is to load, or, `loaded`, which member it becomes."""

    uid: str
    pod: str
    loaded: bool = False


class SpareReply(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="spares_told.v1"):
    """`load` this record; `wait`: ask again; `become` a member, with these variables; `gone`: it is no spare of this daemon. To a
    worker: its record is `known`, or `wanted`.
    """

    what: Literal["load", "wait", "become", "gone", "known", "wanted"]
    record: bytes = b""
    environment: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"SpareReply({self.what})"  # a credential is among the variables


def pack(record: dict[str, object]) -> bytes:
    """Return a record as a message carries it."""
    return zlib.compress(json.dumps(record).encode(), 6)


def unpack(packed: bytes) -> bytes:
    """Return the JSON of a record, unread: only a spare of the worker's own job looks into it. Raises BadMessage for bytes that are
    none, or are more than a list can be.
    """
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(packed, MOST_RECORD_BYTES)
    except zlib.error as error:
        raise BadMessage(f"no list of what a worker had loaded: {error}") from None
    if not unpacking.eof:
        raise BadMessage("no list of what a worker had loaded, or one that is longer than any")
    return found
