"""The acts of the demo's story: growth, kills, a straggler, a worker that does not pay. Each waits for what it shows.

Fed by the facts of the running job; tells narrator.py, strikes through chaos.py and slowing.py. Nothing is played by the clock: an
act ends when the log says so, or when its patience ends, so that it tells the truth on a slow machine too. What could not be shown
is said in a line of its own (`leave_out`), with the reason: the story has no silent gaps. `until` and `within` wait
for what a program learns on the side, from facts and from processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rover_bus.cli.demo.chaos import Chaos, Strike
from rover_bus.cli.demo.narrator import Narrator
from rover_bus.cli.demo.slowing import slowed
from rover_bus.cli.trials import ask_size
from rover_bus.cli.views.plans import PlanTable
from rover_bus.cli.views.progress import JobProgress
from rover_bus.events import facts
from rover_bus.events.bus import Bus
from rover_bus.events.errors import BusError, Refused
from rover_bus.events.facts import Fact
from rover_bus.node.local.layout import list_members

GROWN_BY = 0.30  # of the training: kills no longer wait for the plan to be judged
RECOVERY_S = 8.0
SHRUNK = 0.6
STRAGGLER_AT, STRAGGLER_S, STRAGGLER_SHARE = 0.36, 14.0, 0.2  # in the midst of an epoch: leases are large
STORY_REST_AT = 0.56  # likewise; what is killed later waits for it
RECOVERED_S = 12.0
SETTLED_S = 15.0
TRIAL_S = 25.0
STRAGGLER, TRIAL = "a straggler", "a worker that does not pay"
WONDERS = "the demo wants to know"
TOO_LATE = "too little of the training is left"
NO_TURN = "the training was over first"
JUDGED_STEPS = ("probe", "scale", "rollback", "asked")
TRIAL_UNTIL = 0.85  # later there is no time to judge it
LOOK_S = 0.05


@dataclass(slots=True)
class Acts:
    """The acts of one demo. `observe` must see every fact of the job."""

    bus: Bus
    chaos: Chaos
    progress: JobProgress
    narrator: Narrator
    job: str
    plans: PlanTable
    straggler: dict[str, Any] | None = None
    trial: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    _observed: list[Fact] = field(default_factory=list)
    _shown: set[str] = field(default_factory=set)

    def observe(self, fact: Fact, time_ms: int) -> None:
        """Take a fact in, before it is told."""
        self.plans.take(fact, time_ms)
        self._observed.append(fact)

    def leave_out(self, act: str, why: str) -> None:
        """Say that an act is not shown, and why."""
        self.left_out[act] = why
        self.narrator.say(f"left out: {act}: {why}", "yellow")

    def close(self, strikes: list[Strike]) -> None:
        """Name what the end of the training has overtaken."""
        struck = [done.strike for done in self.chaos.struck]
        for strike in strikes:
            if strike not in struck:
                self.leave_out(f"the kill of a {strike.target} at {strike.at:.0%}", NO_TURN)
        for act in (STRAGGLER, TRIAL):
            if act not in self._shown and act not in self.left_out:
                self.leave_out(act, NO_TURN)

    async def play_story(self, strikes: list[Strike]) -> None:
        """The narrated order: the plan first, then kills one after another, the straggler, the trial, and what is killed late."""
        await until(lambda: self._grown or self.progress.fraction >= GROWN_BY)
        for strike in strikes:
            if strike.at < STORY_REST_AT:
                await self._strike(strike)
        await self.play_rest(STORY_REST_AT)
        for strike in strikes:
            if strike.at >= STORY_REST_AT:
                await self._strike(strike)

    async def _strike(self, strike: Strike) -> None:
        await until(lambda: self.progress.fraction >= strike.at)
        seen = len(self._observed)
        await self.chaos.strike(strike)
        await within(RECOVERY_S, lambda: self._recovered(strike, seen))

    async def play_rest(self, at: float = STRAGGLER_AT) -> None:
        """A straggler, then a worker on trial, from a point of the training on."""
        await until(lambda: self.progress.fraction >= at)
        await self._straggle()
        await self._try_one_more()

    # -- waiting -------------------------------------------------------------------------------------------------------

    @property
    def _grown(self) -> bool:
        """Whether a plan that grew the job was judged: one by a model, or the second trial of a size."""
        judged = [view.proposed for view in self.plans.by_number.values() if view.judged]
        trials = [plan for plan in judged if plan.step == "probe"]
        return any(plan.step == "scale" for plan in judged) or len(trials) > 1

    def _recovered(self, strike: Strike, seen: int) -> bool:
        """Whether the log has what follows a strike: the next incarnation, a leader, or more facts after a broker's restart."""
        later = self._observed[seen:]
        match strike.target:
            case "worker":
                return any(isinstance(f, facts.MemberAdmitted) and f.member.role == "worker" for f in later)
            case "master":
                return any(isinstance(fact, facts.MasterElected) for fact in later)
            case "broker" | "server":
                return any(isinstance(fact, facts.JobReported) for fact in later)

    # -- a straggler ---------------------------------------------------------------------------------------------------

    async def _straggle(self) -> None:
        """Let one worker run a fifth of the time, and tell what its leases become."""
        chosen = self._last_worker()
        if chosen is None:
            self.leave_out(STRAGGLER, "no worker runs just now")
            return
        member, pid = chosen
        index, before, seen = member.index, self._usual(), len(self._observed)
        granted = len(self.progress.leases.get(index, ()))
        self.narrator.say(
            f"SLOW {member} (pid {pid}): stopped for four fifths of the time (SIGSTOP), as if another program had its core",
            "bold magenta",
        )

        def found() -> bool:
            return any(isinstance(fact, facts.StragglerFound) for fact in self._observed[seen:])

        def shrunk() -> bool:
            leases = self.progress.leases.get(index, [])[granted:]
            return found() and bool(leases) and leases[-1] < before * SHRUNK

        async with slowed(pid, STRAGGLER_SHARE):
            if await within(STRAGGLER_S, shrunk):
                self._shown.add(STRAGGLER)
            else:
                self.leave_out(STRAGGLER, f"its leases did not shrink within {STRAGGLER_S:.0f} s")
        was_found, leases = found(), self.progress.leases.get(index, [])[granted:]
        self.straggler = {
            "member": str(member),
            "lease_before": before,
            "leases": leases[-3:],
            "found": was_found,
        }
        if leases:
            self.narrator.say(
                f"its leases: {leases[-1]} batches, {before} before; the others take what it does not; now it runs again",
                "green",
            )

    def _last_worker(self) -> tuple[Any, int] | None:
        joined = set(self.progress.joined("worker"))
        alive = [
            (status.member, status.pid)
            for status in list_members(self.chaos.stack.home.node, self.job)
            if status.pid and str(status.member) in joined
        ]
        return max(alive, default=None)

    def _usual(self) -> int:
        """Batches of a usual lease: the median of what workers got lately."""
        lately = [count for counts in self.progress.leases.values() for count in counts[-3:]]
        return int(median(lately)) if lately else 0

    # -- a worker that does not pay ------------------------------------------------------------------------------------

    async def _try_one_more(self) -> None:
        """Ask for one more worker than the storage can serve; the Brain measures it, and takes it back.

        It is also one more than the job file leaves to the Brain: a person may want more, and is judged by the same measure.
        """
        if self.progress.fraction > TRIAL_UNTIL or self.plans.carried_out is None:
            self.leave_out(TRIAL, TOO_LATE)
            return
        await within(SETTLED_S, lambda: not self._changing)
        await within(RECOVERED_S, lambda: self._even)  # beside five readers it would stay slow
        wanted = self.plans.carried_out.proposed.workers + 1
        try:
            asked = facts.PlanRequested(
                job=self.job, workers=wanted, trial=True, beyond_limits=True, reason=WONDERS
            )
            plan, _ = await ask_size(self.bus, asked)
        except (BusError, Refused) as error:
            self.leave_out(TRIAL, str(error))
            return
        self.trial = plan.plan
        if await within(TRIAL_S, lambda: self._judged(plan.plan)):
            self._shown.add(TRIAL)
        else:
            self.leave_out(TRIAL, f"plan {plan.plan} was not judged within {TRIAL_S:.0f} s")

    @property
    def _even(self) -> bool:
        """Whether no straggler is known that did not recover."""
        told = (facts.StragglerFound, facts.StragglerRecovered)
        newest = next((fact for fact in reversed(self._observed) if isinstance(fact, told)), None)
        return not isinstance(newest, facts.StragglerFound)

    @property
    def _changing(self) -> bool:
        """Whether a plan is under way that will still be judged: a second one would take its measurements away."""
        newest = self.plans.newest
        settles = ("proposed", "passed", "applied", "live")
        return newest is not None and newest.state in settles and newest.proposed.step in JUDGED_STEPS

    def _judged(self, number: int) -> bool:
        view = self.plans.by_number.get(number)
        return view is not None and view.state in ("kept", "rolled back", "refused")


async def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds, however long."""
    while not holds():  # noqa: ASYNC110 - what others tell is waited for
        await asyncio.sleep(LOOK_S)


async def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Wait until it holds, so long at the most; whether it came to hold."""
    try:
        async with asyncio.timeout(seconds):
            await until(holds)
    except TimeoutError:
        return False
    return True
