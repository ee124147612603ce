"""Four truths that know nothing of the Brain (`algorithms.md §8`): what the simulated jobs really do.

Fed by seeds, feeds the engine and the oracles. Imports nothing of rover_bus; the digest of this file and of the queueing
network stands in
every report, so that nobody can tune a truth to a policy unseen.
"""

from __future__ import annotations

import csv
import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from bench import queueing
from bench.simulation.port import FloatArray, Menu, Mode

MENU = Menu(
    (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), (1, 2, 3, 4, 6, 8), (1, 2, 4, 8, 12, 16), (1, 2, 4, 8, 12, 16)
)
NODE = (32.0, 256.0)
DATA_VARIABLE = "ROVER_THROUGHPUT_DATA"
_REPEATABLE = 1 << 32


def digest() -> str:
    """SHA-256 over the files that hold the truths, first 16 digits."""
    text = b"".join(Path(name).read_bytes() for name in (__file__, queueing.__file__))
    return hashlib.sha256(text).hexdigest()[:16]


@dataclass
class _Queueing:
    """W1's job: a closed queueing network. CPU in use follows from what a batch asks of workers and servers."""

    seed: int
    mode: Mode = "async"
    batch_size: float = float(queueing.BATCH)
    network: queueing.Throughput = field(init=False)
    think: float = field(init=False)
    cpu: float = field(init=False)

    def __post_init__(self) -> None:
        self.network = queueing.queueing_network(self.seed)
        # The network's own first draws: core-seconds that a batch takes from its worker and from the servers.
        rng = np.random.default_rng(self.seed)
        _, self.think = rng.uniform(0.02, 0.3), float(rng.lognormal(0.0, 0.5))
        self.cpu = float(rng.lognormal(np.log(0.6), 0.6))

    def throughput(self, at: FloatArray) -> FloatArray:
        return self.network(*at.T)

    def busy_cores(self, at: FloatArray) -> tuple[FloatArray, FloatArray]:
        batches = self.throughput(at) / self.batch_size
        w, p, lw, lp = at.T
        return np.minimum(batches * self.think, w * lw), np.minimum(batches * self.cpu, p * lp)

    def factor(self, at_s: float) -> float:
        return 1.0


class W1:
    """Closed queueing network: Amdahl workers, multi-server CPU stations and NICs, tables placed by Zipf 0 / 0.3 / 0.8."""

    name, menu, node = "W1", MENU, NODE

    def truth(self, seed: int) -> _Queueing:
        """A random network."""
        return _Queueing(seed)


@dataclass
class _Measured:
    """W2's job: one measured surface, synchronous. Between measured points the three nearest answer, weighted by distance."""

    points: FloatArray  # (n, 5): workers, servers, steps a second, cores a worker uses, cores a server uses
    batch_size: float
    pace: float
    mode: Mode = "sync"

    def _near(self, at: FloatArray) -> FloatArray:
        logs, known = np.log(at[:, :2]), np.log(self.points[:, :2])
        away = ((logs[:, None, :] - known[None, :, :]) ** 2).sum(axis=2)
        three = np.argsort(away, axis=1, kind="stable")[:, :3]
        weight = 1 / (np.take_along_axis(away, three, axis=1) + 1e-9)
        weight = weight / weight.sum(axis=1, keepdims=True)
        return np.asarray(np.exp((np.log(self.points[three][:, :, 2:]) * weight[:, :, None]).sum(axis=1)))

    def throughput(self, at: FloatArray) -> FloatArray:
        steps, worker_use, server_use = self._near(at).T
        # A container below what its member uses at full speed holds the member, and a synchronous job with it, back.
        held = np.minimum(1.0, np.minimum(at[:, 2] / worker_use, at[:, 3] / server_use))
        return np.asarray(steps * held * self.batch_size * self.pace)

    def busy_cores(self, at: FloatArray) -> tuple[FloatArray, FloatArray]:
        _, worker_use, server_use = self._near(at).T
        held = np.minimum(1.0, np.minimum(at[:, 2] / worker_use, at[:, 3] / server_use))
        return at[:, 0] * worker_use * held, at[:, 1] * server_use * held

    def factor(self, at_s: float) -> float:
        return 1.0


