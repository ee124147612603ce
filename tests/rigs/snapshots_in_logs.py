"""A job's log with snapshots in it: traffic that fills it, a shell whose snapshots have many pieces, a replay as a standby's."""

from __future__ import annotations

import asyncio

from rover_bus.events.codec import decode
from rover_bus.events.journal import SnapshotReader, snapshot_chunks
from rover_bus.events.log import LogBatch
from rover_bus.events.settings import RetentionSettings
from rover_bus.events.shell import Shell
from rover_bus.master.decider import MasterDecider

NOTHING_KEPT = RetentionSettings(log_age_s=0, log_size_bytes=0)


async def work_through(it, worker, leases):
    progress = []
    for _ in range(leases):
        reply = await worker.lease(progress)
        progress = [(t, f + c) for t, f, c in zip(reply.tokens, reply.firsts, reply.counts, strict=True)]
        await asyncio.sleep(0.3)


def replay(bodies):
    """Rebuild a decider from log batches as a standby does."""
    decider, reader = MasterDecider("j"), SnapshotReader()
    for number, body in enumerate(bodies):
        snapshot, records = reader.take(decode(body, LogBatch).records, number == 0)
        if snapshot is not None:
            decider.restore(snapshot)
        for record in records:
            decider.evolve(record)
    return decider


class TinyChunks(Shell):
    def _take_snapshot(self):
        self._snapshots += 1
        self.journal.batches_since_snapshot = 0
        self._pending += snapshot_chunks(self._snapshots, self.decider.dump(), chunk_bytes=300)
        self._wake.set()
