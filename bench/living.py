"""The Brain beside real jobs on this machine: a real stack, real members, and what becomes of them.

    python -m bench.living growth|falls|straggler|cores|servers|memory|no-relief|away [--seconds N] [--json]

growth     an input-bound job (120 ms of storage latency a batch: four workers need half a core) starts with one worker: probes, a
           plan, its verdict
falls      the same; when the scale-up is live the server is throttled: the change is taken back, in how many windows (S16)
straggler  one of two workers is slowed five times by a SIGSTOP duty cycle: how long until it is found, and its share after (S18)
cores      workers use up their cores: they get more, without a restart
servers    a program keeps its only server busy, and nobody said how many there are to be: two are tried and judged
memory     a table grows under a memory limit: incidents, limits, kills (S10); `no-relief` is the same job with relief off
away       the Brain is killed for a while: lease rate and waits before, meanwhile and after; where the next plan resumed (S26)

Prints what happened, and with --json one last line. Everything is seen from outside: facts, samples, the job's log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from bench import rig
from rover_bus.cli.stack import RunningStack
from rover_bus.events import facts, subjects
from rover_bus.events.bus import Stored
from rover_bus.events.codec import decode, decode_any
from rover_bus.events.errors import RoverError
from rover_bus.events.log import Committed, Granted, LogBatch
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.profiles import WorkerProfile
from rover_bus.events.streams import FACTS, LOG, PROFILES

JOB = "living"
PATIENCE_S = 240.0
SLOW_TO = 0.2
STALLED_TO = 0.07  # readers run ahead: a fifth of the time is enough for all that storage gives
CYCLE_S = 0.5
SHARE_OVER_S = 20.0  # two epochs: large leases at the begin of one, of single batches at its end
GROWING = """
import numpy as np
import rover_bus.client as rover
from rover_bus.client.data import Schema, open_log
from rover_bus.ps.spec import Adagrad, Growing
from rover_bus.ps.store import BatchKey
IDS = {ids}
with rover.join() as job:
    log = open_log(job.data.train, Schema.parse(job.data.schema))
    batches = log.dataset(job.data.batch_size).batches
    parameters = job.parameters
    parameters.declare(Growing(name="grows", width=32, optimizer=Adagrad(0.1)))
    for batch in job.batches(log):
        first = (batch.epoch * batches + batch.number) * IDS
        ids = np.arange(first, first + IDS)
        key = BatchKey(batch.epoch, batch.number)
        parameters.push(key, {{"grows": np.ones((IDS, 32), np.float32)}}, pulled=parameters.pull({{"grows": ids}}))
"""

BUSY_SERVER = """
import os
import time
import numpy as np
import rover_bus.client as rover
from rover_bus.client.data import Schema, open_log
from rover_bus.ps.spec import Adagrad, Hashed
from rover_bus.ps.store import BatchKey
IDS = {ids}
with rover.join() as job:
    log = open_log(job.data.train, Schema.parse(job.data.schema))
    parameters = job.parameters
    parameters.declare(Hashed(name="table", rows=1 << 18, width=64, optimizer=Adagrad(0.1)))
    chance = np.random.default_rng(os.getpid())
    for batch in job.batches(log):
        ids = chance.integers(0, 1 << 30, IDS)
        pulled = parameters.pull({{"table": ids}})
        time.sleep({compute_s})  # an accelerator computes: no processor of this machine does
        parameters.push(BatchKey(batch.epoch, batch.number), {{"table": np.ones((IDS, 64), np.float32)}}, pulled=pulled)
