"""The acts of `rover demo --act servers`: a killed server, a hot one, a lost host. Each waits for what it shows.

Fed by the facts of the running job; tells narrator.py, strikes through chaos.py, slowing.py and the second host's stack. As in
acts.py nothing is played by the clock: an act ends when the log says so, or when its patience ends; one that is not shown is named
in a line, with the reason.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rover_bus.cli.demo.acts import LOOK_S, NO_TURN, TOO_LATE, until, within
from rover_bus.cli.demo.chaos import Chaos, Strike
from rover_bus.cli.demo.narrator import Narrator
from rover_bus.cli.demo.slowing import slowed
from rover_bus.cli.rollouts import Moved, follow_rollout
from rover_bus.cli.stack import RunningStack
from rover_bus.cli.submission import publish
from rover_bus.cli.views.progress import JobProgress
from rover_bus.events import checkpoint_facts as cuts
from rover_bus.events import facts
from rover_bus.events.bus import Bus
from rover_bus.events.errors import BusError, Refused
from rover_bus.events.facts import Fact
from rover_bus.events.identity import Member
from rover_bus.node.local.layout import list_members

WARM_S = 1.0  # before the first act: a speed to compare with
RESTORED_S = 12.0
REDUNDANT_S = 10.0
MEASURE_S = 2.5  # of the speed before, while it is hot, and after relief
HOT_SHARE = 0.1  # of the time that the hot server may run
RELIEF_S = 12.0
HOT, HOST = "a hot server", "a lost host"
LATEST = 0.9  # of the training: what has not begun by then is not begun any more


class CommitRate:
    """How fast the job commits, over the last seconds. `note` is called now and then."""

    def __init__(self, samples: Callable[[], int]) -> None:
        self._samples = samples
        self._noted: deque[tuple[float, int]] = deque(maxlen=400)

    def note(self) -> None:
        self._noted.append((time.monotonic(), self._samples()))

    def over(self, seconds: float) -> float:
        """Samples a second over the last `seconds`; 0.0 while nothing is known."""
        if not self._noted:
            return 0.0
        now, done = self._noted[-1]
        first, was = next((at, n) for at, n in self._noted if at >= now - seconds)
        return (done - was) / (now - first) if now > first else 0.0


@dataclass(slots=True)
class ServerActs:
    """The acts on one job of two hosts: `chaos` has the first one, `second` is the one that will be lost."""

    bus: Bus
    chaos: Chaos
    second: RunningStack
    progress: JobProgress
    narrator: Narrator
    job: str
    draw: float
    relief: dict[str, Any] | None = None
    hosts_lost: int = 0
    restores: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    _observed: list[Fact] = field(default_factory=list)

    def observe(self, fact: Fact) -> None:
        """Take a fact in, before it is told."""
        self._observed.append(fact)
        if isinstance(fact, cuts.ServerRestored):
            self.restores.append(
                {
                    "member": str(fact.member),
                    "cut": fact.cut,
                    "source": fact.source,
                    "seconds": round(fact.seconds, 4),
                }
            )

    def leave_out(self, act: str, why: str) -> None:
        """Say that an act is not shown, and why."""
        self.left_out[act] = why
        self.narrator.say(f"left out: {act}: {why}", "yellow")

    def close(self) -> None:
        """Name what the end of the training has overtaken."""
        for act, shown in ((HOT, self.relief is not None), (HOST, self.hosts_lost > 0)):
            if not shown and act not in self.left_out:
                self.leave_out(act, NO_TURN)

    async def play(self) -> None:
        """Play the three acts in order."""
        await until(lambda: self.progress.has_cut)
        await asyncio.sleep(WARM_S)
        await self._kill_a_server()
        await self._relieve_a_hot_server()
        await self._lose_a_host()

    # -- waiting -------------------------------------------------------------------------------------------------------

    @property
    def _late(self) -> bool:
        return self.progress.fraction > LATEST

    async def _restored(self, seen: int) -> None:
        """Wait until every server that went back has arrived."""

        def back() -> bool:
            state = self.progress.state
            arrived = any(isinstance(fact, cuts.ServerRestored) for fact in self._observed[seen:])
            return arrived and state is not None and not state.cuts.back.servers

        await within(RESTORED_S, back)

    # -- the acts ------------------------------------------------------------------------------------------------------

    async def _kill_a_server(self) -> None:
        """SIGKILL: its tables lie in shared memory, and its next incarnation maps them."""
        seen = len(self._observed)
        await self.chaos.strike(Strike(self.progress.fraction, "server", self.draw))
        await self._restored(seen)

    async def _relieve_a_hot_server(self) -> None:
        """One server runs a small share of the time; its slots move to the others, and no member stops."""
        chosen = self._hot_server()
        if chosen is None or self._late:
            self.leave_out(HOT, "no server is left to slow" if chosen is None else TOO_LATE)
            return
        member, pid = chosen
        name, server = str(member), member.name
        pace = CommitRate(lambda: sum(self.progress.ledger.samples_done()) if self.progress.ledger else 0)
        before = await self._measured(pace)
        self.narrator.say(
            f"HOT {name} (pid {pid}): it runs {HOT_SHARE:.0%} of the time (SIGSTOP), as if another program had its core. "
            "Every batch needs every server",
            "bold magenta",
        )
        async with slowed(pid, HOT_SHARE):
            hot = await self._measured(pace)
            self.narrator.say(
                f"{hot:,.0f} samples/s with it, {before:,.0f} before. So: rover move {self.job} --from {server}"
            )
            moved = await self._move_from(server)
            relieved = await self._measured(pace)
        self.relief = {
            "member": name,
            "moved_bytes": moved.bytes if moved else 0,
            "samples_per_second": [round(before, 1), round(hot, 1), round(relieved, 1)],
        }
        if moved:
            self.narrator.say(
                f"{relieved:,.0f} samples/s, and {name} is as slow as it was: it holds no slots any more. "
                "No worker and no server was stopped",
                "green",
            )

    def _hot_server(self) -> tuple[Member, int] | None:
        """The last server of the first host."""
        joined = set(self.progress.joined("ps"))
        alive = [
            (status.member, status.pid)
            for status in list_members(self.chaos.stack.home.node, self.job)
            if status.pid and str(status.member) in joined
        ]
        return max(alive) if alive else None

    async def _measured(self, pace: CommitRate) -> float:
        end_s = time.monotonic() + MEASURE_S
        while time.monotonic() < end_s:
            pace.note()
            await asyncio.sleep(LOOK_S)
        return pace.over(MEASURE_S)

    async def _move_from(self, source: str) -> Moved | None:
        wish = facts.SlotsMoveRequested(job=self.job, source=source, reason="hot", by="the demo")
        try:
            sequence = await publish(self.bus, wish, f"move.{secrets.token_hex(8)}")
            async with asyncio.timeout(RELIEF_S):
                return await follow_rollout(self.bus, self.job, sequence, lambda _: None)
        except (BusError, Refused, TimeoutError) as error:
            self.narrator.say(f"its slots stay: {error or 'it takes too long'}", "red")
            return None

    async def _lose_a_host(self) -> None:
        """Everything on the second host and its memory at once; the parts of its servers are held by the first one, too."""
        if not await within(REDUNDANT_S, self._newest_is_redundant):
            self.leave_out(HOST, f"no cut had a copy on the other host within {REDUNDANT_S:.0f} s")
            return
        if self._late:
            self.leave_out(HOST, TOO_LATE)
            return
        seen, host = len(self._observed), self.second.host
        there = sorted(
            str(status.member)
            for status in list_members(self.second.home.node, self.job)
            if status.state == "running" and status.pid
        )
        self.narrator.say(
            f"LOST host {host} with {', '.join(there)} and all its memory: SIGKILL, files removed, none of it comes back. "
            "The master learns it from three missing heartbeats",
            "bold magenta",
        )
        self.hosts_lost += 1
        await asyncio.to_thread(self.second.lose_host)
        await self._restored(seen)

    def _newest_is_redundant(self) -> bool:
        state = self.progress.state
        newest = state.cuts.newest() if state is not None else None
        return newest is not None and newest.redundant
