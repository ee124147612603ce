"""What members take of their hosts, kept as a sum: a placement must not add up all members of a cluster. Changes the state.

Fed by evolution whenever members, sizes or measured use of a job change; feeds `rooms`. A plan's new members count from when it is
proposed, so that two plans of one moment do not take the same room.
"""

from __future__ import annotations

from collections.abc import Iterable

from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.events.facts import PlanProposed, Size

Load = dict[str, tuple[float, float]]


def recount(state: BrainState, job: KnownJob) -> None:
    """Count a job's members where they run, each as what it is charged with, and what trains on beside them."""
    places = [(host, name.startswith("ps-")) for name, host in job.where.items()]
    load = _add({}, job, job.held, places)
    before = job.change.before if job.change is not None else job.held
    _replace(state, job, _add(load, job, before, [(host, False) for _, host in job.former]))


def reserve(state: BrainState, job: KnownJob, plan: PlanProposed) -> None:
    """Count the members that a plan places beside those that run."""
    places = [(host, False) for host in plan.worker_hosts] + [(host, True) for host in plan.server_hosts]
    if places and job.spec.has_servers:
        _replace(state, job, _add(dict(job.load), job, plan.size, places))
    elif places:  # a ring is started anew: no host carries both
        new = _add({}, job, plan.size, places)
        _replace(
            state, job, {host: _larger(job.load.get(host), new.get(host)) for host in {**job.load, **new}}
        )


def release(state: BrainState, job: KnownJob) -> None:
    """It is gone."""
    _replace(state, job, {})


def shares_hosts(size: Size | None) -> bool:
    """Whether members without a limit are among a size's: what these are counted with changes with their use."""
    return size is not None and not (size.worker_cores and (size.server_cores or not size.servers))


def _add(load: Load, job: KnownJob, size: Size | None, places: Iterable[tuple[str, bool]]) -> Load:
    if size is None:
        return load
    each = job.charge(size)
    worker = (each.worker_cores, float(each.worker_memory_bytes))
    server = (each.server_cores, float(each.server_memory_bytes))
    for host, serves in places:
        load[host] = _sum(load.get(host, (0.0, 0.0)), server if serves else worker)
    return load


def _replace(state: BrainState, job: KnownJob, load: Load) -> None:
    for host, (cores, size_bytes) in job.load.items():
        state.host_load[host] = _sum(state.host_load[host], (-cores, -size_bytes))
    for host, taken in load.items():
        state.host_load[host] = _sum(state.host_load.get(host, (0.0, 0.0)), taken)
    job.load = load


def _larger(a: tuple[float, float] | None, b: tuple[float, float] | None) -> tuple[float, float]:
    (cores, size_bytes), (others, other_bytes) = a or (0.0, 0.0), b or (0.0, 0.0)
    return max(cores, others), max(size_bytes, other_bytes)


def _sum(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return round(a[0] + b[0], 9), a[1] + b[1]
