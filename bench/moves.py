"""What a live move costs: 1 GiB of tables on two servers changes places while a worker pulls and pushes as fast as it can.

    python -m bench.moves [--mib 1024] [--kind hashed|growing] [--skew zipf|uniform] [--before 15] [--json]

Real processes: a stack, a job, its master and servers; slots are asked for as `rover move` does, in blocks from either server to
the other in turn, so that the load stays even while everything moves once. Throughput is the median over one-second buckets, before
and during; steps are those of the worker. How long slots were away at their hand-over is the servers' own record, from the source's
freeze (as the target knows it: before it asks) to the target's serving. Digests of all tables: around a move without load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.processes import running_stack
from rover_bus.cli.connection import connect, find_stack
from rover_bus.cli.home import Home
from rover_bus.cli.rollouts import follow_rollout
from rover_bus.cli.submission import publish
from rover_bus.events.facts import SlotsMoveRequested
from rover_bus.events.nats_bus import NatsBus

JOB = "moves"
BLOCKS = (
    8  # of each server's slots: 64 MiB at a time, so that neither serves much more than the other meanwhile
)
JOB_FILE = """
name = "{job}"
program = ["{python}", "{worker}"]
[data]
train = "train.tsv"
batch_size = {batch}
epochs = 1
witness = false
[data.schema]
format = "criteo"
[model]
kind = "{kind}"
skew = "{skew}"
tables = 26
rows = {rows}
width = 16
batch = {batch}
compute_s = {compute_s}
steps = {steps}
[workers]
count = {workers}
[servers]
count = {servers}
[leases]
heartbeat = "1s"
"""


def write_job(folder: Path, job: str, **values: Any) -> Path:
    """Write a job file whose worker is ours, and the click log that it does not read."""
    (folder / "train.tsv").write_text("\t".join(["1", *["1"] * 13, *["ab"] * 26]) + "\n")
    path = folder / f"{job}.toml"
    worker = Path(__file__).with_name("moves_worker.py")
    values = {"workers": 1, "steps": 10**7, "compute_s": 0.0, **values}
    path.write_text(JOB_FILE.format(job=job, python=sys.executable, worker=worker, **values))
    return path


def rover(home: Home, *arguments: str) -> str:
    """Run a command of the stack; return what it printed."""
    command = [sys.executable, "-m", "rover_bus.cli.entry", *arguments, "--dir", str(home.root)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read_steps(folder: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return (end, seconds) of every step so far, of all workers."""
    parts = [np.fromfile(path).reshape(-1, 2) for path in folder.glob("steps-*.bin")]
    return np.concatenate(parts) if parts else np.empty((0, 2))


