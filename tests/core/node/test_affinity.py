"""Cores: pinned where they can be a member's own, shared where they cannot."""

import math

from hypothesis import given
from hypothesis import strategies as st

from rover_bus.node.affinity import assign_cpus, threads

ALLOWED = (0, 1, 2, 3)


def test_whole_cores_get_idle_cpus() -> None:
    assert assign_cpus(ALLOWED, {0: 1.0}, 2.0) == {1: 1.0, 2: 1.0}


def test_fractions_share_a_cpu_until_it_is_full() -> None:
    first = assign_cpus(ALLOWED, {}, 0.5)
    second = assign_cpus(ALLOWED, first, 0.5)
    third = assign_cpus(ALLOWED, {0: 1.0}, 0.5)
    assert (first, second, third) == ({0: 0.5}, {0: 0.5}, {1: 0.5})


def test_what_does_not_fit_is_not_pinned_because_pins_would_fight_the_scheduler() -> None:
    assert assign_cpus((0, 1), {0: 1.0}, 2.0) == {}
    assert assign_cpus((0, 1), {0: 1.0, 1: 0.8}, 0.5) == {}


def test_no_limit_means_no_pin() -> None:
    assert assign_cpus(ALLOWED, {}, 0.0) == {}


@given(st.lists(st.floats(0.05, 5.0), max_size=12), st.integers(1, 8))
def test_no_cpu_is_ever_given_out_more_than_once(wishes: list[float], cpus: int) -> None:
    allowed, loads = tuple(range(cpus)), dict[int, float]()
    for cores in wishes:
        given_cpus = assign_cpus(allowed, loads, cores)
        assert not given_cpus or math.isclose(sum(given_cpus.values()), cores, abs_tol=1e-6)
        for cpu, share in given_cpus.items():
            loads[cpu] = loads.get(cpu, 0.0) + share
    assert all(load <= 1 + 1e-6 for load in loads.values())


def test_threads_are_cores_rounded_up_and_one_for_a_master() -> None:
    assert threads(1.5, "worker")["OMP_NUM_THREADS"] == "2"
    assert threads(0.5, "ps")["OPENBLAS_NUM_THREADS"] == "1"
    assert threads(0.0, "master")["MKL_NUM_THREADS"] == "1"
    assert not [name for name in threads(0.0, "worker") if name.endswith("THREADS")]


def test_threads_that_wait_for_work_sleep() -> None:
    assert all(threads(cores, "worker")["OPENBLAS_THREAD_TIMEOUT"] == "4" for cores in (0.0, 1.0, 2.5))
