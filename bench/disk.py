"""What a job costs on disk an hour: a stack, one job that sleeps as it computes, and what its streams hold after some minutes.

    python -m bench.disk [--seconds 300] [--workers 4] [--servers 2] [--batches-a-second 10] [--json]

Each worker computes for a tenth of a second a batch (or as told), so that the figures are of the control plane and not of the
machine: leases, heartbeats and samples come as often as on any. Bytes by `rover disk` and by stream, before and after; divided by
hours, and by batches for what grows with them.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.processes import running_stack
from rover_bus.cli.connection import find_stack, visit
from rover_bus.cli.home import Home
from rover_bus.cli.views.disk import JobDisk, read_disk
from rover_bus.events.bus import Bus
from rover_bus.events.streams import FACTS, LOG, PROFILES

SETTLE_S = 30.0  # members join, the first plan is live
ROWS, BATCH = 20_000, 32
PROGRAM = """
import time

import numpy as np

import rover_bus.client as rover

WEIGHTS = rover.Growing(name="weights", width=8, optimizer=rover.Adagrad(rate=0.1))

with rover.join() as job:
    log = rover.open_log(job.data.train, rover.Schema.parse(job.data.schema))
    job.parameters.declare(WEIGHTS)
    for batch in job.batches(log):
        began_s = time.monotonic()
        pulled = job.parameters.pull({{"weights": batch.categorical}})
        gradients = {{"weights": np.ones_like(pulled["weights"])}}
        job.parameters.push(rover.BatchKey(batch.epoch, batch.number), gradients)
        job.report(loss=0.5)
        time.sleep(max({pause_s} - (time.monotonic() - began_s), 0.0))
"""
JOB = """
name = "priced"
program = ["python", "sleepy.py"]
[data]
train = "t.csv"
batch_size = {batch}
epochs = {epochs}
schema = {{ label = "label", categorical = ["user", "item"] }}
[workers]
count = {workers}
[servers]
count = {servers}
[checkpoint]
"""


def main() -> None:
    """Run it, print a table, or one line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--batches-a-second", type=float, default=10.0, help="of each worker")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rover-bench-") as directory:
        found = measure(Path(directory), wanted)
    if wanted.json:
        print(json.dumps(found))
        return
    print(
        f"{wanted.workers} workers, {wanted.servers} servers, {found['batches_s']:.1f} batches/s, {found['seconds']:.0f} s"
    )
    for name, a_second in found["a_second"].items():
        each = a_second / found["batches_s"] if found["batches_s"] else 0.0
        print(f"{name:<24}{a_second * 3600 / 2**20:>10.2f} MiB an hour{each:>10.0f} bytes a batch")


def measure(folder: Path, wanted: argparse.Namespace) -> dict[str, Any]:
    """Run the job; return bytes a second by stream and of the job, and batches a second."""
    with (folder / "t.csv").open("w") as clicks:
        clicks.write("label,user,item\n")
        clicks.writelines(f"{row % 2},u{row % 997},i{row % 311}\n" for row in range(ROWS))
    (folder / "sleepy.py").write_text(PROGRAM.format(pause_s=1 / wanted.batches_a_second))
    most = (
        3 * (wanted.seconds + SETTLE_S) * wanted.workers * wanted.batches_a_second * BATCH
    )  # it is cancelled before
    job = JOB.format(
        batch=BATCH, epochs=math.ceil(most / ROWS), workers=wanted.workers, servers=wanted.servers
    )
    (folder / "job.toml").write_text(job)
    with running_stack(folder / "stack") as home:
        rover(home, "submit", "job.toml", folder=folder)
        while look(home)[1].state != "training" or not committed(home):
            time.sleep(1.0)
        time.sleep(SETTLE_S)
        (before, first), began_s, done = look(home), time.monotonic(), committed(home)
        time.sleep(wanted.seconds)
        (after, last), seconds, batches = (
            look(home),
            time.monotonic() - began_s,
            (committed(home) - done) / BATCH,
        )
        rover(home, "cancel", "priced", folder=folder)
    a_second = {name: (after[name] - before[name]) / seconds for name in after}
    a_second |= {
        "its log": (last.log - first.log) / seconds,
        "its facts": (last.facts - first.facts) / seconds,
    }
    return {
        "seconds": seconds,
        "batches_s": batches / seconds,
        "a_second": a_second,
        "said_an_hour": last.an_hour,
    }


def rover(home: Home, *words: str, folder: Path) -> str:
    """Run a command of `rover` for this stack; return what it prints."""
    command = [sys.executable, "-m", "rover_bus.cli.entry", *words, "--dir", str(home.root)]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def look(home: Home) -> tuple[dict[str, int], JobDisk]:
    """Return the bytes of each stream, and what the job costs."""

    async def read(bus: Bus) -> tuple[dict[str, int], JobDisk]:
        [found] = await read_disk(bus)
        return {each: await bus.size(each) for each in (LOG, FACTS, PROFILES)}, found

    return visit(find_stack(str(home.root), "", ""), read)


def committed(home: Home) -> int:
    """Return how many samples the job has committed."""
    [row] = json.loads(rover(home, "jobs", "-o", "json", folder=home.root))
    return int(row["committed"])


if __name__ == "__main__":
    main()
