"""How much a worker may hold at the end of an epoch."""

import pytest

from rover_bus.events.identity import Member
from rover_bus.master.leasing import share_left
from rover_bus.master.watch import Liveness


def part(rates: list[float]) -> float:
    """What of all work the first of these workers does; the others have said how fast they are."""
    watch = Liveness(1.0)
    for worker, rate in enumerate(rates[1:], 1):
        watch.move(worker, rate, 0.0)
    return watch.part(0, rates[0], len(rates))


def test_who_holds_its_share_of_what_is_left_gets_no_more() -> None:
    assert share_left(remaining=12, held=6, part=0.5) == 0
    assert share_left(remaining=12, held=8, part=0.5) == 0


def test_who_holds_less_gets_the_difference() -> None:
    assert share_left(remaining=12, held=2, part=0.5) == 4


def test_a_faster_worker_has_the_larger_share() -> None:
    assert (part([3.0, 1.0]), part([1.0, 3.0])) == (0.75, 0.25)


def test_a_worker_of_unknown_or_absurd_speed_counts_as_any_other() -> None:
    assert part([5.0, 0.0, 1.0]) == pytest.approx(1 / 3)
    assert part([float("inf"), 1.0]) == part([float("nan"), 1.0]) == part([1.0, float("nan")]) == 0.5


def test_a_worker_alone_does_everything() -> None:
    assert part([0.0]) == part([7.0]) == 1.0


def test_a_workers_own_former_speed_and_that_of_who_is_gone_count_no_more() -> None:
    watch = Liveness(1.0)
    for worker, rate in ((0, 8.0), (1, 1.0), (2, 4.0), (1, 3.0)):
        watch.move(worker, rate, 0.0)
    watch.forget(Member("worker", 2, 1))
    assert watch.part(0, 1.0, 2) == pytest.approx(0.25)
    watch.look(1.0)
    assert watch.part(0, 1.0, 2) == 0.25