"""


class Heard:
    """All facts and samples of the job, each with the monotonic second at which it came."""

    def __init__(self) -> None:
        self.facts: list[tuple[float, Any]] = []
        self.samples: list[tuple[float, WorkerProfile]] = []
        self.batches: list[tuple[float, LogBatch]] = []

    def fact(self, stored: Stored) -> None:
        with suppress(RoverError):
            self.facts.append((time.monotonic(), decode_any(stored.body)))

    def sample(self, stored: Stored) -> None:
        with suppress(RoverError):
            sample = decode_any(stored.body)
            if isinstance(sample, WorkerProfile):
                self.samples.append((time.monotonic(), sample))

    def log(self, stored: Stored) -> None:
        self.batches.append((time.monotonic(), decode(stored.body, LogBatch)))

    def all(self, kind: type[Any]) -> list[Any]:
        return [fact for _, fact in self.facts if isinstance(fact, kind)]

    async def wait(
        self, kind: type[Any], true: Callable[[Any], bool] = lambda fact: True
    ) -> tuple[float, Any]:
        """Wait for a fact. Raises TimeoutError saying what never came."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for at, fact in self.facts:
                if isinstance(fact, kind) and true(fact):
                    return at, fact
            if ended := self.all(facts.JobEnded):
                raise TimeoutError(f"the job is {ended[0].state} ({ended[0].detail}) before {kind.tag()}")
            await asyncio.sleep(0.1)
        raise TimeoutError(f"never came: {kind.tag()}")

    def granted(self, worker: int, since: float, until: float) -> float:
        """Share of the batches leased in a span of time that went to one worker."""
        counts: dict[int, int] = {}
        for at, batch in self.batches:
            for record in batch.records:
                if isinstance(record, Granted) and since <= at < until:
                    counts[record.worker] = counts.get(record.worker, 0) + sum(record.counts)
        return counts.get(worker, 0) / max(sum(counts.values()), 1)

    def commits(self, since: float, until: float) -> int:
        """Batches committed in a span of time."""
        done: dict[int, int] = {}
        counted = 0
        for at, batch in self.batches:
            for record in batch.records:
                if isinstance(record, Granted):
                    for number, first in enumerate(record.firsts):
                        done[record.first_token + number] = first
                elif isinstance(record, Committed):
                    for token, upto in zip(record.tokens, record.uptos, strict=True):
                        counted += (upto - done.get(token, upto)) if since <= at < until else 0
                        done[token] = upto
        return counted


@asynccontextmanager
async def running(job: str, program: str = "") -> AsyncIterator[tuple[RunningStack, Heard]]:
    """A stack with one submitted job, and an ear on it."""
    with tempfile.TemporaryDirectory(prefix="rover-living-") as name:
        folder = Path(name)
        _make_clicks(folder)
        (folder / "job.toml").write_text(job)
        (folder / "grows.py").write_text(program)
        with RunningStack(folder / "state", disposable=True) as stack:
            bus = await rig.connect(stack.url, stack.secret_file.read_text().strip(), "bench-living")
            heard = Heard()
            try:
                await _listen(bus, heard)
                _rover(stack, "submit", str(folder / "job.toml"))
                yield stack, heard
                _rover(stack, "cancel", JOB)
                await heard.wait(facts.JobEnded)
            finally:
                await bus.close()


async def _listen(bus: NatsBus, heard: Heard) -> None:
    await bus.follow(FACTS, [subjects.job_facts(JOB)], heard.fact, start="first")
    await bus.follow(PROFILES, ["rover.profile.>"], heard.sample)
    await bus.follow(LOG, [subjects.job_log(JOB)], heard.log, start="first")


