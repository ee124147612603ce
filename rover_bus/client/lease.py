"""A lease as its worker sees it: batches handed out, batches done, and what of that the master has yet to hear (protocol P6).

Fed by `worker`; apart because the prefix rule is kept here: progress is the batches before `upto`, all of them done, however out of
order they were done; what rides on them (skipped rows, counts) leaves with the report that covers them, and only with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rover_bus.client.spans import Records, Span
from rover_bus.events.data_facts import SkippedRow
from rover_bus.events.requests import StepGroup

REPORTED_ROWS = (
    2000  # skipped rows a report names at most, unless a single batch has more: a message has a bounded size
)


class Assigned(NamedTuple):
    """One batch to train: number `number` of `epoch`, held under `token` in `generation`. `records`: what it is, of a stream;
    `group`: the workers that take this step together, of a synchronous job.
    """

    generation: int
    token: int
    epoch: int
    number: int
    records: Records | None = None
    group: StepGroup | None = None


class Work(NamedTuple):
    """What became of one batch once every server held it."""

    skipped: tuple[SkippedRow, ...] = ()
    values_missing: int = 0
    samples_retrained: int = 0  # its samples, when a server held the batch already
    file: str = ""  # where the skipped rows stand, "" for the file stated at registration


NO_REMARK = Work()


@dataclass(slots=True)
class HeldLease:
    """The batches [first, end) of `epoch` under `token`. `first <= reported <= upto <= next <= end`.

    `spans`: which records they are, of a stream.
    """

    token: int
    epoch: int
    first: int
    end: int
    spans: tuple[Span, ...] = ()
    group: StepGroup | None = None
    next: int = -1  # the first batch not handed out
    upto: int = -1  # every batch before it is done
    reported: int = -1  # every batch before it stands in a report
    _ahead: dict[int, Work] = field(default_factory=dict)  # done, but not yet part of the prefix
    _remarks: list[tuple[int, Work]] = field(
        default_factory=list
    )  # of done batches, not yet reported, ascending

    def __post_init__(self) -> None:
        self.next = self.upto = self.reported = self.first

    @property
    def untouched(self) -> bool:
        return self.next == self.first

    def take(self) -> int:
        """Hand out the next batch."""
        self.next += 1
        return self.next - 1

    def finish(self, number: int, work: Work) -> None:
        """Note that a batch is done. A batch that was done already, or was never handed out, changes nothing."""
        if not self.upto <= number < self.next:
            return
        self._ahead.setdefault(number, work)
        while (done := self._ahead.pop(self.upto, None)) is not None:
            if done != NO_REMARK:
                self._remarks.append((self.upto, done))
            self.upto += 1

    def report(self, file: str | None = None) -> tuple[int, list[tuple[int, Work]]] | None:
        """Return what is new since the last report as (upto, remarks of the batches it covers), None when nothing is.

        A report names the skipped rows of one file (`file`, if it does already): it ends before a batch that has some in another.
        """
        if self.upto == self.reported:
            return None
        upto, rows, covered = self.upto, 0, 0
        for number, work in self._remarks:
            rows += len(work.skipped)
            elsewhere = bool(work.skipped) and file not in (None, work.file)
            if elsewhere or (rows > REPORTED_ROWS and covered):
                upto = number
                break
            file = work.file if work.skipped else file
            covered += 1
        if upto == self.reported:
            return None
        remarks = self._remarks[:covered]
        del self._remarks[:covered]
        self.reported = upto
        return upto, remarks
