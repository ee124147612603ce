"""How far a job is: its log, followed and evolved by the master's own code, so the figure is the ledger's and not an estimate.

Fed by the LOG stream; read by the demo's progress bar and by chaos.py, which strikes at points of the training.
"""

from __future__ import annotations

import asyncio

from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Stored, Subscription
from rover_bus.events.errors import BusError
from rover_bus.events.journal import ChainBroken, Journal, LogDamaged
from rover_bus.events.log import Granted, LogBatch
from rover_bus.events.logs import get_logger
from rover_bus.events.streams import LOG
from rover_bus.master.evolution import evolve
from rover_bus.master.ledger import Ledger
from rover_bus.master.state import AnyState, State, Unopened, load

AGAIN_S = 0.5
log = get_logger("rover.progress")


class JobProgress:
    """A reader of one job's log, as of the last batch that arrived."""

    def __init__(self, bus: Bus, job: str) -> None:
        self._state: AnyState = Unopened()
        self.leases: dict[int, list[int]] = {}  # batches of leases since we look, by index of their worker
        self.damaged = False
        self._bus, self._job = bus, job
        self._subject = subjects.job_log(job)
        self._journal = self._new_journal()
        self._joined = True  # what arrives follows from what was read
        self._subscription: Subscription | None = None
        self._beginning_again: asyncio.Task[None] | None = None

    @property
    def state(self) -> State | None:
        """The master's own state of the job; None while its log does not know it."""
        return self._state if isinstance(self._state, State) else None

    @property
    def ledger(self) -> Ledger | None:
        """The job's ledger, None before its data set is known."""
        return self._state.ledger if isinstance(self._state, State) else None

    @property
    def waiting(self) -> int:
        """Facts of the job that had not left its master when it wrote last."""
        return self._journal.waiting

    async def follow(self) -> None:
        """Read from the newest snapshot, and go on."""
        beginning = await self._journal.beginning()
        self._joined = True
        self._subscription = await self._bus.follow(LOG, [self._subject], self._receive, start=beginning)

    async def stop(self) -> None:
        """Follow no more."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.stop()

    async def read(self) -> None:
        """Read what is there now. Raises LogDamaged."""
        beginning = await self._journal.beginning()
        try:
            async for stored in self._bus.read(LOG, self._subject, first=beginning):
                self._take(stored)
        except ChainBroken as broken:
            raise await self._journal.judge(broken) from None

    def _receive(self, stored: Stored) -> None:
        """Take a batch that arrived. What cannot be replayed ends the reading, not its reader: `damaged` says so."""
        if self.damaged or not self._joined:
            return
        try:
            self._take(stored)
        except LogDamaged:
            self.damaged = True
        except ChainBroken as broken:
            self._joined = False
            self._beginning_again = asyncio.get_running_loop().create_task(self._begin_again(broken))

    async def _begin_again(self, broken: ChainBroken) -> None:
        """The position read last is no longer in the log (purged or lost meanwhile): the state is its newest snapshot's."""
        await self.stop()
        why = await self._journal.judge(broken)
        self.damaged = isinstance(why, LogDamaged)
        log.warning("reads the state from the newest snapshot again", job=self._job, why=str(why))
        while not self.damaged:
            self._journal, self._state = self._new_journal(), Unopened()
            try:
                await self.follow()
                break
            except LogDamaged:
                self.damaged = True
            except BusError:
                await asyncio.sleep(AGAIN_S)

    def _new_journal(self) -> Journal:
        return Journal(self._bus, self._subject, self._job, "reader", LogBatch, lambda: 0)

    def _take(self, stored: Stored) -> None:
        snapshot, records = self._journal.take(stored)
        if snapshot is not None:
            self._state = load(snapshot)
        for record in records:
            self._state = evolve(self._state, record)
            if isinstance(record, Granted):
                self.leases.setdefault(record.worker, []).extend(record.counts)

    @property
    def fraction(self) -> float:
        """Share of the job's samples that are committed or dead-lettered, in [0, 1]."""
        ledger = self.ledger
        if ledger is None or not ledger.dataset.samples_total:
            return 0.0
        return min(sum(ledger.samples_done()) / ledger.dataset.samples_total, 1.0)

    @property
    def has_cut(self) -> bool:
        """Whether a lost server could go back to a cut."""
        return self.state is not None and any(cut.state != "open" for cut in self.state.cuts.known.values())

    def joined(self, role: str) -> list[str]:
        """Return the present incarnations of a role that the master has admitted, as `worker-1.3`."""
        admitted = self.state.seats.admitted.values() if self.state is not None else ()
        return sorted(str(each.member) for each in admitted if each.member.role == role)
