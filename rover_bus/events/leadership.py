"""Leadership: a key with a time to live in a memory bucket, taken and renewed by compare-and-set (protocol P15, P20).

Used by shell.py. The key elects; what fences is the term in the log. The key's value is JSON so that `nats kv get` is readable:
{"holder", "term", "timeline"}; term 0 means that the holder is still replaying. Members find the term here.

A key that was not renewed for one TTL is free, whatever it holds: the broker deletes a leader's own key by then. What is still
there has no time to live, or a longer one, and would block the job for ever; a candidate overwrites it by compare-and-set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from rover_bus.events.bus import Bus, Entry, Subscription
from rover_bus.events.errors import BusError, BusTimeout, RoverError, WrongSequence
from rover_bus.events.logs import get_logger
from rover_bus.events.streams import LEADERS

T = TypeVar("T")
LEADER_TTL_S = 1.0  # one server; 15 s or more where the broker is replicated (nats.md)
RENEWALS_A_TTL = 3
LOOKS_A_TTL = 8  # of a standby, once the leader's grip may have ended
log = get_logger("rover.leadership")


class Deposed(RoverError):
    """Another process leads now: this service must stop and come back as a standby."""

    code = "deposed"


class LeaderEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a leadership key."""

    holder: str
    term: int = 0
    timeline: int = 0


def read_leader(entry: Entry | None) -> LeaderEntry | None:
    """Return the leader that a key names. None when there is none: no key, foreign bytes, or a key that would stay for ever.

    A leader writes its key with a time to live. A key without one (`nats kv put`) was written by no leader.
    """
    if entry is None or not entry.value or not entry.expires:
        return None
    try:
        return msgspec.json.decode(entry.value, type=LeaderEntry)
    except (msgspec.DecodeError, ValueError):
        return None


class Vigil:
    """A standby's wait. Each renewal that it hears of is good for one TTL; before that, looking at the key is work for nothing.

    It only saves looks: a watch that falls silent, or tells of an end that is none, leads to looks, never to a lead.
    """

    def __init__(self, clock: Callable[[], float], ttl_s: float) -> None:
        self._clock, self._ttl_s = clock, ttl_s
        self._held_until = 0.0
        self._ended = asyncio.Event()

    def observe(self, entry: Entry) -> None:
        """Take in a change of the key."""
        if entry.value is None:
            self._held_until = 0.0
            self._ended.set()
        else:
            self._held_until = self._clock() + self._ttl_s

    @property
    def over(self) -> bool:
        """Whether the key may be free."""
        return self._clock() >= self._held_until

    async def wait(self, pause_s: float) -> None:
        """Wait until the key is said to have ended, or may have; where it may have already, `pause_s` at most."""
        self._ended.clear()
        left_s = self._held_until - self._clock()
        try:
            async with asyncio.timeout(left_s if left_s > 0 else pause_s):
                await self._ended.wait()
        except TimeoutError:
            return


