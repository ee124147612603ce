"""Cores are an axis of a job's sizes only where every host holds members to theirs: the same job, with and without."""

from __future__ import annotations

import pytest
from life_of_jobs import GIB, Life

from rover_bus.events import host_facts
from rover_bus.events.identity import HostCapacity
from rover_bus.events.plan_facts import PlanProposed


def step(workers: float) -> float:
    return 3000.0 * min(workers, 2.5)


def sizes_asked_for(*hosts: bool) -> set[float]:
    """Cores a worker of every plan for workers that use up what they have, on a host for each word."""
    life = Life(cores=16.0)
    for number, binds in enumerate(hosts):
        capacity = HostCapacity(cores=16.0, memory_bytes=8 * GIB, cores_bind=binds)
        life.notice(
            host_facts.HostRegistered(
                host="h" if not number else f"h{number}", daemon="d2", capacity=capacity
            )
        )
    job = life.submit("j", step, workers=2, cores=1.0, max_cores=8.0, input_share=0.0)
    job.needs_cores = 2.6
    life.wait(240)
    return {fact.size.worker_cores for fact in life.facts if isinstance(fact, PlanProposed) and fact.size}


def test_where_they_bind_workers_that_use_up_theirs_get_more():
    assert max(sizes_asked_for(True)) > 1.0


@pytest.mark.parametrize("hosts", [(False,), (True, False), (False, True)])
def test_where_one_host_does_not_bind_them_they_stay_as_they_were_asked_for(hosts):
    assert sizes_asked_for(*hosts) == {1.0}


def test_a_host_that_comes_to_bind_makes_them_one():
    life = Life(cores=16.0)
    loose = HostCapacity(cores=16.0, memory_bytes=8 * GIB)
    life.notice(host_facts.HostRegistered(host="h", daemon="d", capacity=loose))
    life.submit("j", step, workers=2, cores=1.0, max_cores=8.0, input_share=0.0)
    assert not life.brain.state.jobs["j"].cores_bind
    life.notice(host_facts.HostRegistered(host="h", daemon="d", capacity=loose.replace(cores_bind=True)))
    assert life.brain.state.jobs["j"].cores_bind
