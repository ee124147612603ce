"""The library's word on a worker that is replaced: its successor is another member, and answers for nothing that was before it."""

from __future__ import annotations

import pytest

from rover_bus.brain.v1 import Brain, ClusterHost, Measurement, TrainingJob

WINDOW_S = 30.0
SLOW = [30.0, 100.0, 100.0, 100.0]
WELL = [100.0] * 4


class Scheduler:
    """Holds one job of four workers, and carries out what the Brain asks for a few windows later."""

    def __init__(self, synchronous: bool, batch: int = 1) -> None:
        self.brain, self.now = Brain(at_once=False), 0.0
        self.brain.set_hosts({"h": ClusterHost(cores=64)}, 0.0)
        job = TrainingJob(name="ads", workers=4, max_servers=1, synchronous=synchronous, batch_size=batch)
        self.brain.submit(job, 0.0)
        self.brain.decide(0.0)
        self.brain.settled("ads", 0.0)

    def windows(self, rates: list[float], count: int) -> list[int]:
        """Let windows pass; return the workers whose replacement is asked for."""
        asked = []
        for _ in range(count):
            self.now += WINDOW_S
            sample = Measurement(
                job="ads", seconds=WINDOW_S, samples_per_s=sum(rates), worker_samples_per_s=rates
            )
            self.brain.observe(sample, self.now)
            self.brain.decide(self.now)
            asked += [each.index for each in self.brain.take_remedies() if each.kind == "replace_worker"]
        return asked


@pytest.mark.parametrize(("synchronous", "patience"), [(True, 6), (False, 14)])
def test_a_slow_worker_is_replaced_once(synchronous: bool, patience: int) -> None:
    """Its successor was taken for it until it had been fast for three windows, and was replaced as well."""
    job = Scheduler(synchronous)
    job.windows(WELL, 6)
    assert job.windows(SLOW, patience) == [0]
    job.brain.settled("ads", job.now)
    assert job.windows(WELL, 12) == []


def test_a_successor_that_is_slow_as_well_is_found_by_its_own_windows() -> None:
    """It is waited for twice as long: its place may make it slow."""
    job = Scheduler(synchronous=True)
    job.windows(WELL, 6)
    assert job.windows(SLOW, 6) == [0]
    job.brain.settled("ads", job.now)
    assert job.windows(SLOW, 8) == []
    assert job.windows(SLOW, 3) == [0]


def test_until_its_successor_is_there_the_slow_one_is_measured() -> None:
    job = Scheduler(synchronous=True)
    job.windows(WELL, 6)
    assert job.windows(SLOW, 6) == [0]
    assert job.windows(SLOW, 12) == [], "it is asked for once"


@pytest.mark.parametrize("batch", [100, 1_000])
def test_a_synchronous_job_is_measured_as_often_as_its_step_allows_however_many_share_it(batch: int) -> None:
    """A batch of a synchronous job is the whole job's. It was taken for a worker's, so that windows were as many times too long as
    there were workers: a straggler among 32 was found after ten minutes.
    """
    job = Scheduler(synchronous=True, batch=batch)
    job.windows(WELL, 6)
    known = job.brain._decider.state.jobs["ads"]
    assert known.step_s == pytest.approx(batch / sum(WELL), rel=0.01)
    assert known.windows == 6
    assert known.window_s == WINDOW_S


def test_one_whose_workers_have_a_batch_each_is_measured_over_a_few_of_them() -> None:
    job = Scheduler(synchronous=False, batch=1_000)
    job.windows(WELL, 8)
    assert job.brain._decider.state.jobs["ads"].window_s == pytest.approx(4 * 1_000 / WELL[0])


def test_a_server_that_outgrew_its_limit_is_followed_by_one_with_a_larger_limit() -> None:
    brain = Brain(at_once=False)
    brain.set_hosts({"h": ClusterHost(cores=64, memory_bytes=1 << 34)}, 0.0)
    spec = TrainingJob(name="ads", workers=4, max_servers=1, server_memory_bytes=1 << 30)
    brain.submit(spec, 0.0)
    first = brain.decide(0.0)["ads"]
    brain.killed("ads", 1.0)
    then = brain.decide(1.0)["ads"]
    assert then.server_memory_bytes == 2 * first.server_memory_bytes == 1 << 31
    assert then.reason == "oom_larger_server"
