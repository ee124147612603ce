"""One cut as the log tells it: where in the data it lies, which parts exist, how far it has come. Values, and looks at them.

Changed by `evolution`, decided on by `cutting` and `recovery`. open -> staged (parts cover every slot, P10) -> ready; or it ends as
superseded or failed and is forgotten here. The ledger is kept as bytes: most cuts are never restored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

import msgspec
import xxhash

from rover_bus.events.checkpoint_facts import CheckpointFailed, CheckpointSuperseded
from rover_bus.events.checkpoints import PartPlace, StoredPart
from rover_bus.events.log import CheckpointFound
from rover_bus.events.routing import SlotRange
from rover_bus.master.intervals import IntervalSet
from rover_bus.master.ledger import Ledger

SLOTS = 4096  # ids hash to so many slots (design §6)
CutState = Literal["open", "staged", "ready"]


class Cut(msgspec.Struct, omit_defaults=True):
    """`rounds`: which round of staging each server is asked for; `ordered`: to be persisted; `writer`: of the manifest."""

    number: int
    generation: int
    epoch: int
    samples: int
    ledger: bytes
    identity: int = (
        0  # of that ledger: a log that lost its tail gives the same number to another place in the data
    )
    state: CutState = "open"
    parts: dict[int, PartPlace] = {}
    requested: bool = False  # it was asked for: it is stored whatever the job file says
    rounds: dict[int, int] = {}
    taken: dict[int, int] = {}  # the round that each part belongs to
    settled: int = 0  # first batches of the epoch that were done when it opened; a stream forgot their spans
    cost_s: float = 0.0  # the longest that a server stood still for it
    ordered: bool = False
    timeline: int = 0  # of the job when it opened; 0: the present one
    found: bool = False  # on storage, by a search: all servers go back to it, whatever they hold
    over: bool = False  # it ended by name, and is good for going back to until a newer one is as safe
    path: str = ""
    stored: dict[int, StoredPart] = {}
    copied: dict[str, list[str]] = {}  # part -> other hosts that hold it
    digested: list[str] = []  # parts that are sources: without digests nothing is gone back to (P12)
    writer: str = ""

    @property
    def storing(self) -> bool:
        """Whether daemons are at it."""
        return self.ordered and self.state == "staged" and not self.over

    def failed(
        self, reason: str, cause: str, usable: bool = False, wanted_bytes: int = 0
    ) -> CheckpointFailed:
        """Return the record that ends it so."""
        return CheckpointFailed(
            cut=self.number,
            generation=self.generation,
            reason=reason,
            usable=usable,
            wanted_bytes=wanted_bytes,
            cause=cause,
        )

    def not_restored(self, reason: str, path: str, cause: str) -> CheckpointFailed:
        """Return the record that ends it because a server could not restore it. `path`: the storage that was tried, "" none."""
        return CheckpointFailed(
            cut=self.number, generation=self.generation, reason=reason, restoring=True, path=path, cause=cause
        )

    def superseded(self, newer: int, reason: str, cause: str, usable: bool = False) -> CheckpointSuperseded:
        """Return the record that ends it so; `newer` 0: not by a newer one."""
        return CheckpointSuperseded(
            cut=self.number,
            generation=self.generation,
            newer=newer,
            reason=reason,
            usable=usable,
            cause=cause,
        )

    def wants(self, index: int) -> bool:
        """Whether a server still has to stage its part of the round that it is asked for."""
        return self.taken.get(index, -1) < self.rounds.get(index, 0)

    @property
    def places(self) -> list[PartPlace]:
        """Its parts, by the index of their server."""
        return [self.parts[index] for index in sorted(self.parts)]

    @property
    def redundant(self) -> bool:
        """Whether each of its parts is also in the memory of another host."""
        return bool(self.parts) and all(part.part in self.copied for part in self.parts.values())

    @property
    def proven(self) -> bool:
        """Whether each of its parts is a source."""
        parts = {part.part for part in self.parts.values()}
        return self.state == "ready" or (bool(parts) and parts <= set(self.digested))

    def is_from(self, part: str, host: str) -> bool:
        """Whether a part was staged on this host, as far as is known: digests may be quicker than the server's report."""
        return all(place.host == host for place in self.parts.values() if place.part == part)

    def is_as_safe_as(self, other: Cut) -> bool:
        """Whether nothing is lost with the other: it was redundant only if this one is, a source only if this one is."""
        return (self.redundant or not other.redundant) and (self.proven or not other.proven)

    def missing(self, slots: Iterable[int], away: Collection[str] = ()) -> set[int]:
        """Return those of the slots that no part covers, or only parts that were lost with their hosts (`away`)."""
        return set(slots) - covered(part.slots for part in self.parts.values() if self._is_there(part, away))

    def _is_there(self, part: PartPlace, away: Collection[str]) -> bool:
        hosts = {part.host, *self.copied.get(part.part, [])}
        return self.state == "ready" or not hosts <= set(away)


