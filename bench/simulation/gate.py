"""The generator's acceptance gate: "static user" must reproduce what production published, before anything else runs.

Fed by development seeds, feeds the experiment's right to run (`algorithms.md §8`). Targets: CPU use 0.20 (workers) / 0.15
(servers), memory 0.14 /
0.13, completion 0.84 (small) / 0.67 (large).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

# figure: (published, accepted distance)
TARGETS = {
    "worker_cpu_use": (0.20, 0.03),
    "server_cpu_use": (0.15, 0.03),
    "worker_memory_use": (0.14, 0.02),
    "server_memory_use": (0.13, 0.02),
    "completion_small": (0.84, 0.05),
    "completion_large": (0.67, 0.06),
}


class GateClosed(Exception):
    """The generator does not look like production: nothing that runs on it would mean anything."""


def measure_gate(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means of the gate's figures over runs of "static user", one a development seed, at load 1.0."""
    return {name: float(np.nanmean([run[name] for run in runs])) for name in TARGETS}


def check_gate(measured: dict[str, float]) -> None:
    """Raises GateClosed that names every figure which is off."""
    off = [
        f"{name} is {measured[name]:.3f}, published {wanted:.2f} +- {near:.2f}"
        for name, (wanted, near) in TARGETS.items()
        if not abs(measured[name] - wanted) <= near
    ]
    if off:
        raise GateClosed(
            "; ".join(off)
            + ": refit the world's `habits` on development seeds, or say in its `ungated` why it is another cluster"
        )
