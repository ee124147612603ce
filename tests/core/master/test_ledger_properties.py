"""The ledger under random histories: every batch is committed once, nothing is lost, a dump is the ledger."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rover_bus.events.data_facts import BatchDeadLettered, EpochOpened
from rover_bus.events.job import Dataset
from rover_bus.events.log import Committed, Granted, Returned
from rover_bus.master.intervals import IntervalSet
from rover_bus.master.ledger import Holder, Ledger

WORKERS = 4


class LedgerHistory(RuleBasedStateMachine):
    """Workers come, go, commit parts, forget leases and take the same interval twice, in any order."""

    @initialize(records=st.integers(1, 400), batch=st.integers(1, 20))
    def open(self, records: int, batch: int) -> None:
        self.ledger = Ledger.new(Dataset(records=records, batch_size=batch, epochs=0))
        self.ledger.begin_epoch(EpochOpened(epoch=0))
        self.committed: list[int] = []
        self.request = 0
        self.incarnation = 0
        self.total = 0

    def holder(self, worker: int) -> Holder:
        if worker not in self.ledger.holders:
            self.incarnation += 1
            self.ledger.admit(worker, self.incarnation)
        return self.ledger.holders[worker]

    @rule(worker=st.integers(0, WORKERS - 1), wanted=st.integers(1, 5), size=st.integers(1, 7))
    def lease(self, worker: int, wanted: int, size: int) -> None:
        holder = self.holder(worker)
        firsts, counts = self.ledger.propose(wanted, size)
        self.request += 1
        if firsts:
            self._grant(worker, holder, firsts, counts)

    @rule(worker=st.integers(0, WORKERS - 1))
    def speculate(self, worker: int) -> None:
        holder = self.holder(worker)
        alone = [found for found in self.ledger.held_alone() if found[0] != worker]
        if alone:
            peer_worker, peer, lease = max(alone, key=lambda found: found[2].end - found[2].first)
            self.request += 1
            self._grant(worker, holder, [lease.first], [lease.end - lease.first], peer, peer_worker)

    def _grant(
        self,
        worker: int,
        holder: Holder,
        firsts: list[int],
        counts: list[int],
        peer: int = 0,
        peer_worker: int = 0,
    ) -> None:
        self.ledger.grant(
            Granted(
                worker=worker,
                incarnation=holder.incarnation,
                request=self.request,
                first_token=self.ledger.next_token,
                firsts=firsts,
                counts=counts,
                peer=peer,
                peer_worker=peer_worker,
            )
        )

    @rule(data=st.data(), worker=st.integers(0, WORKERS - 1))
    def progress(self, data: Any, worker: int) -> None:
        holder = self.holder(worker)
        if not holder.leases:
            return
        token = data.draw(st.sampled_from(sorted(holder.leases)))
        lease = holder.leases[token]
        first = lease.first
        upto = data.draw(st.integers(first, lease.end))
        answers, tokens, uptos = self.ledger.judge(holder, [token], [upto])
        assert answers == [0]
        if tokens:
            self.request += 1
            self.ledger.commit(
                Committed(
                    worker=worker,
                    incarnation=holder.incarnation,
                    request=self.request,
                    tokens=tokens,
                    uptos=uptos,
                )
            )
            self.committed += range(first, upto)

    @rule(data=st.data(), worker=st.integers(0, WORKERS - 1))
    def forget(self, data: Any, worker: int) -> None:
        holder = self.holder(worker)
        if holder.leases:
            token = data.draw(st.sampled_from(sorted(holder.leases)))
            self.ledger.give_back(Returned(worker=worker, incarnation=holder.incarnation, tokens=[token]))

    @rule(worker=st.integers(0, WORKERS - 1))
    def die(self, worker: int) -> None:
        self.ledger.release(worker)

    @rule(worker=st.integers(0, WORKERS - 1))
    def poison(self, worker: int) -> None:
        holder = self.holder(worker)
        if not holder.leases:
            return
        batch = holder.leases[min(holder.leases)].first
        self.ledger.dead_letter(
            BatchDeadLettered(
                epoch=self.ledger.epoch,
                batch=batch,
                first_position=batch * self.ledger.dataset.batch_size,
                samples=self.ledger.samples_of(batch),
                reason="poison",
            )
        )

    @precondition(lambda self: self.ledger.complete)
    @rule()
    def next_epoch(self) -> None:
        assert sorted([*self.committed, *self.ledger.dead]) == list(range(self.ledger.batches))
        self.total += self.ledger.dataset.records
        assert sum(self.ledger.samples_done()) == self.total
        self.ledger.begin_epoch(EpochOpened(epoch=self.ledger.epoch + 1))
        self.committed = []

    @rule()
    def take_over(self) -> None:
        dump = msgspec.msgpack.encode(self.ledger)
        self.ledger = msgspec.msgpack.decode(dump, type=Ledger)
        assert msgspec.msgpack.encode(self.ledger) == dump

    @invariant()
    def every_batch_is_in_exactly_one_place(self) -> None:
        if not hasattr(self, "ledger"):
            return
        ledger = self.ledger
        assert len(set(self.committed)) == len(self.committed)
        free = [batch for first, end in ledger.returned for batch in range(first, end)]
        free += range(ledger.frontier, ledger.batches)
        held: list[int] = []
        for index, holder in ledger.holders.items():
            for token, lease in holder.leases.items():
                twin = ledger.twins.get(token)
                if twin is None or (index, token) < (twin[1], twin[0]):
                    held += range(lease.first, lease.end)
        assert ledger.outstanding == sum(len(holder.leases) for holder in ledger.holders.values())
        assert ledger.unassigned == len(free)
        done = [batch for first, end in ledger.done for batch in range(first, end)]
        assert sorted([*free, *held, *done]) == list(range(ledger.batches))
        assert sorted([*self.committed, *ledger.dead]) == done


TestLedgerHistory = LedgerHistory.TestCase
TestLedgerHistory.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_intervals_are_what_a_set_of_numbers_is() -> None:
    import random

    chance = random.Random(7)
    for _ in range(200):
        plain: set[int] = set()
        kept = IntervalSet()
        for _ in range(30):
            first = chance.randrange(60)
            end = first + chance.randrange(1, 6)
            for a, b in list(kept.missing(first, end)):
                kept.add(a, b)
            plain |= set(range(first, end))
            assert {n for a, b in kept for n in range(a, b)} == plain
            assert kept.total == len(plain)
            assert all((n in kept) == (n in plain) for n in range(70))
            assert kept.covers(first, end)
            if chance.random() < 0.3:
                low, high = chance.choice(list(kept))
                first = chance.randrange(low, high)
                end = chance.randrange(first, high) + 1
                assert kept.remove(first, end)
                assert not kept.remove(first, end), "it is not there any more"
                plain -= set(range(first, end))