def _make_clicks(folder: Path) -> None:
    generator = Path(__file__).parents[1] / "examples" / "clicks.py"
    command = [
        sys.executable,
        str(generator),
        "train.tsv",
        "eval.tsv",
        "--rows",
        "48000",
        "--eval-rows",
        "500",
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def _rover(stack: RunningStack, *words: str) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
    command = [sys.executable, "-m", "rover_bus.cli.entry", *words, "--dir", str(stack.home.root)]
    subprocess.run(command, check=False, capture_output=True, timeout=60, env=environment)


def job_file(
    workers: str,
    more: str = "",
    program: str = '"dlrm"',
    servers: str = "count = 1",
    plan: str = "",
    latency_ms: int = 120,
) -> str:
    """A job that waits for its storage, unless `latency_ms` is small: on two cores only such a job gains from more workers."""
    return f"""
name = "{JOB}"
program = {program}
{more}
[data]
train = "train.tsv"
batch_size = 128
epochs = 4000
read_latency = "{latency_ms}ms"
witness = false
[data.schema]
format = "criteo"
[model]
width = 8
[workers]
{workers}
[servers]
{servers}
[leases]
target = "2s"
heartbeat = "500ms"
[plan]
window = "2s"
cooldown = "10s"
{plan}
"""


class Throttle:
    """A SIGSTOP duty cycle on one process: it runs a share of the time."""

    def __init__(self, pid: int, share: float) -> None:
        self.pid, self.share = pid, share
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._cycle())

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    async def _cycle(self) -> None:
        with suppress(ProcessLookupError):
            while True:
                os.kill(self.pid, signal.SIGSTOP)
                await asyncio.sleep(CYCLE_S * (1 - self.share))
                os.kill(self.pid, signal.SIGCONT)
                await asyncio.sleep(CYCLE_S * self.share)


def pid_of(heard: Heard, place: str) -> int:
    lives = [fact for fact in heard.all(facts.MemberAdmitted) if fact.member.place == place]
    return int(lives[-1].pid)


# -- what is played ----------------------------------------------------------------------------------------------------


async def growth(seconds: float) -> dict[str, Any]:
    """Start with one worker, and let the Brain find the size."""
    async with running(job_file("max_count = 6")) as (_, heard):
        await heard.wait(facts.PlanSettled)
        began = time.monotonic()
        await asyncio.sleep(began + seconds - time.monotonic())
        return {"plans": _plans(heard), "sizes": [fact.workers for fact in heard.all(facts.PlanApplied)]}


async def falls(seconds: float) -> dict[str, Any]:
    """S16: throughput falls after workers were added."""
    async with running(job_file("max_count = 4")) as (_, heard):
        _, plan = await heard.wait(facts.PlanProposed, _scales_up)
        await heard.wait(facts.PlanApplied, lambda fact: fact.plan == plan.plan)
        async with Throttle(pid_of(heard, "ps-0"), STALLED_TO):
            _, judged = await heard.wait(facts.PlanMeasured, lambda fact: fact.plan == plan.plan)
            with suppress(TimeoutError):
                _, back = await heard.wait(facts.PlanRolledBack)
                await heard.wait(facts.PlanApplied, lambda fact: fact.plan == back.by_plan)
        backs = heard.all(facts.PlanRolledBack)
        return {
            "rolled_back": bool(backs),
            "constant": backs[0].constant if backs else "",
            "windows": judged.windows,
            "before": judged.before,
            "after": judged.after,
            "predicted": judged.predicted,
            "sizes": [fact.workers for fact in heard.all(facts.PlanApplied)],
        }


def _scales_up(plan: facts.PlanProposed) -> bool:
    return plan.step == "scale" and plan.held is not None and plan.workers > plan.held.workers


async def straggler(seconds: float) -> dict[str, Any]:
    """S18: one of two workers becomes five times slower."""
    async with running(job_file("count = 2", latency_ms=30)) as (_, heard):
        await heard.wait(facts.PlanSettled)
        await asyncio.sleep(SHARE_OVER_S + 5.0)
        began = time.monotonic()
        before = heard.granted(1, began - SHARE_OVER_S, began)
        async with Throttle(pid_of(heard, "worker-1"), SLOW_TO):
            at, found = await heard.wait(facts.StragglerFound)
            await asyncio.sleep(2.0 + SHARE_OVER_S)
            after = heard.granted(1, at + 2.0, at + 2.0 + SHARE_OVER_S)
        return {
            "found": str(found.member),
            "seconds_to_find": round(at - began, 2),
            "share_seen": found.share,
            "share_of_leases_before": round(before, 3),
            "share_of_leases_after": round(after, 3),
        }


