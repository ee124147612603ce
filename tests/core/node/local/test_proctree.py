"""What /proc says of processes."""

import os

from rover_bus.node.local import proctree
from rover_bus.node.local.shim import WATCH_MAX_S, WATCH_MIN_S, next_look_s

LINE = (
    b"77 (a) b (c) S 5 77 70 0 -1 4194304 1 0 0 0 300 25 0 0 20 0 3 0 178202 1000 200 18446744073709551615\n"
)


def test_a_name_full_of_brackets_does_not_confuse_the_parser() -> None:
    assert proctree.parse_stat(LINE) == (5, 77, 70, 325, 3, 178202)


def test_zombies_and_foreign_bytes_are_no_living_process() -> None:
    assert proctree.parse_stat(LINE.replace(b" S ", b" Z ")) is None
    assert proctree.parse_stat(b"") is None


def test_descendants_are_found_over_any_depth_and_nobody_else() -> None:
    parents = {1: 0, 2: 1, 3: 2, 4: 2, 5: 1, 6: 4}
    processes = {pid: (parent, pid, pid, 0, 1, 1) for pid, parent in parents.items()}
    assert sorted(proctree.descendants(processes, 2)) == [3, 4, 6]
    assert proctree.descendants(processes, 6) == []


def test_this_process_lives_and_holds_memory() -> None:
    me = os.getpid()
    assert me in proctree.snapshot()
    assert proctree.start_ticks(me) > 0
    rough, exact = proctree.memory_bytes([me]), proctree.exact_memory_bytes([me])
    assert exact > 1 << 20
    assert rough > 1 << 20


def test_who_is_gone_has_no_age_and_no_memory() -> None:
    assert proctree.start_ticks(1 << 30) == 0
    assert proctree.memory_bytes([1 << 30]) == 0


def test_memory_is_looked_at_the_sooner_the_less_is_left() -> None:
    limit = 64 << 30
    assert next_look_s(0, limit) == WATCH_MAX_S
    assert next_look_s(limit - (1 << 30), limit) == 0.5
    assert next_look_s(limit, limit) == next_look_s(2 * limit, limit) == WATCH_MIN_S
