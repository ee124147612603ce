"""A broker of one's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rover_bus.events import nats_bus
from rover_bus.events.broker import EmbeddedBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "broker") as started:
        yield started


@pytest.fixture
def quick_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_bus, "TICK_S", 0.05)
