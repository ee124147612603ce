"""A simulated storage and the daemon that serves it: stores parts, writes manifests, answers searches; and what damages it.

Fed by the master's orders on the bus, as the real persister is, and by what servers staged in simulated memory; read by servers
that restore. There are no files: a manifest cannot be read, or the parts that it names cannot.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from rover_bus.events import checkpoint_facts as cuts
from rover_bus.events.bus import MESSAGE_ID, Bus, Stored
from rover_bus.events.checkpoints import (
    ManifestContent,
    PartPlace,
    RestoreOrder,
    StoredCheckpoint,
    StoredFile,
)
from rover_bus.events.codec import encode
from rover_bus.events.errors import BadMessage
from rover_bus.events.host_facts import HostFact
from rover_bus.events.reading import read_fact
from rover_bus.events.streams import FACTS
from rover_bus.events.subjects import host_fact, job_facts
from rover_bus.flash.errors import BrokenCheckpoint
from rover_bus.node.turns import Following, insist
from rover_bus.ps.simulated_memory import SharedMemory
from rover_bus.ps.staging import FoundPart, PartMissing

PATH = "storage"
TAKEN_S = 0.05  # from an order to its answer
Which = tuple[int, int]  # generation, cut
ORDERS = (cuts.CheckpointPersistOrdered, cuts.CheckpointManifestOrdered, cuts.CheckpointSearchOrdered)


@dataclass
class SimulatedStorage:
    """What lies on storage. `unreadable`: manifests; `damaged`: checkpoints whose parts are not what was written."""

    keep: int
    manifests: dict[Which, ManifestContent] = field(default_factory=dict)
    parts: dict[tuple[Which, str], FoundPart] = field(default_factory=dict)
    unreadable: set[Which] = field(default_factory=set)
    damaged: set[Which] = field(default_factory=set)

    def store(self, memory: SharedMemory, place: PartPlace, which: Which) -> bool:
        """Copy a staged part; False when it is not in memory any more."""
        for generation, cut, part in memory.parts.get(place.part, []):
            if (generation, cut) == which:
                arrays = {name: array.copy() for name, array in part.arrays.items()}
                self.parts[which, place.part] = FoundPart(arrays, part.extra, "storage")
                return True
        return False

    def publish(self, content: ManifestContent) -> None:
        """Make a checkpoint ready, then prune: what is damaged is neither counted nor taken."""
        self.manifests[content.generation, content.cut] = content
        bad = self.unreadable | self.damaged
        whole = sorted(which for which in self.manifests if which not in bad)
        for which in whole[: -self.keep]:
            del self.manifests[which]
            self.parts = {key: part for key, part in self.parts.items() if key[0] != which}

    def search(self, order: cuts.CheckpointSearchOrdered) -> StoredCheckpoint | None:
        """The newest checkpoint that is asked for, by its manifest alone."""
        skip = set(order.skip)
        for which in sorted(self.manifests, reverse=True):
            if which not in skip | self.unreadable and which[0] >= order.not_before:
                content = self.manifests[which]
                return StoredCheckpoint(
                    timeline=content.timeline,
                    generation=content.generation,
                    cut=content.cut,
                    path=PATH,
                    ledger=content.ledger,
                    parts=content.parts,
                )
        return None

    def read(self, order: RestoreOrder) -> list[FoundPart]:
        """All parts of a checkpoint, as a server reads them. Raises PartMissing, BrokenCheckpoint."""
        which = order.generation, order.cut
        if which not in self.manifests:
            raise PartMissing(f"cut {order.cut} is not on storage: use another cut")
        if which in self.unreadable | self.damaged:
            raise BrokenCheckpoint(f"cut {order.cut} is damaged: use an older checkpoint")
        found = [part for (of, _), part in self.parts.items() if of == which]
        return [part._replace(arrays={n: a.copy() for n, a in part.arrays.items()}) for part in found]

    def damage(self, chance: random.Random, newest: int) -> list[int]:
        """Damage the newest checkpoints, each its manifest or its parts; return their numbers."""
        hit = sorted(self.manifests, reverse=True)[:newest]
        for which in hit:
            (self.unreadable if chance.random() < 0.3 else self.damaged).add(which)
        return [cut for _, cut in hit]


class StorageDaemon:
    """Answers the orders of the master of one job, for the host that has the storage."""

    def __init__(
        self, bus: Bus, job: str, host: str, memory: SharedMemory, storage: SimulatedStorage
    ) -> None:
        self._bus, self._host, self._memory, self._storage = bus, host, memory, storage
        self._said = 0
        self._waiting: list[HostFact] = []
        self._asked = asyncio.Event()
        subjects = [job_facts(job, order.kind()) for order in ORDERS]
        self._following = Following(bus, subjects, self._on_fact, lambda: None, f"{host}.storage")

    async def run(self, pause: Callable[[float], Awaitable[None]]) -> None:
        """Follow and answer, until cancelled. `pause`: sleeps for seconds of virtual time."""
        await self._following.begin()
        try:
            while True:
                await self._asked.wait()
                self._asked.clear()
                await pause(TAKEN_S)
                while self._waiting:
                    await self._say(self._waiting[0])
                    self._waiting.pop(0)
        finally:
            await self._following.stop()

    def _on_fact(self, stored: Stored) -> None:
        try:
            fact = read_fact(stored)
        except BadMessage:
            return
        if isinstance(fact, cuts.CheckpointPersistOrdered):
            self._waiting += [self._persist(fact, place) for place in fact.parts]
        elif isinstance(fact, cuts.CheckpointManifestOrdered):
            self._storage.publish(fact.manifest)
            self._waiting.append(cuts.HostManifestWritten(**self._of(fact, ""), path=PATH, size_bytes=1))
        elif isinstance(fact, cuts.CheckpointSearchOrdered):
            self._waiting.append(self._search(fact))
        if self._waiting:
            self._asked.set()

    def _persist(self, order: cuts.CheckpointPersistOrdered, place: PartPlace) -> HostFact:
        if not self._storage.store(self._memory, place, (order.generation, order.cut)):
            return cuts.HostPartFailed(
                **self._of(order, place.part), step="persist", reason="not in memory any more"
            )
        file = StoredFile(
            path=place.part, digest="d", size_bytes=1, generation=order.generation, cut=order.cut
        )
        return cuts.HostPartPersisted(**self._of(order, place.part), files=[file])

    def _search(self, order: cuts.CheckpointSearchOrdered) -> HostFact:
        return cuts.HostStorageSearched(
            host=self._host,
            job=order.job,
            uid=order.uid,
            search=order.search,
            found=self._storage.search(order),
            there=len(self._storage.manifests),
            refused=[f"cut {cut} cannot be read" for _, cut in sorted(self._storage.unreadable)],
        )

    def _of(self, order: cuts.CheckpointFact, part: str) -> dict[str, Any]:
        return {
            "host": self._host,
            "job": order.job,
            "uid": order.uid,
            "cut": order.cut,
            "generation": order.generation,
            "part": part,
        }

    async def _say(self, fact: HostFact) -> None:
        self._said += 1
        name = f"storage.{self._said}"
        subject = host_fact(self._host, fact.kind())
        await insist(lambda: self._bus.append(FACTS, subject, encode(fact), headers={MESSAGE_ID: name}))
