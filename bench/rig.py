"""What several benches share: clicks, a broker, masters as processes, a job that is opened by hand, CPU seconds of a process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from rover_bus.cli.span_settings import spans_leaving
from rover_bus.events import subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.codec import encode
from rover_bus.events.deciding import ServiceProcess
from rover_bus.events.facts import JobFact, JobSubmitted, PlanProposed
from rover_bus.events.job import DataSpec, JobSpec, LeaseSpec
from rover_bus.events.leadership import read_leader
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, FACTS, LEADERS, STREAMS

T = TypeVar("T")
SyncMode = Literal["default", "always"]


def run(program: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop where it is installed, as the services do."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(program)
    return uvloop.run(program)


def make_clicks(folder: Path, rows: int, eval_rows: int) -> None:
    """Write train.tsv and eval.tsv, clicks in Criteo's shape."""
    from rover_bus.client.programs import find_example

    sizes = ["--rows", str(rows), "--eval-rows", str(eval_rows)]
    command = [sys.executable, str(find_example("clicks.py")), "train.tsv", "eval.tsv", *sizes]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@contextlib.contextmanager
def broker(sync: SyncMode = "default") -> Iterator[EmbeddedBroker]:
    with (
        tempfile.TemporaryDirectory(prefix="rover-bench-") as directory,
        EmbeddedBroker(Path(directory) / "broker", sync=sync) as running,
    ):
        yield running


async def connect(url: str, secret: str, name: str) -> NatsBus:
    bus = await NatsBus.connect(url, secret=secret, name=name)
    await bus.ensure(STREAMS, BUCKETS)
    return bus


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_master(url: str, secret: str, job: str, index: int) -> subprocess.Popen[bytes]:
    """A master process for one job, without a daemon above it."""
    environment = {**os.environ, "BENCH_SECRET": secret}
    command = [sys.executable, "-m", "bench.rig", url, job, str(index)]
    return subprocess.Popen(command, env=environment)


async def open_job(
    bus: NatsBus,
    job: str,
    *,
    workers: int,
    servers: int = 0,
    batch_size: int = 100,
    epochs: int = 1,
    leases: LeaseSpec | None = None,
) -> None:
    """Submit a job and plan it by hand: no Brain plans it, and no server comes."""
    spec = JobSpec(
        name=job,
        program=["true"],
        data=DataSpec(train="none", batch_size=batch_size, epochs=epochs),
        leases=leases or LeaseSpec(max_batches=1),
    )
    facts: list[JobFact] = [
        JobSubmitted(job=job, spec=spec, uid=os.urandom(8).hex()),
        PlanProposed(job=job, plan=1, workers=workers, servers=servers, hosts=["bench"]),
    ]
    for fact in facts:
        await bus.append(FACTS, subjects.job_fact(job, fact.kind()), encode(fact))


async def leader_term(bus: NatsBus, job: str, above: int = 0, timeout_s: float = 20.0) -> int:
    """Wait for a leader of a term above `above`."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        entry = await bus.get(LEADERS, job)
        leader = read_leader(entry)
        if leader is not None and leader.term > above:
            return leader.term
        await asyncio.sleep(0.01)
    raise TimeoutError(f"no leader of {job} above term {above}")


async def _lead(url: str, job: str, index: int) -> None:
    from rover_bus.master.service import build_master

    bus = await connect(url, os.environ["BENCH_SECRET"], f"master-{index}")
    shell, _ = build_master(
        bus,
        job,
        process=ServiceProcess(
            f"master-{index}.{os.getpid()}", time.monotonic, lambda: int(time.time() * 1000)
        ),
    )
    await shell.run()


if __name__ == "__main__":
    with spans_leaving("master", f"master-{sys.argv[3]}", os.environ):
        run(_lead(sys.argv[1], sys.argv[2], int(sys.argv[3])))
