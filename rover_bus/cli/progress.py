"""How far a job is: its log, followed and evolved by the master's own code, so the figure is the ledger's and not an estimate.

Fed by the LOG stream; read by the demo's progress bar and by chaos.py, which strikes at points of the training.
"""

from __future__ import annotations

from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Stored, Subscription
from rover_bus.events.journal import ChainBroken, Journal, LogDamaged
from rover_bus.events.log import Granted, LogBatch
from rover_bus.events.streams import LOG
from rover_bus.master.evolution import evolve
from rover_bus.master.state import State


class Progress:
    """A reader of one job's log. `state` is the master's own, as of the last batch that arrived."""

    def __init__(self, bus: Bus, job: str) -> None:
        self.state = State()
        self.leases: dict[int, list[int]] = {}  # batches of the leases that each worker got, by its index
        self.damaged = False
        self._bus = bus
        self._subject = subjects.job_log(job)
        self._journal = Journal(bus, self._subject, job, "reader", LogBatch, lambda: 0)

    async def follow(self) -> Subscription:
        """Read from the beginning and go on."""
        return await self._bus.follow(LOG, [self._subject], self._hear, start="first")

    async def read(self) -> None:
        """Read what is there now. Raises LogDamaged."""
        try:
            async for stored in self._bus.read(LOG, self._subject):
                self._take(stored)
        except ChainBroken as broken:
            raise await self._journal.judge(broken) from None

    def _hear(self, stored: Stored) -> None:
        """Take a batch that arrived. What cannot be replayed ends the reading, not its reader: `damaged` says so."""
        if not self.damaged:
            try:
                self._take(stored)
            except (LogDamaged, ChainBroken):
                self.damaged = True

    def _take(self, stored: Stored) -> None:
        snapshot, records = self._journal.take(stored)
        if snapshot is not None:
            self.state = State.load(snapshot)
        for record in records:
            try:
                evolve(self.state, record)
            except (ValueError, LookupError) as error:
                raise LogDamaged(
                    f"batch {stored.sequence} of {self._subject} does not follow from what stands before it ({error!r})"
                ) from error
            if isinstance(record, Granted):
                self.leases.setdefault(record.worker, []).extend(record.counts)

    @property
    def fraction(self) -> float:
        """Share of the job's samples that are committed or dead-lettered, in [0, 1]."""
        ledger = self.state.ledger
        if ledger is None or not ledger.dataset.samples_total:
            return 0.0
        return min(sum(ledger.samples_done()) / ledger.dataset.samples_total, 1.0)

    @property
    def has_cut(self) -> bool:
        """Whether a lost server could go back to a cut."""
        return any(cut.state != "open" for cut in self.state.cuts.values())

    def joined(self, role: str) -> list[str]:
        """Return the present lives of a role that the master has admitted, as `worker-1.3`."""
        return sorted(str(life.member) for life in self.state.lives.values() if life.member.role == role)
