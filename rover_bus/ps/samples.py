"""How a server fares, said now and then: which slots are hot, on heartbeats; busy time, counters and memory, as samples.

Fed by service.py with the counters of its heartbeats, by the tables' traffic, and by the clock of the tables' thread; feeds the
master (which relieves a hot server) and the Brain. Apart, because nothing exact rests on it: what is lost here is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.codec import encode
from rover_bus.events.errors import BusError
from rover_bus.events.identity import Member
from rover_bus.events.own_use import OwnUse, read_own_use
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


class Samples:
    """`busy_s`: seconds of processor time of the tables' thread so far, asked on it by `run`; None: no samples."""

    def __init__(
        self,
        bus: Bus,
        job: str,
        member: Member,
        traffic: Traffic,
        run: Callable[[Callable[[], Any]], Awaitable[Any]],
        busy_s: Callable[[], float] | None,
    ) -> None:
        self._bus, self._job, self._member = bus, job, member
        self._counted_slots, self._run, self._busy_s = traffic, run, busy_s
        self._last: tuple[float, float, Mapping[str, float]] = (0.0, 0.0, {})  # when, busy, the counters
        self._used = read_own_use() if busy_s is not None else OwnUse()
        self._hottest = SlotTraffic()
        self._traffic_at = asyncio.get_running_loop().time()

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
        since, busy_before, before = self._last
        if self._busy_s is None or now - since < SAMPLE_S:
            return
        measuring = asyncio.ensure_future(self._run(self._busy_s))
        if not await done_in_time(measuring):
            return  # the tables' thread does something long: the next sample will cover it
        busy = measuring.result()
        self._last = (now, busy, statistics)
        if since:
            profile = self._profile(now - since, busy - busy_before, before, statistics)
            with suppress(BusError):
                subject = subjects.member_profile(self._job, "ps", self._member.index)
                await self._bus.publish(subject, encode(profile))

    def _profile(
        self, window_s: float, busy_s: float, before: Mapping[str, float], values: Mapping[str, float]
    ) -> ServerProfile:
        made = {name: int(max(values.get(name, 0) - before.get(name, 0), 0)) for name in COUNTED}
        before_s, self._used = self._used.processor_s, read_own_use()
        return ServerProfile(
            window_s=window_s,
            job=self._job,
            member=self._member,
            pulls=made["pulls"],
            pushes=made["pushes"],
            ignored=made["updates_ignored"],
            busy_s=max(busy_s, 0.0),
            table_bytes=int(values.get("memory_bytes", 0)),
            rows=int(values.get("rows", 0)),
            keys_per_s=self._hottest.keys_per_s,
            hottest=self._hottest.hottest[:NAMED_SLOTS],
            cores_used=round((self._used.processor_s - before_s) / window_s, 4),
            memory_bytes=self._used.memory_bytes,
        )
