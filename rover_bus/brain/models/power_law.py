"""A figure that changes with the counts of members: a power law in both, shrunk towards a constant.

Fed by what was measured of members' use of cores; feeds `core_use` and `bursts`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rover_bus.brain.models.samples import Configurations, FloatArray

_EXPONENT_SD = 0.4
_NOISE = 0.1


@dataclass(frozen=True, eq=False)
class PowerLaw:
    """scale * w^a * p^b, fitted in logs with exponents shrunk towards 0. `logs` (3,): log scale, a, b."""

    logs: FloatArray

    @classmethod
    def fit(cls, at: Configurations, values: FloatArray) -> PowerLaw | None:
        """Fit values (n,) above 0; None without any."""
        return cls.of(at, values) if len(values) else None

    @classmethod
    def of(cls, at: Configurations, values: FloatArray) -> PowerLaw:
        """Fit values (n,) above 0, of which there is one at least."""
        rows, y = _rows(at), np.log(values)
        prior = np.diag([1e-6, _EXPONENT_SD**-2, _EXPONENT_SD**-2]) * _NOISE**2
        # Exponents bend around the middle of what was measured, not around one worker and one server.
        middle = np.array([0.0, *rows[:, 1:].mean(axis=0)])
        moved = rows - middle
        a, b, c = np.linalg.solve(moved.T @ moved + prior, moved.T @ y)
        return cls(np.array([a - b * middle[1] - c * middle[2], b, c]))

    def __call__(self, at: Configurations) -> FloatArray:
        """Values at configurations (n,)."""
        scale, by_workers, by_servers = self.logs
        logs = at.logs()
        return np.asarray(np.exp(scale + by_workers * logs[:, 0] + by_servers * logs[:, 1]))


def _rows(at: Configurations) -> FloatArray:
    return np.stack([np.ones(len(at)), np.log(at.workers), np.log(at.ps)], axis=1)
