"""Facts that must arrive: appended in order, the same bytes again until the broker has stored them.

Fed by the daemon with what happened on its host; what survives a SIGKILL of the daemon lies in the state directory (an exit
without its mark `reported`) and is posted again after a restart, under the same message id, so that the broker dedupes it. What was
stored may be gone after a power cut of the broker: that is looked for at every new connection, before more is appended (P21).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rover_bus.events import traces
from rover_bus.events.bus import Bus, ConnectionState
from rover_bus.events.codec import encode
from rover_bus.events.envelope import Envelope
from rover_bus.events.errors import RoverError
from rover_bus.events.host_facts import HostFact
from rover_bus.events.logs import get_logger
from rover_bus.events.streams import FACTS
from rover_bus.events.subjects import DEFAULT_TENANT, host_fact
from rover_bus.events.tenancy import bare
from rover_bus.events.traces import Context
from rover_bus.node.turns import insist

RETRY_FIRST_S, RETRY_MAX_S = 0.1, 2.0
APPEND_TIMEOUT_S = 2.0  # short, because a repeat is harmless and a lost answer holds up all that follows
log = get_logger("rover.node")


@dataclass(frozen=True, slots=True)
class Letter:
    """A fact on its way. `message_id` names the occurrence, so that repeats dedupe; `stored` is called once it is there."""

    fact: HostFact
    message_id: str
    job: str = ""
    stored: Callable[[], None] | None = None
    trace: Context | None = field(default_factory=traces.current)  # of which span it is part


class HostOutbox:
    """An ordered queue in front of the FACTS stream."""

    def __init__(self, bus: Bus, host: str, on_loss: Callable[[], None] = lambda: None) -> None:
        """`on_loss`: the broker has forgotten something that it had stored for us."""
        self._bus, self._on_loss = bus, on_loss
        self._stored: dict[str, int] = {}  # the last sequence on each subject: no other component writes them
        self._doubtful = False
        bus.on_connection(self._on_connection)
        self._source = f"rover/daemon/{host}"
        self._letters: deque[Letter] = deque()
        self._posted = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def post(self, letter: Letter) -> None:
        self._letters.append(letter)
        self._empty.clear()
        self._posted.set()

    async def run(self) -> None:
        """Append letter by letter, for ever."""
        while True:
            await self._posted.wait()
            await self._look_back()
            while self._letters:
                await self._deliver(self._letters[0])
                letter = self._letters.popleft()
                if letter.stored:
                    letter.stored()
            self._posted.clear()
            self._empty.set()

    def _on_connection(self, state: ConnectionState) -> None:
        if state == "connected":
            self._doubtful = True
            self._posted.set()

    async def _look_back(self) -> None:
        """After a new connection: is what was stored still there? A tail goes as a whole, and we appended nothing since."""
        if not self._doubtful:
            return
        self._doubtful = False
        for subject, sequence in list(self._stored.items()):
            newest = await insist(lambda subject=subject: self._bus.last(FACTS, subject))  # type: ignore[misc]
            if newest is None or newest.sequence < sequence:
                log.warning("the broker has forgotten facts of this host (a power cut?)", subject=subject)
                self._stored.clear()
                self._on_loss()
                return

    async def flush(self, timeout_s: float) -> bool:
        """Wait until all is stored, at most `timeout_s`; say whether it is."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def _deliver(self, letter: Letter) -> None:
        subject = host_fact(letter.fact.host, letter.fact.kind())
        told = bare(letter.fact)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        headers = Envelope(
            id=letter.message_id,
            type=letter.fact.tag(),
            source=self._source,
            time=now,
            job=letter.job,
            cause=told.cause,
            traceparent=letter.trace.traceparent if letter.trace is not None else "",
        ).headers()
        body, delay_s = encode(told), RETRY_FIRST_S
        while True:
            await self._look_back()
            try:
                self._stored[subject] = await self._bus.append(
                    FACTS,
                    subject,
                    body,
                    headers=headers,
                    timeout_s=APPEND_TIMEOUT_S,
                )
                return
            except RoverError as error:  # also a permanent one: rights and disks are repaired while we run
                log.warning("fact waits for the bus", id=letter.message_id, job=letter.job, why=str(error))
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)


class Outboxes:
    """One outbox for each account that facts go to: a tenant whose store is full, or gone, keeps those of no other waiting."""

    def __init__(self, bus: Bus, host: str, on_loss: Callable[[], None]) -> None:
        self._bus, self._host, self._on_loss = bus, host, on_loss
        self._of: dict[str, HostOutbox] = {}
        self._gone: set[str] = set()  # tenants that there were
        self._running: dict[str, asyncio.Task[None]] = {}
        self._broken = asyncio.Event()
        self._begun = False
        self._add(DEFAULT_TENANT)

    def post(self, letter: Letter, tenant: str) -> None:
        """Take a letter; one to a tenant that was removed is dropped: nothing would ever take it."""
        if tenant in self._gone:
            return
        if tenant not in self._of:
            self._add(tenant)
        self._of[tenant].post(letter)

    def keep(self, tenants: frozenset[str]) -> None:
        """End what goes to tenants that there are no more."""
        removed = set(self._of) - tenants - {DEFAULT_TENANT}
        self._gone = (self._gone | removed) - tenants
        for tenant in removed:
            del self._of[tenant]
            if running := self._running.pop(tenant, None):
                running.cancel()

    def _add(self, tenant: str) -> None:
        self._of[tenant] = HostOutbox(self._bus.of(tenant), self._host, self._on_loss)
        if self._begun:
            self._start(tenant)

    def _start(self, tenant: str) -> None:
        running = self._running[tenant] = asyncio.get_running_loop().create_task(self._of[tenant].run())
        running.add_done_callback(lambda task: None if task.cancelled() else self._broken.set())

    async def run(self) -> None:
        """Append all letters, for ever. Raises what ends one of the outboxes."""
        self._begun = True
        for tenant in self._of:
            self._start(tenant)
        try:
            await self._broken.wait()
            for task in self._running.values():
                if task.done():
                    task.result()
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def flush(self, timeout_s: float) -> bool:
        """Wait until all is stored, at most `timeout_s`; say whether it is."""
        return all(await asyncio.gather(*(each.flush(timeout_s) for each in self._of.values())))
