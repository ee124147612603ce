"""What the control plane costs a job: two workers, one server, heartbeats and profiles on, `rover up` as its own processes.

    python -m bench.overhead [--seconds 120] [--train FILE --job JOB.toml] [--batch 512] [--json]

Counted against the CPU seconds of workers and server (their whole lives, imports and all), from submission to the job's end:
  masters       CPU of both masters, leading and standby, from their birth
  daemon, shims, Brain                         CPU
  worker bus    CPU of the library's own thread in each worker (session: leases, heartbeats, profiles)
  worker reader CPU of the library's reading thread less what the click log's parsing takes, which any program pays
  blocked       wall time that the training threads stand still in `job.batches` outside server calls: until the first batch is
                there, for a lease, for a parsed batch
and their sum is held against the limit. A second sum, printed beside it, counts more than one would expect of "overhead":
  training CPU  what the training threads compute in `job.batches`
  server bus    CPU of each server's main thread: its life on the bus, imports too; its tables live in another thread
  up            CPU of `rover up` itself
Printed alone: the broker; joining, which is waiting for masters and servers to start.
Wall-clock pairs vary by 5 % on shared machines; nothing is asserted on them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.processes import Meter, running_stack
from rover_bus.cli.connection import find_stack, visit
from rover_bus.cli.home import Home
from rover_bus.cli.submission import ask_to_stop, follow_job, submit
from rover_bus.client.job_file import check_data, read_job
from rover_bus.client.programs import find_example
from rover_bus.events.bus import Bus
from rover_bus.events.facts import JobEnded
from rover_bus.events.job import JobSpec

ROOT = Path(__file__).parents[1]
LIMIT = 0.03
LOOK_S = 0.5
MOST_SAMPLES_PER_S = 100_000  # epochs enough for a machine as fast as this: the job is asked to stop before
COUNTED = ("master", "daemon", "shim", "brain")
REPORT = "BENCH_REPORT_DIRECTORY"


# -- in each worker ------------------------------------------------------------------------------------------------------------


class Clocks:
    """Clocks around the library's parts, in a worker's process: its methods stand in place of the library's own."""

    def __init__(self) -> None:
        import rover_bus.client as rover
        from rover_bus.client.data import ClickLog
        from rover_bus.client.job import Job

        self.threads: dict[str, float] = defaultdict(float)
        self.found: dict[str, float] = defaultdict(float)
        self._run_thread, self._read_batch = threading.Thread.run, ClickLog.batch
        self._hand_out, self._join = Job.batches, rover.join
        for owner, name, timed in (
            (threading.Thread, "run", lambda *given: self.run(*given)),
            (ClickLog, "batch", lambda *given: self.batch(*given)),
            (Job, "batches", lambda *given, **options: self.batches(*given, **options)),
            (rover, "join", self.join),
        ):
            setattr(owner, name, timed)

    def run(self, thread: threading.Thread) -> None:
        try:
            self._run_thread(thread)
        finally:
            self.threads[thread.name] += time.thread_time()

    def batch(self, log: Any, *arguments: Any) -> Any:
        began_s = time.thread_time()
        batch = self._read_batch(log, *arguments)
        self.found["parse_s"] += time.thread_time() - began_s
        return batch

    def join(self) -> Any:
        began_s = time.perf_counter()
        job = self._join()
        self.found["join_s"] = time.perf_counter() - began_s
        return job

    def batches(self, job: Any, source: Any, **options: Any) -> Iterator[Any]:
        batches, figures, found = self._hand_out(job, source, **options), job.figures, self.found
        before = figures.copy()
        while True:
            began_s, cpu_s, server_s = (
                time.perf_counter(),
                time.thread_time(),
                figures.pull_s + figures.push_s,
            )
            batch = next(batches, None)
            spent_s = time.perf_counter() - began_s - (figures.pull_s + figures.push_s - server_s)
            found["inside_s"] += spent_s
            found["inside_cpu_s"] += time.thread_time() - cpu_s
            if not found["first_s"]:
                found["first_s"] = spent_s
                before = figures.copy()
            if batch is None:
                break
            yield batch
        later = figures.since(before)
        found.update(wait_s=later.wait_s, read_s=later.read_s, samples=figures.samples)


def work() -> None:
    """Run the example's program with clocks around the library's parts; write what they say when it ends."""
    clocks = Clocks()
    signal.signal(signal.SIGTERM, lambda *_: None)  # it comes again while we write what we measured
    program = find_example("dlrm/train.py")
    sys.path.insert(0, str(program.parent))
    runpy.run_path(str(program), run_name="__main__")
    report = {**clocks.found, "threads": clocks.threads, "cpu_s": time.process_time()}
    Path(os.environ[REPORT], f"{os.getpid()}.json").write_text(json.dumps(report))


# -- the job from outside ------------------------------------------------------------------------------------------------------


def prepare(options: argparse.Namespace, directory: Path) -> JobSpec:
    """Return the job: the given one, or clicks in Criteo's shape made for it; endless, without evaluation."""
    spec = read_job(options.job)
    train = options.train
    if not train:
        train = directory / "clicks.tsv"
        make = [sys.executable, str(find_example("clicks.py")), str(train), "--rows", str(options.rows)]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    data = spec.data.replace(
        train=str(Path(train).absolute()),
        evaluate="",
    )
    if options.batch:
        data = data.replace(batch_size=options.batch)
    records = check_data(spec.replace(data=data))["train"]
    data = data.replace(epochs=math.ceil(MOST_SAMPLES_PER_S * options.seconds / records))
    return spec.replace(
        name="overhead",
        data=data,
        program=[sys.executable, "-m", "bench.overhead", "--worker"],
        directory=str(ROOT),
        environment={**spec.environment, REPORT: str(directory)},
        workers=spec.workers.replace(count=2),
        servers=spec.servers.replace(count=1),
    )


