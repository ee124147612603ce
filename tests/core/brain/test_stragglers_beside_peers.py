"""What a worker is compared with is the median and the scatter of the others, however many have the same rate."""

from __future__ import annotations

from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from rover_bus.brain.decisions.stragglers import WorkerPace, evolve_paces

RATES = st.lists(st.floats(0.0, 1e4) | st.sampled_from([5.0, 50.0, 100.0]), min_size=2, max_size=9)


def share_by_definition(rates: list[float], worker: int) -> float:
    peers = [rate for other, rate in enumerate(rates) if other != worker]
    middle = median(peers)
    scatter = 1.4826 * median([abs(each - middle) for each in peers])
    slow = middle > 0 and rates[worker] < middle - 4.0 * scatter
    return min(1.0, rates[worker] / middle) if slow else 1.0


@given(RATES)
def test_the_share_of_each_is_the_one_by_definition(rates: list[float]) -> None:
    paces = evolve_paces({}, dict(enumerate(rates)))
    assert [paces[at].share for at in range(len(rates))] == [
        share_by_definition(rates, at) for at in range(len(rates))
    ]


def test_a_worker_alone_is_compared_with_its_own_past() -> None:
    assert evolve_paces({0: WorkerPace(past=100.0)}, {0: 40.0})[0].share == 0.4
