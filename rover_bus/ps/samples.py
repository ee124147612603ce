"""How a server fares, said now and then: which slots are hot, on heartbeats; busy time, counters and memory, as samples.

Fed by service.py with the counters of its heartbeats, by the tables' traffic, and by the clock of the tables' thread; feeds the
master (which relieves a hot server) and the Brain. Apart, because nothing exact rests on it: what is lost here is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.codec import encode
from rover_bus.events.errors import BusError
from rover_bus.events.identity import Member
from rover_bus.events.own_use import OwnUse, read_own_seconds, take_own_peak
from rover_bus.events.peaks import Peaks, follow
from rover_bus.events.profiles import ServerProfile
from rover_bus.events.requests import SlotTraffic
from rover_bus.ps.traffic import Traffic

TRAFFIC_S = 1.0  # between two reports of which slots are hot
SAMPLE_S = 2.0  # between two samples of how this server fares
NAMED_SLOTS = 8
COUNTED = ("pulls", "pushes", "updates_ignored")
BUSY_S = 0.25  # for the tables' thread to answer; then we go on without it, because busy is not dead (P19)


async def done_in_time(work: asyncio.Future[Any]) -> bool:
    """Wait for something as long as a heartbeat can wait; say whether it is done."""
    done, _ = await asyncio.wait({work}, timeout=BUSY_S)
    return bool(done)


class Measured(NamedTuple):
    """`busy_s`: processor time of the tables' thread so far, seconds. `used`: by the process. `unstaged_bytes`: as in profiles."""

    busy_s: float
    used: OwnUse
    unstaged_bytes: int = 0


class Samples:
    """`measure`: asked on the tables' thread by `run`; None: no samples."""

    def __init__(
        self,
        bus: Bus,
        job: str,
        member: Member,
        traffic: Traffic,
        run: Callable[[Callable[[], Any]], Awaitable[Any]],
        measure: Callable[[], Measured] | None,
    ) -> None:
        self._bus, self._job, self._member = bus, job, member
        self._counted_slots, self._run, self._measure = traffic, run, measure
        self._last: tuple[float, Measured, Mapping[str, float]] = (0.0, Measured(0.0, OwnUse()), {})
        self._hottest = SlotTraffic()
        self._peaks = Peaks[str]()
        self._traffic_at = asyncio.get_running_loop().time()

    async def follow(self) -> None:
        """Measure what this process uses in bursts, for ever, where samples say so."""
        if self._measure is not None:
            await follow(self._peaks, read_own_seconds)

    def traffic(self) -> SlotTraffic | None:
        """Return which slots are hot, once in TRAFFIC_S."""
        now = asyncio.get_running_loop().time()
        if now - self._traffic_at < TRAFFIC_S:
            return None
        passed_s, self._traffic_at = now - self._traffic_at, now
        self._hottest = self._counted_slots.report(passed_s)
        return self._hottest

    async def publish(self, statistics: Mapping[str, float]) -> None:
        """Publish a sample, once in SAMPLE_S: lost when the broker is away. `statistics`: the counters of the last heartbeat."""
        now = asyncio.get_running_loop().time()
        since, before, counted = self._last
        if self._measure is None or now - since < SAMPLE_S:
            return
        measuring = asyncio.ensure_future(self._run(self._measure))
        if not await done_in_time(measuring):
            return  # the tables' thread does something long: the next sample will cover it
        measured = measuring.result()
        self._last = (now, measured, statistics)
        if since:
            made = {name: int(max(statistics.get(name, 0) - counted.get(name, 0), 0)) for name in COUNTED}
            profile = self._profile(now - since, before, measured, made, statistics)
            with suppress(BusError):
                subject = subjects.member_profile(self._job, "ps", self._member.index)
                await self._bus.publish(subject, encode(profile))

    def _profile(
        self,
        window_s: float,
        before: Measured,
        now: Measured,
        made: Mapping[str, int],
        values: Mapping[str, float],
    ) -> ServerProfile:
        return ServerProfile(
            window_s=window_s,
            job=self._job,
            member=self._member,
            pulls=made["pulls"],
            pushes=made["pushes"],
            ignored=made["updates_ignored"],
            busy_s=max(now.busy_s - before.busy_s, 0.0),
            table_bytes=int(values.get("memory_bytes", 0)),
            rows=int(values.get("rows", 0)),
            keys_per_s=self._hottest.keys_per_s,
            hottest=self._hottest.hottest[:NAMED_SLOTS],
            cores_used=round((now.used.processor_s - before.used.processor_s) / window_s, 4),
            memory_bytes=now.used.memory_bytes,
            unstaged_bytes=now.unstaged_bytes,
            cores_peak=take_own_peak(self._peaks),
        )