def covered(ranges: Iterable[Iterable[SlotRange]]) -> set[int]:
    """Return the slots of some lists of ranges."""
    return {slot for part in ranges for first, end in part for slot in range(first, end)}


def slots_of(owners: Iterable[tuple[int, int, int]], servers: Collection[int]) -> set[int]:
    """Return the slots that a routing table gives to some servers."""
    return {slot for index, first, end in owners if index in servers for slot in range(first, end)}


def position(ledger: Ledger) -> bytes:
    """Return a ledger's place in the data as a cut keeps it: with every lease given back."""
    at_rest = msgspec.msgpack.decode(msgspec.msgpack.encode(ledger), type=Ledger)
    for worker in list(at_rest.holders):
        at_rest.release(worker)
    return msgspec.msgpack.encode(at_rest)


def identity_of(position: bytes) -> int:
    """Return what tells one place in the data from another: parts bear it, and a part of another cut is not believed."""
    return xxhash.xxh3_64_intdigest(position)


def ledger_in(position: bytes) -> Ledger | None:
    """Return the ledger that a manifest holds; None for bytes that are none."""
    try:
        return msgspec.msgpack.decode(position, type=Ledger)
    except (msgspec.MsgspecError, ValueError):
        return None


def lacks_spans(position: Ledger, present: Ledger | None) -> bool:
    """Whether a stream has forgotten what records batches since this place in the data were: servers may hold them (P1)."""
    if position.streams is None or present is None or present.streams is None:
        return False
    settled, known = position.streams.settled_batches, present.streams
    since = [span for span in (*known.archive, *known.spans) if span[2] > settled]
    return (since[0][1] if since else known.settled_batches) > settled


def found_cut(record: CheckpointFound) -> Cut:
    """Return the cut that a search found on storage."""
    found = record.found
    parts = {
        part.index: PartPlace(part=part.part, index=part.index, incarnation=0, host="", slots=part.slots)
        for part in found.parts
    }
    return Cut(
        found.cut,
        found.generation,
        record.epoch,
        record.samples,
        found.ledger,
        identity_of(found.ledger),
        state="ready",
        parts=parts,
        settled=record.settled,
        path=found.path,
        timeline=found.timeline,
        found=True,
    )


def rewound(cut: Cut, present: Ledger | None, generation: int) -> Ledger:
    """Return the ledger that goes back to a cut (P8), under a new generation.

    The grid of a stream is not taken back: servers may hold batches that were granted since, so these keep their records (P1).
    """
    ledger = msgspec.msgpack.decode(cut.ledger, type=Ledger)
    ledger.generation = generation
    if present is None:
        return ledger
    ledger.samples_retrained = present.samples_retrained
    if ledger.streams is not None and present.streams is not None and ledger.epoch == present.epoch:
        ledger.streams.regain(present.streams)
        ledger.frontier, ledger.batches = present.frontier, present.batches
        ledger.returned = IntervalSet.of(ledger.done.missing(0, ledger.frontier))
    return ledger