async def train(bus: Bus, spec: JobSpec, meter: Meter, seconds: float) -> JobEnded:
    """Let a job train for `seconds` after its workers have started, then stop it; the meter looks all the while."""

    async def look() -> None:
        while True:
            meter.look()
            await asyncio.sleep(LOOK_S)

    meter.begin()
    sequence = await submit(bus, spec)
    looking = asyncio.create_task(look())
    ending = asyncio.create_task(follow_job(bus, spec.name, sequence, lambda _: None))
    try:
        while meter.count("worker") < spec.workers.count and not ending.done():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        await asyncio.wait({ending}, timeout=seconds)
        if not ending.done():
            await ask_to_stop(bus, spec.name, "drain", "measured enough")
        return await ending
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


def run(spec: JobSpec, home: Home, seconds: float) -> Meter:
    meter = Meter(home)
    ended = visit(find_stack(str(home.root), "", ""), lambda bus: train(bus, spec, meter, seconds))
    if ended.state != "stopped":
        raise SystemExit(f"the job ended as {ended.state} ({ended.reason}): {ended.summary}")
    return meter


def count(meter: Meter, reports: list[dict[str, Any]]) -> dict[str, float]:
    """Return the seconds that count as overhead, by who spent them."""

    def threads(name: str) -> float:
        return sum(float(report["threads"].get(name, 0.0)) for report in reports)

    def total(name: str) -> float:
        return sum(float(report[name]) for report in reports)

    return {role: meter.spent_s(role) for role in COUNTED} | {
        "worker bus": threads("rover-session"),
        "worker reader": max(threads("rover-reader") - total("parse_s"), 0.0),
        "blocked": total("first_s") + total("wait_s") + total("read_s"),
    }


def sum_up(meter: Meter, reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what counts, what does not, and the share."""

    def total(name: str) -> float:
        return sum(float(report[name]) for report in reports)

    counted = count(meter, reports)
    more = {
        "training CPU": total("inside_cpu_s"),
        "server bus": meter.main_threads_s("ps"),
        "up": meter.spent_s("up"),
    }
    work_s = {"workers": total("cpu_s"), "servers": meter.spent_s("ps")}
    share = sum(counted.values()) / sum(work_s.values())
    return {
        "counted_s": counted,
        "more_s": more,
        "work_s": work_s,
        "share": share,
        "share_with_more": share + sum(more.values()) / sum(work_s.values()),
        "limit": LIMIT,
        "met": sum(counted.values()) <= LIMIT * sum(work_s.values()),
        "aside_s": {
            "broker": meter.spent_s("broker"),
            "parsing": total("parse_s"),
            "joining": total("join_s"),
            "starting": total("first_s"),
            "waiting for leases": total("wait_s"),
            "waiting for parsed batches": total("read_s"),
            "all wall time there, descheduled or not": total("inside_s"),
        },
        "samples": total("samples"),
    }


def show(found: dict[str, Any], seconds: float) -> None:
    """Print the account for people."""
    work_s = sum(found["work_s"].values())
    parts = ", ".join(f"{role} {spent:.1f} s" for role, spent in found["work_s"].items())
    print(f"{seconds:.0f} s of wall time, {found['samples']:,.0f} samples; CPU of the work: {parts}")
    print("counted        seconds   of the work")
    for name, spent in found["counted_s"].items():
        print(f"{name:14} {spent:7.2f}   {spent / work_s:.2%}")
    print(f"{'sum':14} {sum(found['counted_s'].values()):7.2f}   {found['share']:.2%}")
    for name, spent in found["more_s"].items():
        print(f"{name:14} {spent:7.2f}   {spent / work_s:.2%}")
    print(f"{'with these':14} {'':7}   {found['share_with_more']:.2%}")
    print("aside:", ", ".join(f"{name} {spent:.2f} s" for name, spent in found["aside_s"].items()))
    print(f"{'met   ' if found['met'] else 'MISSED'} {found['share']:.2%} of at most {LIMIT:.0%}")


def main() -> None:
    """Print what counts, by part; with --json one last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="of training")
    parser.add_argument(
        "--train", type=Path, help="click log; default: clicks in Criteo's shape, made for it"
    )
    parser.add_argument(
        "--job", default=str(ROOT / "examples/jobs/criteo.toml"), help="its schema and settings"
    )
    parser.add_argument("--rows", type=int, default=600_000, help="of the click log that is made")
    parser.add_argument("--batch", type=int, default=0, help="instead of the job file's batch size")
    parser.add_argument("--keep", type=Path, help="a new directory for the stack and its logs, which stays")
    parser.add_argument("--json", action="store_true", help="print one last line of JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
        return
    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="rover-bench-")
        directory = options.keep.absolute() if options.keep else Path(stack.enter_context(temporary))
        directory.mkdir(exist_ok=True)
        spec = prepare(options, directory)
        with running_stack(directory / "stack") as home:
            began_s = time.monotonic()
            meter = run(spec, home, options.seconds)
            seconds = time.monotonic() - began_s
        reports = [json.loads(path.read_text()) for path in directory.glob("*.json")]
    if len(reports) != spec.workers.count:
        raise SystemExit(f"{len(reports)} of {spec.workers.count} workers told what they measured")
    found = sum_up(meter, reports)
    print(f"{spec.workers.count} workers, {spec.servers.count} server, batches of {spec.data.batch_size}")
    show(found, seconds)
    if options.json:
        print(
            json.dumps({"bench": "overhead", "batch_size": spec.data.batch_size, "seconds": seconds, **found})
        )


if __name__ == "__main__":
    main()
