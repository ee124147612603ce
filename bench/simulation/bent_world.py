"""A world for development whose containers stretch bursts by another law than the Brain's (docs/design/0084).

It has W2's development tables, and bursts such as W2's test seeds have:

    python -m bench.simulation run --world bench.simulation.bent_world:Bent --develop --seeds 8 --keep FILE
"""

from __future__ import annotations

import os

import numpy as np

from bench.simulation.worlds import DATA_VARIABLE, W2, _Measured, _tables


class Bent(W2):
    """W2 with bursts of 0.25 to 0.5 of a step, and exponents of 0.8 to 1.2."""

    def truth(self, seed: int) -> _Measured:
        """One of the tables of development seeds, at a pace of its own."""
        rng = np.random.default_rng([seed, 77])
        models = _tables(os.environ.get(DATA_VARIABLE, ""))
        names = sorted(models)[0::2]
        points, batch = models[names[int(rng.integers(len(names)))]]
        pace, workers = float(rng.lognormal(0.0, 0.2)), float(rng.uniform(0.25, 0.5))
        bursts = workers, float(rng.uniform(0.5, 0.9) * (1 - workers))
        return _Measured(points, batch, pace, bursts, float(rng.uniform(0.8, 1.2)))
