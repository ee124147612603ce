"""What is read ahead: nothing is lost, swapped or waited for in vain between two threads, and its depth is a time."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from rover_bus.client import ahead
from rover_bus.client.ahead import LEAST, MOST, Ahead


class Clock:
    def __init__(self) -> None:
        self.now = 1.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(ahead.time, "monotonic", made.monotonic)
    return made


@pytest.fixture
def items() -> Iterator[Ahead[int]]:
    made: Ahead[int] = Ahead()
    yield made
    made.drop()


def produce(items: Ahead[int], count: int) -> threading.Thread:
    def run() -> None:
        for number in range(count):
            items.put(number)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("seed", range(5))
def test_everything_comes_once_and_in_order_however_the_two_meet(items: Ahead[int], seed: int) -> None:
    chance = random.Random(seed)
    thread = produce(items, 3000)
    taken: list[int] = []
    while len(taken) < 3000:
        item = items.poll() if chance.random() < 0.5 else items.get()
        taken += [] if item is None else [item]
    thread.join(10.0)
    assert not thread.is_alive()
    assert taken == list(range(3000))
    assert items.poll() is None


def use(items: Ahead[int], clock: Clock, seconds: float, times: int) -> None:
    """Take items, each used for so long."""
    for _ in range(times):
        items.put(0)
        assert items.poll() is not None
        clock.now += seconds
    assert items.poll() is None


def test_a_fast_loop_has_many_laid_up_and_a_slow_one_few(items: Ahead[int], clock: Clock) -> None:
    assert LEAST < items.depth < MOST
    use(items, clock, 0.001, 40)
    assert items.depth == MOST
    use(items, clock, 0.030, 40)
    assert items.depth == 5
    use(items, clock, 2.0, 40)
    assert items.depth == LEAST


def test_waiting_for_an_item_is_not_use(items: Ahead[int], clock: Clock) -> None:
    use(items, clock, 0.001, 40)
    clock.now += 60.0  # nothing was there
    use(items, clock, 0.001, 1)
    assert items.depth == MOST


def test_a_producer_that_waits_goes_on_when_nothing_is_wanted_any_more(items: Ahead[int]) -> None:
    thread = produce(items, 100)
    assert items.get() == 0
    items.drop()
    thread.join(10.0)
    assert not thread.is_alive()


def test_the_producer_sleeps_until_half_is_used(items: Ahead[int], clock: Clock) -> None:
    thread = produce(items, 100)
    depth = items.depth
    while not items._sated:
        pass
    for taken in range(depth - depth // 2 - 1):
        assert items.get() == taken
    assert items._sated
    assert len(items._items) == depth // 2 + 1, "nobody was woken for one item"
    items.drop()
    thread.join(10.0)
