"""Jobs without servers: their workers form a ring, and how many hosts it spans is what the column `ps` says to their form.

Fed by configurations with 0 servers, feeds `forms.ALL_REDUCE`. Apart, because plan spaces, sizes and samples count members: how
many hosts a count of workers spans follows from the roomiest host, where they are placed on the fewest (`rooms`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rover_bus.brain.models.samples import Configuration, Configurations
from rover_bus.brain.models.throughput import Prediction


class RingPredictor(Protocol):
    """What a ring's model rests on."""

    def predict(self, at: Configurations) -> Prediction:
        """Predict samples a second with 90 % intervals."""
        ...


def spanned(at: Configurations, host_cores: float) -> Configurations:
    """Configurations with the fewest hosts of so many cores that hold their workers in the column `ps`, each of one core."""
    a_host = np.maximum(np.floor(host_cores / at.worker_cores + 1e-9), 1.0)
    hosts = np.maximum(np.ceil(at.workers / a_host), 1.0)
    return Configurations(at.workers, hosts, at.worker_cores, np.ones(len(at)), at.batch_size)


def on_hosts(at: Configuration, host_cores: float, crosses: bool = False) -> Configuration:
    """The same of one. `crosses`: it was on several hosts, though one may hold it."""
    a_host = max(int(host_cores / at.worker_cores + 1e-9), 1)
    hosts = max(-(-at.workers // a_host), 2 if crosses else 1)
    return Configuration(at.workers, hosts, at.worker_cores, 1.0, at.batch_size)


@dataclass(frozen=True)
class RingModel:
    """A model that is asked in counts of workers and was fitted to rings on hosts."""

    fitted: RingPredictor
    host_cores: float

    def predict(self, at: Configurations) -> Prediction:
        """Predict samples a second with 90 % intervals."""
        return self.fitted.predict(spanned(at, self.host_cores))

    def across(self, at: Configuration) -> Prediction:
        """Predict one on several hosts, though one may hold it."""
        return self.fitted.predict(Configurations.from_list([on_hosts(at, self.host_cores, crosses=True)]))
