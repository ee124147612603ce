"""A storage that serves so many readers at a time: a queue that no reader's death can block."""

from __future__ import annotations

from pathlib import Path

import pytest

from rover_bus.client.storage import REST, SharedStorage, pause_of
from rover_bus.events.job import DataSpec


def booked(tmp_path: Path, places: int, at_s: list[float], latency_s: float) -> list[float]:
    storage = SharedStorage(tmp_path / "t.csv", places, latency_s)
    storage.open()
    try:
        return [storage.book(1000.0 + now_s) - 1000.0 for now_s in at_s]
    finally:
        storage.close()


def test_readers_beyond_the_places_wait_for_the_first_that_is_free(tmp_path: Path) -> None:
    assert booked(tmp_path, 2, [0.0, 0.0, 0.0, 1.0], 0.003) == pytest.approx(
        [0.003, 0.003, 0.003 * (2 + REST), 1.003]
    )


def test_several_processes_share_one_queue(tmp_path: Path) -> None:
    assert booked(tmp_path, 1, [50.0], 0.001) == pytest.approx([50.001])
    assert booked(tmp_path, 1, [50.0], 0.001) == pytest.approx([50.001 + 0.001 * (1 + REST)])


def test_bookings_of_a_former_boot_are_void(tmp_path: Path) -> None:
    assert booked(tmp_path, 1, [900_000.0, 0.0], 0.001) == pytest.approx([900_000.001, 0.001])


def test_storage_without_latency_costs_nothing() -> None:
    assert pause_of(DataSpec(train="t.csv")) is None
