"""How much a worker may hold at the end of an epoch."""

from rover_bus.master.sizing import share_left


def test_who_holds_its_share_of_what_is_left_gets_no_more() -> None:
    assert share_left(remaining=12, held=6, rate=1.0, rates=[1.0, 1.0]) == 0
    assert share_left(remaining=12, held=8, rate=1.0, rates=[1.0, 1.0]) == 0


def test_who_holds_less_gets_the_difference() -> None:
    assert share_left(remaining=12, held=2, rate=1.0, rates=[1.0, 1.0]) == 4


def test_a_faster_worker_has_the_larger_share() -> None:
    assert share_left(remaining=12, held=0, rate=3.0, rates=[3.0, 1.0]) == 9
    assert share_left(remaining=12, held=0, rate=1.0, rates=[3.0, 1.0]) == 3


def test_a_worker_of_unknown_or_absurd_speed_counts_as_any_other() -> None:
    assert share_left(remaining=12, held=0, rate=5.0, rates=[5.0, 0.0, 1.0]) == 4
    assert share_left(remaining=12, held=0, rate=float("inf"), rates=[float("inf"), 1.0]) == 6
    assert share_left(remaining=12, held=0, rate=float("nan"), rates=[float("nan"), 1.0]) == 6


def test_a_worker_alone_may_hold_everything() -> None:
    assert share_left(remaining=12, held=4, rate=0.0, rates=[0.0]) == 8
