"""The plays: each starts a job on a stage, does something to it or lets it be, and returns what was heard.

Fed by heard.py; called by the command (__main__.py) by the names in PLAYS.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from bench import rig
from bench.living.heard import PATIENCE_S, Heard, pid_of, plans_of
from bench.living.jobs import (
    BUSY_SERVER,
    GROWING,
    JOB,
    LATE_SERVERS,
    LATE_WORKER,
    LOADS_SLOWLY,
    OWN_PROGRAM,
    SEES_SITE,
    SLOW_TO_LOAD,
    job_file,
)
from bench.living.stage import run_rover, running
from bench.processes import pss_bytes
from rover_bus.cli.demo.slowing import slowed
from rover_bus.cli.stack import RunningStack
from rover_bus.events import cgroup, facts, subjects
from rover_bus.events.streams import FACTS
from rover_bus.node.local.capacity import read_capacity
from rover_bus.node.local.layout import IncarnationDirectory, StartRecord

CYCLE_S = 0.5
MEBIBYTE = 1 << 20
SLOW_TO = 0.2
STALLED_TO = 0.03  # readers run ahead: a tenth of the time still serves more than two workers train
LATE_S = {"1": 15.0, "2": 30.0}  # by index of a server
PAIRS = 5
SHARE_OVER_S = 20.0  # two epochs: large leases at the begin of one, of single batches at its end


async def growth(seconds: float) -> dict[str, Any]:
    """Start with one worker, and let the Brain find the size."""
    async with running(job_file("max_count = 6")) as (_, heard):
        await heard.wait(facts.PlanSettled)
        began = time.monotonic()
        await asyncio.sleep(began + seconds - time.monotonic())
        return {"plans": plans_of(heard), "sizes": [fact.workers for fact in heard.all(facts.PlanApplied)]}


async def falls(seconds: float) -> dict[str, Any]:
    """S16: throughput falls after workers were added."""
    async with running(job_file("max_count = 4", heartbeat_ms=1500)) as (_, heard):
        _, plan = await heard.wait(facts.PlanProposed, _scales_up)
        await heard.wait(facts.PlanApplied, lambda fact: fact.plan == plan.plan)
        async with slowed(pid_of(heard, "ps-0"), STALLED_TO, CYCLE_S):
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
    """Whether a plan adds workers to several: a trial of a job of which little is known, or what its model chose.

    One worker trains no faster than a stalled server serves two: only what several lose by it is a fall.
    """
    held = plan.held.workers if plan.held is not None else 0
    return plan.step in ("probe", "scale") and 2 <= held < plan.workers


async def straggler(seconds: float) -> dict[str, Any]:
    """S18: one of two workers becomes five times slower."""
    async with running(job_file("count = 2", latency_ms=30)) as (_, heard):
        await heard.wait(facts.PlanSettled)
        await asyncio.sleep(SHARE_OVER_S + 5.0)
        began = time.monotonic()
        before = heard.granted(1, began - SHARE_OVER_S, began)
        async with slowed(pid_of(heard, "worker-1"), SLOW_TO, CYCLE_S):
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
    """Core shares of running members: two workers on half a core each, that may have a whole one, if there is room for these."""
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
            "plans": plans_of(heard),
        }


async def spares(seconds: float) -> dict[str, Any]:
    """A worker is added to a job whose program imports torch (or sleeps 2 s), without spares and with them."""
    found: dict[str, Any] = {}
    for most in (0, 2):
        plan = 'mode = "observe"'
        job = job_file(
            f"start = 1\nmax_count = 4\nspares = {most}", program=OWN_PROGRAM, plan=plan, latency_ms=40
        )
        async with running(job, LOADS_SLOWLY.format(ids=256), SLOW_TO_LOAD) as (stack, heard):
            await heard.wait(facts.MemberAdmitted, lambda fact: fact.member.name == "worker-0")
            async with asyncio.timeout(PATIENCE_S):
                while len(_spares(stack)) < most:  # noqa: ASYNC110 - files are waited for
                    await asyncio.sleep(0.1)
            pss = [round(pss_bytes(pid) / MEBIBYTE) for pid in _spares(stack)]
            began = time.monotonic()
            await asyncio.to_thread(run_rover, stack, "scale", JOB, "--workers", "2")
            desired, _ = await heard.wait(facts.MembersDesired, lambda fact: fact.count("worker") == 2)
            joined, _ = await heard.wait(facts.MemberAdmitted, lambda fact: fact.member.name == "worker-1")
            committed = await heard.first_commit(1)
            found[f"spares_{most}"] = {
                "command_s": round(desired - began, 2),
                "joined_s": round(joined - desired, 2),
                "first_commit_s": round(committed - desired, 2),
                "spares_pss_mb": pss,
            }
    cold, warm = (found[f"spares_{most}"]["first_commit_s"] for most in (0, 2))
    return {**found, "share_of_cold": round(warm / cold, 3)}


def _spares(stack: RunningStack) -> list[int]:
    """Return the processes of the spares that are ready."""
    found = [IncarnationDirectory(path.parent) for path in stack.home.node.glob("spares/*/ready")]
    started = [each.read("started", StartRecord) for each in found if not each.path.is_symlink()]
    return [each.pid for each in started if each]


async def first(seconds: float) -> dict[str, Any]:
    """Servers that come one after another: a job that waits for all of them, and one that begins with the first, in turn."""
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for _ in range(PAIRS):
        for begins in (False, True):
            found[begins].append(await _begin(begins))
    rows = [
        {
            "first_begins": begins,
            "commit_s": [round(each["commit_s"], 1) for each in seen],
            "median_s": round(statistics.median(each["commit_s"] for each in seen), 2),
            "even_after_s": round(statistics.median(each["even_s"] for each in seen), 1),
        }
        for begins, seen in found.items()
    ]
    shares = [now["commit_s"] / then["commit_s"] for then, now in zip(found[False], found[True], strict=True)]
    return {"runs": rows, "share_of_waiting": round(statistics.median(shares), 3)}


async def _begin(begins: bool) -> dict[str, float]:
    """One start: seconds from the submission to the first commit of a worker, and until the slots lie evenly."""
    job = job_file(
        "count = 2",
        more=SEES_SITE,
        servers="count = 3",
        plan=f"[moves]\nfirst_begins = {str(begins).lower()}",
        latency_ms=40,
    )
    async with running(job, site=LATE_SERVERS.format(late_s=LATE_S)) as (_, heard):
        submitted, _ = await heard.wait(facts.JobSubmitted)
        committed = min(await asyncio.gather(heard.first_commit(0), heard.first_commit(1)))
        even, _ = await heard.wait(facts.PlanSettled)
        return {"commit_s": committed - submitted, "even_s": even - submitted}


async def late(seconds: float) -> dict[str, Any]:
    """One of three workers starts late: the next plan rests on what the two did meanwhile, too."""
    job = job_file("start = 3\nmax_count = 4", more=SEES_SITE)
    async with running(job, site=LATE_WORKER.format(late_s=seconds)) as (_, heard):
        began, _ = await heard.wait(facts.PlanApplied)
        settled, _ = await heard.wait(facts.PlanSettled)
        decided, plan = await heard.wait(facts.PlanProposed, lambda fact: fact.plan > 1)
        return {
            "settled_s": round(settled - began, 1),
            "decided_s": round(decided - settled, 1),
            "workers": [plan.held.workers if plan.held else 0, plan.workers],
            "reason": plan.reason,
        }


async def servers(seconds: float) -> dict[str, Any]:
    """The number of servers is open: the only one is busy, so the Brain tries two; slots move meanwhile, and it is judged."""
    job = job_file("max_count = 4", program=OWN_PROGRAM, servers="max_count = 2", latency_ms=0)
    async with running(job, BUSY_SERVER.format(ids=24000, compute_s=0.02)) as (_, heard):
        await heard.wait(facts.PlanSettled)
        began = time.monotonic()
        with suppress(TimeoutError):
            _, more = await heard.wait(facts.PlanProposed, lambda fact: fact.servers > 1)
            await heard.wait(facts.PlanMeasured, lambda fact: fact.plan == more.plan)
        await asyncio.sleep(max(began + seconds - time.monotonic(), 0.0))
        return {
            "plans": plans_of(heard),
            "rollouts": [(fact.outcome, at_s) for at_s, fact in _timed(heard, began, facts.RolloutClosed)],
            "servers": [fact.servers for fact in heard.all(facts.PlanApplied)],
        }


def _timed(heard: Heard, began: float, kind: type[Any]) -> list[tuple[float, Any]]:
    return [(round(at - began, 1), fact) for at, fact in heard.facts if isinstance(fact, kind)]


async def memory(seconds: float, relief: bool = True) -> dict[str, Any]:
    """S10: a growing table under a limit."""
    job = job_file(
        "count = 2",
        program=OWN_PROGRAM,
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


async def priority(seconds: float) -> dict[str, Any]:
    """A job of higher priority comes while another has the machine, and goes again."""
    cores = read_capacity(
        cgroup.read_limits(cgroup.find())
    ).cores  # 1.4 of 2 for the first, 1.7 for the second, while the first one's server keeps 0.2
    server = f"count = 1\ncores = {cores / 10}"
    low = job_file(f"count = 3\ncores = {cores / 5}", servers=server)
    high = job_file(f"count = 3\ncores = {cores / 4}", servers=server, more="priority = 5")
    async with running(low) as (stack, heard):
        await heard.wait(facts.PlanSettled)
        await asyncio.sleep(6.0)
        began = time.monotonic()
        async with _beside(stack, high) as other:
            shrunk, _ = await heard.wait(facts.PlanApplied, lambda fact: fact.plan > 1)
            released = (await other.wait(facts.PlanProposed))[1].released_by
            started, _ = await other.wait(facts.PlanSettled)
            await asyncio.sleep(6.0)
        ended = time.monotonic()
        back, _ = await heard.wait(facts.PlanApplied, lambda fact: fact.plan > 2)
        return {
            "plans": plans_of(heard),
            "sizes": [fact.workers for fact in heard.all(facts.PlanApplied)],
            "released_by": released,
            "seconds_to_shrink": round(shrunk - began, 1),
            "seconds_to_start": round(started - began, 1),
            "seconds_to_be_back": round(back - ended, 1),
        }


async def _plan_of_a_second_job(stack: RunningStack) -> facts.PlanProposed:
    """The next plan that the Brain makes is the first one of another job."""
    async with _beside(stack, (stack.home.root.parent / "job.toml").read_text()) as heard:
        _, plan = await heard.wait(facts.PlanProposed)
    assert isinstance(plan, facts.PlanProposed)
    return plan


@asynccontextmanager
async def _beside(stack: RunningStack, job: str) -> AsyncIterator[Heard]:
    """Another job on the same stack, and an ear on it; cancelled at the end."""
    other = stack.home.root.parent / "second.toml"
    other.write_text(job.replace(f'"{JOB}"', '"second"', 1))
    run_rover(stack, "submit", str(other))
    bus = await rig.connect(stack.url, stack.secret_file.read_text().strip(), "bench-second")
    heard = Heard()
    try:
        await bus.follow(FACTS, [subjects.job_facts("second")], heard.fact, start="first")
        yield heard
        run_rover(stack, "cancel", "second")
        await heard.wait(facts.JobEnded)
    finally:
        await bus.close()


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


Play = Callable[[float], Awaitable[dict[str, Any]]]
PLAYS: dict[str, tuple[Play, float]] = {
    "growth": (growth, 60.0),
    "falls": (falls, 0.0),
    "straggler": (straggler, 0.0),
    "cores": (cores, 0.0),
    "spares": (spares, 0.0),
    "late": (late, 20.0),
    "first": (first, 0.0),
    "servers": (servers, 60.0),
    "memory": (memory, 75.0),
    "no-relief": (lambda seconds: memory(seconds, relief=False), 75.0),
    "away": (away, 60.0),
    "priority": (priority, 0.0),
}
