"""Which runs of jobs have rights at all: told to the broker at a job's submission, taken back after its end.

Run in the Brain's process, where the keys of the stack are at hand; fed by facts, feeds the broker through its system account. The
members of a run are signed by keys of that run alone (auth/vault.py): with these its rights end, also those of stolen credentials.
While no Brain is there, nothing is planned, so no new job needs rights; members of jobs that run keep theirs.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress

from rover_bus.auth.vault import RunOfJob, Vault
from rover_bus.cli.account_claims import tell_accounts
from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Stored
from rover_bus.events.errors import BadMessage, BusError
from rover_bus.events.facts import JobEnded, JobForgotten, JobSubmitted
from rover_bus.events.logs import get_logger
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.reading import read_fact
from rover_bus.events.streams import FACTS

LAST_WORDS_S = 3.0  # beyond the grace in which daemons end what is left of a job
AGAIN_S = 0.5
OTHERS_S = 60.0  # a Brain that an upgrade ends is gone by then; it may know of fewer tenants, and tells the broker so
KINDS = (JobSubmitted, JobEnded, JobForgotten)
log = get_logger("rover.registrar")


class Register:
    """The runs that there are. Pure: times are inputs, of one clock."""

    def __init__(self) -> None:
        self._runs: dict[str, RunOfJob] = {}  # by job, the newest
        self._grace_s: dict[str, float] = {}  # that the newest gives its members to leave
        self._until_s: dict[str, float] = {}  # when runs that have ended lose their rights

    def take(self, fact: object, at_s: float) -> None:
        """Take in what became of a job, and when."""
        match fact:
            case JobSubmitted(job=job, uid=uid, spec=spec) if job not in self._runs or job in self._until_s:
                # a second submission of a job that runs is none, and takes no rights
                self._runs[job] = RunOfJob(job, uid)
                self._grace_s[job] = max(spec.workers.grace_s, spec.servers.grace_s)
                self._until_s.pop(job, None)
            case JobEnded(job=job) | JobForgotten(job=job) if job in self._runs:
                self._until_s.setdefault(job, at_s + self._grace_s[job] + LAST_WORDS_S)
            case _:
                pass

    def admitted(self, now_s: float) -> frozenset[RunOfJob]:
        """Return the runs whose members may do anything now; others are forgotten."""
        for job in [job for job, until_s in self._until_s.items() if until_s <= now_s]:
            del self._until_s[job], self._grace_s[job], self._runs[job]
        return frozenset(self._runs.values())

    def next_end_s(self) -> float:
        """Return when the next run loses its rights; infinite as long as none ends."""
        return min(self._until_s.values(), default=math.inf)


async def register_runs(
    bus: Bus, system: NatsBus, vault: Vault, told_all: Callable[[], None] = lambda: None
) -> None:
    """Keep the broker told which runs there are, for ever. `system`: a connection to its system account; `told_all`: called once
    the broker knows each account of the vault, with its runs. Raises BusError.
    """
    register, changed = Register(), asyncio.Event()

    def take(stored: Stored, age_s: float = 0.0) -> None:
        with suppress(BadMessage):
            register.take(read_fact(stored), time.monotonic() - age_s)
        changed.set()

    # All that was stored first: whatever is told of a part of the runs would take the rights of the others.
    filters = subjects.everywhere(*(subjects.job_facts(kind=kind.kind()) for kind in KINDS))
    former = [stored for each in filters async for stored in bus.read(FACTS, each)]
    last = await bus.last(FACTS, ">")
    for stored in sorted(former, key=lambda each: each.sequence):
        # By the broker's clock alone: one that is minutes ahead of it would take a job's rights before its last words.
        take(stored, max((last.time_ms if last else 0) - stored.time_ms, 0) / 1000)
    newest = max((stored.sequence for stored in former), default=0)
    following = await bus.follow(FACTS, filters, take, start=newest + 1)
    told: frozenset[RunOfJob] | None = None  # the broker may know less than the vault, or a former release
    again_s = time.monotonic() + OTHERS_S
    try:
        while True:
            changed.clear()
            now_s = time.monotonic()
            wanted = register.admitted(now_s)
            every = told is None or now_s >= again_s
            if wanted != told or every:
                await _tell(system, vault, vault.admit(wanted, every))
                told = wanted
                if every:
                    told_all()
            again_s = math.inf if now_s >= again_s else again_s
            with suppress(TimeoutError):
                async with asyncio.timeout(min(register.next_end_s() - now_s, again_s - now_s, 3600.0)):
                    await changed.wait()
    finally:
        await following.stop()


async def _tell(system: NatsBus, vault: Vault, accounts: list[str]) -> None:
    """Have the broker take in accounts, however long that takes."""
    while True:
        try:
            return await tell_accounts(system, vault, accounts)
        except BusError as error:
            log.warning("the broker does not take in which jobs there are", why=str(error))
            await asyncio.sleep(AGAIN_S)
