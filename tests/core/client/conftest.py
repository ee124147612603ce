"""A small click log, and the environment of a process that nobody started for a job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rover_bus.client import ClickLog, Schema
from rover_bus.events.job import DataSpec, JobSpec

ROWS = 1000


@pytest.fixture
def clicks(tmp_path: Path) -> ClickLog:
    """1000 rows; row 7 has no usable label, rows 0, 100, ... lack their dense value."""
    lines = [
        f"{'x' if row == 7 else row % 2},{'' if row % 100 == 0 else row / 10},user{row % 50}"
        for row in range(ROWS)
    ]
    path = tmp_path / "clicks.csv"
    path.write_text("\n".join(["label,age,user", *lines]) + "\n")
    return ClickLog(path, Schema(dense=("age",), categorical=("user",)))


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    spec = JobSpec(
        name="plain",
        program=["x"],
        data=DataSpec(train="clicks.csv", batch_size=32, epochs=2, seed=5),
        model={"width": 4},
    )
    path = tmp_path / "spec.json"
    path.write_bytes(msgspec.json.encode(spec))
    return path


@pytest.fixture(autouse=True)
def _outside_any_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("JOB", "ROLE", "INDEX", "INCARNATION", "URL", "SECRET_FILE", "SPEC_FILE", "SUMMARY_FILE"):
        monkeypatch.delenv(f"ROVER_{name}", raising=False)
    with np.errstate(all="raise"):
        yield
