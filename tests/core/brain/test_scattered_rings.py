"""Rings on several hosts of which one could hold them: measured as that, and chosen where what one host has room for is slower."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rover_bus.brain.models.samples import Configurations
from rover_bus.brain.predicting import OverruledModel, place_of
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainState, KnownJob, TriedSize
from rover_bus.brain.v1 import Brain, ClusterHost, JobPlacement, Measurement, TrainingJob
from rover_bus.events.facts import Size
from rover_bus.events.identity import HostCapacity

BATCH = 128
DEAR, CHEAP = 0.4, 0.002  # seconds a batch that crossing hosts takes; one worker takes 0.2


def ring(name: str, family: str = "f", workers: int = 0) -> TrainingJob:
    return TrainingJob(name=name, family=family, batch_size=BATCH, workers=workers, max_workers=16)


def speed(placed: JobPlacement, crossing_s: float) -> float:
    count, hosts = len(placed.worker_hosts), len({*placed.worker_hosts})
    return BATCH / (0.2 / count + 0.01 * (count > 1) + crossing_s * (hosts > 1))


def run(
    brain: Brain, ticks: int, crossing_s: float, now_s: float = 0.0, left: Mapping[str, float] | None = None
) -> float:
    for _ in range(ticks):
        now_s += 60.0
        for name, placed in brain.placements.items():
            if placed.worker_hosts:
                ran = Measurement(job=name, seconds=30.0, samples_per_s=speed(placed, crossing_s))
                brain.observe(ran.replace(samples_done=1e9, samples_left=(left or {}).get(name, 1e7)), now_s)
        brain.decide(now_s)
    return now_s


def brain_on(hosts: int, *jobs: TrainingJob, memory: bytes = b"") -> Brain:
    brain = Brain(memory=memory)
    brain.set_hosts({f"h{i}": ClusterHost(cores=4) for i in range(hosts)}, 0.0)
    for job in jobs:
        brain.submit(job, 0.0)
        brain.decide(0.0)
    return brain


def taught(crossing_s: float) -> bytes:
    """What a run of the family showed that had a cluster of two hosts for itself."""
    brain = brain_on(2, ring("former"))
    brain.end("former", run(brain, 40, crossing_s))
    return brain.memory()


def in_fragments(crossing_s: float) -> Brain:
    """A cluster of which each host has one device left, and a ring that came then."""
    fixed = [ring(f"fixed{i}", "g", workers=3) for i in range(3)]
    brain = brain_on(3, *fixed, ring("one"), memory=taught(crossing_s))
    assert sorted(len(placed.workers_by_host) for placed in brain.placements.values()).count(1) >= 3
    return brain


def test_a_ring_that_crossing_hosts_would_slow_stays_on_one_until_another_has_room() -> None:
    brain = in_fragments(DEAR)
    now_s = 0.0
    for _ in range(15):
        now_s = run(brain, 1, DEAR, now_s)
        assert len(brain.placements["one"].worker_hosts) == 1
    brain.end("fixed1", now_s)
    run(brain, 15, DEAR, now_s)
    assert list(brain.placements["one"].workers_by_host.values()) == [4]


def test_a_ring_that_crossing_hosts_hardly_slows_takes_what_is_left_on_each() -> None:
    brain = in_fragments(CHEAP)
    run(brain, 15, CHEAP)
    assert brain.placements["one"].workers_by_host == {"h0": 1, "h1": 1, "h2": 1}


def test_what_a_size_showed_over_several_hosts_is_not_what_one_would_show() -> None:
    def row(workers: int, crosses: bool) -> TriedSize:
        seconds = 0.2 / workers + 0.01 * (workers > 1) + DEAR * crosses
        return TriedSize(
            Size(workers=workers, servers=0, worker_cores=1.0), 3.0, BATCH / seconds, crosses=crosses
        )

    rows = [row(1, False), row(2, False), row(2, True), row(3, True), row(8, True)]
    job = KnownJob("one", ring("one").spec(), held=rows[0].size, tried=rows, windows=9)
    state = BrainState(jobs={"one": job}, hosts={"h0": HostCapacity(cores=4, memory_bytes=1 << 40)})
    model = StandingModels(state).of(job)
    assert isinstance(model, OverruledModel)
    at = [place_of(job, Size(workers=w, servers=0, worker_cores=1.0)) for w in (2, 3, 4, 8)]
    said = model.predict(Configurations.from_list(at)).throughput
    truth = [BATCH / (0.2 / w + 0.01 + DEAR * (w > 4)) for w in (2, 3, 4, 8)]
    assert said == pytest.approx(truth, rel=0.2)


def test_a_ring_goes_in_one_step_to_what_was_measured_of_it_before() -> None:
    brain = brain_on(4, ring("one"))
    now_s = run(brain, 30, CHEAP)
    reached = len(brain.placements["one"].worker_hosts)
    assert reached > 8
    for i in range(15):
        brain.submit(ring(f"fixed{i}", "g", workers=1), now_s)
        brain.decide(now_s)
    now_s = run(brain, 30, CHEAP, now_s)
    assert len(brain.placements["one"].worker_hosts) == 1
    for i in range(15):
        brain.end(f"fixed{i}", now_s)
    sizes = [1]
    while sizes[-1] == 1 and len(sizes) < 12:
        now_s = run(brain, 1, CHEAP, now_s)
        sizes.append(len(brain.placements["one"].worker_hosts))
    assert sizes[-1] > 8, sizes


def test_of_two_rings_the_one_that_ends_soon_has_most_of_what_there_is() -> None:
    brain = brain_on(2, ring("long"), ring("short"), memory=taught(CHEAP))
    run(brain, 30, CHEAP, left={"long": 1e8})
    held = {name: len(placed.worker_hosts) for name, placed in brain.placements.items()}
    assert held["short"] > 2 * held["long"] > 0
