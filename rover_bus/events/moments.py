"""A log read again beside the living state: the facts that its records make, from any moment that is kept.

Fed by the LOG stream with a decider that knows nothing yet; feeds the outbox with facts that had to wait longer than memory holds
them. The log is the record, so nothing else has to keep them (protocol P18, P21).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from rover_bus.events.batch import Published
from rover_bus.events.bus import Bus
from rover_bus.events.deciding import LogDecider, Wiring
from rover_bus.events.journal import Journal
from rover_bus.events.looks import first_stored, open_read
from rover_bus.events.outbox import FactOut
from rover_bus.events.streams import LOG


class Moments:
    """The kept part of one log. `anew` makes a decider of its kind that knows nothing."""

    def __init__(self, bus: Bus, wiring: Wiring, anew: Callable[[], LogDecider[Any]]) -> None:
        self._bus, self._wiring, self._anew = bus, wiring, anew

    async def facts_after(self, left: Published, until: int) -> AsyncGenerator[FactOut, None]:
        """Iterate the facts of the log behind the last one that has left, up to those of batch `until`, in order.

        Raises BusError (begin again behind what has left meanwhile), LogDamaged.
        """
        decider, journal = self._anew(), self._journal()
        first = await self._snapshot_before(left.batch)
        async with aclosing(open_read(self._bus, LOG, self._wiring.log_subject, first)) as batches:
            async for stored in batches:
                if stored.sequence > until:
                    return
                snapshot, records = journal.take(stored)
                if snapshot is not None:
                    decider.restore(snapshot)
                for index, record in enumerate(records):
                    decider.evolve(record)
                    for item in decider.outgoing(record, (stored.sequence, index), journal.term):
                        if isinstance(item, FactOut) and (item.term, item.position) > left.place:
                            yield item

    async def _snapshot_before(self, batch: int) -> int:
        """Return where the replay of a batch begins; where that is purged, so is all that comes before the first that is kept."""
        stored = await first_stored(self._bus, LOG, self._wiring.log_subject, batch)
        return 1 if stored is None or not batch else max(self._journal().decode(stored).snapshot, 1)

    def _journal(self) -> Journal:
        wiring = self._wiring
        return Journal(self._bus, wiring.log_subject, wiring.job, "reader", wiring.batch_type, lambda: 0)
