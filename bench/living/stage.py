"""Where a job is played: a real stack with it, and an ear on it.

Fed by jobs.py; feeds heard.py from the job's streams.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench import rig
from bench.living.heard import Heard
from bench.living.jobs import JOB, LIBRARY, PROGRAM
from rover_bus.cli.stack import RunningStack
from rover_bus.events import facts, subjects
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import FACTS, LOG, PROFILES

ROWS, EVAL_ROWS = 48_000, 500


@asynccontextmanager
async def running(
    job: str, program: str = "", library: str = "", site: str = ""
) -> AsyncIterator[tuple[RunningStack, Heard]]:
    """A stack with one submitted job, and an ear on it. `library`: a module that the program can import; `site`: what each
    interpreter of a job that looks for it does first.
    """
    with tempfile.TemporaryDirectory(prefix="rover-living-") as name:
        folder = Path(name)
        rig.make_clicks(folder, ROWS, EVAL_ROWS)
        (folder / "job.toml").write_text(job)
        (folder / PROGRAM).write_text(program)
        (folder / LIBRARY).write_text(library)
        (folder / "sitecustomize.py").write_text(site)
        with RunningStack(folder / "state", disposable=True) as stack:
            bus = await rig.connect(stack.url, stack.secret_file.read_text().strip(), "bench-living")
            heard = Heard()
            try:
                await listen(bus, heard, JOB)
                run_rover(stack, "submit", str(folder / "job.toml"))
                yield stack, heard
                run_rover(stack, "cancel", JOB)
                await heard.wait(facts.JobEnded)
            finally:
                await bus.close()


async def listen(bus: NatsBus, heard: Heard, job: str) -> None:
    """Have all that a job says heard, from its beginning."""
    await bus.follow(FACTS, [subjects.job_facts(job)], heard.fact, start="first")
    await bus.follow(PROFILES, ["rover.profile.>"], heard.sample)
    await bus.follow(LOG, [subjects.job_log(job)], heard.log, start="first")


def run_rover(stack: RunningStack, *words: str) -> None:
    """Run `rover` on the stack, whatever comes of it."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
    command = [sys.executable, "-m", "rover_bus.cli.entry", *words, "--dir", str(stack.home.root)]
    subprocess.run(command, check=False, capture_output=True, timeout=60, env=environment)
