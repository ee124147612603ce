"""The one task of a simulated host's daemon that cuts cannot do without: staged parts get digests, some time later (P12).

Follows the facts of staged parts like the daemon's persister, whose work it stands for; marks what lies in the simulated shared
memory as a source, and says so. It dies and comes back with its daemon: what was staged meanwhile is digested then.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from rover_bus.events import subjects
from rover_bus.events.bus import MESSAGE_ID, Bus, Stored
from rover_bus.events.checkpoint_facts import HostPartDigested, PartStaged
from rover_bus.events.codec import encode
from rover_bus.events.errors import BadMessage, BusError
from rover_bus.events.reading import read_fact
from rover_bus.events.streams import FACTS
from rover_bus.ps.simulated_memory import SharedMemory

LONGEST_S = 0.2
AGAIN_S = 0.1


async def digest_for_ever(bus: Bus, job: str, host: str, memory: SharedMemory, chance: random.Random) -> None:
    """Digest every part that is staged on this host, those first that were staged before we began to follow."""
    staged: asyncio.Queue[PartStaged] = asyncio.Queue()

    def observe(stored: Stored) -> None:
        with suppress(BadMessage):
            fact = read_fact(stored)
            if isinstance(fact, PartStaged) and fact.place.host == host:
                staged.put_nowait(fact)

    while True:
        try:
            await bus.follow(FACTS, [subjects.job_fact(job, PartStaged.kind())], observe, start="first")
            break
        except BusError:
            await asyncio.sleep(AGAIN_S)
    while True:
        fact = await staged.get()
        await asyncio.sleep(chance.uniform(0.0, LONGEST_S))
        if memory.digest(fact.place.part, fact.generation, fact.cut):
            await _publish(bus, job, host, fact)


async def _publish(bus: Bus, job: str, host: str, staged: PartStaged) -> None:
    fact = HostPartDigested(
        host=host,
        job=job,
        uid=staged.uid,
        cut=staged.cut,
        generation=staged.generation,
        part=staged.place.part,
    )
    name = f"digested.{staged.uid}.{staged.generation}.{staged.cut}.{staged.place.part}"
    while True:
        try:
            await bus.append(
                FACTS, subjects.host_fact(host, fact.kind()), encode(fact), headers={MESSAGE_ID: name}
            )
            return
        except BusError:
            await asyncio.sleep(AGAIN_S)