class W2:
    """Measured speeds of four models trained with parameter servers, and the cores that they used while measured."""

    name, node = "W2", (16.0, 256.0)
    menu = Menu((1, 2, 3, 4, 6, 8, 10, 12), (1, 2, 3, 4, 6, 8, 12, 16), (0.5, 1, 2, 4), (0.5, 1, 2, 4))

    def truth(self, seed: int) -> _Measured:
        """One of the measured models; `pace` lets families of one model differ in how fast their hardware is."""
        rng = np.random.default_rng(seed)
        models = _tables(os.environ.get(DATA_VARIABLE, ""))
        points, batch = models[sorted(models)[int(rng.integers(len(models)))]]
        return _Measured(points, batch, float(rng.lognormal(0.0, 0.2)))


@lru_cache(maxsize=2)
def _tables(directory: str) -> dict[str, tuple[FloatArray, float]]:
    path = Path(directory) / "ps_worker_speeds.csv"
    if not directory or not path.exists():
        raise FileNotFoundError(
            f"W2 reads measured speeds: set {DATA_VARIABLE} to the folder that holds ps_worker_speeds.csv"
        )
    columns = ("workers", "ps", "steps_per_second_total", "worker_cpu_cores_mean", "ps_cpu_cores_mean")
    rows: dict[str, list[list[float]]] = {}
    batch: dict[str, float] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            values = [float(row[name] or "nan") for name in columns]
            if math.isfinite(sum(values)) and min(values) > 0:
                rows.setdefault(row["model"], []).append(values)
                batch[row["model"]] = float(row["total_batch_size"])
    return {model: (np.array(values), batch[model]) for model, values in rows.items()}


@dataclass
class _Hostile(_Queueing):
    """W3's job: W1's behind a NUMA cliff, with drift and pauses."""

    phase: float = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.phase = float(np.random.default_rng(self.seed + 77).uniform(0, 2 * math.pi))

    def throughput(self, at: FloatArray) -> FloatArray:
        seen = at.copy()
        # Beyond one socket every core waits for the other socket's memory.
        seen[:, 2:] = np.where(at[:, 2:] > 16, 0.6 * 16, at[:, 2:])
        return super().throughput(seen)

    def factor(self, at_s: float) -> float:
        if _paused(self.seed, at_s):
            return 0.0
        return 1.0 + 0.2 * math.sin(2 * math.pi * at_s / 3600.0 + self.phase)


def _paused(seed: int, at_s: float) -> bool:
    """A minute of nothing, at random, in one half hour of two."""
    half_hour, second = divmod(at_s, 1800.0)
    rng = np.random.default_rng((seed * 7919 + int(half_hour)) % _REPEATABLE)
    start = rng.uniform(0, 1740)
    return bool(rng.random() < 0.5 and start <= second < start + 60)


class W3:
    """Hostile: containers above 16 cores fall off a NUMA cliff, speed drifts by 20 % an hour, everything pauses at times."""

    name, node = "W3", NODE
    menu = MENU._replace(
        worker_cores=(*MENU.worker_cores[:-1], 16, 24), server_cores=(*MENU.server_cores[:-1], 16, 24)
    )

    def truth(self, seed: int) -> _Hostile:
        """A W1 job on bad ground."""
        return _Hostile(seed)


@dataclass
class _Formula:
    """W4's job: the asynchronous formula of `algorithms.md §1` itself."""

    coefficients: FloatArray
    batch_size: float = 512.0
    mode: Mode = "async"

    def throughput(self, at: FloatArray) -> FloatArray:
        w, p, lw, lp = at.T
        a1, a2, a3, a4, b = self.coefficients
        seconds = a1 * self.batch_size / lw + a2 * w / (p * lp) + a3 * w / p + a4 * self.batch_size / p + b
        return np.asarray(w * self.batch_size / seconds)

    def busy_cores(self, at: FloatArray) -> tuple[FloatArray, FloatArray]:
        w, p, lw, lp = at.T
        batches = self.throughput(at) / self.batch_size
        worker, server = self.coefficients[0] * self.batch_size, self.coefficients[1]
        return np.minimum(batches * worker, w * lw), np.minimum(batches * server, p * lp)

    def factor(self, at_s: float) -> float:
        return 1.0


class W4:
    """Tautological: the truth is the fitted family. Only to show what is lost without any model error."""

    name, menu, node = "W4", MENU, NODE

    def truth(self, seed: int) -> _Formula:
        """Random coefficients around one second an iteration."""
        typical = np.array([1 / 512, 0.4, 0.02, 0.05 / 512, 0.05])
        return _Formula(typical * np.random.default_rng(seed).lognormal(0.0, 0.6, 5))


WORLDS: dict[str, Callable[[], W1 | W2 | W3 | W4]] = {"W1": W1, "W2": W2, "W3": W3, "W4": W4}
