"""A hot parameter server, the paper's experiment in proportion: what relief by moving slots is worth.

    python -m bench.hot_server [--steps 3000] [--share 0.3] [--json]

One of three servers is throttled to 30 % by SIGSTOP and SIGCONT from a tenth of the run to its end. Three runs of the same job: not
throttled; throttled, nobody intervenes; throttled, its slots move to the others as soon as the steps of two seconds take half as
long again as before (`rover move --from`). The checkpoint-and-restart migration is not measured here yet.
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
from rover_bus.cli.rollouts import follow_wish
from rover_bus.cli.submission import publish
from rover_bus.events.facts import SlotsMoveRequested

JOB = "hot"
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
        await follow_wish(bus, JOB, sequence, lambda _: None)
    finally:
        await bus.close()
    return time.monotonic() - began


def run(options: argparse.Namespace, throttled: bool, relief: bool) -> dict[str, Any]:
    """Run the job once; return the seconds from its first step to its last, and how long the relief took."""
    with tempfile.TemporaryDirectory(prefix="rover-bench-") as directory:
        folder = Path(directory)
        rows = options.mib * 2**20 // 128
        path = write_job(
            folder,
            JOB,
            kind="hashed",
            skew="zipf",
            rows=rows,
            batch=128,
            servers=3,
            steps=options.steps,
            compute_s=options.compute_s,
        )
        over, moved_s = threading.Event(), 0.0
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
                moved_s = asyncio.run(relieve(home))
            while len(read_steps(folder)) < options.steps:
                time.sleep(0.05)
            over.set()
            time.sleep(2 * PERIOD_S)
            steps = read_steps(folder)
        return {
            "seconds": round(float(steps[:, 0].max() - steps[0, 0]), 2),
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
        ("unthrottled", False, False),
        ("none", True, False),
        ("relief", True, True),
    ):
        found[name] = run(options, throttled, relief)
        print(f"{name:12} {found[name]}", flush=True)
    below = 1 - found["relief"]["seconds"] / found["none"]["seconds"]
    print(f"job time with relief is {below:.0%} below none (checkpoint-and-restart: not measured yet)")
    if options.json:
        print(json.dumps({"bench": "hot_server", "below_none": round(below, 3), "runs": found}))


if __name__ == "__main__":
    main()
