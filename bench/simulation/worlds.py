"""Four truths that know nothing of the Brain (`algorithms.md §8`): what the simulated jobs really do.

Fed by seeds, feeds the engine and the oracles. Imports nothing of rover_bus; its digest stands in every report, so
that no truth can be tuned to a policy unseen.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from bench import queueing
from bench.simulation import memory_laws, port, world
from bench.simulation.port import FloatArray, Menu, Mode

DATA_VARIABLE = "ROVER_THROUGHPUT_DATA"
_REPEATABLE = 1 << 32
_SYNCHRONOUS = 0.25  # of W1's families
_NOW_AND_THEN = 1.645  # standard deviations: in one twentieth of the time more requests are there
_SPLIT = 8  # batches of an asynchronous worker that one synchronous step trains
_TEST_FAMILIES = (
    3_000_000  # a family's seed is 1,000 times its workload's and more: test seeds begin at 3,000
)


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

    def peak_cores(self, at: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The parallel part of a batch takes all of a worker's cores; of a server's as many as requests meet there now and then."""
        _, p, lw, lp = at.T
        busy = self.busy_cores(at)[1] / p
        return lw, np.minimum(busy + _NOW_AND_THEN * np.sqrt(busy), lp)

    def factor(self, at_s: float) -> float:
        return 1.0


