"""Probes of running jobs: relief first, never more than what is free, never the same twice, always around one anchor."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_bus.brain.decisions.plans import GIB, Allocation, PlanSpace
from rover_bus.brain.decisions.probes import ProbeView, decide_probe, relieved_anchor
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.scaling import Limits
from rover_bus.brain.models.forms import ASYNCHRONOUS, SYNCHRONOUS
from rover_bus.brain.models.samples import Configurations, Observations

SPACE = PlanSpace((1, 2, 3, 4, 6, 8, 12, 16), (1, 2, 3, 4), (1, 2, 4, 8), (1, 2, 4, 8))
HELD = Allocation(
    workers=4,
    servers=2,
    worker_cores=2,
    server_cores=2,
    worker_memory_bytes=GIB,
    server_memory_bytes=4 * GIB,
)


def view(**changes: object) -> ProbeView:
    job = ProbeView(held=HELD, anchor=HELD, batch_size=512, free_cores=1000.0, limits=Limits(max_workers=16))
    return msgspec.structs.replace(job, **changes)


def seen(*allocations: Allocation) -> Observations:
    at = Configurations.from_list([a.configuration(512) for a in allocations])
    return Observations.of(at, np.full(len(at), 100.0))


def test_members_that_use_all_their_cores_get_more_of_them_before_anything_is_learnt() -> None:
    decision = decide_probe(view(servers_held_back=True), SPACE, ASYNCHRONOUS, seen(HELD))
    assert decision is not None
    assert decision.allocation == HELD.replace(server_cores=4)
    assert decision.reason is Reason.PROBE


def test_larger_counts_are_tried_where_there_is_room() -> None:
    known, tried = [HELD], list[Allocation]()
    for _ in range(6):
        decision = decide_probe(view(), SPACE, ASYNCHRONOUS, seen(*known))
        assert decision is not None
        known.append(decision.allocation)
        tried.append(decision.allocation)
    assert any(t.workers > HELD.workers for t in tried)
    assert any(t.servers > HELD.servers for t in tried)


def test_without_room_no_probe_holds_more_than_the_job_holds() -> None:
    decision = decide_probe(view(free_cores=0.0), SPACE, ASYNCHRONOUS, seen(HELD))
    assert decision is not None
    assert decision.allocation.cores <= HELD.cores


def test_nothing_new_that_fits_is_no_probe() -> None:
    only = PlanSpace((4,), (2,), (2,), (2,))
    assert decide_probe(view(), only, ASYNCHRONOUS, seen(HELD)) is None


def test_relief_moves_the_anchor_and_probes_do_not() -> None:
    assert relieved_anchor(view(workers_held_back=True), SPACE).worker_cores == 4
    wandered = HELD.replace(workers=8)
    assert relieved_anchor(view(held=wandered), SPACE) == HELD


@settings(deadline=None, max_examples=50)
@given(
    free=st.floats(0, 100), workers=st.sampled_from([1, 2, 4, 8]), back=st.booleans(), most=st.integers(1, 16)
)
def test_a_probe_is_new_fits_and_keeps_the_limits(free: float, workers: int, back: bool, most: int) -> None:
    held = HELD.replace(workers=min(workers, most))
    job = view(
        held=held,
        anchor=held,
        free_cores=free,
        workers_held_back=back,
        limits=Limits(max_workers=most, max_servers=3),
    )
    decision = decide_probe(job, SPACE, ASYNCHRONOUS, seen(held))
    if decision is not None:
        wanted = decision.allocation
        assert wanted != held
        assert wanted.cores <= held.cores + free + 1e-9
        assert 1 <= wanted.workers <= most
        assert 1 <= wanted.servers <= 3


def test_an_asynchronous_job_is_probed_upwards_where_there_is_room_and_else_any_way_that_fits() -> None:
    measured = [HELD]
    for _ in range(4):
        decision = decide_probe(view(), SPACE, ASYNCHRONOUS, seen(*measured))
        assert decision is not None
        probe = decision.allocation
        assert probe.workers >= HELD.workers
        assert probe.servers >= HELD.servers
        assert probe.worker_cores >= HELD.worker_cores
        assert probe.server_cores >= HELD.server_cores
        measured.append(probe)
    full = decide_probe(view(free_cores=0.0), SPACE, ASYNCHRONOUS, seen(HELD))
    assert full is not None
    assert full.allocation.cores <= HELD.cores


def test_a_synchronous_job_is_probed_with_more_members_and_else_any_way_that_fits() -> None:
    measured = [HELD]
    for _ in range(2):
        decision = decide_probe(view(), SPACE, SYNCHRONOUS, seen(*measured))
        assert decision is not None
        measured.append(decision.allocation)
        assert decision.allocation.members > HELD.members, "more cores than its members use teach nothing"
        assert decision.allocation.cores >= HELD.cores
    full = decide_probe(view(free_cores=0.0), SPACE, SYNCHRONOUS, seen(HELD))
    assert full is not None
    assert full.allocation.cores <= HELD.cores


def test_no_member_is_given_up_to_learn_from_where_fewer_cores_teach_as_well() -> None:
    """In a crowded cluster a worker that goes may not come back for long; cores are there again at once."""
    known = [HELD]
    while (decision := decide_probe(view(free_cores=0.0), SPACE, SYNCHRONOUS, seen(*known))) is not None:
        assert decision.allocation.workers >= HELD.workers
        assert decision.allocation.servers >= HELD.servers
        known.append(decision.allocation)
    assert len(known) > 2
    fixed = PlanSpace(SPACE.workers, SPACE.servers, (2,), (2,))
    decision = decide_probe(view(free_cores=0.0), fixed, SYNCHRONOUS, seen(HELD))
    assert decision is not None
    assert decision.allocation.workers < HELD.workers
