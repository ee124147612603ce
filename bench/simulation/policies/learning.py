"""What a Brain remembers of one job while it runs: samples by configuration, memory, paces, changes; in the production models'
terms.

Fed by windows, feeds `staged`. Holds no rule of its own: it averages, forgets doubles, and hands on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bench.simulation.port import Case, Size, Window
from rover_bus.brain.decisions.hot_servers import ServerLoad
from rover_bus.brain.decisions.lifecycle import ChangeHistory
from rover_bus.brain.decisions.scaling import PlanFront, Predictor
from rover_bus.brain.decisions.scoring import Hazard
from rover_bus.brain.decisions.stragglers import WorkerPace, tells_of_size
from rover_bus.brain.models.core_use import fit_core_bound, measure_core_use
from rover_bus.brain.models.forms import ASYNCHRONOUS, SYNCHRONOUS
from rover_bus.brain.models.memory import Growth, fit_growth
from rover_bus.brain.models.samples import Configuration, Configurations, NotEnough, Observations


class Sample(NamedTuple):
    """One configuration as measured: samples a second, cores that a worker and a server used."""

    at: Configuration
    throughput: float
    worker_cores: float
    server_cores: float


# What production published for whole jobs (`algorithms.md §6`), of a mean life of 4,800 s; no simulated cluster has this hazard.
_PUBLISHED_PER_S, _RECOVERY_S = 0.00264 / 4800.0, 120.0
_SLOTS = 8
_MEMORY_POINTS = 40
_WINDOWS = 10


@dataclass
class LossCount:
    """How often members of this cluster are lost: the published figure, with the weight of one loss, and what was counted since."""

    lost: int = 0
    member_s: float = 0.0
    looked_s: float = 0.0

    def watch(self, members: int, now_s: float) -> None:
        """So many members have run since the last look."""
        self.member_s += members * max(now_s - self.looked_s, 0.0)
        self.looked_s = now_s

    @property
    def hazard(self) -> Hazard:
        """What is believed now: the mean of a gamma distribution."""
        rate = (1.0 + self.lost) / (1.0 / _PUBLISHED_PER_S + self.member_s)
        return Hazard(failures_per_member_s=rate, recovery_s=_RECOVERY_S)


@dataclass
class Memory:
    """One running job."""

    case: Case
    inherited: list[Sample] = field(default_factory=list)
    speeds: dict[tuple[float, ...], deque[float]] = field(default_factory=dict)
    used: dict[tuple[float, ...], deque[tuple[float, float]]] = field(default_factory=dict)
    last_window_s: float = -1.0
    measured: float = 0.0
    measured_at: tuple[float, ...] = ()
    windows_here: int = 0
    model: Predictor | None = None
    fitted: tuple[int, int, int] = (0, 0, 0)
    front: tuple[object, PlanFront] | None = None
    growth_points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_MEMORY_POINTS))
    worker_peak_gib: float = 0.0
    paces: dict[int, WorkerPace] = field(default_factory=dict)
    loads: deque[tuple[ServerLoad, ...]] = field(default_factory=lambda: deque(maxlen=2))
    changes: ChangeHistory = field(default_factory=ChangeHistory)
    probes: int = 0
    anchor: Size | None = None
    incident: str = ""
    before: tuple[Size, tuple[float, ...], float] | None = (
        None  # size, windows, predicted: a change under judgement
    )

    def take_in(self, window: Window) -> bool:
        """Take in a window; False for one that was seen already."""
        if window.at_s <= self.last_window_s:
            return False
        self.last_window_s = window.at_s
        self.growth_points.append((window.samples, window.server_used_gib * window.size.servers))
        self.worker_peak_gib = max(self.worker_peak_gib, window.worker_used_gib)
        if window.steady and tells_of_size(window.worker_rates.tolist(), self.case.mode):
            key = window.size[:4]
            if key != self.measured_at:
                self.measured_at, self.windows_here = key, 0
            self.windows_here += 1
            kept = self.speeds.setdefault(key, deque(maxlen=_WINDOWS))
            kept.append(window.throughput)
            use = self.used.setdefault(key, deque(maxlen=_WINDOWS))
            use.append((window.worker_cores_used, window.server_cores_used))
            self.measured = float(np.median(kept))
        return True

    def samples(self) -> list[Sample]:
        """One sample a configuration: the median of its last windows."""
        batch = self.case.batch_size
        found = []
        for key, kept in self.speeds.items():
            worker, server = np.median(np.array(self.used[key]), axis=0)
            at = Configuration(int(key[0]), int(key[1]), key[2], key[3], batch)
            found.append(Sample(at, float(np.median(kept)), float(worker), float(server)))
        return found

    def observations(self) -> Observations:
        """What this job and its predecessors have shown."""
        both = [*self.inherited, *self.samples()]
        return Observations.of(Configurations.from_list([s.at for s in both]), [s.throughput for s in both])

    def refit(self) -> None:
        """Fit anew when a configuration was added, or some more windows of the same came in."""
        state = (len(self.speeds), self.windows_here // 6, len(self.inherited))
        if state == self.fitted or not (self.speeds or self.inherited):
            return
        self.fitted = state
        form = SYNCHRONOUS if self.case.mode == "sync" else ASYNCHRONOUS
        both, seen = [*self.inherited, *self.samples()], self.observations()
        use = measure_core_use(seen, [s.worker_cores for s in both], [s.server_cores for s in both])
        fitted = fit_core_bound(seen, use, form)
        self.model = None if isinstance(fitted, NotEnough) else fitted
        self.front = None

    def growth(self) -> Growth | None:
        """Memory of all servers together over samples; None while there are too few points."""
        if len(self.growth_points) < 4:
            return None
        points = np.array(self.growth_points)
        fitted = fit_growth(points[:, 0], points[:, 1] * 2.0**30)
        return None if isinstance(fitted, NotEnough) else fitted


def server_loads(window: Window) -> tuple[ServerLoad, ...]:
    """A window's server load in the Brain's terms; a hot server's load sits in half of its slots."""
    busy = window.server_busy
    middle = float(np.median(busy))
    loads = []
    for server, share in enumerate(busy.tolist()):
        extra = max(share - middle, 0.0)
        slots = {
            server * _SLOTS + slot: min(share, middle) / _SLOTS + (extra / 4 if slot < 4 else 0.0)
            for slot in range(_SLOTS)
        }
        loads.append(ServerLoad(server=server, busy=share, slot_loads=slots))
    return tuple(loads)


def slot_owners(servers: int) -> dict[int, int]:
    """Who owns which slot, by the same grid."""
    return {server * _SLOTS + slot: server for server in range(servers) for slot in range(_SLOTS)}
