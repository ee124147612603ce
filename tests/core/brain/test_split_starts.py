"""A start splits its tables over its servers, as far as forecasts look after them or no host holds a server as it was asked for."""

from __future__ import annotations

import pytest
from brain_states import GIB, cluster, round_of, runs, size, speed, waits

from rover_bus.brain.granting import grant_best
from rover_bus.brain.state import BrainState, KnownJob, TriedSize
from rover_bus.brain.wishes import Wish

TABLES = 96 * GIB


def relative(servers: int) -> KnownJob:
    """A run of the family, measured with so many servers, each with its share of the tables."""
    job = runs("relative", size(4, servers, server_bytes=TABLES // servers))
    job.tried = [TriedSize(size=size(w, servers), weight=3.0, mean=speed(w)) for w in (1, 2, 4)]
    return job


def state_of(servers: int, host_gib: int) -> BrainState:
    job = waits("next")
    job.spec = job.spec.replace(servers=job.spec.servers.replace(start=1, memory_bytes=TABLES))
    return cluster(relative(servers), job, cores=32.0, hosts="hijklm", memory_bytes=host_gib * GIB)


@pytest.mark.parametrize("servers", [2, 3, 4])
def test_a_start_with_the_servers_that_its_family_was_measured_with_splits_its_tables(servers: int) -> None:
    wish = round_of(state_of(servers, host_gib=256))["next"]
    assert isinstance(wish, Wish)
    assert wish.size.servers == servers
    assert wish.size.server_memory_bytes == TABLES // servers
    assert all(other.servers * other.server_memory_bytes >= TABLES for other in wish.others)


def test_counts_whose_servers_fit_no_host_are_left_out() -> None:
    """A host holds a third of the tables, not half of them: the family ran with two servers too, on larger hosts that are gone."""
    state = state_of(4, host_gib=40)
    relative = state.jobs["relative"]
    relative.tried += [TriedSize(size=size(w, 2), weight=3.0, mean=3 * speed(w)) for w in (1, 2, 4)]
    wish = round_of(state)["next"]
    assert isinstance(wish, Wish)
    assert {each.servers for each in (wish.size, *wish.others)} <= {3, 4}, "two would be faster"
    assert wish.size.server_memory_bytes <= 40 * GIB


@pytest.mark.parametrize(("relief", "each"), [(True, TABLES // 4), (False, TABLES // 2)])
def test_without_forecasts_a_server_keeps_what_was_asked_for(relief: bool, each: int) -> None:
    """What it needs besides its tables is not known: with a share of them alone it could be killed again and again."""
    state = state_of(2, host_gib=256)
    job = state.jobs["next"]
    servers, plan = job.spec.servers.replace(start=2, memory_bytes=TABLES // 2), job.spec.plan
    job.spec = job.spec.replace(servers=servers, plan=plan.replace(relief=relief))
    relative = state.jobs["relative"]
    relative.tried += [TriedSize(size=size(w, 4), weight=3.0, mean=9 * speed(w)) for w in (1, 2, 4)]
    wish = round_of(state)["next"]
    assert isinstance(wish, Wish)
    assert wish.size.servers == 4, "it is much faster"
    assert wish.size.server_memory_bytes == each


@pytest.mark.parametrize(("most", "servers"), [(3, 3), (4, 4)])
def test_where_no_host_has_room_for_a_server_more_and_smaller_ones_start(most: int, servers: int) -> None:
    """Each host holds half of the tables, and has less free: two servers would wait for a host to become empty."""
    state = state_of(2, host_gib=64)
    job = state.jobs["next"]
    job.spec = job.spec.replace(servers=job.spec.servers.replace(max_count=most))
    state.host_load = dict.fromkeys(state.hosts, (0.0, 31.0 * GIB))
    wish = round_of(state)["next"]
    assert isinstance(wish, Wish)
    granted, _ = grant_best("next", wish, state, {})
    assert granted.size is not None
    assert granted.size.servers == servers
    assert granted.size.server_memory_bytes == TABLES // servers
