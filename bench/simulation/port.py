"""The port of the simulator: what a world answers, what a policy sees and may ask for. Imports nothing of rover_bus.

A **world** (`--world MODULE:CLASS`, made without arguments) is somebody's truth of how jobs run; a **policy** (`--policy
MODULE:CLASS`, made with a `Setting`) sizes them. The engine (`cluster`) stands between the two: a policy meets a world only
through noisy,
late, lost and doubled `Window`s. Whoever brings his own of either implements the protocols below and nothing else; the live
Brain service can be
driven the same way, by a policy that publishes every `Window` on `rover_bus.events.memory_bus` and returns the plans that come
back.

Units: seconds, cores, GiB, samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Mode = Literal["async", "sync"]


class Size(NamedTuple):
    """What a job holds: counts, cores a member, memory limit a member in GiB. Absolute, never a difference."""

    workers: int
    servers: int
    worker_cores: float
    server_cores: float
    worker_gib: float
    server_gib: float

    @property
    def cores(self) -> float:
        """Cores of all members."""
        return self.workers * self.worker_cores + self.servers * self.server_cores

    @property
    def gib(self) -> float:
        """Memory limits of all members."""
        return self.workers * self.worker_gib + self.servers * self.server_gib

    @property
    def members(self) -> int:
        """Workers and servers."""
        return self.workers + self.servers


class Menu(NamedTuple):
    """The sizes that a cluster offers: the axes of every plan space."""

    workers: tuple[int, ...]
    servers: tuple[int, ...]
    worker_cores: tuple[float, ...]
    server_cores: tuple[float, ...]

    def grid(self, max_workers: int, max_servers: int) -> FloatArray:
        """All combinations within a job's maxima: rows (workers, servers, worker cores, server cores)."""
        axes = (
            [w for w in self.workers if w <= max_workers],
            [p for p in self.servers if p <= max_servers],
            self.worker_cores,
            self.server_cores,
        )
        arrays = [np.asarray(axis, dtype=np.float64) for axis in axes]
        return np.stack([a.ravel() for a in np.meshgrid(*arrays, indexing="ij")], axis=1)


class Truth(Protocol):
    """How one family of jobs really runs. Rows of `at` (n, 4): workers, servers, worker cores, server cores."""

    mode: Mode
    batch_size: float  # a worker's when asynchronous, the whole job's when synchronous

    def throughput(self, at: FloatArray) -> FloatArray:
        """Samples a second of the whole job (n,), all members healthy and alone."""
        ...

    def busy_cores(self, at: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Cores in use, summed over the workers (n,) and over the servers (n,), at that throughput."""
        ...

    def factor(self, at_s: float) -> float:
        """What the world does to the job at this time of its life: 1 as usual, less or more by drift, 0 in a pause."""
        ...


class World(Protocol):
    """A source of truths. The same seed gives the same truth."""

    name: str
    menu: Menu
    node: tuple[float, float]  # cores and GiB of one node

    def truth(self, seed: int) -> Truth:
        """One family's truth."""
        ...


@dataclass(frozen=True)
class Case:
    """One job as it is submitted, and (marked so) what only the engine and the oracles may look at."""

    name: str
    family: str
    user: str
    arrive_s: float
    samples: float
    max_workers: int
    max_servers: int
    asked: Size
    mode: Mode
    batch_size: float
    large: bool
    # hidden: the truth, this run's drift of it, memory in GiB as base + grown * (share done) ** heaps
    truth: Truth = field(repr=False)
    seed: int
    speed: float
    worker_gib: float
    server_gib: float
    tables_gib: float
    heaps: float

    def table_gib(self, share: float) -> float:
        """Tables of the whole job when this share of its samples is done: a fifth at the start, the rest by Heaps' law."""
        return float(self.tables_gib * (0.2 + 0.8 * max(share, 0.0) ** self.heaps))

    def server_need_gib(self, servers: int, share: float = 1.0) -> float:
        """Memory that one of `servers` servers really needs."""
        return self.server_gib + self.table_gib(share) / servers


@dataclass(frozen=True)
class JobView:
    """What anybody may know of a job now. `effective` is what runs, `held` what is paid for."""

    case: Case
    state: Literal["waiting", "starting", "running", "stopped"]
    held: Size | None
    effective: Size | None
    done: float
    changing: bool
    waited_s: float

    @property
    def remaining(self) -> float:
        """Samples left."""
        return max(self.case.samples - self.done, 0.0)


@dataclass(frozen=True)
class Window:
    """One job's 30 s as telemetry tells it. `steady`: nothing was changed meanwhile, so that it measures `size`.

    `worker_cores_used`, `server_cores_used`: what one member used on average.
    """

    job: str
    at_s: float
    size: Size
    throughput: float
    worker_rates: FloatArray
    server_busy: FloatArray
    server_used_gib: float
    worker_used_gib: float
    samples: float
    steady: bool
    worker_cores_used: float = 0.0
    server_cores_used: float = 0.0


@dataclass(frozen=True)
class ClusterView:
    """Jobs that have not ended, in the order of arrival; capacity, and what is free of it."""

    jobs: Sequence[JobView]
    cores: float
    gib: float
    free_cores: float
    free_gib: float
    largest_gib: float


@dataclass(frozen=True)
class Mechanisms:
    """What a policy's runtime can do; times in seconds.

    `elastic`: members come and go while training goes on, servers change under a stop of `server_change_s`; failures cost the lost
    member only. Otherwise each change and each failure stops the job for `restart_s`, and a failure also loses the work since
    the last
    checkpoint. `fatal`: an ended member ends the job. `doubles_memory`: the public rule after an OOM kill.
    """

    elastic: bool = False
    restart_s: float = 660.0
    checkpoint_s: float = 600.0
    server_change_s: float = 30.0
    fatal: bool = False
    doubles_memory: bool = True
    failures_restart: bool = False  # elastic changes, but a failure stops the whole job
    free: bool = False  # everything at once and for nothing: the oracle's


@dataclass(frozen=True)
class Setting:
    """What a policy is made with: the cluster's menu and, for oracles only, leave to look at the hidden fields of `Case`."""

    menu: Menu
    seed: int = 0
    restart_s: float = 660.0


class Remedy(NamedTuple):
    """What to do at once: replace a slow worker, give it less work, or move the hot slots of a server."""

    kind: Literal["replace_worker", "smaller_leases", "move_slots"]
    job: str
    member: int


class Policy(Protocol):
    """Somebody's way to size jobs. Called at every arrival and end, and every `round_s`."""

    name: str
    mechanisms: Mechanisms
    round_s: float

    def plan(self, cluster: ClusterView, now_s: float, regular: bool) -> list[tuple[str, Size]]:
        """Sizes wanted, in the order to be tried; jobs left out stay as they are. `regular`: the round's own time has come."""
        ...

    def observe(self, windows: Sequence[Window]) -> list[Remedy]:
        """Take in telemetry; return remedies that cannot wait for a round."""
        ...

    def lost(self, job: JobView, workers: int, servers: int) -> Size | None:
        """Members were lost: the size that shall be, or None for as it was. Asked only when `mechanisms.elastic`."""
        ...

    def ended(self, job: JobView, now_s: float, completed: bool) -> None:
        """A job ended."""
        ...
