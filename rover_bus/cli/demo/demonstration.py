"""The demo as a program: data, a private stack, one job, the acts of its story, the comparison, the verdict.

Fed by `rover demo`; puts together stack.py, submission.py, acts.py, chaos.py, unmanaged.py and report.py, and tells narrator.py.
Everything lies in one temporary directory, which is removed whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rover_bus.cli.connection import Address, visit
from rover_bus.cli.demo.acts import Acts
from rover_bus.cli.demo.beside import Beside
from rover_bus.cli.demo.chaos import Chaos, Choice, Strike, draw_strikes, story_strikes
from rover_bus.cli.demo.job import as_the_user_asked, prepare_job
from rover_bus.cli.demo.narrator import Narrator
from rover_bus.cli.demo.unmanaged import Unmanaged
from rover_bus.cli.demo.unmanaged_runs import key_of, recall
from rover_bus.cli.home import Home
from rover_bus.cli.own_broker import LOOPBACK
from rover_bus.cli.stack import Here, RunningStack, ending_on_signals
from rover_bus.cli.submission import Outages, follow_job, submit
from rover_bus.cli.views.history import Happened
from rover_bus.cli.views.plans import PlanTable
from rover_bus.cli.views.progress import JobProgress
from rover_bus.cli.views.report import Tally, sum_up
from rover_bus.events.facts import JobEnded, MasterElected
from rover_bus.events.host_facts import HostRegistered
from rover_bus.events.job import JobSpec

if TYPE_CHECKING:
    from rover_bus.events.nats_bus import NatsBus

QUICK = ("hosts.orphan_after=5s",)
DRAW_S = 0.1
REFERENCE_AT = 0.3  # of the training
DEMO_S = 80.0  # for all of it but a comparison: the reference is not waited for beyond
NEXT = (
    "rover up                                          a stack of your own; then, in another terminal:",
    "rover submit JOB.toml --wait                      your click log (docs/job-file.md)",
    "rover explain JOB                                 why it has the size that it has",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the user of the demo chose. `story`: the acts in their narrated order, else kills at the seed's times."""

    seed: int
    chaos: Choice = "all"
    story: bool = True
    keep: Path | None = None  # a directory that stays, with state, logs and the model
    reference: bool = True
    compare: bool = False

    def strikes(self) -> list[Strike]:
        """Return what is killed, and at which points of the training."""
        if self.chaos == "all" and self.story:
            return story_strikes(self.seed)
        return draw_strikes(self.seed, self.chaos)


