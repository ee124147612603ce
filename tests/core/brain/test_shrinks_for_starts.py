"""A job shrinks for one that has nothing only where hosts have room for the newcomer once it has: sums do not say that."""

from __future__ import annotations

import pytest
from brain_states import cluster, runs, size, waits

from rover_bus.brain.choosing import consider
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.granting import GrantedSize, grant_best
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainState, Change
from rover_bus.brain.wishes import Wish

WIDE = size(1, cores=2.0)  # what the newcomer begins with: a worker of two cores and a server of half a core


def crowded(hosts: str, workers: int) -> BrainState:
    """Each host holds so many workers of one core and a server: half a core is free on each."""
    jobs = [runs(host, size(workers, cores=1.0), host) for host in hosts]
    return cluster(*jobs, waits("new"), cores=workers + 1.0, hosts=hosts)


def granted(state: BrainState, wanted: Wish) -> GrantedSize:
    return grant_best("new", wanted, state, {})[0]


def test_no_job_shrinks_where_what_it_frees_lies_on_several_hosts() -> None:
    """A worker of each of two jobs is enough by sums, and no host has two cores by that: both shrank and grew again for hours."""
    given = granted(crowded("hi", workers=2), Wish(size=WIDE, step="start", constant=Reason.COLD_START))
    assert not given.shrinks
    assert given.left is not None
    assert given.left.constant == Reason.DOES_NOT_FIT_ANY_NODE


def test_what_finds_room_by_that_makes_another_shrink() -> None:
    wish = Wish(size=size(1, cores=1.0), step="start", constant=Reason.COLD_START)
    (shrunk,) = granted(crowded("hi", workers=2), wish).shrinks.values()
    assert shrunk[0].workers == 1


@pytest.mark.parametrize("hosts", ["h", "hi"])
def test_room_in_one_piece_is_made_by_one_job_of_one_host(hosts: str) -> None:
    given = granted(crowded(hosts, workers=3), Wish(size=WIDE, step="start", constant=Reason.COLD_START))
    (shrunk,) = given.shrinks.values()
    assert shrunk[0].workers == 1


def changing(state: BrainState, name: str) -> BrainState:
    """A change of this job is under way."""
    job = state.jobs[name]
    assert job.held is not None
    job.change = Change(plan=4, step="scale", before=job.held, after=job.held, predicted=0.0, since_s=0.0)
    return state


def test_no_job_shrinks_alone_where_another_would_have_to_and_is_in_a_change() -> None:
    """What the one made room with was not enough: it took it again, and so on at each look."""
    both = [runs(name, size(3, cores=1.0)) for name in ("one", "two")]
    wish = Wish(size=size(1, cores=3.0), step="start", constant=Reason.COLD_START)
    state = cluster(*both, waits("new"), cores=7.5)
    assert granted(state, wish).shrinks.keys() == {"one", "two"}
    given = granted(changing(state, "two"), wish)
    assert not given.shrinks
    assert given.left is not None
    assert given.left.constant == Reason.NO_CAPACITY


def test_the_newcomer_has_what_a_job_made_room_with_though_it_waits_for_another() -> None:
    state = crowded("hi", workers=3)
    job = state.jobs["h"]
    assert job.held is not None
    job.rest, job.held = job.held, job.held.replace(workers=1)
    assert _wish(state, "h") == Reason.ROOM_AGAIN
    state.jobs["new"].waits_for = ["h", "i"]
    assert _wish(state, "h") != Reason.ROOM_AGAIN
    state.jobs["new"].waits_for = ["i"]
    assert _wish(state, "h") == Reason.ROOM_AGAIN


def _wish(state: BrainState, name: str) -> object:
    found = consider(name, state, {}, StandingModels(state))
    return found.constant if isinstance(found, Wish) else None
