"""Capacity and samples: two readings make a window."""

import os
from pathlib import Path

import pytest

from rover_bus.events.cgroup import Cgroup, CgroupLimits, CgroupUsage
from rover_bus.events.identity import HostCapacity, Member
from rover_bus.node.local import sampling
from rover_bus.node.local.capacity import capacity, parse_meminfo, read_capacity
from rover_bus.node.local.sampling import GroupUse, Reading, parse_busy_s, parse_stalled_s, profile

WORKER = ("demo", Member("worker", 1, 3), 77)
ROOM = HostCapacity(cores=2.0, memory_bytes=4 << 30)
PRESSURE = """some avg10=1.40 avg60=0.66 avg300=1.57 total=18232472
full avg10=0.00 avg60=0.00 avg300=0.00 total=0
"""


@pytest.mark.parametrize(
    ("limits", "affinity", "cores", "memory"),
    [
        (CgroupLimits(), 8, 8.0, 16 << 30),
        (CgroupLimits(), 3, 3.0, 16 << 30),
        (CgroupLimits(cores=1.5), 8, 1.5, 16 << 30),
        (CgroupLimits(memory_bytes=4 << 30), 8, 8.0, 4 << 30),
        (CgroupLimits(cores=64.0, memory_bytes=1 << 50), 8, 8.0, 16 << 30),
    ],
)
def test_capacity_is_the_least_of_machine_group_and_affinity(
    limits: CgroupLimits, affinity: int, cores: float, memory: int
) -> None:
    found = capacity(8, 16 << 30, limits, affinity, shared_memory_bytes=1 << 40)
    assert (found.cores, found.memory_bytes, found.shared_memory_bytes) == (cores, memory, memory)


def test_this_machine_has_a_core_and_some_memory() -> None:
    found = read_capacity(CgroupLimits())
    assert found.cores >= 1
    assert found.memory_bytes > 1 << 20


def test_meminfo_is_read_in_bytes() -> None:
    assert parse_meminfo("MemTotal:  2048 kB\nHugePages_Total:   3\nodd\n") == {
        "MemTotal": 2 << 20,
        "HugePages_Total": 3,
    }


def test_waiting_for_disks_and_stolen_time_are_not_busy() -> None:
    ticks = sampling.TICKS_A_SECOND
    line = f"cpu  {ticks} 0 {2 * ticks} {50 * ticks} {9 * ticks} {ticks} 0 {7 * ticks} 0 0\ncpu0 1 1 1 1\n"
    assert parse_busy_s(line) == 4.0


def test_pressure_is_the_total_of_some_and_none_without_a_file() -> None:
    assert parse_stalled_s(PRESSURE) == 18.232472
    assert parse_stalled_s("") is None


def test_a_window_is_the_difference_of_two_readings() -> None:
    before = Reading(
        10.0, 100.0, 1 << 30, CgroupUsage(5.0, 1 << 20, 100, 10), {"cpu": 1.0}, {WORKER: GroupUse(3.0, 1, 1)}
    )
    now = Reading(
        12.0, 103.0, 2 << 30, CgroupUsage(5.5, 2 << 20, 120, 15), {"cpu": 1.5}, {WORKER: GroupUse(4.0, 9, 2)}
    )
    window = profile("h", ROOM, CgroupLimits(), before, now)
    assert (window.window_s, window.cores_used, window.memory_used_bytes) == (2.0, 1.5, 2 << 30)
    assert (window.cpu_pressure, window.io_pressure, window.throttled) == (0.25, -1.0, 0.25)
    (process,) = window.processes
    assert (process.member, process.pid, process.cores_used, process.memory_bytes) == (WORKER[1], 77, 0.5, 9)


def test_what_our_group_limits_is_measured_in_our_group() -> None:
    before = Reading(0.0, 0.0, 1, CgroupUsage(5.0, 1 << 20))
    now = Reading(1.0, 9.0, 1, CgroupUsage(5.5, 2 << 20))
    window = profile("h", ROOM, CgroupLimits(cores=2.0, memory_bytes=4 << 30), before, now)
    assert (window.cores_used, window.memory_used_bytes) == (0.5, 2 << 20)


def test_counters_that_went_back_count_as_nothing() -> None:
    before = Reading(
        0.0, 9.0, 1, CgroupUsage(periods=9, periods_throttled=9), {"io": 5.0}, {WORKER: GroupUse(9.0, 1, 1)}
    )
    now = Reading(1.0, 1.0, 1, CgroupUsage(), {"io": 1.0}, {WORKER: GroupUse(1.0, 1, 1)})
    window = profile("h", ROOM, CgroupLimits(), before, now)
    assert (window.cores_used, window.throttled, window.io_pressure) == (0.0, 0.0, 0.0)
    assert window.processes[0].cores_used == 0.0


def test_a_reading_of_this_machine_knows_this_process(tmp_path: Path) -> None:
    me = ("demo", Member("worker", 0, 1), os.getpid())
    reading = sampling.read([me, ("demo", Member("worker", 1, 1), 1 << 30)], Cgroup(0), 0.0)
    assert set(reading.groups) == {me}
    assert reading.groups[me].memory_bytes > 1 << 20
    assert reading.busy_s > 0