class Leadership:
    """One holder's grip on one key. `leads_until` is on the caller's monotonic clock: before it no other holder can lead."""

    def __init__(
        self,
        bus: Bus,
        key: str,
        holder: str,
        clock: Callable[[], float],
        ttl_s: float = LEADER_TTL_S,
    ) -> None:
        self.bus, self.key, self.holder, self.clock, self.ttl_s = bus, key, holder, clock, ttl_s
        self.leads_until = 0.0
        self.entry = LeaderEntry(holder=holder)
        self._revision = 0
        self._not_before = 0.0
        self._unchanged: tuple[int, float] | None = None  # the revision last seen, and since when it stands

    def wait_one_ttl(self) -> None:
        """After a broker restart the bucket is empty: give the present leader one TTL to come back (P20)."""
        self._not_before = self.clock() + self.ttl_s
        self._unchanged = None

    async def acquire(self) -> None:
        """Wait until the key is free and take it."""
        vigil = Vigil(self.clock, self.ttl_s)
        watching = await self._watch(vigil)
        try:
            while True:
                free = self.bus.connected and self.clock() >= self._not_before
                if free and vigil.over and await self._try():
                    return
                await vigil.wait(max(self._not_before - self.clock(), self.ttl_s / LOOKS_A_TTL))
        finally:
            if watching is not None:
                await watching.stop()

    async def _watch(self, vigil: Vigil) -> Subscription | None:
        """Let the key's renewals reach the vigil; without them it looks at the key all the time."""

        def observe(entry: Entry) -> None:
            self._see(entry)
            vigil.observe(entry)

        try:
            return await self.bus.watch(LEADERS, self.key, observe)
        except BusError:
            return None

    async def _try(self) -> bool:
        try:
            found = await self._in_time(self.bus.get(LEADERS, self.key))
            if found is None or found.value is None:
                await self._put(0)
                return True
            leader = read_leader(found)
            ours = leader is not None and leader.holder == self.holder  # by a call whose answer was lost
            if not ours and not self._is_abandoned(found):
                return False
            await self._put(found.revision)
        except BusError:
            return False
        return True

    def _is_abandoned(self, found: Entry) -> bool:
        """Whether this very value has stood for one TTL, during which its holder would have renewed it."""
        abandoned = self.clock() - self._see(found) >= self.ttl_s
        if abandoned:
            log.warning(
                "a leadership key that is not renewed is overwritten",
                key=self.key,
                value=repr(found.value)[:200],
            )
        return abandoned

    def _see(self, entry: Entry) -> float:
        """Note the key's revision; return since when it stands."""
        if self._unchanged is None or self._unchanged[0] != entry.revision:
            self._unchanged = (entry.revision, self.clock())
        return self._unchanged[1]

    async def _put(self, expected: int) -> None:
        asked = self.clock()
        value = msgspec.json.encode(self.entry)
        self._revision = await self._in_time(
            self.bus.put(LEADERS, self.key, value, expected=expected, ttl_s=self.ttl_s)
        )
        self.leads_until = asked + self.ttl_s

    async def _in_time(self, call: Awaitable[T]) -> T:
        """An answer that comes after half a TTL is of no use: ask again instead."""
        try:
            async with asyncio.timeout(self.ttl_s / 2):
                return await call
        except TimeoutError:
            raise BusTimeout(
                f"the broker did not answer about the leadership of {self.key} in time: it is asked again"
            ) from None

    async def announce(self, term: int, timeline: int) -> None:
        """Write the term into the key: from now on members find this master."""
        self.entry = LeaderEntry(holder=self.holder, term=term, timeline=timeline)
        await self.renew()

    async def renew(self) -> None:
        """Prolong the grip once. Raises Deposed when another holds the key; bus errors pass (try again)."""
        try:
            await self._put(self._revision)
        except WrongSequence:
            found = await self._in_time(self.bus.get(LEADERS, self.key))
            leader = read_leader(found)
            if leader is not None and leader.holder != self.holder:
                raise Deposed(f"{leader.holder} leads {self.key} now") from None
            await self._retake(0 if found is None or found.value is None else found.revision)

    async def _retake(self, revision: int) -> None:
        try:
            await self._put(revision)
        except WrongSequence:
            raise Deposed(f"another holder took {self.key}") from None

    async def keep(self) -> None:
        """Renew for ever. Raises Deposed."""
        while True:
            await asyncio.sleep(self.ttl_s / RENEWALS_A_TTL)
            try:
                await self.renew()
            except Deposed:
                raise
            except BusError:
                await asyncio.sleep(self.ttl_s / 20)  # the log's chain fences us meanwhile

    async def resign(self) -> None:
        """Give the key back at once, so that a standby need not wait for it to expire."""
        self.leads_until = 0.0
        try:
            await self.bus.delete(LEADERS, self.key, expected=self._revision)
        except BusError:
            return
