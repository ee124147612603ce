"""A job as it was known at one moment of its log: what the broker had stored of it by then, and nothing later.

Fed by the facts of the job and of the processes that ran for it, read again up to the moment, and by the timelines of the present
picture, from which what was sampled later is left out; feeds what serves HTTP. The moment is a record of the job's log
(moments.py): its time is the broker's, as that of facts and samples is.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from heapq import merge

import msgspec

from rover_bus.cli.views.moments import read_state
from rover_bus.cli.views.picture import KnownOfJob, Picture
from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Stored
from rover_bus.events.errors import Refused
from rover_bus.events.host_facts import HostExited, HostStarted
from rover_bus.events.looks import open_read
from rover_bus.events.streams import FACTS, LOG
from rover_bus.web.bodies import MomentOfLog, StateShown

MOST_KEPT = 8
KEPT_S = 20.0  # a page asks for all that it shows of a moment at once


class JobMoment:
    """One job at one moment. `bus`: of the control account; `present`: what is known of the job now.

    `moment_ms`: when the broker stored the record, Unix milliseconds, once `known` has returned.
    """

    def __init__(self, bus: Bus, job: str, at: int, present: KnownOfJob) -> None:
        self.read_s, self.moment_ms = time.monotonic(), 0
        self._bus, self._job, self._at, self._present = bus, job, at, present
        self._reading, self._reading_facts = asyncio.Lock(), asyncio.Lock()  # the state waits for no fact
        self._state: StateShown | None = None
        self._picture: Picture | None = None

    async def state(self) -> StateShown:
        """Return its state, by its own log. Raises Refused for what is not kept, InputError, LogDamaged, BusError."""
        tenant, bare = subjects.split_job(self._job)
        account = self._bus.of(tenant)
        async with self._reading:
            if self._state is None:
                self._state = await read_state(account, bare, self._at)
                return self._state
        newest = await account.last(LOG, subjects.job_log(bare))
        if newest is None:
            return self._state
        moment = MomentOfLog(sequence=newest.sequence, time_ms=newest.time_ms)
        return msgspec.structs.replace(self._state, newest=moment)

    async def known(self) -> KnownOfJob:
        """Return what was known of it. Raises as `state` does."""
        async with self._reading_facts:
            if self._picture is None:
                self.moment_ms = (await self.state()).at.time_ms
                self._picture = await self._read_facts(self.moment_ms)
                if (known := self._picture.jobs.get(self._job)) is not None:
                    known.timelines.with_samples_of(self._present.timelines, self.moment_ms)
            known = self._picture.jobs.get(self._job)
        if known is None:
            raise Refused(f"no fact of {self._job} is kept that was stored by then", "not_kept")
        return known

    @property
    def sequence(self) -> int:
        """The newest fact of the job, or of a process, that is in `known`."""
        return self._picture.sequence if self._picture is not None else 0

    async def _read_facts(self, moment_ms: int) -> Picture:
        tenant, bare = subjects.split_job(self._job)
        own = subjects.job_facts(bare)
        filters = [own if tenant == subjects.DEFAULT_TENANT else subjects.of_tenant(tenant, own)]
        filters += [subjects.host_facts(fact=each.kind()) for each in (HostStarted, HostExited)]
        read = await asyncio.gather(*(_until(self._bus, each, moment_ms) for each in filters))
        picture = Picture()
        for stored in merge(*read, key=lambda each: each.sequence):
            picture.take_fact(stored)
        return picture


async def _until(bus: Bus, subject: str, moment_ms: int) -> list[Stored]:
    found = list[Stored]()
    async with aclosing(open_read(bus, FACTS, subject, 1)) as reading:
        async for stored in reading:
            if stored.time_ms > moment_ms:
                break
            found.append(stored)
    return found


class KeptMoments:
    """The moments that were looked at last, each for a few seconds: then it is read again, by what is stored by then."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], JobMoment] = {}

    def take(self, bus: Bus, job: str, at: int, present: KnownOfJob) -> JobMoment:
        """Return a job at a moment of its log."""
        kept = self._kept.pop((job, at), None)
        if kept is None or time.monotonic() - kept.read_s > KEPT_S:
            kept = JobMoment(bus, job, at, present)
        self._kept[job, at] = kept
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return kept
