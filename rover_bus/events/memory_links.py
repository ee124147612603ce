"""What an in-memory broker knows of its clients: their links, what they asked for, and the weather between.

Made by memory_bus.py (one `Link` a connection), kept and read by memory_broker.py. It is apart because it only holds: which
connection may hear what, from which place on, and before which time nothing more can arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from rover_bus.events.bus import ConnectionState, Entry, Message, Stored

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Faults:
    """The weather. Probabilities are per delivery, ranges are uniform and in seconds."""

    delay_s: Range = (0.0, 0.0)  # each hop of a message
    ack_delay_s: Range = (0.0, 0.0)  # on top, for answers to appends and writes
    drop: float = 0.0  # core messages only, requests and replies among them
    duplicate: float = 0.0
    reorder: float = 0.0  # this share arrives late, behind its successors
    reorder_s: Range = (0.0, 0.05)
    append_lost: float = 0.0  # lost before it was stored: BusTimeout
    ack_lost: float = 0.0  # stored, but the answer is lost: BusTimeout
    detect_s: float = 2.0  # until both ends notice a partition
    reconnect_s: Range = (0.0, 0.1)  # until a client is back once it can be


CALM = Faults()


@dataclass(slots=True, eq=False)
class Link:
    """The broker's side of a connection: what it asked for, and the time before which nothing more can arrive on each hop."""

    name: str
    state: Literal["connected", "disconnected", "closed", "dead"] = "connected"
    era: int = 0  # which connection this is: what was on the way when the last one broke never arrives
    partition: int = 0  # the number of the partition that holds it, 0 when the way is free
    up_floor_s: float = 0.0
    down_floor_s: float = 0.0
    waiting: dict[asyncio.Future[Any], None] = field(default_factory=dict)
    listeners: list[Callable[[ConnectionState], None]] = field(default_factory=list)
    interests: dict[int, MemoryInterest] = field(default_factory=dict)
    followers: dict[int, MemoryFollower] = field(default_factory=dict)
    watches: dict[int, MemoryWatch] = field(default_factory=dict)

    @property
    def reachable(self) -> bool:
        return self.state == "connected" and not self.partition

    def notify(self, state: ConnectionState) -> None:
        for listener in list(self.listeners):
            listener(state)


@dataclass(slots=True, eq=False)
class MemoryInterest:
    """A core subscription."""

    link: Link
    pattern: str
    queue: str
    handler: Callable[[Message], None]
    active: bool = True


@dataclass(slots=True, eq=False)
class MemoryFollower:
    """A reader of a stream. Deliveries of an older `attempt` are void: the reader has been attached again since."""

    link: Link
    stream: str
    patterns: list[str]
    handler: Callable[[Stored], None]
    next: int
    attempt: int = 0


@dataclass(slots=True, eq=False)
class MemoryWatch:
    """A reader of a bucket. `known` is what its handler was last told."""

    link: Link
    bucket: str
    pattern: str
    handler: Callable[[Entry], None]
    known: dict[str, Entry] = field(default_factory=dict)
    attempt: int = 0
