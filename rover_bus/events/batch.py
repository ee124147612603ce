"""The header of a log batch: what an append says beside its records, so that a successor reads only what it must.

Base of log.LogBatch and of the Brain's batches; written by journal.py and shell.py, read by every replay. Apart from both logs,
because chain, inputs and bearings are the same in either.
"""

from __future__ import annotations

import msgspec

from rover_bus.events.fact import Position
from rover_bus.events.poison import Failure


class Published(msgspec.Struct, frozen=True, array_like=True):
    """The last fact of a log that has left: the term whose record made it, its place in that log, and where in FACTS it lies.

    Terms come first: where a log lost its tail in a power cut, later facts bear lower positions (P21).
    """

    term: int = 0  # 0: none has left
    batch: int = 0
    index: int = 0
    sequence: int = 0

    @property
    def place(self) -> tuple[int, Position]:
        """What orders the facts of one log."""
        return (self.term, (self.batch, self.index))


class BatchHeader(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every batch of a log bears.

    (timeline, term, holder, number) is the batch's id: a writer that meets error 10071 knows its own by it (P16).
    `inputs`: the last sequence consumed of every input stream, so that a replay drops what it already knows (P17).
    `after`: the batch that this one was written behind: a follower of a tail that the broker has forgotten notices (P21).
    `failed`: what ended masters that decided on it, and may be met again (events/poison.py).
    `snapshot`: the batch with which the newest complete snapshot begins, 0 where there is none: a take-over reads from there.
    `published`, `waiting`: the last fact that had left, and how many made by earlier batches had not (P18).
    `format`: the least that a release must read to read this batch (events/formats.py).
    `log_bytes`: what this log's batches before this one hold together, those that are purged included.
    """

    job: str
    timeline: int
    term: int
    holder: str
    number: int
    inputs: dict[str, int] = {}
    after: str = ""
    failed: list[Failure] = []
    snapshot: int = 0
    published: Published = Published()
    waiting: int = 0
    format: int = 1
    log_bytes: int = 0
    time_ms: int = 0  # for people; nothing is decided by it

    @property
    def id(self) -> tuple[int, int, str, int]:
        return (self.timeline, self.term, self.holder, self.number)
