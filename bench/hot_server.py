"""A hot parameter server, the paper's experiment in proportion: what relief by moving slots is worth.

    python -m bench.hot_server [--steps 3000] [--share 0.3] [--json]

One of three servers is throttled to 30 % by SIGSTOP and SIGCONT from a tenth of the run to its end. Four runs of the same job: not
throttled; throttled without a remedy; throttled, its slots move to the others as soon as the steps of two seconds take half as
long again as before (`rover move --from`); throttled, and at the same moment migrated by checkpoint and restart: the workers stop,
a cut goes to storage by the stack's own persister, everything ends, and a job with three sound servers begins with that checkpoint
(`rover submit --from-checkpoint`). Nothing sleeps in it, and the wait for the cut to open is taken off its time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.moves import read_steps, rover, write_job
from bench.processes import running_stack
from rover_bus.cli.connection import connect, find_stack
from rover_bus.cli.home import Home
from rover_bus.cli.rollouts import follow_rollout
from rover_bus.cli.submission import publish
from rover_bus.cli.views.history import read_happened
from rover_bus.events import subjects
from rover_bus.events.bus import Stored
from rover_bus.events.checkpoint_facts import CheckpointOpened, CheckpointReady
from rover_bus.events.facts import Fact, SlotsMoveRequested
from rover_bus.events.streams import FACTS

JOB, AGAIN = "hot", "hot-again"
CUTS = """
[checkpoint]
every = "1s"
"""
PERIOD_S = 0.05  # of the duty cycle
HOT = 1.5  # times the former step


def throttle(pid: int, share: float, over: threading.Event) -> None:
    """Let a process run for a share of every period until told to stop, or until it is gone."""
    try:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(PERIOD_S * (1 - share))
            os.kill(pid, signal.SIGCONT)
            time.sleep(PERIOD_S * share)
    except ProcessLookupError:
        return


def server_pid(home: Home, index: int) -> int:
    rows = json.loads(rover(home, "members", JOB, "-o", "json"))
    return next(int(row["pid"]) for row in rows if row["role"] == "ps" and row["index"] == index)


def wait_until_hot(folder: Path, usual_s: float) -> None:
    """Return when the steps of the last two seconds take so much longer than usual."""
    while True:
        time.sleep(0.25)
        steps = read_steps(folder)
        recent = steps[steps[:, 0] > time.monotonic() - 2.0, 1]
        if len(recent) and float(recent.mean()) > HOT * usual_s:
            return


async def relieve(home: Home) -> float:
    """Move every slot of the hot server to the others; return how long that took."""
    began = time.monotonic()
    bus = await connect(find_stack(str(home.root), "", ""))
    try:
        wish = SlotsMoveRequested(job=JOB, source="ps-2", reason="hot: its steps take half as long again")
        sequence = await publish(bus, wish, f"move.{secrets.token_hex(8)}")
        await follow_rollout(bus, JOB, sequence, lambda _: None)
    finally:
        await bus.close()
    return time.monotonic() - began


async def cut_to_storage(home: Home, folder: Path) -> float:
    """Stop the worker; wait until a cut that opens then is ready in storage. Return how long it took to open."""
    bus = await connect(find_stack(str(home.root), "", ""))
    facts: asyncio.Queue[tuple[float, Fact | None]] = asyncio.Queue()

    def observe(stored: Stored) -> None:
        facts.put_nowait((time.monotonic(), read_happened(stored).fact))

    following = await bus.follow(FACTS, [subjects.job_facts(JOB)], observe)
    opened: dict[int, float] = {}
    try:
        (folder / "still").touch()
        (folder / "digest").write_text(str(folder / "still"))  # stand still: that digest is there already
        began = time.monotonic()
        while True:
            heard, fact = await facts.get()
            if isinstance(fact, CheckpointOpened):
                opened[fact.cut] = heard
            if isinstance(fact, CheckpointReady) and fact.cut in opened:
                return opened[fact.cut] - began
    finally:
        await following.stop()
        await bus.close()


def restart(home: Home, folder: Path, options: argparse.Namespace) -> tuple[float, float]:
    """Checkpoint and restart; return how long it took without the wait for the cut to open, and that wait."""
    began = time.monotonic()
    waited_s = asyncio.run(cut_to_storage(home, folder))
    done = len(read_steps(folder))
    rover(home, "cancel", JOB)
    (folder / "digest").unlink()
    path = job_file(folder, AGAIN, options, options.steps - done)
    rover(home, "submit", str(path), "--from-checkpoint", JOB)
    while len(read_steps(folder)) == done:
        time.sleep(0.005)
    return time.monotonic() - began - waited_s, waited_s


def job_file(folder: Path, job: str, options: argparse.Namespace, steps: int, cuts: str = "") -> Path:
    path = write_job(
        folder,
        job,
        kind="hashed",
        skew="zipf",
        rows=options.mib * 2**20 // 128,
        batch=128,
        servers=3,
        steps=steps,
        compute_s=options.compute_s,
    )
    path.write_text(path.read_text() + cuts)
    return path


def run(options: argparse.Namespace, throttled: bool, relief: str) -> dict[str, Any]:
    """Run the job once; return the seconds from its first step to its last, and how long the relief took."""
    with tempfile.TemporaryDirectory(prefix="rover-bench-") as directory:
        folder = Path(directory)
        path = job_file(folder, JOB, options, options.steps, CUTS if relief == "restart" else "")
        over, moved_s, waited_s = threading.Event(), 0.0, 0.0
        with running_stack(folder / "state") as home:
            rover(home, "submit", str(path))
            while len(read_steps(folder)) < options.steps // 10:
                time.sleep(0.05)
            usual_s = float(np.mean(read_steps(folder)[options.steps // 50 :, 1]))
            if throttled:
                pid = server_pid(home, 2)
                threading.Thread(target=throttle, args=(pid, options.share, over), daemon=True).start()
            if relief:
                wait_until_hot(folder, usual_s)
                if relief == "moves":
                    moved_s = asyncio.run(relieve(home))
                else:
                    moved_s, waited_s = restart(home, folder, options)
            while len(read_steps(folder)) < options.steps:
                time.sleep(0.05)
            over.set()
            time.sleep(2 * PERIOD_S)
            steps = read_steps(folder)
        return {
            "seconds": round(float(steps[:, 0].max() - steps[:, 0].min() - waited_s), 2),
            "usual_step_ms": round(usual_s * 1e3, 2),
            "relief_s": round(moved_s, 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--mib", type=int, default=96, help="of values and optimizer state")
    parser.add_argument("--share", type=float, default=0.3, help="of the time that the hot server may run")
    parser.add_argument("--compute-s", type=float, default=0.005, help="a step's own work")
    parser.add_argument("--json", action="store_true", help="print the result as one last JSON line")
    options = parser.parse_args()
    found = {}
    for name, throttled, relief in (
        ("unthrottled", False, ""),
        ("none", True, ""),
        ("relief", True, "moves"),
        ("restart", True, "restart"),
    ):
        found[name] = run(options, throttled, relief)
        print(f"{name:12} {found[name]}", flush=True)
    relieved = found["relief"]["seconds"]
    below = {name: round(1 - relieved / found[name]["seconds"], 3) for name in ("none", "restart")}
    print(
        f"job time with relief: {below['none']:.0%} below none, {below['restart']:.0%} below checkpoint and restart"
    )
    if options.json:
        print(
            json.dumps(
                {
                    "bench": "hot_server",
                    "below_none": below["none"],
                    "below_restart": below["restart"],
                    "runs": found,
                }
            )
        )


if __name__ == "__main__":
    main()
