"""The master as a member sees it: the leader of now, found again whenever it does not answer (protocol P15).

Used by workers (client.session) and servers (ps.service). Apart because a take-over, a restarted broker and a lost reply all look
the same here, as a call that takes longer: the same bytes are sent again, to the term that the leadership key names by then.
"""

from __future__ import annotations

import asyncio

from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.codec import decode_any, encode
from rover_bus.events.errors import BadMessage, BusError, UnknownVersion
from rover_bus.events.leadership import LeaderEntry, read_leader
from rover_bus.events.requests import METHOD_OF, JoinReply, LeaseRequest, Reply, Request
from rover_bus.events.streams import LEADERS

# For one answer: a dead master answers nothing, a busy one must not be flooded; but three repeats are to fit into three heartbeats.
FIRST_PATIENCE_S, LONGEST_PATIENCE_S = 0.5, 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.1  # between two looks at the leadership key
HEARTBEAT_S = 1.0  # until a master says how long it may hold a lease request


class Master:
    """Calls to the master of one job over one bus."""

    def __init__(self, bus: Bus, job: str) -> None:
        self.term = 0
        self.timeline = 0
        self.repeats = 0  # requests sent more than once, over the whole run
        self._bus, self._job = bus, job
        self._heartbeat_s = HEARTBEAT_S
        self._leader: LeaderEntry | None = None

    async def ask(self, request: Request) -> Reply:
        """Send a request until a master answers it, and return the answer; replies of lower terms are no answers.

        A lease request may be held for a heartbeat (P7): so much longer a repeat waits.
        Raises UnknownVersion when the master speaks a newer version, AccessDenied when the broker refuses us.
        """
        method, body = METHOD_OF[type(request)], encode(request)
        patience_s, pause_s, attempts = FIRST_PATIENCE_S, FIRST_PAUSE_S, 0
        held_s = self._heartbeat_s if isinstance(request, LeaseRequest) else 0.0
        while True:
            try:
                async with asyncio.timeout(patience_s):  # as lost as an answer, if it is lost
                    leader = await self._find()
                if leader is not None:
                    attempts += 1
                    self.repeats += attempts > 1
                    subject = subjects.rpc(self._job, leader.term, method)
                    answer = await self._bus.request(subject, body, timeout_s=patience_s + held_s)
                    if (reply := self._read(answer.body)) is not None:
                        if isinstance(reply, JoinReply):
                            self._heartbeat_s = reply.heartbeat_s
                        return reply
            except (BusError, TimeoutError):
                patience_s = min(2 * patience_s, LONGEST_PATIENCE_S) if self._leader else patience_s
            self._leader = None
            await asyncio.sleep(pause_s)
            pause_s = min(1.2 * pause_s, LONGEST_PAUSE_S)

    def succeeded(self, term: int) -> bool:
        """Note that a master leads with this term; True when that is news: then what was asked of the former is asked in vain."""
        if self._leader is None or term <= self._leader.term:
            return False
        self._leader = None
        return True

    async def _find(self) -> LeaderEntry | None:
        """Return the leader last seen, or look for one: None while there is no leader, or only one of a term that is over."""
        if self._leader is None:
            entry = await self._bus.get(LEADERS, self._job)
            leader = read_leader(entry)
            if leader is None or not leader.term:
                return None
            if leader.timeline == self.timeline and leader.term < self.term:
                return None
            self._leader = leader
            self.term, self.timeline = leader.term, leader.timeline
        return self._leader

    def _read(self, body: bytes) -> Reply | None:
        try:
            reply = decode_any(body)
        except UnknownVersion:
            raise
        except BadMessage:
            return None
        return reply if isinstance(reply, Reply) and reply.term >= self.term else None
