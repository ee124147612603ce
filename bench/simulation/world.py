"""A whole world, with a default for each of its parts: what a foreign world inherits and overrides (`--world MODULE:CLASS`).

Feeds the generator (jobs, families, users) and the engine (hosts, weather). Imports nothing of rover_bus. Each method gets dice of
its own purpose: the same seed gives the same world, whatever a policy does. `example_world` is an example of 60 lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.simulation.memory_laws import draw_law
from bench.simulation.port import FloatArray, Hosts, Kill, Menu, Needs, Setting, TableLaw, Truth
from bench.simulation.weather import Weather

_INPUT_BOUND = 0.2  # of all families
MENU = Menu(
    (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), (1, 2, 3, 4, 6, 8), (1, 2, 4, 8, 12, 16), (1, 2, 4, 8, 12, 16)
)


@dataclass(frozen=True)
class Habits:
    """How users of a world err, fitted by the gate. Factors over need; `short_*`: who asks for too little server memory.

    `stands_for`: members of the published production that one simulated member stands for. It multiplies the failure hazard,
    so that jobs of
    a smaller cluster complete as rarely as published (`algorithms.md §6`).
    """

    worker_cores: float = 2.0
    server_cores: float = 6.5
    worker_memory: float = 4.5
    server_memory: float = 5.3
    short_small: float = 0.09
    short_large: float = 0.17
    stands_for: float = 4.0


class World:
    """Override what your world has of its own; `truth` has no default."""

    name: str = "world"
    menu: Menu = MENU
    node: tuple[float, float] = (32.0, 256.0)  # cores and GiB of a usual host
    jobs: int = 60
    nodes: int | None = None  # hosts; None: as many as make the load that was asked for
    weather: Weather = Weather()
    habits: Habits = Habits()
    ungated: str = ""  # why this world is not held against published production (`gate`); empty: it is

    def truth(self, seed: int) -> Truth:
        """How the jobs of one family run. The same seed gives the same truth."""
        raise NotImplementedError(
            f"{type(self).__name__}.truth(seed) is missing: see bench/simulation/example_world.py"
        )

    def setting(self, seed: int, restart_s: float = Setting.restart_s) -> Setting:
        """What a policy of this world is made with."""
        return Setting(self.menu, seed, restart_s, self.weather.failure * self.habits.stands_for)

    def hosts(self, rng: np.random.Generator, nodes: int) -> Hosts:
        """The hosts of one seed: all alike, and healthy, unless a world says otherwise."""
        return Hosts(np.full(nodes, self.node[0]), np.full(nodes, self.node[1]))

    def arrivals(self, rng: np.random.Generator, jobs: int) -> FloatArray | None:
        """Seconds of arrival (jobs,), ascending; None: as `--arrivals` says."""
        return None

    def files(self) -> Iterable[Path]:
        """What it reads: cells that were kept are not believed once one of these has changed. Raises FileNotFoundError."""
        return ()

    def memory(self, rng: np.random.Generator, usual: Needs) -> Needs:
        """What the members of one family and its tables need. `usual`: what this family needs in the built-in worlds."""
        return usual

    def law(self, rng: np.random.Generator) -> TableLaw:
        """How the tables of one family grow."""
        return draw_law(rng)

    def input_per_s(self, rng: np.random.Generator, usual: float) -> float:
        """Samples a second that one worker of a family can read; infinite: reading is no limit.

        `usual`: what a worker of the family trains a second at the size that its user has in mind.
        """
        bound, how = rng.random(2)
        return float(usual * (0.4 + 0.5 * how)) if bound < _INPUT_BOUND else math.inf

    def kill(self, rng: np.random.Generator, duration_s: float) -> Kill:
        """When the user of one job stops it; `duration_s`: what the job takes at its reference plan."""
        return Kill()
