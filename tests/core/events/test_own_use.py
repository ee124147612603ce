"""What a process says that it uses: it grows with what it holds and with what it computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rover_bus.events import own_use
from rover_bus.events.own_use import read_own_use

HELD = 64 << 20


def test_memory_that_is_held_and_work_that_is_done_are_counted() -> None:
    before = read_own_use()
    held = bytearray(b"x") * HELD
    between = read_own_use()
    assert between.memory_bytes >= before.memory_bytes + HELD // 2
    while (after := read_own_use()).processor_s < between.processor_s + 0.05:
        sum(range(10_000))
    assert after.memory_bytes >= before.memory_bytes + HELD // 2
    del held


def test_a_system_that_says_nothing_of_memory_has_no_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(own_use, "STATUS", str(tmp_path / "none"))
    assert read_own_use().memory_bytes == 0
