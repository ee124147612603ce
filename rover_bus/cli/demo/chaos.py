"""Kills, drawn from a seed: which part of a running job dies, and when.

`draw_strikes` is pure: it draws points of the training (shares of its samples, uniform), not points of the clock, so
that a seed strikes at the same places on a slow machine and on a fast one. `Chaos` carries them out with SIGKILL.
Used by `rover demo --chaos`; apart, because what is killed must not know of it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal

from rover_bus.cli.stack import RunningStack
from rover_bus.cli.views.progress import JobProgress
from rover_bus.events.bus import Bus
from rover_bus.events.errors import BusError
from rover_bus.events.leadership import read_leader
from rover_bus.events.streams import LEADERS
from rover_bus.node.local.layout import MemberStatus, list_members

Target = Literal["worker", "master", "broker", "server"]
Choice = Literal["none", "workers", "master", "broker", "servers", "all"]
TARGETS: dict[Choice, tuple[Target, ...]] = {
    "none": (),
    "workers": ("worker", "worker"),
    "master": ("master",),
    "broker": ("broker",),
    "servers": ("server", "server"),
    "all": ("worker", "worker", "master", "broker", "server"),
}
STORY: tuple[tuple[float, Target], ...] = (
    (0.28, "worker"),
    (0.33, "master"),
    (0.39, "broker"),
    (0.46, "worker"),
    (0.9, "server"),
)
FIRST, LAST = 0.02, 0.92  # later than this a strike may find that the training is over
LOOK_S = 0.05


@dataclass(frozen=True, slots=True, order=True)
class Strike:
    """Kill `target` when `at`, a share of all samples, is committed. `draw` in [0, 1) chooses among several."""

    at: float
    target: Target
    draw: float


@dataclass(slots=True)
class Struck:
    """What was done: `seconds` since the chaos began."""

    strike: Strike
    name: str
    pid: int
    seconds: float


def draw_strikes(seed: int, choice: Choice) -> list[Strike]:
    """Return the strikes of a seed in order, uniform over the training. The same seed and choice give the same strikes."""
    dice = random.Random(f"strikes:{seed}:{choice}")
    return sorted(Strike(dice.uniform(FIRST, LAST), target, dice.random()) for target in TARGETS[choice])


def story_strikes(seed: int) -> list[Strike]:
    """Return the strikes of the narrated demo: the same kinds and as many, in the order of its story, at fixed points."""
    dice = random.Random(f"story:{seed}")
    return [Strike(at, target, dice.random()) for at, target in STORY]


@dataclass(slots=True)
class Chaos:
    """Carries strikes out on one job of one stack; `report` takes each."""

    stack: RunningStack
    bus: Bus
    job: str
    progress: JobProgress
    report: Callable[[Struck], None]
    struck: list[Struck] = field(default_factory=list)
    _began_s: float = field(default_factory=time.monotonic)

    async def run(self, strikes: list[Strike]) -> None:
        """Wait for each point of the training, and strike; a target that is not there just now is waited for."""
        for strike in strikes:
            while self.progress.fraction < strike.at:  # noqa: ASYNC110 - processes, not events, are waited for
                await asyncio.sleep(LOOK_S)
            await self.strike(strike)

    async def strike(self, strike: Strike) -> None:
        """Strike now, or as soon as there is something to strike."""
        while (done := await self._strike(strike)) is None:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        self.struck.append(done)
        self.report(done)

    @property
    def seconds(self) -> float:
        """Seconds since the chaos began."""
        return time.monotonic() - self._began_s

    def count(self, target: Target) -> int:
        """Return how many of a kind were struck."""
        return sum(each.strike.target == target for each in self.struck)

    async def _strike(self, strike: Strike) -> Struck | None:
        if strike.target == "broker":
            pid = self.stack.pids().get("broker", 0)
            await asyncio.to_thread(self.stack.restart_broker)
            return self._done(strike, "broker", pid)
        if strike.target == "master":
            names: Collection[str] = await self._leader()
        else:
            names = self.progress.joined("worker" if strike.target == "worker" else "ps")
            if strike.target == "server" and not self.progress.has_cut:
                return None  # before the first cut a lost server begins the job again: not what is shown here
        alive = [status for status in self._alive() if str(status.member) in names]
        if not alive:
            return None
        chosen = alive[int(strike.draw * len(alive))]
        try:
            os.kill(chosen.pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return self._done(strike, str(chosen.member), chosen.pid)

    def _done(self, strike: Strike, name: str, pid: int) -> Struck:
        return Struck(strike, name, pid, self.seconds)

    def _alive(self) -> Iterator[MemberStatus]:
        killed = {each.pid for each in self.struck}
        for status in list_members(self.stack.home.node, self.job):
            if status.state == "running" and status.pid and status.pid not in killed:
                yield status

    async def _leader(self) -> list[str]:
        """Return the master that leads and serves, by its name; none while there is no leader or no broker."""
        try:
            entry = await self.bus.get(LEADERS, self.job)
        except BusError:
            return []
        leader = read_leader(entry)
        return [leader.holder] if leader and leader.term else []
