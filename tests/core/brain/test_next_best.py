"""What a job takes where hosts have no room for the size that was chosen: its best size among those that they have room for."""

from __future__ import annotations

from brain_states import cluster, runs, size

from rover_bus.brain.next_best import next_in_room
from rover_bus.brain.rooms import fits_hosts, moving_workers
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.brain.wishes import Wish
from rover_bus.events.facts import Size
from rover_bus.events.job import RoleSpec, WorkersSpec

WIDE = size(4, cores=4.0)


def crowded() -> tuple[KnownJob, BrainState]:
    """A job whose members may be wider, on a host that is full; the other host has room for narrow ones."""
    job, full = runs("job", size(2)), runs("full", size(12))
    job.cores_bind = True
    job.spec = job.spec.replace(
        workers=WorkersSpec(max_count=16, cores=0.5, max_cores=4.0),
        servers=RoleSpec(max_count=4, cores=0.5, max_cores=4.0),
    )
    return job, cluster(job, full, hosts="hi", cores=8.0)


def sizes_of(step: str = "scale", wanted: Size = WIDE) -> tuple[list[Size], KnownJob, BrainState]:
    job, state = crowded()
    wish = Wish(size=wanted, step=step, constant="x")  # type: ignore[arg-type]
    return next_in_room("job", job, wish, state, StandingModels(state)), job, state


def test_the_first_that_fits_grows_as_far_as_a_change_may() -> None:
    sizes, job, state = sizes_of()
    fitting = [each for each in sizes if fits_hosts(job, each, state)]
    assert fitting[0].workers == 4
    assert not fits_hosts(job, WIDE, state)


def test_servers_grow_as_far_as_they_can_once_the_workers_beside_them_have_moved() -> None:
    """All of a job stands on one full host, another one is free: its workers make room for the server, wherever that grows."""
    sizes, job, state = sizes_of(wanted=size(4, cores=4.0).replace(server_cores=4.0))
    job.slowest_start_s, job.total = 1.0, 10**9
    wide = [each for each in sizes if each.server_cores > 0.5]
    assert wide
    assert all(each.server_cores <= 1.5 for each in wide)
    fitting = next(each for each in wide if fits_hosts(job, each, state))
    assert {member.role for member in moving_workers(job, fitting, state)} == {"worker"}


def test_none_costs_more_than_what_was_chosen() -> None:
    wanted = size(3)
    sizes, job, _ = sizes_of(wanted=wanted)
    assert all(job.cores_of(each) <= job.cores_of(wanted) for each in sizes)


def test_what_is_no_choice_of_a_round_has_none() -> None:
    assert sizes_of("relief")[0] == []
