"""How good the model of a real job is: two asynchronous workers on bus and servers, calm and under kills, against one process.

    python -m bench.quality TRAIN EVAL [--job examples/jobs/movielens.toml] [--seeds 8] [--json]

Each seed is trained three times, one after the other: `rover run --plain` (one process, no bus), a job of two workers, and the
same job while a worker and the leading master are killed with SIGKILL at points of the training drawn from the seed. One stack
serves all jobs. The evaluation file is read only after training; the witness must hold every sample once. Nothing is tuned here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rover_bus.cli.connection import Address, visit
from rover_bus.cli.demo.chaos import FIRST, LAST, Chaos, Strike
from rover_bus.cli.home import Home
from rover_bus.cli.plain import run_plain
from rover_bus.cli.stack import RunningStack, ending_on_signals
from rover_bus.cli.submission import follow_job, submit
from rover_bus.cli.views.progress import JobProgress
from rover_bus.cli.views.report import Tally, sum_up
from rover_bus.client.job_file import check_data, read_job
from rover_bus.events.job import JobSpec

if TYPE_CHECKING:
    from rover_bus.events.nats_bus import NatsBus

JOB = Path(__file__).parents[1] / "examples" / "jobs" / "movielens.toml"
WAYS = ("plain", "calm", "chaos")
MEAN_AUC, FROM_PLAIN, WHOLE_S = 0.780, 0.006, 900.0
PATIENCE_S = 300.0  # a job that takes longer hangs: the bench says so instead of waiting


def draw(seed: int) -> list[Strike]:
    """Return the kills of a seed: one worker and the leading master, uniform over the training."""
    dice = random.Random(f"quality:{seed}")
    return sorted(Strike(dice.uniform(FIRST, LAST), target, dice.random()) for target in ("worker", "master"))


async def train(bus: NatsBus, stack: RunningStack, spec: JobSpec, strikes: list[Strike]) -> dict[str, Any]:
    """Train one job to its end, striking meanwhile; return its report (docs/cli.md), with the strikes that were made."""
    progress, tally, began_s = JobProgress(bus, spec.name), Tally(), time.monotonic()
    if strikes:
        await progress.follow()
    chaos = Chaos(stack, bus, spec.name, progress, lambda _: None)
    sequence = await submit(bus, spec)
    striking = asyncio.create_task(chaos.run(strikes))
    try:
        async with asyncio.timeout(PATIENCE_S):
            ended = await follow_job(bus, spec.name, sequence, tally.observe)
    finally:
        striking.cancel()
        await asyncio.gather(striking, return_exceptions=True)
        await progress.stop()
    report = sum_up(spec.name, ended, tally, wall_s=time.monotonic() - began_s)
    return report | {"struck": [f"{each.name} at {each.strike.at:.2f}" for each in chaos.struck]}


def run(stack: RunningStack, spec: JobSpec, way: str, seed: int) -> dict[str, Any]:
    """Train one seed one way. Raises SystemExit when the job did not end as it should: its AUC would mean nothing."""
    spec = spec.replace(name=f"{way}-{seed}", data=spec.data.replace(seed=seed))
    if way == "plain":
        report = run_plain(spec, quiet=True)
    else:
        address = Address(stack.url, stack.secret_file, stack.home)
        strikes = draw(seed) if way == "chaos" else []
        report = visit(address, lambda bus: train(bus, stack, spec, strikes))
    whole = report["samples_committed"] == report["samples_total"] and not report["samples_duplicated"]
    if report["state"] != "completed" or not whole or report["auc"] is None:
        raise SystemExit(f"{spec.name} is no run to measure: {json.dumps(report)}")
    return report


def judge(runs: dict[str, list[dict[str, Any]]], seconds: float) -> dict[str, Any]:
    """Return means, their differences to plain, and whether each target holds."""
    means = {way: statistics.fmean(report["auc"] for report in runs[way]) for way in WAYS}
    deviations = {
        way: statistics.stdev(report["auc"] for report in runs[way]) if len(runs[way]) > 1 else 0.0
        for way in WAYS
    }
    below = {way: means["plain"] - means[way] for way in ("calm", "chaos")}
    return {
        "mean_auc": means,
        "deviation": deviations,
        "below_plain": below,
        "logloss": {way: statistics.fmean(report["logloss"] for report in runs[way]) for way in WAYS},
        "staleness_batches": statistics.fmean(report["staleness_batches"] for report in runs["calm"]),
        "samples_retrained": sum(report["samples_retrained"] for report in runs["chaos"]),
        "updates_ignored": sum(report["updates_ignored"] for report in runs["chaos"]),
        "workers_lost": sum(report["workers_lost"] for report in runs["chaos"]),
        "masters_lost": sum(report["masters_lost"] for report in runs["chaos"]),
        "seconds": seconds,
        "met": {
            "mean_auc": min(means["calm"], means["chaos"]) >= MEAN_AUC,
            "within_of_plain": max(abs(each) for each in below.values()) <= FROM_PLAIN,
            "seconds": seconds <= WHOLE_S,
        },
    }


def show(found: dict[str, Any]) -> None:
    """Print the verdict for people."""
    for way in WAYS:
        below = f", {found['below_plain'][way]:+.4f} below plain" if way != "plain" else ""
        print(
            f"{way:5}  AUC {found['mean_auc'][way]:.4f} ± {found['deviation'][way]:.4f}, "
            f"log loss {found['logloss'][way]:.4f}{below}"
        )
    print(
        f"chaos: {found['workers_lost']} workers and {found['masters_lost']} masters lost, "
        f"{found['samples_retrained']} gradients computed twice, {found['updates_ignored']} repeats ignored; "
        f"calm: updates {found['staleness_batches']:.2f} batches late"
    )
    for target, met in found["met"].items():
        print(f"{'met   ' if met else 'MISSED'} {target}")
    print(f"{found['seconds']:.0f} s")


def main() -> None:
    """Print a row a seed, then means against the targets; with --json one last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", type=Path, help="click log to train on")
    parser.add_argument("evaluate", type=Path, help="click log to evaluate on")
    parser.add_argument(
        "--job", default=str(JOB), help="job file with schema and settings; its data is replaced"
    )
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one last line of JSON")
    options = parser.parse_args()

    spec = read_job(options.job)
    data = spec.data.replace(train=str(options.train.absolute()), evaluate=str(options.evaluate.absolute()))
    spec = spec.replace(data=data)
    check_data(spec)
    began_s = time.monotonic()
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    print(f"{spec.data.epochs} epochs, batches of {spec.data.batch_size}, {spec.workers.count} workers")
    print("seed   plain    calm   chaos   retrained  killed")
    with (
        ending_on_signals(),
        tempfile.TemporaryDirectory(prefix="rover-bench-") as directory,
        RunningStack(Home(Path(directory) / "stack"), settings=["hosts.orphan_after=5s"]) as stack,
    ):
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for way in WAYS:
                runs[way].append(run(stack, spec, way, seed))
            aucs = "  ".join(f"{runs[way][-1]['auc']:.4f}" for way in WAYS)
            last = runs["chaos"][-1]
            print(f"{seed:4}  {aucs}  {last['samples_retrained']:9}  {', '.join(last['struck'])}", flush=True)
    found = judge(runs, time.monotonic() - began_s)
    show(found)
    if options.json:
        each = {way: [report["auc"] for report in runs[way]] for way in WAYS}
        print(json.dumps({"bench": "quality", "job": spec.name, "aucs": each, **found}))


if __name__ == "__main__":
    main()
