"""Batches of a stream: which records of which partition each of them is (protocol P1, last sentence).

Fed by the spans that come with a lease; feeds `lease`, `standalone` and the readers of streams. A span is fixed in the master's log
when it is first granted and is never extended: so a batch that is leased again, or trained twice at the tail, is the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

Span = tuple[str, int, int, int, int]  # partition, first batch, end batch, first offset, end offset


class Records(NamedTuple):
    """The records [first, end) of a partition: what one batch of a stream is. Offsets count rows from 0."""

    partition: str
    first: int
    end: int

    @property
    def samples(self) -> int:
        return self.end - self.first


class HighWater(NamedTuple):
    """What can be read of a stream now: complete rows, a partition; and the partitions that will not grow any more."""

    rows: dict[str, int]
    sealed: list[str]

    @property
    def final(self) -> bool:
        """Every partition is sealed: nothing will be added."""
        return set(self.rows) <= set(self.sealed)


def cut(spans: Sequence[Span], number: int, batch_size: int) -> Records | None:
    """Return the records of batch `number`; None when no span holds it. A span's last batch may be short."""
    for partition, first, end, first_offset, end_offset in spans:
        if first <= number < end:
            begin = first_offset + (number - first) * batch_size
            return Records(partition, begin, min(begin + batch_size, end_offset))
    return None


def flow(look: Callable[[], HighWater], batch_size: int) -> Iterator[Records | None]:
    """Yield batch after batch of a stream, for one reader alone; None while nothing is readable. Ends when all is sealed and read.

    The partition with the most unread rows comes first, as a master has it (S9). `look` is asked again before a short batch is cut.
    """
    seen = look()
    read = dict.fromkeys(seen.rows, 0)
    while True:
        unread, partition = _fullest(seen, read)
        if unread < batch_size and not seen.final:
            seen = look()
            unread, partition = _fullest(seen, read)
        if unread:
            first = read[partition]
            read[partition] = first + min(unread, batch_size)
            yield Records(partition, first, read[partition])
        elif seen.final:
            return
        else:
            yield None


def _fullest(seen: HighWater, read: dict[str, int]) -> tuple[int, str]:
    return max(((seen.rows[name] - offset, name) for name, offset in read.items()), default=(0, ""))
