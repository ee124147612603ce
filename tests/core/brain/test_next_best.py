"""What a job takes where hosts have no room for the size that was chosen: its best size among those that they have room for."""

from __future__ import annotations

import numpy as np
from brain_states import GIB, cluster, runs, size, speed

from rover_bus.brain.decisions.plans import PlanDecision
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.rounds import Contender
from rover_bus.brain.decisions.scaling import PlanFront
from rover_bus.brain.granting import GrantedSize, grant_best
from rover_bus.brain.next_best import next_best, next_in_room
from rover_bus.brain.rooms import fits_hosts, moving_workers
from rover_bus.brain.settling import settle
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainState, KnownJob, TriedSize
from rover_bus.brain.wishes import Wish, view_of
from rover_bus.events.facts import PlanProposed, PlanWithheld, Size
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


def shrunk(server_gib: int) -> tuple[GrantedSize, Wish]:
    """What a job of 8 workers gets, with a server on each of two hosts of 48 GiB, that is to give up one of them."""

    def of(workers: int, servers: int) -> Size:
        return size(workers, servers, server_bytes=2 * server_gib * GIB // servers)

    held, chosen = of(8, 2), of(2, 1)
    job = runs("job", held)
    job.where["ps-1"] = "i"
    state = cluster(job, runs("other", size(1), host="i"), hosts="hi", cores=9.0, memory_bytes=48 * GIB)
    offered = [job.charge(each) for each in (of(1, 1), chosen, of(1, 2), of(2, 2), of(6, 2), held)]
    front = PlanFront(
        offered, np.array([each.cores for each in offered]), np.array([1.0, 2.0, 1.4, 2.5, 4.0, 4.1])
    )
    decision = PlanDecision(
        allocation=offered[1], reason=Reason.BEST_VALUE_UNDER_CAPACITY, scores={"throughput": 2.0}
    )
    wish = Wish(
        size=chosen,
        step="scale",
        constant=decision.reason,
        measured=4.1,
        predicted=2.0,
        others=next_best(job, Contender(view=view_of(job), front=front), decision),
    )
    return grant_best("job", wish, state, {})


def test_a_shrink_to_servers_that_no_host_can_hold_is_another_one_that_gives_as_much() -> None:
    granted, wish = shrunk(server_gib=20)
    assert granted.size is not None, "what it holds stayed with it"
    assert (granted.size.workers, granted.size.servers) == (1, 2)
    assert granted.size.server_memory_bytes == 20 * GIB
    assert wish.constant == "best_value_under_capacity", "it is no gain of its own"


def test_a_shrink_that_a_host_can_hold_is_the_one_that_was_chosen() -> None:
    granted, _ = shrunk(server_gib=10)
    assert granted.size is not None
    assert (granted.size.workers, granted.size.servers) == (2, 1)


def cut_down(constant: str) -> list[object]:
    """What follows for a job of two workers that is to be four of twice the cores, where hosts have room for two such workers only,
    which were measured to be no faster.
    """
    job, wanted = runs("job", size(2)), size(4, cores=1.0)
    job.spec = job.spec.replace(servers=RoleSpec(count=1, cores=0.5))
    tried = (size(1), size(2), size(3), size(4), size(2, cores=1.0))
    job.tried = [TriedSize(size=each, weight=3.0, mean=speed(2)) for each in tried]
    others = [runs("h", size(9), "h"), *(runs(host, size(14), host) for host in "ijkl")]
    state = cluster(job, *others, hosts="hijkl")
    wish = Wish(size=wanted, step="probe", constant=constant, measured=speed(2), predicted=1.5 * speed(2))
    granted, _ = grant_best("job", wish, state, {})
    assert granted.size == size(2, cores=1.0)
    return list(settle("job", job, state, StandingModels(state), wish))


def test_growth_of_which_hosts_have_room_for_nothing_that_pays_is_not_made() -> None:
    """It was made four times in a life, and taken back each time: cores that bring nothing, where a worker more found no room."""
    (left,) = cut_down("more_throughput")
    assert isinstance(left, PlanWithheld)
    assert left.constant == "does_not_fit_any_node"
    assert isinstance(cut_down("probe")[0], PlanProposed), "what is to teach teaches all the same"
