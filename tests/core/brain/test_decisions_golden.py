"""Golden scripts: what each decision says in a small story, line by line. Rewritten on purpose only:

ROVER_REWRITE_GOLDEN=1 pytest tests/core/brain/test_decisions_golden.py
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from brain_states import choose_size

from rover_bus.brain.decisions.arbitration import Budget, Claim, arbitrate
from rover_bus.brain.decisions.hot_servers import ServerLoad, decide_hot_servers, find_hot_server
from rover_bus.brain.decisions.lifecycle import ChangeHistory, check_plan, judge_change, may_change
from rover_bus.brain.decisions.memory_limits import Means, MemoryState, decide_relief
from rover_bus.brain.decisions.optimus import Capacity, OptimusJob, allocate
from rover_bus.brain.decisions.placement import Node, place_jobs
from rover_bus.brain.decisions.plans import GIB, Allocation, PlanDecision, PlanSpace
from rover_bus.brain.decisions.scaling import JobView, Limits, decide_loss
from rover_bus.brain.decisions.stopping import StopRule, decide_stop
from rover_bus.brain.decisions.stragglers import WorkerPace, decide_stragglers, evolve_paces
from rover_bus.brain.decisions.warm_start import JobTraits, PastJob, decide_start
from rover_bus.brain.models.convergence import fit_loss_curve
from rover_bus.brain.models.forms import ASYNCHRONOUS
from rover_bus.brain.models.memory import fit_growth
from rover_bus.brain.models.samples import Configurations, NotEnough, Observations
from rover_bus.brain.models.throughput import ThroughputModel, fit_throughput

Script = Callable[[], Iterator[str]]
TRUTH = np.array([0.3 / 64, 0.1, 0.02, 0.2 / 64, 0.1])
GROWABLE = Allocation(workers=2, servers=1, worker_memory_bytes=GIB, server_memory_bytes=4 * GIB)


def model(samples: int = 16) -> ThroughputModel:
    rng = np.random.default_rng(2)
    at = Configurations.of(
        rng.integers(1, 13, samples),
        rng.integers(1, 5, samples),
        rng.choice([1.0, 2, 4], samples),
        rng.choice([1.0, 2, 4], samples),
        64,
    )
    fitted = fit_throughput(
        Observations.of(at, ASYNCHRONOUS.throughput(at, ASYNCHRONOUS.design(at) @ TRUTH)), ASYNCHRONOUS
    )
    assert not isinstance(fitted, NotEnough)
    return fitted


def shape(a: Allocation) -> str:
    return f"{a.workers}x{a.worker_cores:g}c + {a.servers}x{a.server_cores:g}c/{a.server_memory_bytes / GIB:.1f}GiB"


def say(decision: PlanDecision) -> str:
    scores = " ".join(f"{name}={value:.3g}" for name, value in decision.scores.items())
    return f"{decision.reason}: {shape(decision.allocation)} [{scores}]"


def scaling() -> Iterator[str]:
    space, predictor = PlanSpace(), model()
    job = JobView(held=GROWABLE, batch_size=64, remaining_samples=1e7, table_bytes=2 * GIB)
    for _ in range(6):
        decision = choose_size(job, predictor, space)
        yield say(decision)
        yield from (
            f"    not {shape(rival.allocation)}: {rival.reason} {rival.score:.3g}"
            for rival in decision.losers[:2]
        )
        if decision.allocation == job.held:
            break
        job = JobView(held=decision.allocation, batch_size=64, remaining_samples=1e7, table_bytes=2 * GIB)
    pinned = choose_size(
        JobView(held=GROWABLE, batch_size=64, remaining_samples=1e7),
        predictor,
        space,
        limits=Limits(workers=2),
    )
    yield f"pinned to 2 workers: {say(pinned)}"
    nearly_done = choose_size(JobView(held=GROWABLE, batch_size=64, remaining_samples=500), predictor, space)
    yield f"nearly done: {say(nearly_done)}"
    wasteful = GROWABLE.replace(workers=16, worker_cores=8.0, servers=1, server_cores=1.0)
    waste = choose_size(JobView(held=wasteful, batch_size=64, remaining_samples=1e7), predictor, space)
    yield f"too much of it: {say(waste)}"
    for kind, what in (("wasteful", wasteful), ("growable", GROWABLE)):
        for lost in (1, 4):
            plan = decide_loss(JobView(held=what, batch_size=64, remaining_samples=1e7), lost, predictor)
            yield f"{lost} workers of the {kind} one are lost: {say(plan)}"


def warm_start() -> Iterator[str]:
    small = Allocation(workers=1, servers=1)
    new = JobTraits(user="ada", dataset="clicks", family="dlrm", sizes={"samples": 1e9})
    past = [
        PastJob(
            job=f"run-{i}",
            traits=JobTraits(user="ada", dataset="clicks", family="dlrm", sizes={"samples": 1e9}),
            final=Allocation(
                workers=8 + i, servers=3, worker_cores=4, server_cores=4, server_memory_bytes=(8 + i) * GIB
            ),
            ended_at_s=i * 86_400.0,
        )
        for i in range(4)
    ]
    past.append(PastJob(job="other", traits=JobTraits(user="bob"), final=small, ended_at_s=4e5))
    past.append(PastJob(job="failed", traits=new, final=small, ended_at_s=4e5, completed=False))
    decision = decide_start(new, past, 5 * 86_400.0, small)
    yield f"{decision.reason}: {shape(decision.allocation)} {decision.detail}"
    cold = decide_start(JobTraits(user="eve"), past, 5 * 86_400.0, small)
    yield f"{cold.reason}: {shape(cold.allocation)} {cold.detail}"


def optimus() -> Iterator[str]:
    container = Allocation(workers=0, servers=0, worker_cores=2, server_cores=2)
    jobs = [
        OptimusJob(
            speed=lambda w, p, k=k: 100 * w / (1 + 0.05 * w + k * w / p),
            remaining=1e5 * (1 + k),
            container=container,
            young=k == 0.2,
        )
        for k in (0.1, 0.2, 0.4)
    ]
    decisions = allocate(jobs, Capacity(cores=48, memory_bytes=1))
    yield from (say(decision) for decision in decisions)
    for placement in place_jobs(
        [d.allocation for d in decisions], [Node(f"n{i}", 16.0, GIB) for i in range(4)]
    ):
        yield (
            " ".join(f"{s.node}:{s.workers}w{s.servers}p" for s in placement.shares)
            or f"{placement.missing} missing"
        )


def stragglers() -> Iterator[str]:
    paces: dict[int, WorkerPace] = {}
    windows = [{0: 100.0, 1: 98.0}] * 4 + [{0: 101.0, 1: 20.0}] * 15 + [{0: 100.0, 1: 99.0}] * 3
    for number, rates in enumerate(windows):
        paces = evolve_paces(paces, rates)
        said = [f"worker {r.worker} {r.reason} share {r.lease_share:.2f}" for r in decide_stragglers(paces)]
        yield f"window {number}: {'; '.join(said) or 'nobody'}"


def hot_servers() -> Iterator[str]:
    def window(hot: float, cold: float) -> list[ServerLoad]:
        return [ServerLoad(server=i, busy=busy) for i, busy in enumerate((hot, cold, cold))]

    held = Allocation(workers=8, servers=3, server_cores=2)
    for name, windows, limits in (
        ("one hot window", [window(0.5, 0.1), window(0.95, 0.1)], Limits()),
        ("one hot, others idle", [window(0.95, 0.1)] * 2, Limits()),
        ("all hot", [window(0.95, 0.9)] * 2, Limits()),
        ("all hot, no cores left", [window(0.95, 0.9)] * 2, Limits(cores=14.0)),
        ("all hot, servers pinned", [window(0.95, 0.9)] * 2, Limits(cores=14.0, servers=3)),
    ):
        remedy, hot = decide_hot_servers(windows, held, limits), find_hot_server(windows)
        moves = "nothing" if hot is None else f"slots move off server {hot}"
        yield f"{name}: {f'{remedy.reason} {shape(remedy.allocation)}' if remedy else moves}"


def memory_limits() -> Iterator[str]:
    n = np.arange(1.0, 21.0) * 6e4
    growth = fit_growth(n, 2 * GIB + n / 6e4 * GIB * 0.5)
    assert not isinstance(growth, NotEnough)
    for limit, means in (
        (64, Means(largest_server_bytes=64 * GIB, free_bytes=64 * GIB)),
        (13, Means(largest_server_bytes=64 * GIB, free_bytes=64 * GIB)),
        (
            13,
            Means(
                largest_server_bytes=64 * GIB,
                free_bytes=64 * GIB,
                slots_move=True,
                other_servers_free_bytes=40 * GIB,
            ),
        ),
        (13, Means(largest_server_bytes=13 * GIB, free_bytes=64 * GIB, servers_added=True)),
        (13, Means(largest_server_bytes=13 * GIB, free_bytes=64 * GIB, rows_compress=True)),
        (13, Means(largest_server_bytes=13 * GIB, free_bytes=0)),
    ):
        state = MemoryState(growth=growth, limit_bytes=limit * GIB, samples_per_s=1000, remaining_samples=1e7)
        reliefs = decide_relief({0: state}, means, "i7")
        said = [
            f"{r.reason} limit {r.limit_bytes / GIB:.1f} GiB, {r.seconds_left:.0f} s left, {r.incident}"
            for r in reliefs
        ]
        yield f"limit {limit} GiB: {'; '.join(said) or 'nothing'}"


def lifecycle() -> Iterator[str]:
    for history, now in (
        (ChangeHistory(), 0.0),
        (ChangeHistory(in_flight=True), 0.0),
        (ChangeHistory(settled_at_s=100), 120.0),
        (ChangeHistory(settled_at_s=100), 131.0),
        (ChangeHistory(settled_at_s=100, rollbacks=2), 131.0),
    ):
        yield f"at {now:g} s: {may_change(history, now) or 'may change'}"
    wanted = Allocation(workers=8, servers=2, worker_cores=2, server_cores=2, worker_memory_bytes=GIB)
    for limits in (
        Limits(),
        Limits(workers=4),
        Limits(max_workers=6),
        Limits(cores=16),
        Limits(memory_bytes=GIB),
    ):
        found = check_plan(wanted, limits)
        yield f"check: {f'{found[0]}: {found[1]}' if found else 'passes'}"
    for after, predicted, up in (
        ([150, 151, 149], 160, True),
        ([110, 111, 109], 160, True),
        ([80, 81, 79], 160, True),
        ([99, 98, 97], 98, False),
        ([70, 71, 69], 98, False),
        ([150, 151], 160, True),
    ):
        verdict = judge_change([100, 101, 99], after, predicted, up)
        yield f"measured {after}: {f'{verdict.reason}, keep {verdict.keep}' if verdict else 'wait'}"


def stopping() -> Iterator[str]:
    steps = np.arange(0, 400, 10.0)
    losses = 1 / (0.01 * steps + 1) + 0.3
    curve = fit_loss_curve(steps, losses)
    for rule, recent in (
        (StopRule(loss=0.4), [0.52, 0.51, 0.5]),
        (StopRule(loss=0.5), [0.51, 0.5, 0.49]),
        (StopRule(loss=0.2), [0.51, 0.5, 0.49]),
        (StopRule(least_decrease_per_step=1e-5), [0.5]),
        (StopRule(least_decrease_per_step=1e-2), [0.5]),
    ):
        answer = decide_stop(rule, curve, recent, 2.0)
        yield f"{rule}: stop {answer.stop} {answer.reason} in {answer.eta_s:.0f} s [{answer.low_90_s:.0f}, {answer.high_90_s:.0f}]"
    yield f"three losses: {decide_stop(StopRule(loss=0.4), fit_loss_curve([1, 2, 3], [3, 2, 1]), [3, 2, 1], 2.0).reason}"


def arbitration() -> Iterator[str]:
    def claim(job: str, workers: int, held: int | None, priority: int = 0, **more: object) -> Claim:
        one = Allocation(workers=1, servers=1)
        running = one.replace(workers=held) if held is not None else None
        return Claim(
            job=job,
            wanted=one.replace(workers=workers),
            least=one,
            held=running,
            priority=priority,
            **more,  # type: ignore[arg-type]
        )

    for name, claims, quotas in (
        ("room for all", [claim("a", 4, 2), claim("b", 4, 2)], {}),
        ("a higher one comes", [claim("a", 8, 8), claim("b", 9, None, priority=5)], {}),
        ("and takes all", [claim("a", 8, 8), claim("b", 14, None, priority=5)], {}),
        ("room again", [claim("a", 8, 0), claim("b", 2, 2, priority=5)], {}),
        ("risk goes first", [claim("a", 12, 6, score=9.0), claim("b", 12, 6, at_risk=True, score=1.0)], {}),
        ("a quota", [claim("a", 9, 2, tenant="t"), claim("b", 4, 2)], {"t": Budget(5, 1)}),
    ):
        yield name
        for grant in arbitrate(claims, Budget(16, 1), quotas):
            after = f" after {', '.join(grant.released_by)}" if grant.released_by else ""
            yield f"    {grant.job}: {grant.reason} {grant.allocation.workers} workers{after} {grant.detail}".rstrip()


SCRIPTS: tuple[Script, ...] = (
    scaling,
    warm_start,
    optimus,
    stragglers,
    hot_servers,
    memory_limits,
    lifecycle,
    stopping,
    arbitration,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_the_story_is_told_as_it_was(script: Script) -> None:
    path = Path(__file__).parent / "golden" / f"{script.__name__}.txt"
    told = "\n".join(script()) + "\n"
    if os.environ.get("ROVER_REWRITE_GOLDEN"):
        path.write_text(told)
    assert told == path.read_text()
