"""The shard ledger: which batches of the open epoch are free, leased, committed or dead. Positions, not objects.

Fed with records by `evolve`, asked by the decider what to grant and what a progress report is worth. The ledger of an epoch is a
frontier (next unassigned batch), returned intervals (leased again first, at the head: S1), leases by holder, and the set of
committed batches. Memory grows with what is outstanding, not with the data set. Design §5, protocol P1, P6, P7, P8.

It is apart from the decider because it is the hot path: columns in, columns out, one small object a lease. `evolve` changes the
ledger in place and deterministically; the methods that only look are the ones decisions use.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rover_bus.events.data_facts import BatchDeadLettered, EpochOpened
from rover_bus.events.job import Dataset
from rover_bus.events.log import Committed, Granted, Returned
from rover_bus.events.requests import ALREADY, OK, STALE
from rover_bus.master.intervals import IntervalSet
from rover_bus.master.lockstep import Lockstep
from rover_bus.master.stream import StreamPartition, Streams

TOKEN_BITS = (
    40  # tokens are generation << 40 | counter: a token of another generation is never taken for one of this
)


def first_token(generation: int) -> int:
    """Return the token that a generation begins with."""
    return generation << TOKEN_BITS | 1


class Lease(msgspec.Struct, array_like=True, gc=False):
    """The batches [first, end) that a holder has yet to commit, and the request that got them (P7)."""

    first: int
    end: int
    request: int


class Holder(msgspec.Struct, array_like=True):
    """One worker's side: its incarnation, its last lease request, its leases by token, and what it lately completed.

    `recent` holds the tokens completed by the last request that completed any: a retry of it is answered ALREADY, not STALE.
    """

    incarnation: int
    request: int = 0
    leases: dict[int, Lease] = {}
    recent: tuple[int, tuple[int, ...]] = (0, ())


class Ledger(msgspec.Struct, omit_defaults=True):
    """The ledger of one job. All fields are rebuilt by replay; counters are read from here, never by summing events (P8)."""

    dataset: Dataset
    generation: int
    next_token: int
    streams: Streams | None = None
    epoch: int = -1
    batches: int = 0
    frontier: int = 0
    returned: IntervalSet = msgspec.field(default_factory=IntervalSet)  # the first one is leased next
    holders: dict[int, Holder] = {}
    done: IntervalSet = msgspec.field(
        default_factory=IntervalSet
    )  # committed and dead: nothing of it is leased again
    dead: dict[int, str] = {}  # dead-lettered batches of the open epoch
    twins: dict[int, tuple[int, int]] = {}  # token -> (other token, its worker): leased twice at the tail
    outstanding: int = 0  # leases held, by all together
    cancelled: list[int] = []  # workers that lost a lease of this epoch to another's commit
    committed_before: int = 0  # samples of closed epochs
    dead_before: int = 0
    skipped_here: int = 0  # rows of the open epoch that could not be used
    dead_samples_here: int = 0
    values_missing: int = 0
    samples_retrained: int = 0
    lockstep: Lockstep | None = None  # of a synchronous job

    @classmethod
    def new(cls, dataset: Dataset, generation: int = 0, *, synchronous: bool = False) -> Ledger:
        """Return the ledger of a data set that nothing was leased of."""
        partitions = {name: StreamPartition() for name in dataset.partitions}
        streams = Streams(dataset.batch_size, partitions) if dataset.streaming else None
        lockstep = Lockstep() if synchronous else None
        return cls(dataset, generation, first_token(generation), streams, lockstep=lockstep)

    # -- figures -------------------------------------------------------------------------------------------------------

    @property
    def unassigned(self) -> int:
        """Batches that a lease could be made of now."""
        return self.batches - self.frontier + self.returned.total

    @property
    def remaining(self) -> int:
        """Batches of the open epoch that are not done, leased or not."""
        return self.batches - self.done.total

    @property
    def complete(self) -> bool:
        """Every batch of the open epoch is committed or dead (a stream: and every partition is sealed)."""
        if self.streams is not None and not self.streams.finished:
            return False
        if self.epoch < 0 or self.done.total != self.batches:
            return False
        return self.lockstep is None or not self.lockstep.repeats  # a step ends for all who take it

    @property
    def samples_total(self) -> int:
        """Records times epochs; for a stream what was assigned so far."""
        if self.streams is not None:
            return sum(part.assigned for part in self.streams.partitions.values())
        return self.dataset.samples_total

    @property
    def settled(self) -> int:
        """How many of the first batches of the open epoch are done, without a hole."""
        return self.done.low if self.streams is None else self.streams.settled_batches

    def samples_done(self) -> tuple[int, int]:
        """Return (committed, dead-lettered) samples over all epochs."""
        covered = sum(self._samples(first, end) for first, end in self.done)
        lost = self.skipped_here + self.dead_samples_here
        return self.committed_before + covered - lost, self.dead_before + lost

    def samples_here(self) -> tuple[int, int]:
        """Return (committed, dead-lettered) samples of the open epoch."""
        committed, dead = self.samples_done()
        return committed - self.committed_before, dead - self.dead_before

    def samples_of(self, batch: int) -> int:
        """Samples in one batch of the open epoch."""
        return self._samples(batch, batch + 1)

    def _samples(self, first: int, end: int) -> int:
        if self.streams is not None:
            return self.streams.samples(first, end)
        return self.dataset.samples(first, end)

    # -- looking: what decisions are made of -----------------------------------------------------------------------------

    def propose(self, wanted: int, size: int) -> tuple[list[int], list[int]]:
        """Return firsts and counts of up to `wanted` leases of at most `size` batches: returned intervals first, then new ones."""
        first = self.frontier
        if not self.returned.total and first + wanted * size <= self.batches:
            return list(range(first, first + wanted * size, size)), [size] * wanted
        firsts: list[int] = []
        counts: list[int] = []
        for first, end in self.returned:
            while first < end and len(firsts) < wanted:
                count = min(size, end - first)
                firsts.append(first)
                counts.append(count)
                first += count
            if len(firsts) >= wanted:
                return firsts, counts
        first, batches = self.frontier, self.batches
        for _ in range(wanted - len(firsts)):
            count = size if first + size <= batches else batches - first
            if count <= 0:
                break
            firsts.append(first)
            counts.append(count)
            first += count
        return firsts, counts

    def propose_batches(self, batches: int) -> tuple[list[int], list[int]]:
        """Return firsts and counts of leases of `batches` in all, fewer where less is free: returned intervals first."""
        firsts: list[int] = []
        counts: list[int] = []
        for first, end in (*self.returned, (self.frontier, self.batches)):
            count = min(batches, end - first)
            if count > 0:
                firsts.append(first)
                counts.append(count)
                batches -= count
        return firsts, counts

    def held_alone(self) -> Iterator[tuple[int, int, Lease]]:
        """Yield (worker, token, lease) of what one worker alone holds. A walk over all leases: asked on ticks, not by requests."""
        for index, holder in self.holders.items():
            for token, lease in holder.leases.items():
                if token not in self.twins:
                    yield index, token, lease

    def judge(
        self, holder: Holder, tokens: list[int], uptos: list[int]
    ) -> tuple[list[int], list[int], list[int]]:
        """Return (answers, tokens, uptos): one answer a reported token, and the columns that change something.

        A token that the holder no longer has is STALE (S3), or ALREADY when it was completed by this very holder's last
        completing request: that is a retry. Progress at or behind what is known is OK and changes nothing.
        """
        answers: list[int] = []
        good_tokens: list[int] = []
        good_uptos: list[int] = []
        leases = holder.leases
        for token, upto in zip(tokens, uptos, strict=True):
            lease = leases.get(token)
            if lease is None:
                answers.append(ALREADY if token in holder.recent[1] else STALE)
            elif upto > lease.end:
                answers.append(STALE)
            else:
                answers.append(OK)
                if upto > lease.first:
                    good_tokens.append(token)
                    good_uptos.append(upto)
        return answers, good_tokens, good_uptos

    def forgotten(self, holder: Holder, request: int, known: set[int]) -> list[int]:
        """Return the tokens granted at a request older than `request` that the worker does not list: it never got them (P7)."""
        return [
            token for token, lease in holder.leases.items() if lease.request < request and token not in known
        ]

    # -- evolving ----------------------------------------------------------------------------------------------------

    def begin_epoch(self, record: EpochOpened) -> None:
        committed, dead = self.samples_done()
        self.committed_before, self.dead_before = committed, dead
        self.epoch = record.epoch
        self.batches = 0 if self.streams is not None else self.dataset.batches
        self.frontier = 0
        self.returned = IntervalSet()
        self.done = IntervalSet()
        self.dead.clear()
        self.twins.clear()
        self.cancelled.clear()
        self.skipped_here = self.dead_samples_here = 0

    def admit(self, worker: int, incarnation: int) -> None:
        self.release(worker)
        self.holders[worker] = Holder(incarnation)

    def release(self, worker: int) -> None:
        """Give back everything a worker held; its former incarnation is gone."""
        holder = self.holders.pop(worker, None)
        if holder is not None:
            for token in list(holder.leases):
                self._give_back(holder, token)

    def grant(self, record: Granted) -> None:
        holder = self.holders[record.worker]
        holder.request = request = record.request
        leases, token, frontier = holder.leases, record.first_token, self.frontier
        for first, count in zip(record.firsts, record.counts, strict=True):
            end = first + count
            leases[token] = Lease(first, end, request)
            if record.peer:
                self._pair(record, token)
            elif first >= frontier:
                frontier = end
            else:
                self._take(first, end)
            token += 1
        if self.lockstep is not None:
            self.lockstep.grant(record, token)
        self.outstanding += token - self.next_token
        self.next_token = token
        self.frontier = frontier
        if self.streams is not None:
            self.streams.fix(record.spans)
            self.batches = max(self.batches, frontier)

    def commit(self, record: Committed) -> None:
        holder = self.holders[record.worker]
        leases, add, twins, completed = holder.leases, self.done.add, self.twins, []
        repeats = self.lockstep and self.lockstep.repeats
        request = record.request
        for token, upto in zip(record.tokens, record.uptos, strict=True):
            lease = leases[token]
            if not repeats or token not in repeats:
                add(lease.first, upto)
            if upto == lease.end:
                del leases[token]
                completed.append(token)
            else:
                lease.first = upto
            if twins and token in twins:
                self._advance_twin(token, upto)
        if request > holder.request:
            holder.request = request
        if completed:
            if self.lockstep is not None:
                self.lockstep.forget(completed)
            self.outstanding -= len(completed)
            former = holder.recent
            if request == former[0]:
                completed[:0] = former[1][-64:]
            holder.recent = (request, tuple(completed))
        if record.skipped:
            self.skipped_here += len(record.skipped)
        self.values_missing += record.values_missing
        self.samples_retrained += record.samples_retrained
        if self.streams is not None:
            self.streams.settle(self.done)

    def give_back(self, record: Returned) -> None:
        holder = self.holders[record.worker]
        for token in record.tokens:
            if self.lockstep is not None:
                lease = holder.leases[token]
                self.lockstep.take_back(record.worker, lease.end - lease.first)
            self._give_back(holder, token)

    def dead_letter(self, record: BatchDeadLettered) -> None:
        """A batch is never leased again, and counts as dead-lettered, all its samples."""
        batch = record.batch
        self.done.add(batch, batch + 1)
        self.dead[batch] = record.reason
        self.dead_samples_here += record.samples
        for index, holder in self.holders.items():
            for token, lease in list(holder.leases.items()):
                if lease.first == batch:
                    lease.first = batch + 1
                    if lease.first == lease.end:
                        self._cancel(index, token)
        self.returned.remove(batch, batch + 1)
        if self.streams is not None:
            self.streams.settle(self.done)

    def forget_holders(self) -> None:
        """No worker holds anything: what was leased belongs to a generation that is over."""
        self.holders.clear()
        self.twins.clear()
        self.outstanding = 0

    def _give_back(self, holder: Holder, token: int) -> None:
        lease = holder.leases.pop(token)
        self.outstanding -= 1
        if self.lockstep is not None and token in self.lockstep.repeats:
            self.lockstep.forget([token])
            return  # the worker that has the batch, or had it, gives it back
        twin = self.twins.pop(token, None)
        if twin is not None:
            self.twins.pop(twin[0], None)
            if twin[1] in self.holders and twin[0] in self.holders[twin[1]].leases:
                return  # the other holder goes on with the same interval (P6)
        for first, end in self.done.missing(lease.first, lease.end):
            self.returned.add(first, end)

    def _take(self, first: int, end: int) -> None:
        """Remove [first, end) from the returned intervals."""
        if not self.returned.remove(first, end):
            raise ValueError(f"the interval [{first}, {end}) is not free: the log does not fit this ledger")

    def _pair(self, record: Granted, token: int) -> None:
        holder = self.holders.get(record.peer_worker)
        if holder is not None and record.peer in holder.leases:
            self.twins[record.peer] = (token, record.worker)
            self.twins[token] = (record.peer, record.peer_worker)

    def _cancel(self, worker: int, token: int) -> None:
        """Nothing is left of a lease, by another's doing: its holder is to hear of it."""
        del self.holders[worker].leases[token]
        self.outstanding -= 1
        self.twins.pop(token, None)
        if self.lockstep is not None:
            self.lockstep.forget([token])
        self.cancelled.append(worker)

    def _advance_twin(self, token: int, upto: int) -> None:
        other, worker = self.twins[token]
        holder = self.holders.get(worker)
        lease = holder.leases.get(other) if holder else None
        if holder is None or lease is None:
            self.twins.pop(token, None)
            return
        lease.first = max(lease.first, upto)
        if lease.first >= lease.end:
            self._cancel(worker, other)
            self.twins.pop(token, None)
