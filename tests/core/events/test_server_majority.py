"""When a server of a cluster is left that has lost the others, and how rarely where all of them are as badly off."""

from __future__ import annotations

import pytest

from rover_bus.events import nats_majority
from rover_bus.events.nats_majority import ALONE_S, MOST_DOUBLED, ServerMajority


class Clock:
    """Seconds that a test sets."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(nats_majority, "time", made)
    return made


def left_after(majority: ServerMajority, known: int, clock: Clock) -> float:
    """Return the seconds until a server that knows so many is left, asked each second."""
    began_s = clock.now_s
    while not majority.is_to_be_left(known):
        assert clock.now_s < began_s + 10_000
        clock.now_s += 1.0
    return clock.now_s - began_s


@pytest.mark.parametrize(("told", "most", "alone"), [(3, 3, 1), (1, 3, 1), (1, 6, 3)])
def test_a_server_that_knows_no_majority_is_left_after_a_moment(
    clock: Clock, told: int, most: int, alone: int
) -> None:
    majority = ServerMajority(told)
    assert not majority.is_to_be_left(most)
    assert left_after(majority, alone, clock) == ALONE_S


@pytest.mark.parametrize(("told", "known"), [(1, 1), (3, 2), (3, 3), (6, 3), (3, 0)])
def test_a_server_with_a_majority_and_one_that_does_not_say_are_kept(
    clock: Clock, told: int, known: int
) -> None:
    majority = ServerMajority(told)
    for _ in range(1000):
        assert not majority.is_to_be_left(known)
        clock.now_s += 1.0


def test_a_server_that_is_alone_from_the_first_on_is_left_where_several_were_given(clock: Clock) -> None:
    assert left_after(ServerMajority(3), 1, clock) == ALONE_S


def test_routes_that_break_for_a_moment_leave_no_server(clock: Clock) -> None:
    majority = ServerMajority(3)
    for _ in range(100):
        for known in (3, 1, 1, 3):
            assert not majority.is_to_be_left(known)
            clock.now_s += 1.0


def test_where_no_server_has_a_majority_each_is_left_later_and_a_whole_cluster_ends_that(
    clock: Clock,
) -> None:
    majority = ServerMajority(3)
    waited = [left_after(majority, 1, clock) for _ in range(MOST_DOUBLED + 3)]
    assert waited[:4] == [ALONE_S, 2 * ALONE_S, 4 * ALONE_S, 8 * ALONE_S]
    assert waited[-1] == waited[-2] == ALONE_S * 2**MOST_DOUBLED
    assert not majority.is_to_be_left(3)
    assert left_after(majority, 1, clock) == ALONE_S