async def cores(seconds: float) -> dict[str, Any]:
    """Core shares of running members: two workers on half a core each, that may have a whole one."""
    job = job_file("count = 2\ncores = 0.5\nmax_cores = 1", latency_ms=0)
    async with running(job) as (_, heard):
        await heard.wait(facts.PlanSettled)
        pids = [pid_of(heard, "worker-0"), pid_of(heard, "worker-1")]
        before = [sorted(os.sched_getaffinity(pid)) for pid in pids]
        _, plan = await heard.wait(facts.PlanSettled, lambda fact: fact.plan > 1)
        await asyncio.sleep(2.0)
        after = [sorted(os.sched_getaffinity(pid)) for pid in pids]
        with suppress(TimeoutError):
            await asyncio.wait_for(heard.wait(facts.PlanMeasured, lambda fact: fact.plan == plan.plan), 60.0)
        return {
            "cpus_before": before,
            "cpus_after": after,
            "same_processes": pids == [pid_of(heard, "worker-0"), pid_of(heard, "worker-1")],
            "plans": _plans(heard),
        }


async def servers(seconds: float) -> dict[str, Any]:
    """Nobody said how many servers: the only one is busy, so the Brain tries two; slots move meanwhile, and it is judged."""
    program = f'["{sys.executable}", "grows.py"]'
    job = job_file("max_count = 4", program=program, servers="max_count = 2", latency_ms=0)
    async with running(job, BUSY_SERVER.format(ids=24000, compute_s=0.02)) as (_, heard):
        await heard.wait(facts.PlanSettled)
        began = time.monotonic()
        with suppress(TimeoutError):
            _, more = await heard.wait(facts.PlanProposed, lambda fact: fact.servers > 1)
            await heard.wait(facts.PlanMeasured, lambda fact: fact.plan == more.plan)
        await asyncio.sleep(max(began + seconds - time.monotonic(), 0.0))
        return {
            "plans": _plans(heard),
            "rollouts": [(fact.outcome, at_s) for at_s, fact in _timed(heard, began, facts.RolloutClosed)],
            "servers": [fact.servers for fact in heard.all(facts.PlanApplied)],
        }


def _timed(heard: Heard, began: float, kind: type[Any]) -> list[tuple[float, Any]]:
    return [(round(at - began, 1), fact) for at, fact in heard.facts if isinstance(fact, kind)]


async def memory(seconds: float, relief: bool = True) -> dict[str, Any]:
    """S10: a growing table under a limit."""
    program = f'["{sys.executable}", "grows.py"]'
    job = job_file(
        "count = 2",
        program=program,
        servers='count = 1\nmemory = "220MB"',
        plan=f"relief = {str(relief).lower()}",
    )
    async with running(job, GROWING.format(ids=500)) as (_, heard):
        await heard.wait(facts.PlanSettled)
        began = time.monotonic()
        with suppress(TimeoutError):
            await asyncio.wait_for(heard.wait(facts.MemberLost), seconds)
        lost = [fact for fact in heard.all(facts.MemberLost) if fact.member.role == "ps"]
        applied = [fact for fact in heard.all(facts.PlanApplied) if fact.size is not None]
        return {
            "killed": bool(lost),
            "reason": lost[0].reason if lost else "",
            "incidents": sorted({fact.incident for fact in heard.all(facts.IncidentOpened)}),
            "limits_mb": [round(fact.size.server_memory_bytes / 1e6) for fact in applied],
            "used_mb": [round(fact.used_bytes / 1e6) for fact in heard.all(facts.IncidentOpened)],
            "seconds": round(time.monotonic() - began, 1),
        }


