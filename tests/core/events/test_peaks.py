"""What is used in the busiest tenths of a second: bursts are seen that a mean hides, rare ones are not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from rover_bus.events import own_use
from rover_bus.events.own_use import read_own_seconds, take_own_peak
from rover_bus.events.peaks import LEAST_PERIODS, PERIOD_S, Peaks, follow


def noted(busy: list[float]) -> Peaks[str]:
    """Readings of one counter: cores in use in each period."""
    peaks, used_s = Peaks[str](), 0.0
    peaks.note({"a": used_s}, 10.0)
    for number, cores in enumerate(busy, 1):
        used_s += cores * PERIOD_S
        peaks.note({"a": used_s}, 10.0 + number * PERIOD_S)
    return peaks


def test_a_peak_is_what_bursts_use_and_no_mean_of_them() -> None:
    assert noted([4.0, 0.0, 0.0, 0.0] * 10).take()["a"] == pytest.approx(4.0)


def test_one_burst_of_fifty_is_no_peak() -> None:
    assert noted([0.5] * 49 + [8.0]).take()["a"] == pytest.approx(0.5)


def test_what_was_read_too_few_times_has_no_peak_and_nothing_is_told_twice() -> None:
    assert noted([1.0] * (LEAST_PERIODS - 1)).take() == {}
    peaks = noted([1.0] * LEAST_PERIODS)
    assert peaks.take() != {}
    assert peaks.take() == {}


def test_a_counter_that_is_new_or_went_back_counts_as_nothing() -> None:
    peaks = Peaks[str]()
    for number in range(LEAST_PERIODS + 1):
        peaks.note({"back": 9.0 - number, **({"new": 5.0} if number else {})}, float(number))
    assert peaks.take() == {"back": 0.0}


def test_readings_of_one_moment_tell_nothing() -> None:
    peaks = Peaks[str]()
    peaks.note({"a": 0.0}, 1.0)
    peaks.note({"a": 5.0}, 1.0)
    assert peaks.take() == {}


def test_this_process_is_followed_while_it_works_in_bursts() -> None:
    peaks = Peaks[str]()

    async def work() -> None:
        following = asyncio.create_task(follow(peaks, read_own_seconds))
        for _ in range(2 * LEAST_PERIODS):
            await asyncio.sleep(PERIOD_S)
            end_s = time.process_time() + 0.3 * PERIOD_S
            while time.process_time() < end_s:
                pass
        following.cancel()

    asyncio.run(work())
    assert peaks.take()[""] > 0.05


def test_a_process_with_children_says_nothing_of_its_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not in its counter while they live: a container cut to what it uses itself would starve them."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert take_own_peak(busy()) == 0.0
    finally:
        child.kill()
        child.communicate()
    monkeypatch.setattr(own_use, "TASKS", own_use.TASKS / "none")
    assert take_own_peak(busy()) == 0.0, "a kernel that does not say"


def test_a_process_without_children_says_its_peak() -> None:
    program = (
        "from rover_bus.events.own_use import take_own_peak\n"
        "from rover_bus.events.peaks import Peaks\n"
        "peaks = Peaks()\n"
        "for at in range(30): peaks.note({'': 2.0 * at}, float(at))\n"
        "print(take_own_peak(peaks))\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    if not list(own_use.TASKS.glob("*/children")):
        pytest.skip("this kernel does not list a process's children")
    assert float(said.stdout) == 2.0


def busy() -> Peaks[str]:
    peaks = Peaks[str]()
    for at in range(2 * LEAST_PERIODS):
        peaks.note({"": 2.0 * at}, float(at))
    return peaks
