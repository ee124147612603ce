"""A job shrinks for one that has nothing only where hosts have room for the newcomer once it has: sums do not say that."""

from __future__ import annotations

import pytest
from brain_states import cluster, runs, size, waits

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.granting import GrantedSize, grant_best
from rover_bus.brain.state import BrainState
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