async def away(seconds: float) -> dict[str, Any]:
    """S26: the Brain is killed for `seconds`; equal spans before and after are compared with it."""
    async with running(job_file("max_count = 3", plan="")) as (stack, heard):
        await heard.wait(facts.PlanProposed, lambda fact: fact.step == "probe")
        with suppress(TimeoutError):
            await asyncio.wait_for(heard.wait(facts.PlanWithheld), 60.0)
        spans = [await _span(heard, seconds)]
        supervisor = stack._supervisor
        assert supervisor is not None
        with supervisor.pause:
            os.kill(stack.pids()["brain"], signal.SIGKILL)
            spans.append(await _span(heard, seconds))
        spans.append(await _span(heard, seconds))
        plan = await _plan_of_a_second_job(stack)
        around = statistics.mean([spans[0]["batches_per_s"], spans[2]["batches_per_s"]])
        return {
            "before": spans[0],
            "away": spans[1],
            "after": spans[2],
            "rate_ratio": round(spans[1]["batches_per_s"] / around, 4),
            "next_plan_resumed_from": plan.resumed_from,
            "next_plan_term": plan.brain_term,
        }


async def _plan_of_a_second_job(stack: RunningStack) -> facts.PlanProposed:
    """The next plan that the Brain makes is the first one of another job."""
    other = stack.home.root.parent / "second.toml"
    other.write_text((stack.home.root.parent / "job.toml").read_text().replace(f'"{JOB}"', '"second"', 1))
    _rover(stack, "submit", str(other))
    bus = await rig.connect(stack.url, stack.secret_file.read_text().strip(), "bench-second")
    heard = Heard()
    try:
        await bus.follow(FACTS, [subjects.job_facts("second")], heard.fact, start="first")
        _, plan = await heard.wait(facts.PlanProposed)
        _rover(stack, "cancel", "second")
        await heard.wait(facts.JobEnded)
    finally:
        await bus.close()
    assert isinstance(plan, facts.PlanProposed)
    return plan


async def _span(heard: Heard, seconds: float) -> dict[str, float]:
    began = time.monotonic()
    await asyncio.sleep(seconds)
    samples = [sample for at, sample in heard.samples if at >= began]
    waited = sum(sample.wait_s for sample in samples) / max(sum(sample.window_s for sample in samples), 1e-9)
    return {
        "batches_per_s": round(heard.commits(began, began + seconds) / seconds, 2),
        "waited_share": round(waited, 4),
        "failed_calls": float(
            len([1 for at, fact in heard.facts if at >= began and isinstance(fact, facts.WorkerFailed)])
        ),
    }


def _plans(heard: Heard) -> list[dict[str, Any]]:
    measured = {fact.plan: fact for fact in heard.all(facts.PlanMeasured)}
    ends = {fact.plan: "kept" for fact in heard.all(facts.PlanKept)}
    ends |= {fact.plan: "rolled back" for fact in heard.all(facts.PlanRolledBack)}
    rows = []
    for plan in heard.all(facts.PlanProposed):
        verdict = measured.get(plan.plan)
        rows.append(
            {
                "plan": plan.plan,
                "step": plan.step,
                "constant": plan.constant,
                "workers": plan.workers,
                "servers": plan.servers,
                "predicted": round(plan.predicted),
                "measured": round(verdict.after) if verdict else None,
                "end": ends.get(plan.plan, ""),
            }
        )
    return rows


PLAYS: dict[str, tuple[Callable[[float], Awaitable[dict[str, Any]]], float]] = {
    "growth": (growth, 60.0),
    "falls": (falls, 0.0),
    "straggler": (straggler, 0.0),
    "cores": (cores, 0.0),
    "servers": (servers, 60.0),
    "memory": (memory, 75.0),
    "no-relief": (lambda seconds: memory(seconds, relief=False), 75.0),
    "away": (away, 60.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.living", description=__doc__)
    parser.add_argument("play", choices=list(PLAYS))
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    play, usual = PLAYS[options.play]
    result = asyncio.run(_play(play, options.seconds or usual))
    for key, value in result.items():
        rows = value if isinstance(value, list) and value and isinstance(value[0], dict) else None
        for row in rows or []:
            print("  ".join(f"{name} {item}" for name, item in row.items()))
        if rows is None:
            print(f"{key:24} {value}")
    if options.json:
        print(json.dumps({"play": options.play, **result}))


async def _play(play: Callable[[float], Awaitable[dict[str, Any]]], seconds: float) -> dict[str, Any]:
    return await play(seconds)


if __name__ == "__main__":
    main()