def wait_for_steps(folder: Path, count: int, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while len(read_steps(folder)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {count} steps within {timeout_s:.0f} s: look into {folder}")
        time.sleep(0.1)


async def exchange(bus: NatsBus, job: str, blocks: int, owners: tuple[int, int] = (0, 1)) -> float:
    """Move every slot once, block by block, from either of two servers to the other; return the bytes.

    `owners`: who holds the lower and the upper half.
    """
    moved = 0.0
    for at in range(blocks):
        for half, source in enumerate(owners):
            slots = [(2048 * half + 2048 * at // blocks, 2048 * half + 2048 * (at + 1) // blocks)]
            wish = SlotsMoveRequested(job=job, source=f"ps-{source}", target=f"ps-{1 - source}", slots=slots)
            sequence = await publish(bus, wish, f"move.{secrets.token_hex(8)}")
            moved += (await follow_rollout(bus, job, sequence, lambda _: None)).bytes
    return moved


def throughput(steps: np.ndarray[Any, Any], first_s: float, last_s: float) -> float:
    """Return the median steps in a second, over whole seconds from first to last."""
    edges = np.arange(first_s, last_s, 1.0)
    return float(np.median(np.histogram(steps[:, 0], edges)[0]))


def digest(folder: Path, name: str) -> str:
    """Have the worker stand still and write a digest."""
    wanted = folder / name
    (folder / "digest").write_text(str(wanted))
    while not wanted.exists():
        time.sleep(0.05)
    return wanted.read_text()


async def measure(home: Home, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    bus = await connect(find_stack(str(home.root), "", ""))
    try:
        wait_for_steps(folder, 200, 90.0)
        began = time.monotonic() + options.warm
        await asyncio.sleep(options.warm + options.before)
        moving = time.monotonic()
        moved = await exchange(bus, JOB, BLOCKS)
        ended = time.monotonic()
        await asyncio.sleep(3.0)
        steps = read_steps(folder)
        digests = []
        if options.digests:
            digests = [await asyncio.to_thread(digest, folder, "first")]
            await exchange(bus, JOB, 1, (1, 0))
            digests.append(await asyncio.to_thread(digest, folder, "second"))
            (folder / "digest").unlink()
    finally:
        await bus.close()
    rover(home, "stop", JOB, "--wait")
    return report(steps, began, moving, ended, moved, digests)


def report(
    steps: np.ndarray[Any, Any],
    began: float,
    moving: float,
    ended: float,
    moved: float,
    digests: list[str],
) -> dict[str, Any]:
    before = throughput(steps, began, moving)
    during = throughput(steps, moving, ended)
    still = steps[(steps[:, 0] >= began) & (steps[:, 0] < moving), 1]
    busy = steps[(steps[:, 0] >= moving) & (steps[:, 0] < ended), 1]
    return {
        "moved_mib": round(moved / 2**20, 1),
        "seconds": round(ended - moving, 2),
        "steps_per_s_before": before,
        "steps_per_s_during": during,
        "throughput_ratio": round(during / before, 3),
        "step_p999_ms_before": round(float(np.quantile(still, 0.999)) * 1e3, 2),
        "step_p999_ms_during": round(float(np.quantile(busy, 0.999)) * 1e3, 2),
        "step_max_ms_during": round(float(busy.max()) * 1e3, 2),
        "digests_equal": digests[0] == digests[1] if digests else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=1024, help="of values and optimizer state")
    parser.add_argument("--kind", choices=["hashed", "growing"], default="hashed")
    parser.add_argument("--skew", choices=["zipf", "uniform"], default="zipf")
    parser.add_argument("--warm", type=float, default=3.0, help="seconds that are not counted")
    parser.add_argument("--before", type=float, default=15.0, help="seconds of load before the moves")
    parser.add_argument("--no-digests", dest="digests", action="store_false")
    parser.add_argument("--json", action="store_true", help="print the result as one last JSON line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rover-bench-") as directory:
        folder = Path(directory)
        rows = options.mib * 2**20 // 128
        path = write_job(folder, JOB, kind=options.kind, skew=options.skew, rows=rows, batch=512, servers=2)
        with running_stack(folder / "state") as home:
            rover(home, "submit", str(path))
            found = asyncio.run(measure(home, folder, options))
            found |= hand_overs(home)
    for name, value in found.items():
        print(f"{name:24} {value}")
    if options.json:
        print(
            json.dumps(
                {"bench": "moves", "mib": options.mib, "kind": options.kind, "skew": options.skew, **found}
            )
        )


def hand_overs(home: Home) -> dict[str, Any]:
    """Return the servers' own record of their hand-overs, from the job's summary."""
    lines = rover(home, "events", JOB, "-k", "job.ended", "--json").splitlines()
    statistics = json.loads(lines[-1])
    while "summary" not in statistics:
        statistics = next(value for value in statistics.values() if isinstance(value, dict))
    servers = statistics["summary"]["server_statistics"].values()
    return {
        "hand_overs": int(sum(each.get("hand_overs", 0) for each in servers)),
        "hand_over_ms_mean": round(
            1e3
            * sum(each.get("hand_over_s_sum", 0) for each in servers)
            / max(1, sum(each.get("hand_overs", 0) for each in servers)),
            2,
        ),
        "hand_over_ms_max": round(1e3 * max(each.get("hand_over_s_max", 0) for each in servers), 2),
    }


if __name__ == "__main__":
    main()
