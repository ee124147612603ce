"""The decision log of one job (or of the Brain): replay, chained appends, what error 10071 means (P15, P16, P17, P21).

Used by shell.py. A journal knows the last sequence, term and inputs of the log as it stands; `append` writes the next batch
behind it or finds out, without ambiguity, that another writer did. Until one is known it repeats the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import xxhash

from rover_bus.events.batch import Published
from rover_bus.events.bus import Bus, Stored
from rover_bus.events.codec import decode_batch, encode, format_of
from rover_bus.events.envelope import Envelope
from rover_bus.events.errors import (
    BadMessage,
    BusError,
    NotConnected,
    PermanentError,
    StreamFull,
    WrongSequence,
)
from rover_bus.events.formats import FORMAT, NewerFormat, explain
from rover_bus.events.later_forms import as_written, least_format
from rover_bus.events.leadership import Deposed
from rover_bus.events.log import Record, RecordPiece, SnapshotChunk
from rover_bus.events.logs import get_logger
from rover_bus.events.looks import open_read
from rover_bus.events.poison import Failure, to_keep
from rover_bus.events.streams import LOG
from rover_bus.events.subjects import BRAIN_LOG

MAX_APPEND_BYTES = 900_000  # a broker that is not ours may take no more than 1 MiB
CHUNK_BYTES = 400_000
APPEND_PATIENCE_S = 1.0  # repeating the same bytes is safe, so there is no reason to wait long for one answer
log = get_logger("rover.journal")


class Append(NamedTuple):
    """One message of a log: what it stores, and the records that are whole in the log with it."""

    stored: Sequence[Any]
    whole: Sequence[Record]


class Journal:
    """The log of one writer at a time, as this process knows it."""

    def __init__(
        self,
        bus: Bus,
        subject: str,
        job: str,
        holder: str,
        batch_type: type[Any],
        wall_ms: Callable[[], int],
    ) -> None:
        self.bus, self.subject, self.job, self.holder = bus, subject, job, holder
        self.batch_type, self.wall_ms = batch_type, wall_ms
        self.writes = 1  # the stack's format: what is appended is in it
        self.sequence = 0  # of the last batch in the log
        self.term = 0  # of the last batch, or ours when we lead
        self.timeline = 0
        self.number = 0
        self.inputs: dict[str, int] = {}
        self.failed: list[Failure] = []
        self.inputs_ms = 0  # when the broker stored the first batch that said so
        self.snapshot = 0  # the batch with which the newest complete snapshot begins; 0: there is none
        self.published = Published()  # the last fact that had left when the last batch was written
        self.waiting = 0  # facts of earlier batches that had not left then
        # Term and sequence of the last batch that made records whole: facts come from such batches alone.
        self.decided = (0, 0)
        self.log_bytes = 0  # of all batches so far, those that are purged included
        self.is_whole = True  # the first batch that was read is the first that was ever written
        self.batches_since_snapshot = 0
        self.records_replayed = 0
        self.time_ms = 0  # when the last batch was written, by its writer's clock
        self._last: tuple[int, int, str, int] | None = None  # the id of the last batch taken
        self._snapshot = SnapshotReader()
        self._pieces = PieceReader()

    # -- reading -------------------------------------------------------------------------------------------------------

    def take(self, stored: Stored) -> tuple[bytes | None, Sequence[Record]]:
        """Take a stored batch in. Returns (a whole snapshot to restore first, or None; records to evolve after it)."""
        if stored.sequence <= self.sequence:
            return None, ()
        batch: Any = self.decode(stored)
        if self._last is not None and batch.after not in ("", _name(self._last)):
            raise ChainBroken(
                f"batch {stored.sequence} of {self.subject} does not follow the batch that was read here last (a power cut?): "
                "starting again from nothing",
                stored.sequence,
            )
        first = self.sequence == 0
        if first:
            self.is_whole = not batch.after
        if first and batch.after and not SnapshotReader.begins(batch.records):
            raise LogDamaged(
                f"{self.subject} begins with batch {stored.sequence} of stream {LOG}, which stands behind one that is not there: "
                f"{self._what_to_do}"
            )
        self.sequence, self._last = stored.sequence, batch.id
        self.term, self.timeline, self.time_ms = batch.term, batch.timeline, batch.time_ms
        if batch.inputs != self.inputs:
            self.inputs, self.inputs_ms = dict(batch.inputs), stored.time_ms
        self.failed = list(batch.failed)
        self.published, self.waiting = batch.published, batch.waiting
        self.log_bytes = batch.log_bytes + len(stored.body)
        if batch.snapshot != self.snapshot:
            self.snapshot, self.batches_since_snapshot = batch.snapshot, 0
        self.batches_since_snapshot += 1
        records = self._put_together(batch.records)
        if records:
            self.decided = (batch.term, stored.sequence)
        self.records_replayed += len(records)
        return self._snapshot.take(records, first)

    def _put_together(self, stored: Sequence[Any]) -> Sequence[Record]:
        """Return the records that are whole with this batch. Raises LogDamaged."""
        try:
            whole = self._pieces.take(stored)
            if whole is None:
                return stored
            batch: Any = decode_batch(whole, self.batch_type, len(whole)) if whole else None
        except BadMessage as error:
            if format_of(whole or b"") > FORMAT:
                raise self._newer(whole or b"") from None
            raise LogDamaged(
                f"a record of {self.subject} in several batches, up to {self.sequence}, is not what was written: {error}. "
                f"{self._what_to_do}"
            ) from None
        return () if batch is None else batch.records

    @property
    def _what_to_do(self) -> str:
        if self.subject == BRAIN_LOG:
            how = f"or empty it (`nats stream purge {LOG} --subject {BRAIN_LOG}`): the Brain learns from nothing"
        else:
            how = "or start the job under another name (`rover submit --name`)"
        return f"no master can lead from it. Restore the log from a backup, {how}"

    def decode(self, stored: Stored) -> Any:
        """Return the batch in a stored message. Raises LogDamaged: no service may lead from a log that it cannot read."""
        try:
            return decode_batch(stored.body, self.batch_type)
        except BadMessage as error:
            if format_of(stored.body) > FORMAT:
                raise self._newer(stored.body) from None
            raise LogDamaged(
                f"message {stored.sequence} of stream {LOG} on {self.subject} is no log batch: no service leads until it is "
                f"removed (`nats stream rmm {LOG} {stored.sequence}`), or read by the release that wrote it: {error}"
            ) from None

    def _newer(self, batch: bytes) -> LogTooNew:
        return LogTooNew(explain(format_of(batch), self.subject))

    async def judge(self, broken: ChainBroken) -> Deposed | LogDamaged:
        """Say what a broken chain means: that our place was purged, that what we know is void, or that the log itself has a hole.

        Waits for the bus.
        """
        stored = await self._first_two(self.sequence)
        if (
            stored
            and stored[0].sequence > self.sequence
            and SnapshotReader.begins(self.decode(stored[0]).records)
        ):
            return Deposed(
                f"{self.subject} was purged beyond batch {self.sequence}, which was read last here: "
                f"the state is read from the snapshot in the log"
            )
        after_ours = [each.sequence for each in stored[1:2]]
        ours = stored and stored[0].sequence == self.sequence and self.decode(stored[0]).id == self._last
        if not ours or after_ours != [broken.sequence]:
            return broken
        return LogDamaged(
            f"what stood between batches {self.sequence} and {broken.sequence} of {self.subject} is gone from stream {LOG} "
            f"(removed by hand?), and with it what was decided there: {self._what_to_do}"
        )

    # -- writing -------------------------------------------------------------------------------------------------------

    async def append(
        self, records: Sequence[Any], inputs: Mapping[str, int], *, candidate: bool = False
    ) -> int:
        """Store records as the next batch and return its sequence; `inputs` is what they were decided from (P17).

        Raises Deposed when another term writes this log; with `candidate`, WrongSequence when only older terms were found:
        replay what they wrote and try again. See `fit` for what one batch can hold.
        """
        self.number += 1
        self.inputs, self.failed = dict(inputs), to_keep(self.failed, inputs)
        body = self._encode(records)
        self.sequence = await self._store(body, self._id(), candidate)
        self.log_bytes += len(body)
        self._last = self._id()
        self.batches_since_snapshot += 1
        return self.sequence

    def cut(self, records: Sequence[Record]) -> list[Append]:
        """Cut records into appends: each chunk of a snapshot is one of its own, and each fits one message of the broker."""
        pieces: list[list[Record]] = []
        for record in records:
            alone = isinstance(record, SnapshotChunk)
            if alone or not pieces or isinstance(pieces[-1][-1], SnapshotChunk):
                pieces.append([record])
            else:
                pieces[-1].append(record)
        return [fit for piece in pieces or [[]] for fit in self.fit(piece)]

    def fit(self, records: Sequence[Record]) -> list[Append]:
        """Cut records into appends that each fit one message of the broker; a record that fits none is stored in pieces."""
        if len(records) < 2:
            return self.fit_together(records)
        if len(self._encode(records)) <= MAX_APPEND_BYTES:
            return [Append(records, records)]
        middle = len(records) // 2
        return [*self.fit(records[:middle]), *self.fit(records[middle:])]

    def fit_together(self, records: Sequence[Record]) -> list[Append]:
        """Cut the encoded batch of records that count together or not at all: only the last append makes them whole."""
        whole = self._encode(records)
        if len(whole) <= MAX_APPEND_BYTES:
            return [Append(records, records)]
        *pieces, last = record_pieces(whole)
        return [*(Append([piece], ()) for piece in pieces), Append([last], records)]

    def _encode(self, records: Sequence[Any]) -> bytes:
        written = [as_written(each, self.writes) for each in records]
        self.time_ms = self.wall_ms()
        batch = self.batch_type(
            job=self.job,
            timeline=self.timeline,
            term=self.term,
            holder=self.holder,
            number=self.number,
            records=written,
            inputs=self.inputs,
            after="" if self._last is None else _name(self._last),
            failed=self.failed,
            snapshot=self.snapshot,
            published=self.published,
            waiting=self.waiting,
            format=least_format(written),
            log_bytes=self.log_bytes,
            time_ms=self.time_ms,
        )
        return encode(batch)

    def _id(self) -> tuple[int, int, str, int]:
        return (self.timeline, self.term, self.holder, self.number)

    async def _store(self, body: bytes, own: tuple[int, int, str, int], candidate: bool) -> int:
        name = _name(own)
        headers = Envelope(
            id=f"{self.job}/{name}", type="log.batch.v1", source=self.holder, job=self.job, term=self.term
        ).headers()
        delay, troubled = 0.02, False
        while True:
            try:
                sequence = await self.bus.append(
                    LOG,
                    self.subject,
                    body,
                    headers=headers,
                    expected_last=self.sequence,
                    timeout_s=APPEND_PATIENCE_S,
                )
                if troubled:
                    log.warning("log writable again", job=self.job, sequence=sequence)
                return sequence
            except WrongSequence:
                known = await self._judge_tail(own, candidate)
                if known:
                    return known
            except BusError as error:
                if not troubled and not isinstance(error, NotConnected):
                    log.error(
                        "log not writable: replies are held, training goes on", job=self.job, why=str(error)
                    )
                troubled = True
            await asyncio.sleep(delay)
            delay = min(delay * 2, 1.0 if not self.bus.connected else 0.5)

    async def _judge_tail(self, own: tuple[int, int, str, int], candidate: bool) -> int:
        """After error 10071: our own batch at the end is success, a higher term the end of us (P16). 0: repeat."""
        try:
            tail = await self.bus.last(LOG, self.subject)
        except BusError:
            return 0
        if tail is None or tail.sequence < self.sequence:
            raise Deposed(f"{self.subject} lost its tail (a power cut?): what this process knows is void")
        batch: Any = self.decode(tail)
        if batch.id == own:
            return tail.sequence
        if tail.sequence == self.sequence and batch.term <= self.term:
            return 0
        if candidate and batch.term < self.term:
            raise WrongSequence(f"{self.subject} grew meanwhile, by an older term")
        raise Deposed(
            f"term {batch.term} of {batch.holder} writes {self.subject} now (the term here is {self.term})"
        )

    async def beginning(self) -> int:
        """Return where a replay begins that only wants the present: the newest complete snapshot, or the log's first batch.

        Raises BusError; LogDamaged when the newest batch cannot be read.
        """
        tail = await self.bus.last(LOG, self.subject)
        return 1 if tail is None else max(self.decode(tail).snapshot, 1)

    async def replay_from(self, sequence: int) -> list[Stored]:
        """Return what is stored from `sequence` on; repeats until the bus answers."""
        while True:
            try:
                return [stored async for stored in self.bus.read(LOG, self.subject, first=sequence)]
            except StreamFull:
                raise
            except BusError:
                await asyncio.sleep(0.05)

    async def still_there(self) -> bool:
        """Say whether the broker still has all that it acknowledged to this leader (P21). Raises BusError."""
        known = self.sequence
        tail = await self.bus.last(LOG, self.subject)
        return known == 0 or (tail is not None and tail.sequence >= known)

    async def at_tail(self) -> bool:
        """Say whether we know the log to its end; False when it grew meanwhile.

        Raises Deposed when it does not end where we believe: its tail was lost and perhaps written again (P21); LogDamaged when it
        does not begin with something from which a state can be built.
        """
        while True:
            try:
                tail = await self.bus.last(LOG, self.subject)
                break
            except BusError:
                await asyncio.sleep(0.05)
        if tail is not None and tail.sequence > self.sequence:
            return False
        if self._snapshot.incomplete:
            raise LogDamaged(
                f"{self.subject} begins with a snapshot of which a part is not there: {self._what_to_do}"
            )
        known = None if tail is None else self.decode(tail).id
        if known != self._last or (tail is not None and tail.sequence != self.sequence):
            raise Deposed(
                f"{self.subject} does not end where this standby followed it to: starting again from nothing"
            )
        return True

    async def _first_two(self, sequence: int) -> list[Stored]:
        while True:
            found: list[Stored] = []
            try:
                async with aclosing(open_read(self.bus, LOG, self.subject, sequence)) as batches:
                    async for stored in batches:
                        found.append(stored)
                        if len(found) == 2:
                            break
                return found
            except BusError:
                await asyncio.sleep(0.05)


def _name(batch: tuple[int, int, str, int]) -> str:
    return ":".join(map(str, batch))


class SnapshotReader:
    """Finds a whole snapshot among the records of a replay that starts in the middle of a log."""

    def __init__(self) -> None:
        self._chunks: list[SnapshotChunk] = []
        self._later: list[Record] = []
        self._collecting = False

    @staticmethod
    def begins(records: Sequence[Record]) -> bool:
        """Whether a snapshot begins here: what came before it is not needed."""
        return any(isinstance(record, SnapshotChunk) and record.index == 0 for record in records)

    @property
    def incomplete(self) -> bool:
        """Whether the log began with a snapshot that is not whole yet."""
        return self._collecting

    def take(self, records: Sequence[Record], first: bool) -> tuple[bytes | None, Sequence[Record]]:
        if first:
            self._collecting = any(isinstance(record, SnapshotChunk) for record in records)
        if not self._collecting:
            return None, records
        for position, record in enumerate(records):
            if isinstance(record, SnapshotChunk) and record.index == len(self._chunks):
                self._chunks.append(record)
                if record.index + 1 == record.count:
                    return self._finish(records[position + 1 :])
            elif self._chunks:
                self._later.append(record)
        return None, ()

    def _finish(self, rest: Sequence[Record]) -> tuple[bytes, Sequence[Record]]:
        whole = b"".join(chunk.data for chunk in self._chunks)
        if xxhash.xxh3_64_intdigest(whole) != self._chunks[-1].digest:
            raise LogDamaged(
                "the snapshot in the log does not match its digest: restore the log from a backup"
            )
        later = [*self._later, *rest]
        self._chunks, self._later, self._collecting = [], [], False
        return whole, later


class PieceReader:
    """Puts batches together that were too large for one message. One whose writer ended in the middle never was."""

    def __init__(self) -> None:
        self._pieces: list[RecordPiece] = []

    def take(self, stored: Sequence[Any]) -> bytes | None:
        """Return the batch that is whole now, b"" while more of it is to come; None for records that are whole as they are.

        Raises BadMessage when what was put together is not what was cut.
        """
        piece = stored[0] if stored else None
        if not isinstance(piece, RecordPiece):
            self._pieces = []
            return None
        self._pieces = [*(self._pieces if piece.index else []), piece]
        if piece.index + 1 != len(self._pieces):
            raise BadMessage(
                f"piece {piece.index + 1} of {piece.count} follows piece {len(self._pieces) - 1}"
            )
        if piece.index + 1 < piece.count:
            return b""
        whole = b"".join(each.data for each in self._pieces)
        self._pieces = []
        if xxhash.xxh3_64_intdigest(whole) != piece.digest:
            raise BadMessage("its pieces do not match their digest")
        return whole


def record_pieces(whole: bytes, chunk_bytes: int = CHUNK_BYTES) -> list[RecordPiece]:
    """Cut an encoded batch that no message holds into records."""
    return [
        RecordPiece(index=index, count=count, data=data, digest=digest)
        for index, count, data, digest in _cut(whole, chunk_bytes)
    ]


def snapshot_chunks(number: int, whole: bytes, chunk_bytes: int = CHUNK_BYTES) -> list[SnapshotChunk]:
    """Cut a state into records."""
    return [
        SnapshotChunk(snapshot=number, index=index, count=count, data=data, digest=digest)
        for index, count, data, digest in _cut(whole, chunk_bytes)
    ]


def _cut(whole: bytes, chunk_bytes: int) -> Iterator[tuple[int, int, bytes, int]]:
    """Yield index, count, bytes and digest of each piece; the digest of the whole is on the last one."""
    starts = range(0, len(whole), chunk_bytes) or range(1)
    digest = xxhash.xxh3_64_intdigest(whole)
    for index, at in enumerate(starts):
        yield (
            index,
            len(starts),
            whole[at : at + chunk_bytes],
            digest if index + 1 == len(starts) else 0,
        )


class ChainBroken(Deposed):
    """A batch does not stand behind the one that we know last. `sequence`: that batch's. `Journal.judge` says why."""

    def __init__(self, message: str, sequence: int) -> None:
        super().__init__(message)
        self.sequence = sequence


class LogDamaged(PermanentError):
    """The log holds something that no master of this release can replay. The message says what to do."""

    code = "log_damaged"
    exit_code = 8


class LogTooNew(LogDamaged):
    """The log was written by a later release. The message says the way back."""

    code = NewerFormat.code
    exit_code = NewerFormat.exit_code
