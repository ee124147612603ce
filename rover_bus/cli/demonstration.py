"""The demo as a program: data, a private stack, one job, its kills, the comparison, the verdict.

Fed by `rover demo`; puts together stack.py, submission.py, chaos.py and report.py, and tells narrator.py. Everything lies in one
temporary directory, which is removed whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rover_bus.cli.chaos import Chaos, Choice, draw_strikes
from rover_bus.cli.commands.run import run_plain
from rover_bus.cli.connection import Address, visit
from rover_bus.cli.history import Happened
from rover_bus.cli.home import Home
from rover_bus.cli.job_file import check_data, find_example, read_job
from rover_bus.cli.narrator import Narrator
from rover_bus.cli.progress import Progress
from rover_bus.cli.report import Tally, sum_up
from rover_bus.cli.stack import RunningStack, ending_on_signals
from rover_bus.cli.submission import Outages, follow_job, submit
from rover_bus.events.errors import InputError
from rover_bus.events.facts import MasterElected
from rover_bus.events.job import JobSpec

if TYPE_CHECKING:
    from rover_bus.events.nats_bus import NatsBus

ROWS, EVAL_ROWS = 48_000, 12_000
ORPHAN_S = 5.0
DRAW_S = 0.1
NEXT = (
    "rover up                                          a stack of your own; then, in another terminal:",
    "rover submit JOB.toml --wait                      your click log (docs/job-file.md)",
    "rover doctor                                      what this machine can do",
)


class Demonstration:
    """One demo. `keep`: a directory that stays, with state, logs and the model."""

    def __init__(
        self,
        seed: int,
        chaos: Choice,
        narrator: Narrator,
        *,
        keep: Path | None = None,
        reference: bool = True,
    ) -> None:
        self.seed, self.chaos, self.reference = seed, chaos, reference
        self.narrator = narrator
        self._keep = keep
        self._takeover_s: float | None = None

    def run(self) -> dict[str, Any]:
        """Play it; return its report (report.py)."""
        say = self.narrator.say
        self.narrator.title(f"rover demo, seed {self.seed}, chaos: {self.chaos}")
        with ending_on_signals(), self._directory() as root:
            spec = self._prepare(root)
            with (
                RunningStack(Home(root / "stack"), orphan_s=ORPHAN_S, disposable=True) as stack,
                Home.find().lent_to(stack.record()) as found_here,
            ):
                say(
                    f"a stack of its own: broker, node daemon, Brain on {stack.host}; all on loopback, behind a secret"
                )
                if found_here:
                    hint = f"from another terminal, here: rover members {spec.name}; rover events {spec.name} --follow"
                    say(hint, "dim")
                address = Address(stack.url, stack.secret_file, stack.home)
                report = visit(address, lambda bus: self._train(bus, stack, spec))
            if self.reference and report["state"] == "completed":
                say("the same job in one process, without bus, servers or storage latency, for comparison")
                quick = spec.replace(data=spec.data.replace(read_latency_s=0.0))
                report["auc_reference"] = run_plain(quick, quiet=True)["auc"]
        self.narrator.verdict(report)
        self.narrator.title("next")
        for line in NEXT:
            self.narrator.console.print(f"  {line}", soft_wrap=True)
        return report

    @contextlib.contextmanager
    def _directory(self) -> Iterator[Path]:
        if self._keep:
            self._keep.mkdir(parents=True, exist_ok=True)
            yield self._keep.absolute()
            return
        root = Path(tempfile.mkdtemp(prefix="rover-demo-"))
        try:
            yield root
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def _prepare(self, root: Path) -> JobSpec:
        """Make the data and read the job file, as a user would."""
        made = subprocess.run(
            [
                *(sys.executable, str(find_example("clicks.py")), "clicks_train.tsv", "clicks_eval.tsv"),
                *("--rows", str(ROWS), "--eval-rows", str(EVAL_ROWS), "--seed", str(self.seed)),
            ],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise InputError(f"the demo's data could not be made: {made.stderr.strip()[-500:]}")
        job_file = root / "demo.toml"
        shutil.copyfile(find_example("jobs/demo.toml"), job_file)
        spec = read_job(job_file, seed=self.seed)
        rows = check_data(spec)
        self.narrator.say(
            f"clicks in Criteo's shape: {rows['train']:,} rows to train on, {rows['evaluate']:,} to evaluate; "
            f"{spec.data.epochs} epochs; storage latency {1000 * spec.data.read_latency_s:.0f} ms a batch"
        )
        return spec

    async def _train(self, bus: NatsBus, stack: RunningStack, spec: JobSpec) -> dict[str, Any]:
        tally, outages, progress = Tally(), Outages(bus), Progress(bus, spec.name)
        chaos = Chaos(stack, bus, spec.name, progress, self.narrator.struck)
        began_s = time.monotonic()

        def hear(happened: Happened) -> None:
            tally.hear(happened)
            if happened.fact is not None:
                self._note_takeover(chaos, happened)
                self.narrator.fact(happened.fact)

        await progress.follow()
        sequence = await submit(bus, spec)
        with self.narrator.training("training"):
            beside = [
                asyncio.ensure_future(chaos.run(draw_strikes(self.seed, self.chaos))),
                asyncio.ensure_future(self._draw(progress)),
            ]
            try:
                ended = await follow_job(bus, spec.name, sequence, hear)
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.gather(*beside, return_exceptions=True)
        wall_s = time.monotonic() - began_s
        report = sum_up(
            spec.name, ended, tally, wall_s=wall_s, broker_restarts=max(outages.count, chaos.count("broker"))
        )
        return report | {"takeover_seconds": self._takeover_s, "seed": self.seed, "chaos": self.chaos}

    async def _draw(self, progress: Progress) -> None:
        while True:
            self.narrator.progress(progress.fraction)
            await asyncio.sleep(DRAW_S)

    def _note_takeover(self, chaos: Chaos, happened: Happened) -> None:
        """Measure from the kill of a leading master to its successor's first word."""
        kills = [each for each in chaos.struck if each.strike.target == "master"]
        if isinstance(happened.fact, MasterElected) and kills and self._takeover_s is None:
            self._takeover_s = round(chaos.seconds - kills[0].seconds, 3)
