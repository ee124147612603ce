"""One mind: the live Brain and the simulator's policy {1+2+3}, given the same snapshot of a cluster, decide the same.

The snapshot: jobs that were measured at some sizes, the last of which they hold. The policy gets it as windows of telemetry, the
live Brain as the state that its log would have left.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.simulation.memory_laws import Heaps
from bench.simulation.policies import staged
from bench.simulation.port import Case, ClusterView, JobView, Menu, Setting, Size, Window
from rover_bus.brain import rules
from rover_bus.brain.choosing import choose_sizes
from rover_bus.brain.decisions.knapsack import choose
from rover_bus.brain.predicting import FamilyModel, fit_family, samples_of
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainState, KnownJob, TriedSize
from rover_bus.brain.wishes import Wish
from rover_bus.events import facts
from rover_bus.events.identity import HostCapacity
from rover_bus.events.job import DataSpec, JobSpec, RoleSpec, WorkersSpec

MENU = Menu(tuple(range(1, 17)), (1, 2, 3, 4), (1.0, 1.5, 2.0, 3.0, 4.0), (1.0, 1.5, 2.0, 3.0, 4.0))
MEASURED = [(2, 1, 1.0, 1.0), (4, 1, 1.0, 1.0), (4, 2, 1.0, 1.0), (4, 2, 2.0, 1.0), (4, 2, 2.0, 2.0)]
BATCH = 512.0
BUSY = 0.6  # of its cores, every member: nobody is held back
GIB = 1 << 30


class Truth:
    """One job of the fitted family: seconds a batch from five terms."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.terms = rng.uniform(0.5, 2.0, 5) * (2e-4, 4e-3, 2e-3, 2e-5, 5e-3)

    def speed(self, size: tuple[float, ...]) -> float:
        w, p, worker, server = size
        a, b, c, d, e = self.terms
        return float(w * BATCH / (a * BATCH / worker + b * w / (p * server) + c * w / p + d * BATCH / p + e))


def policy_says(truths: list[Truth], cores: float) -> dict[str, tuple[float, ...]]:
    policy = staged.Staged(Setting(MENU), frozenset({1, 2, 3}))
    policy.select = choose  # three jobs are chosen for exactly, as the live Brain does
    views = []
    for index in range(len(truths)):
        held = Size(*MEASURED[-1], 0.0, 0.0)  # type: ignore[arg-type]
        case: Any = Case(
            name=f"j{index}",
            family=f"f{index}",
            user="u",
            arrive_s=0.0,
            samples=1e9,
            max_workers=16,
            max_servers=4,
            asked=held,
            mode="async",
            batch_size=BATCH,
            large=False,
            truth=None,  # type: ignore[arg-type]
            seed=0,
            speed=1.0,
            worker_gib=0.0,
            server_gib=0.0,
            tables_gib=0.0,
            law=Heaps(0.5),
        )
        views.append(JobView(case, "running", held, held, 1e6, False, 0.0))
    view = ClusterView(views, cores, 1e9, cores - 12.0 * len(truths), 1e9, 1e9)
    policy.now = 0.0
    for job in views:
        policy.memories[job.case.name] = staged.Memory(job.case)
    for step, size in enumerate(MEASURED):
        for again in range(3):
            at_s = 30.0 * (3 * step + again)
            policy.observe([_window(i, t, size, at_s) for i, t in enumerate(truths)])
    wishes = policy.plan(view, 10_000.0, True)
    return {name: tuple(size[:4]) for name, size in wishes if size[:4] != MEASURED[-1]}


def _window(index: int, truth: Truth, size: tuple[float, ...], at_s: float) -> Window:
    speed, workers, servers = truth.speed(size), int(size[0]), int(size[1])
    return Window(
        job=f"j{index}",
        at_s=at_s,
        size=Size(workers, servers, size[2], size[3], 0.0, 0.0),
        throughput=speed,
        worker_rates=np.full(workers, speed / workers),
        server_busy=np.full(servers, BUSY),
        server_used_gib=1.0,
        worker_used_gib=0.0,
        samples=1e6,
        steady=True,
        worker_cores_used=BUSY * size[2],
        server_cores_used=BUSY * size[3],
    )


def known_job(index: int, truth: Truth) -> KnownJob:
    sizes = [
        facts.Size(workers=int(w), servers=int(p), worker_cores=lw, server_cores=lp)
        for w, p, lw, lp in MEASURED
    ]
    tried = [
        TriedSize(
            size=size,
            weight=3.0,
            mean=truth.speed(at),
            worker_cores=BUSY * at[2],
            server_cores=BUSY * at[3],
        )
        for size, at in zip(sizes, MEASURED, strict=True)
    ]
    spec = JobSpec(
        name=f"j{index}",
        program=["train"],
        data=DataSpec(train=f"t{index}", batch_size=int(BATCH)),
        workers=WorkersSpec(max_count=16, cores=1.0, max_cores=4.0),
        servers=RoleSpec(max_count=4, cores=1.0, max_cores=4.0),
    )
    last = MEASURED[-1]
    return KnownJob(
        uid=f"u{index}",
        spec=spec,
        plan=5,
        held=sizes[-1],
        clock_s=10_000.0,
        settled_s=0.0,
        recent=[truth.speed(last)] * 3,
        tried=tried,
        cores_used={"worker": BUSY * last[2], "ps": BUSY * last[3]},
        cores_bind=True,
        committed=1_000_000,
        total=1_000_000_000,
        server_loads=[{"ps-0": BUSY * last[3], "ps-1": BUSY * last[3]}],
    )


def brain_says(truths: list[Truth], cores: float) -> dict[str, tuple[float, ...]]:
    state = BrainState(hosts={"h": HostCapacity(cores=cores, memory_bytes=1 << 50, cores_bind=True)})
    state.jobs = {f"j{index}": known_job(index, truth) for index, truth in enumerate(truths)}
    answers = choose_sizes(list(state.jobs), state, {}, StandingModels(state))
    return {
        name: (a.size.workers, a.size.servers, a.size.worker_cores, a.size.server_cores)
        for name, a in answers.items()
        if isinstance(a, Wish)
    }


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("room", [1.1, 1.6, 4.0])
def test_the_live_brain_and_the_simulated_policy_choose_the_same_sizes(seed: int, room: float) -> None:
    truths = [Truth(10 * seed + index) for index in range(3)]
    cores = room * 12.0 * len(truths)
    policy, brain = policy_says(truths, cores), brain_says(truths, cores)
    assert brain == policy
    assert brain, "nothing was decided: the snapshot shows nothing"


def test_both_believe_the_same_of_every_size() -> None:
    truth = Truth(3)
    memory = staged.Memory(None)  # type: ignore[arg-type]
    memory.case = type("Case", (), {"mode": "async", "batch_size": BATCH})()  # type: ignore[assignment]
    for step, size in enumerate(MEASURED):
        memory.take_in(_window(0, truth, size, 30.0 * step))
    memory.refit()
    job = known_job(0, truth)
    live = fit_family(samples_of(job))
    assert isinstance(live, FamilyModel)
    space = staged.PlanSpace(*MENU).configurations(BATCH)
    assert memory.model is not None
    np.testing.assert_allclose(
        live.of(job.uid).predict(space).throughput,
        memory.model.predict(space).throughput,
        rtol=1e-9,
    )


def test_both_weigh_by_the_same_rules() -> None:
    assert staged.RULES == rules.CLUSTER
    assert staged.HEADROOM == rules.HEADROOM
