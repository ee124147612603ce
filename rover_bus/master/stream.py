"""Batches of a stream: numbered as they are granted, their ends fixed by the reported high water and never extended (P1).

Fed by the ledger. A span maps consecutive batch numbers to a range of one partition's offsets; it is fixed in the log when it
is first granted, so a re-lease means the same records. A partition's watermark is the offset below which all is committed.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from rover_bus.master.intervals import IntervalSet

Span = tuple[str, int, int, int, int]  # partition, first batch, end batch, first offset, end offset


def _end(span: Span) -> int:
    return span[2]


class StreamPartition(msgspec.Struct, omit_defaults=True):
    """`assigned`: records already in a span; `watermark`: all before it is committed; `end`: sealed there, -1 while open."""

    assigned: int = 0
    watermark: int = 0
    end: int = -1


class Streams(msgspec.Struct, omit_defaults=True):
    """All partitions of a streaming data set, and the spans that are not yet committed."""

    batch_size: int
    partitions: dict[str, StreamPartition]
    spans: list[Span] = []  # in batch order; settled ones are forgotten
    settled_samples: int = 0
    settled_batches: int = 0
    archive: list[Span] = []  # settled ones that a rewind to a cut needs again, in batch order
    keeps_from: int = -1  # the first batch that any cut may go back to, -1: there is no cut

    @property
    def finished(self) -> bool:
        """All partitions, those that nothing was ever read from among them, are sealed and wholly assigned."""
        return bool(self.partitions) and all(
            part.end >= 0 and part.assigned >= part.end for part in self.partitions.values()
        )

    def propose(
        self, next_batch: int, wanted: int, size: int, high_water: dict[str, int]
    ) -> tuple[list[int], list[int], list[Span]]:
        """Return firsts, counts and spans of new leases from what is readable; a dry partition is passed over (S9)."""
        firsts: list[int] = []
        counts: list[int] = []
        spans: list[Span] = []
        for partition in sorted(high_water, key=lambda p: (self._assigned(p) - high_water[p], p)):
            offset, high = self._assigned(partition), self._bounded(partition, high_water[partition])
            while offset < high and len(firsts) < wanted:
                end = min(high, offset + size * self.batch_size)
                count = -(-(end - offset) // self.batch_size)
                firsts.append(next_batch)
                counts.append(count)
                spans.append((partition, next_batch, next_batch + count, offset, end))
                next_batch += count
                offset = end
        return firsts, counts, spans

    def _bounded(self, partition: str, high: int) -> int:
        """Return a high water no further than the seal: nothing is granted behind the end."""
        part = self.partitions.get(partition)
        return min(high, part.end) if part is not None and part.end >= 0 else high

    def _assigned(self, partition: str) -> int:
        part = self.partitions.get(partition)
        return part.assigned if part else 0

    def fix(self, spans: list[Span]) -> None:
        """New batches exist from here on. Spans of batches already known (a re-lease) are not new."""
        for span in spans:
            if self.spans and span[1] < self.spans[-1][2]:
                continue
            self.spans.append(span)
            part = self.partitions.setdefault(span[0], StreamPartition())
            part.assigned = span[4]

    def seal(self, partition: str, end: int) -> None:
        self.partitions.setdefault(partition, StreamPartition()).end = end

    def slices(self, first: int, end: int) -> list[Span]:
        """Return what the batches [first, end) are, as spans cut to them."""
        size, spans = self.batch_size, self.spans
        found: list[Span] = []
        at = bisect_right(spans, first, key=_end)
        while at < len(spans) and spans[at][1] < end:
            partition, low, high, start, stop = spans[at]
            a, b = max(first, low), min(end, high)
            found.append((partition, a, b, start + (a - low) * size, min(stop, start + (b - low) * size)))
            at += 1
        return found

    def samples(self, first: int, end: int) -> int:
        """Samples in the batches [first, end); settled batches are counted from their total."""
        live = sum(stop - start for _, _, _, start, stop in self.slices(first, end))
        return live + (self.settled_samples if first < self.settled_batches else 0)

    def settle(self, done: IntervalSet) -> None:
        """Forget the leading spans that are committed, and move the watermarks of their partitions."""
        spans = self.spans
        settled = 0
        for partition, low, high, start, stop in spans:
            if high > done.low or not done.covers(low, high):
                break
            settled += 1
            self.settled_samples += stop - start
            self.settled_batches = high
            self.partitions[partition].watermark = stop
        if settled:
            if self.keeps_from >= 0:
                self.archive += spans[:settled]
            del spans[:settled]

    def keep_from(self, batch: int) -> None:
        """Keep the spans of this batch and all later ones from now on, settled or not; -1: no cut needs any."""
        self.keeps_from = batch
        self.archive = [span for span in self.archive if span[2] > batch] if batch >= 0 else []

    def regain(self, later: Streams) -> None:
        """Take over, into the state of a cut, what was granted and sealed since: a batch means the same records for ever (P1)."""
        since = [span for span in later.archive if span[2] > self.settled_batches]
        self.spans = [*since, *later.spans]
        for name, part in later.partitions.items():
            mark = self.partitions[name].watermark if name in self.partitions else 0
            self.partitions[name] = StreamPartition(part.assigned, mark, part.end)