@dataclass
class _Barrier(_Queueing):
    """W1's synchronous job: the batch is split, all workers meet at the servers at once, and then at a barrier."""

    mode: Mode = "sync"
    batch_size: float = float(_SPLIT * queueing.BATCH)
    serial: float = field(init=False)
    shape: FloatArray = field(
        init=False
    )  # seconds: NIC a worker, fixed, a server, the barrier; and the skew of traffic

    def __post_init__(self) -> None:
        super().__post_init__()
        self.serial = float(np.random.default_rng(self.seed).uniform(0.02, 0.3))
        rng = np.random.default_rng([self.seed, 12])
        seconds = rng.lognormal(np.log([0.02, 0.05, 0.005, 0.03]), 0.5)
        self.shape = np.r_[seconds, rng.choice([0.0, 0.3, 0.8])]

    def throughput(self, at: FloatArray) -> FloatArray:
        w, p, lw, lp = at.T
        nic, fixed, per_server, barrier, skew = self.shape
        place = np.arange(1, int(p.max()) + 1)[None, :]
        hottest = 1.0 / np.where(place <= p[:, None], 1.0 / place**skew, 0.0).sum(axis=1)
        compute = self.think * _SPLIT / w * (self.serial + (1 - self.serial) / lw)
        served = self.cpu * _SPLIT * hottest / lp + nic * w * hottest
        seconds = compute + served + fixed + per_server * p + barrier * np.log2(w + 1)
        return np.asarray(self.batch_size / seconds)

    def busy_cores(self, at: FloatArray) -> tuple[FloatArray, FloatArray]:
        steps = self.throughput(at) / self.batch_size * _SPLIT
        w, p, lw, lp = at.T
        return np.minimum(steps * self.think, w * lw), np.minimum(steps * self.cpu, p * lp)

    def peak_cores(self, at: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Servers too take all their cores: all workers meet there at once."""
        return at[:, 2], at[:, 3]


class W1(world.World):
    """Closed queueing network: Amdahl workers, multi-server CPU stations and NICs, tables placed by Zipf 0 / 0.3 / 0.8.

    One family in four is synchronous.
    """

    name = "W1"

    def truth(self, seed: int) -> _Queueing:
        """A random network."""
        return (
            _Barrier(seed) if np.random.default_rng([seed, 11]).random() < _SYNCHRONOUS else _Queueing(seed)
        )


@dataclass
class _Measured:
    """W2's job: one measured surface, synchronous. Between measured points the three nearest answer, weighted by distance.

    Cores: a step is bursts of the workers, bursts of the servers, and a rest. What a member used on average it used within its
    bursts, so a limit below that stretches them, and them only.
    """

    points: FloatArray  # (n, 5): workers, servers, steps a second, cores a worker uses, cores a server uses
    batch_size: float
    pace: float
    bursts: tuple[float, float]  # share of a step that is bursts of workers, of servers
    bend: float  # how a burst stretches: to this power
    mode: Mode = "sync"

    def _near(self, at: FloatArray) -> FloatArray:
        logs, known = np.log(at[:, :2]), np.log(self.points[:, :2])
        away = ((logs[:, None, :] - known[None, :, :]) ** 2).sum(axis=2)
        three = np.argsort(away, axis=1, kind="stable")[:, :3]
        weight = 1 / (np.take_along_axis(away, three, axis=1) + 1e-9)
        weight = weight / weight.sum(axis=1, keepdims=True)
        return np.asarray(np.exp((np.log(self.points[three][:, :, 2:]) * weight[:, :, None]).sum(axis=1)))

    def throughput(self, at: FloatArray) -> FloatArray:
        steps, *used = self._near(at).T
        return np.asarray(steps / self._stretch(at, used) * self.batch_size * self.pace)

    def _stretch(self, at: FloatArray, used: list[FloatArray]) -> FloatArray:
        """How much longer a step takes than it did with as many cores as it liked (n,)."""
        seconds = np.full(len(at), 1.0 - sum(self.bursts))
        for share, cores, use in zip(self.bursts, at[:, 2:].T, used, strict=True):
            seconds += share * np.maximum(use / share / cores, 1.0) ** self.bend
        return seconds

    def busy_cores(self, at: FloatArray) -> tuple[FloatArray, FloatArray]:
        _, *used = self._near(at).T
        stretch = self._stretch(at, used)
        worker, server = (np.minimum(use / stretch, at[:, 2 + i]) for i, use in enumerate(used))
        return at[:, 0] * worker, at[:, 1] * server

    def peak_cores(self, at: FloatArray) -> tuple[FloatArray, FloatArray]:
        _, *used = self._near(at).T
        worker, server = (
            np.minimum(use / share, cores)
            for share, cores, use in zip(self.bursts, at[:, 2:].T, used, strict=True)
        )
        return worker, server

    def factor(self, at_s: float) -> float:
        return 1.0


class W2(world.World):
    """Measured speeds of four models trained with parameter servers, and the cores that they used while measured.

    Test seeds have two of the models and one kind of bursts, all seeds below them the others.
    """

    name, node = "W2", (16.0, 256.0)
    habits = world.Habits(
        worker_cores=4.3, server_cores=2.4, short_small=0.11, short_large=0.10, stands_for=9.0
    )
    menu = Menu((1, 2, 3, 4, 6, 8, 10, 12), (1, 2, 3, 4, 6, 8, 12, 16), (0.5, 1, 2, 4), (0.5, 1, 2, 4))

    def files(self) -> list[Path]:
        """The measured speeds."""
        return [table_of(os.environ.get(DATA_VARIABLE, ""))]

    def truth(self, seed: int) -> _Measured:
        """One of the measured models; `pace` lets families of one model differ in how fast their hardware is."""
        rng = np.random.default_rng(seed)
        models = _tables(os.environ.get(DATA_VARIABLE, ""))
        test = seed >= _TEST_FAMILIES
        of_this_half = sorted(models)[test::2]
        points, batch = models[of_this_half[int(rng.integers(len(of_this_half)))]]
        pace = float(rng.lognormal(0.0, 0.2))
        low, high, least, most = (0.25, 0.5, 0.8, 1.2) if test else (0.4, 0.7, 1.0, 1.0)
        workers = rng.uniform(low, high)
        bursts = (float(workers), float(rng.uniform(0.5, 0.9) * (1 - workers)))
        return _Measured(points, batch, pace, bursts, float(rng.uniform(least, most)))


def table_of(directory: str) -> Path:
    """The file of measured speeds in a folder. Raises FileNotFoundError that says what to set."""
    path = Path(directory) / "ps_worker_speeds.csv"
    if not directory or not path.exists():
        raise FileNotFoundError(
            f"W2 reads measured speeds: set {DATA_VARIABLE} to the folder that holds ps_worker_speeds.csv"
        )
    return path


@lru_cache(maxsize=2)
def _tables(directory: str) -> dict[str, tuple[FloatArray, float]]:
    path = table_of(directory)
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


class W3(world.World):
    """Hostile: containers above 16 cores fall off a NUMA cliff, speed drifts by 20 % an hour, everything pauses at times."""

    name, ungated = "W3", "it is hostile on purpose"
    menu = world.MENU._replace(
        worker_cores=(*world.MENU.worker_cores, 24), server_cores=(*world.MENU.server_cores, 24)
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


class W4(world.World):
    """Tautological: the truth is the fitted family. Only to show what is lost without any model error."""

    name, ungated = "W4", "it is tautological, and only shows what is lost without any error of form"

    def truth(self, seed: int) -> _Formula:
        """Random coefficients around one second an iteration."""
        typical = np.array([1 / 512, 0.4, 0.02, 0.05 / 512, 0.05])
        return _Formula(typical * np.random.default_rng(seed).lognormal(0.0, 0.6, 5))

    def law(self, rng: np.random.Generator) -> port.TableLaw:
        """The law that the Brain fits."""
        return memory_laws.Heaps(float(rng.uniform(0.5, 0.9)))

    def input_per_s(self, rng: np.random.Generator, usual: float) -> float:
        """The formula knows no reading."""
        return math.inf


WORLDS: dict[str, Callable[[], world.World]] = {"W1": W1, "W2": W2, "W3": W3, "W4": W4}
