"""Recorded runs of the demo's job without a control plane: they take minutes, so the demo shows one that was made before.

Written by `python -m bench.unmanaged --record` into unmanaged_runs.json; read by the demo. A record counts only for the very same
job and kills: its key holds everything that the run depends on. `rover demo --compare` makes the run again instead.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rover_bus.cli.demo.chaos import Strike
from rover_bus.events.job import JobSpec

FILE = Path(__file__).with_name("unmanaged_runs.json")


def key_of(spec: JobSpec, strikes: Sequence[Strike], rows: int) -> str:
    """Return what a run depends on, in one line: data, model, size, and the points at which workers are killed."""
    kills = [f"{strike.at:.3f}" for strike in strikes if strike.target == "worker"]
    data = spec.data
    return (
        f"seed {data.seed}, {rows} rows x {data.epochs} epochs in batches of {data.batch_size}, "
        f"{1000 * data.read_latency_s:g} ms, model {json.dumps(spec.model, sort_keys=True)}, "
        f"{spec.workers.count} workers, {spec.servers.count} servers, killed at {' '.join(kills) or 'no time'}"
    )


def recall(key: str) -> dict[str, Any] | None:
    """Return the figures of a recorded run with `machine` beside them; None when there is none."""
    found: dict[str, Any] | None = _read().get(key)
    return found


def record(key: str, figures: dict[str, Any], machine: str) -> None:
    """Add a run to the file."""
    runs = _read() | {key: figures | {"machine": machine}}
    FILE.write_text(json.dumps(runs, indent=1, sort_keys=True) + "\n")


def _read() -> dict[str, Any]:
    runs: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return runs
