"""`bench.leases` on a busy machine: a master that comes late is waited for."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from bench import leases, rig
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.deciding import ServiceProcess
from rover_bus.master.service import build_master


def test_clients_wait_for_a_late_master_and_measure_its_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def measure(broker: EmbeddedBroker) -> dict[str, Any]:
        bus = await rig.connect(broker.url, broker.secret, "master")
        await rig.open_job(bus, "j", workers=8)
        measuring = asyncio.create_task(leases.clients(broker.url, "j", 0, 1, 0.2))
        await asyncio.sleep(1.0)
        shell, _ = build_master(bus, "j", process=ServiceProcess("m", time.monotonic, lambda: 0))
        leading = asyncio.create_task(shell.run())
        result = await measuring
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        await bus.close()
        return result

    monkeypatch.setattr(leases, "CLIENTS", 8)
    with EmbeddedBroker(tmp_path / "broker") as broker:
        monkeypatch.setenv("BENCH_SECRET", broker.secret)
        result = asyncio.run(measure(broker))
    assert result["calls"] >= 4
    assert result["committed"] > 0
