"""What an in-memory broker keeps: streams with sequences and limits, buckets with revisions, and how subjects match.

Fed by memory_broker.py with messages and the time; feeds it sequences, refusals and what is stored. It is apart because
it is pure: no loop, no chance, no clock, so that JetStream's rules can be read and tested in one place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge

from rover_bus.events.bus import MESSAGE_ID, Entry, Headers, Stored
from rover_bus.events.errors import MAKE_ROOM, StreamFull, WrongSequence
from rover_bus.events.streams import StreamSpec
from rover_bus.events.subjects import matches

EPOCH_MS = 1_700_000_000_000  # what the broker's clock shows at 0.0 s of the loop's


def plain(pattern: str) -> bool:
    """Say whether a pattern is one subject only."""
    return "*" not in pattern and ">" not in pattern


@dataclass(slots=True)
class MemoryStream:
    """One stream. `last` only grows; `synced` is what a power cut cannot take."""

    spec: StreamSpec
    last: int = 0
    synced: int = 0
    synced_s: float = 0.0
    size_bytes: int = 0
    messages: dict[int, Stored] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    ids: dict[str, tuple[int, float]] = field(default_factory=dict)

    def store(
        self,
        subject: str,
        body: bytes,
        headers: Headers,
        now_s: float,
        expected_last: int | None,
    ) -> tuple[int, Stored | None]:
        """Store a message and return its sequence, and the message unless it was a repeat.

        The order of the checks is the server's: the expected sequence comes before the dedupe window, so that the retry of
        one's own chained append is answered WrongSequence (protocol P16). Raises WrongSequence, StreamFull.
        """
        self.expire(now_s)
        if expected_last is not None and (present := self.last_on(subject)) != expected_last:
            raise WrongSequence(
                f"{subject} stands at {present}, not at {expected_last}: read its tail before going on"
            )
        message_id = headers.get(MESSAGE_ID, "")
        if message_id and (known := self.ids.get(message_id)):
            return known[0], None
        size = _size(subject, body, headers)
        self._make_room(subject, size)
        self.last += 1
        message = Stored(self.last, subject, body, headers, EPOCH_MS + int(now_s * 1000))
        self.messages[self.last] = message
        self.subjects.setdefault(subject, []).append(self.last)
        self.size_bytes += size
        if message_id:
            self.ids[message_id] = (self.last, now_s)
        return self.last, message

    def last_on(self, subject: str) -> int:
        """Return the last sequence on one subject, 0 when there is none."""
        sequences = self.subjects.get(subject)
        return sequences[-1] if sequences else 0

    def select(self, patterns: Iterable[str], first: int = 0) -> Iterator[Stored]:
        """Iterate what is stored under any of the patterns from sequence `first` on, in order."""
        runs = [numbers[bisect_left(numbers, first) :] for numbers in self._under(patterns)]
        return (self.messages[number] for number in (runs[0] if len(runs) == 1 else merge(*runs)))

    def newest(self, patterns: Iterable[str]) -> list[Stored]:
        """Return the last message of each subject under the patterns, in order of sequence."""
        return [self.messages[number] for number in sorted(run[-1] for run in self._under(patterns))]

    def count(self, pattern: str, first: int) -> int:
        """Return how many messages are stored under a pattern from sequence `first` on."""
        return sum(len(numbers) - bisect_left(numbers, first) for numbers in self._under([pattern]))

    def totals(self, pattern: str) -> dict[str, int]:
        """Return the subjects under a pattern, and how many messages each holds."""
        return {self.messages[run[-1]].subject: len(run) for run in self._under([pattern])}

    def purge(self, pattern: str, before: int | None) -> None:
        for numbers in self._under([pattern]):
            for number in numbers[: len(numbers) if before is None else bisect_left(numbers, before)]:
                self._remove(number)

    def truncate(self, last: int) -> None:
        """Forget what came after `last`, sequence numbers included: what a power cut does to an unsynced tail."""
        for number in [number for number in self.messages if number > last]:
            self._remove(number)
        self.last = min(self.last, last)
        self.ids = {key: value for key, value in self.ids.items() if value[0] <= last}

    def expire(self, now_s: float) -> None:
        """Drop what is older than the stream's age limit, and message ids older than its dedupe window."""
        if self.spec.max_age_s:
            horizon_ms = EPOCH_MS + int((now_s - self.spec.max_age_s) * 1000)
            while self.messages and (oldest := next(iter(self.messages.values()))).time_ms < horizon_ms:
                self._remove(oldest.sequence)
        while self.ids and (oldest_id := next(iter(self.ids))):
            if self.ids[oldest_id][1] >= now_s - self.spec.dedupe_window_s:
                break
            del self.ids[oldest_id]

    def _under(self, patterns: Iterable[str]) -> list[list[int]]:
        wanted = list(patterns)
        if len(wanted) == 1 and plain(wanted[0]):
            return [numbers] if (numbers := self.subjects.get(wanted[0])) else []
        return [
            numbers
            for subject, numbers in self.subjects.items()
            if numbers and any(matches(pattern, subject) for pattern in wanted)
        ]

    def _make_room(self, subject: str, size: int) -> None:
        spec = self.spec
        if spec.max_messages_a_subject:
            numbers = self.subjects.get(subject, [])
            while len(numbers) >= spec.max_messages_a_subject:
                self._remove(numbers[0])
        if not spec.max_bytes or self.size_bytes + size <= spec.max_bytes:
            return
        if spec.discard == "new":
            raise StreamFull(
                f"stream {spec.name} holds its {spec.max_bytes} bytes: nothing was stored. {MAKE_ROOM}"
            )
        while self.messages and self.size_bytes + size > spec.max_bytes:
            self._remove(next(iter(self.messages)))

    def _remove(self, number: int) -> None:
        message = self.messages.pop(number)
        self.size_bytes -= _size(message.subject, message.body, message.headers)
        numbers = self.subjects[message.subject]
        numbers.pop(bisect_left(numbers, number))


def _size(subject: str, body: bytes, headers: Headers) -> int:
    return len(subject) + len(body) + sum(len(key) + len(value) + 4 for key, value in headers.items()) + 30


@dataclass(slots=True)
class MemoryBucket:
    """One bucket: current values, their revisions and deadlines."""

    revision: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    deadlines: dict[str, float] = field(default_factory=dict)

    def put(self, key: str, value: bytes, expected: int | None, deadline_s: float | None) -> Entry:
        self._check(key, expected)
        self.revision += 1
        entry = self.entries[key] = Entry(key, value, self.revision, deadline_s is not None)
        self.deadlines.pop(key, None)
        if deadline_s is not None:
            self.deadlines[key] = deadline_s
        return entry

    def delete(self, key: str, expected: int | None) -> Entry | None:
        """Remove a value and return what watchers are told; None when there was nothing."""
        self._check(key, expected)
        if self.entries.pop(key, None) is None:
            return None
        self.deadlines.pop(key, None)
        self.revision += 1
        return Entry(key, None, self.revision)

    def expire(self, key: str, revision: int) -> Entry | None:
        """Remove a value whose time is over, unless it was renewed since."""
        entry = self.entries.get(key)
        return self.delete(key, None) if entry and entry.revision == revision else None

    def _check(self, key: str, expected: int | None) -> None:
        if expected is None:
            return
        entry = self.entries.get(key)
        present = entry.revision if entry else 0
        if present != expected:
            raise WrongSequence(
                f"key {key} stands at revision {present}, not {expected}: another writer changed it, read it again"
            )