@contextlib.contextmanager
def demo_directory(keep: Path | None) -> Iterator[Path]:
    """Make the directory of a demo, and remove it whatever happens; one that is to be kept stays."""
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    root = Path(tempfile.mkdtemp(prefix="rover-demo-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def train(
    bus: NatsBus,
    spec: JobSpec,
    progress: JobProgress,
    observe: Callable[[Happened], None],
    beside: Sequence[Coroutine[Any, Any, None]],
) -> JobEnded:
    """Submit a job and follow it to its end, while what is `beside` goes on; `observe` is told every fact."""
    await progress.follow()
    sequence = await submit(bus, spec)
    tasks = [asyncio.ensure_future(work) for work in beside]
    try:
        return await follow_job(bus, spec.name, sequence, observe)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def draw_bar(narrator: Narrator, progress: JobProgress) -> None:
    """Move the bar for ever."""
    while True:
        narrator.progress(progress.fraction)
        await asyncio.sleep(DRAW_S)


class Demonstration:
    """One demo."""

    def __init__(self, choices: Choices, narrator: Narrator) -> None:
        self.choices, self.narrator = choices, narrator
        self._takeover_s: float | None = None
        self._reference: Beside | None = None

    def run(self) -> dict[str, Any]:
        """Play it; return its report (report.py)."""
        choices, say = self.choices, self.narrator.say
        began_s = time.monotonic()
        self.narrator.title(f"rover demo, seed {choices.seed}, chaos: {choices.chaos}")
        with ending_on_signals(), demo_directory(choices.keep) as root:
            spec, rows = prepare_job(root, choices.seed)
            self._introduce(spec, rows)
            with (
                RunningStack(
                    Home(root / "stack"), settings=QUICK, disposable=True, here=Here(page=LOOPBACK)
                ) as stack,
                Home.find().pointing_to(stack.record()) as found_here,
            ):
                say(
                    f"a stack of its own: broker, node daemon, Brain on {stack.host}; all on loopback, behind a secret"
                )
                say(f"its page: {stack.page_url}", "dim")
                if found_here:
                    hint = f"from another terminal, here: rover members {spec.name}; rover events {spec.name} --follow"
                    say(hint, "dim")
                address = Address(stack.url, stack.secret_file, stack.home)
                with contextlib.ExitStack() as beside:
                    report = visit(address, lambda bus: self._train(bus, stack, spec, beside))
                    if self._reference is not None and report["state"] == "completed":
                        report["auc_reference"] = self._reference.auc(DEMO_S - (time.monotonic() - began_s))
            off = self._without_control_plane(root, spec, rows["train"])
        self._conclude(report, off)
        return report

    def _conclude(self, report: dict[str, Any], off: dict[str, Any] | None) -> None:
        report["unmanaged"] = off
        self.narrator.verdict(report, off)
        self.narrator.next(NEXT)

    async def _train_beside(self, progress: JobProgress, spec: JobSpec, ends: contextlib.ExitStack) -> None:
        """Start the same job in one process, once the first sizes are measured: it would be in their way."""
        while self.choices.reference and progress.fraction < REFERENCE_AT:  # noqa: ASYNC110 - of the training
            await asyncio.sleep(DRAW_S)
        if self.choices.reference:
            self._reference = ends.enter_context(Beside(spec))
            self.narrator.say(
                "beside it, at the lowest priority, for comparison: the same job in one process, no bus, no servers, no latency",
                "dim",
            )

    def _introduce(self, spec: JobSpec, rows: dict[str, int]) -> None:
        data, say = spec.data, self.narrator.say
        say(
            f"clicks in Criteo's shape: {rows['train']:,} rows to train on, {rows['evaluate']:,} to evaluate; "
            f"{data.epochs} epochs in batches of {data.batch_size}"
        )
        say(
            f"their storage takes {1000 * data.read_latency_s:.0f} ms a batch and serves {data.readers_at_once} readers at a time: "
            "bound by its input, because on a few cores only such a job can gain from more workers"
        )

    # -- the managed run -----------------------------------------------------------------------------------------------

    async def _train(
        self, bus: NatsBus, stack: RunningStack, spec: JobSpec, ends: contextlib.ExitStack
    ) -> dict[str, Any]:
        tally, outages, progress = Tally(), Outages(bus), JobProgress(bus, spec.name)
        chaos = Chaos(stack, bus, spec.name, progress, self.narrator.struck)
        acts = Acts(bus, chaos, progress, self.narrator, spec.name, PlanTable(spec.name))
        began_s = time.monotonic()

        def observe(happened: Happened) -> None:
            tally.observe(happened)
            if happened.fact is not None:
                self._note_takeover(chaos, happened)
                acts.observe(happened.fact, happened.stored.time_ms)
                self.narrator.fact(happened.fact)

        await self._say_wrong_size(bus, spec)
        works = [*self._beside(acts, chaos, progress), self._train_beside(progress, spec, ends)]
        with self.narrator.training("training"):
            ended = await train(bus, spec, progress, observe, works)
        if self.choices.chaos == "all":
            acts.close(self.choices.strikes())
        wall_s = time.monotonic() - began_s
        report = sum_up(
            spec.name, ended, tally, wall_s=wall_s, broker_restarts=max(outages.count, chaos.count("broker"))
        )
        return report | {
            "takeover_seconds": self._takeover_s,
            "seed": self.choices.seed,
            "chaos": self.choices.chaos,
            "plans": [_plan(view) for view in acts.plans.by_number.values()],
            "straggler": acts.straggler,
            "left_out": acts.left_out,
        }

    def _beside(self, acts: Acts, chaos: Chaos, progress: JobProgress) -> Sequence[Coroutine[Any, Any, None]]:
        """Return what goes on beside the training."""
        strikes, draw = self.choices.strikes(), draw_bar(self.narrator, progress)
        if self.choices.chaos != "all":
            return [chaos.run(strikes), draw]
        if self.choices.story:
            return [acts.play_story(strikes), draw]
        return [chaos.run(strikes), acts.play_rest(), draw]

    async def _say_wrong_size(self, bus: NatsBus, spec: JobSpec) -> None:
        """The user's own configuration beside what the machine has."""
        from rover_bus.cli.views.history import read_facts
        from rover_bus.events.subjects import host_facts

        asked = as_the_user_asked(spec)
        async for happened in read_facts(bus, [host_facts(fact=HostRegistered.kind())]):
            if isinstance(happened.fact, HostRegistered):
                has = happened.fact.capacity
                self.narrator.say(
                    f"its user would have asked for {asked.workers.count} worker and {asked.servers.count} server; "
                    f"{happened.fact.host} has {has.cores:g} cores and {has.memory_bytes / 2**30:.0f} GiB, nearly idle. "
                    "The job file leaves the workers to the Brain",
                    "bold",
                )

    def _note_takeover(self, chaos: Chaos, happened: Happened) -> None:
        """Measure from the kill of a leading master to its successor's first word."""
        kills = [each for each in chaos.struck if each.strike.target == "master"]
        if isinstance(happened.fact, MasterElected) and kills and self._takeover_s is None:
            self._takeover_s = round(chaos.seconds - kills[0].seconds, 3)

    # -- the other run -------------------------------------------------------------------------------------------------

    def _without_control_plane(self, root: Path, spec: JobSpec, rows: int) -> dict[str, Any] | None:
        """Make the run of the off column when asked to, else return a recorded one of the same job and kills, or None."""
        asked, strikes = as_the_user_asked(spec), self.choices.strikes()
        if not self.choices.compare:
            return recall(key_of(asked, strikes, rows))
        self.narrator.say(
            "the same job without a control plane, same seed, same kills: this takes some minutes"
        )
        return Unmanaged(asked, strikes, root / "unmanaged", self.narrator.say).run()


def _plan(view: Any) -> dict[str, Any]:
    """Return a plan as a record of the report."""
    judged = view.judged
    return {
        "plan": view.number,
        "step": view.proposed.step,
        "workers": view.proposed.workers,
        "state": view.state,
        "predicted": view.proposed.predicted,
        "measured": judged.after if judged else None,
    }
