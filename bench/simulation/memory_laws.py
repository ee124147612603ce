"""How tables grow while a job trains: four laws, so that a forecast which knows one of them is not right by construction.

Fed by a world's dice, feeds `port.Case`. Every law starts at a fifth of the final size (dense parts, warm rows) and ends at 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.simulation.port import TableLaw

_AT_START = 0.2


@dataclass(frozen=True)
class Heaps:
    """Distinct ids after a share of the samples follow Heaps' law, share ** exponent."""

    exponent: float

    def grown(self, share: float) -> float:
        return float(_AT_START + (1 - _AT_START) * share**self.exponent)


@dataclass(frozen=True)
class Steps:
    """Features are launched: at each share of `at` the tables jump by an equal part; between the jumps they grow slowly."""

    at: tuple[float, ...]
    jumps: float  # part of the growth that comes in jumps

    def grown(self, share: float) -> float:
        jumped = sum(share >= at for at in self.at) / len(self.at)
        # The last launch may lie at any share: all that is launched is there at the end.
        return float(_AT_START + (1 - _AT_START) * (self.jumps * jumped + (1 - self.jumps) * share))


@dataclass(frozen=True)
class Saturation:
    """A closed vocabulary fills up: 1 - e^(-share / scale)."""

    scale: float

    def grown(self, share: float) -> float:
        filled = np.expm1(-share / self.scale) / np.expm1(-1 / self.scale)
        return float(_AT_START + (1 - _AT_START) * filled)


@dataclass(frozen=True)
class TwoRegimes:
    """Another data source from `at` on: linear growth, then linear growth `times` as steep."""

    at: float
    times: float

    def grown(self, share: float) -> float:
        def climbed(to: float) -> float:
            return min(to, self.at) + self.times * max(to - self.at, 0.0)

        return float(_AT_START + (1 - _AT_START) * climbed(share) / climbed(1.0))


def draw_law(rng: np.random.Generator) -> TableLaw:
    """One of the four: Heaps for two families in five, each of the others for one in five."""
    kind, where, how = rng.random(3)
    if kind < 0.4:
        return Heaps(0.5 + 0.4 * how)
    if kind < 0.6:
        return Steps(tuple(np.sort(0.1 + 0.8 * rng.random(3)).tolist()), 0.4 + 0.4 * how)
    if kind < 0.8:
        return Saturation(0.1 + 0.3 * how)
    return TwoRegimes(0.3 + 0.4 * where, float(3.0 ** (2 * how - 1)))
