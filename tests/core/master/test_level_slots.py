"""A hot server gives its hottest slots away until its load is the mean's, and none that would only make another server hot."""

from __future__ import annotations

from rover_bus.master.slots import SLOTS, level


def totals(by_slot: list[int], loads: dict[int, float]) -> list[float]:
    return [sum(load for slot, load in loads.items() if by_slot[slot] == server) for server in range(4)]


def test_hot_slots_move_until_their_server_is_level() -> None:
    before = [0 if slot < 10 else 1 + slot % 3 for slot in range(SLOTS)]
    loads = {slot: (20.0 if slot < 4 else 1.0) for slot in range(40)}
    after = level(before, 0, [1, 2, 3], loads)
    assert totals(before, loads)[0] > 2 * sum(loads.values()) / 4
    assert max(totals(after, loads)) <= 1.15 * sum(loads.values()) / 4
    assert sum(one != other for one, other in zip(before, after, strict=True)) < 6


def test_a_slot_hotter_than_the_gap_stays() -> None:
    before = [slot % 2 for slot in range(SLOTS)]
    loads = {0: 50.0, 1: 1.0}
    assert level(before, 0, [1], {**loads, 1: 60.0}) == before
    assert level(before, 0, [1], {**loads, 2: 3.0})[0] == 1, (
        "the gap is 52: the other server has next to nothing"
    )
