"""The port of the simulator: what a world answers, what a policy sees and may ask for. Imports nothing of rover_bus.

A **world** (`--world MODULE:CLASS`, made without arguments) is a truth of how jobs run and of the cluster around them: it
inherits `world.World` and overrides what it has of its own (`example_world` does so in 60 lines). A **policy** (`--policy
MODULE:CLASS`, made with a `Setting`) sizes jobs and implements `Policy`. The engine (`cluster`) stands between the two: a policy
meets a world only through noisy, late, lost and doubled `Window`s. A service on the bus can be driven the same way, by a policy
that publishes every `Window` on `rover_bus.events.memory_bus` and returns the plans that come back (`policies/on_the_bus`).

Units: seconds, cores, GiB, samples. `at_s` is the cluster's time since the first job could arrive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, runtime_checkable

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
        """What the world does to the family at this time of the cluster: 1 as usual, less or more by drift, 0 in a pause."""
        ...


@runtime_checkable
class Bursting(Protocol):
    """A truth that also says what members use at once. Of any other nothing is measured but means."""

    def peak_cores(self, at: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Cores that one worker (n,) and one server (n,) use in their busiest tenths of a second, within their containers."""
        ...


class TableLaw(Protocol):
    """How tables grow while a job trains."""

    def grown(self, share: float) -> float:
        """Part of the tables' final size, in (0, 1], when this share (0..1) of the job is done: never falling, 1 at the end."""
        ...


class Kill(NamedTuple):
    """When a user stops a job: at a share of its samples, or so many seconds after its arrival. Infinite: never."""

    share: float = math.inf
    patience_s: float = math.inf


NEVER_KILLED = Kill()


class Hosts:
    """The nodes of a cluster: `cores` and `gib` of each (n,), and `pace(at_s)`, each host's share (n,) of a healthy host's speed.

    A worker runs at its host's pace. Slow hosts of servers slow a job as far as its servers are busy.
    """

    def __init__(
        self, cores: FloatArray, gib: FloatArray, pace: Callable[[float], FloatArray] | None = None
    ) -> None:
        self.cores = np.asarray(cores, dtype=np.float64)
        self.gib = np.asarray(gib, dtype=np.float64)
        self._pace = pace
        self._known = (-1.0, np.ones(len(self.cores)))

    def __len__(self) -> int:
        return len(self.cores)

    @property
    def alike(self) -> bool:
        """Whether all hosts are healthy at all times."""
        return self._pace is None

    def paces(self, at_s: float) -> FloatArray:
        """Every host's pace now (n,)."""
        if self._pace is not None and self._known[0] != at_s:
            self._known = (at_s, np.asarray(self._pace(at_s), dtype=np.float64))
        return self._known[1]


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
    # hidden: the truth, this run's drift of it, memory in GiB, samples a second that one worker can read, when its user stops it
    truth: Truth = field(repr=False)
    seed: int
    speed: float
    worker_gib: float
    server_gib: float
    tables_gib: float
    law: TableLaw
    input_per_s: float = math.inf
    kill: Kill = NEVER_KILLED

    def throughput(self, at: FloatArray) -> FloatArray:
        """Samples a second (n,) of this run at `at` (n, 4): the slower of compute and reading."""
        return self.read(at, self.truth.throughput(at))

    def read(self, at: FloatArray, computed: FloatArray) -> FloatArray:
        """Samples a second (n,) of this run where the truth computes so many at `at`."""
        return np.minimum(computed * self.speed, at[:, 0] * self.input_per_s)

    def busy_cores(self, at: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Cores in use by the workers (n,) and by the servers (n,): a worker that waits for input computes nothing."""
        worker, server = self.truth.busy_cores(at)
        busy = 1.0 - self.input_wait(at)
        return worker * busy, server * busy

    def peak_cores(self, at: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Cores that one worker (n,) and one server (n,) use in bursts; 0 where that is not measured."""
        if isinstance(self.truth, Bursting):
            return self.truth.peak_cores(at)
        return np.zeros(len(at)), np.zeros(len(at))

    def input_wait(self, at: FloatArray) -> FloatArray:
        """Share of their time (n,) that workers wait for input."""
        if self.input_per_s == math.inf:
            return np.zeros(len(at))
        computed = self.truth.throughput(at)
        return np.asarray(1.0 - self.read(at, computed) / (computed * self.speed))

    def table_gib(self, share: float) -> float:
        """Tables of the whole job when this share of its samples is done."""
        return float(self.tables_gib * self.law.grown(min(max(share, 0.0), 1.0)))

    def server_need_gib(self, servers: int, share: float = 1.0) -> float:
        """Memory that one of `servers` servers really needs."""
        return self.server_gib + self.table_gib(share) / servers


@dataclass(frozen=True)
class JobView:
    """What anybody may know of a job now. `effective` is what runs, `held` what is paid for, and on which hosts it is."""

    case: Case
    state: Literal["waiting", "starting", "running", "stopped"]
    held: Size | None
    effective: Size | None
    done: float
    changing: bool
    waited_s: float
    worker_hosts: tuple[int, ...] = ()
    server_hosts: tuple[int, ...] = ()

    @property
    def remaining(self) -> float:
        """Samples left."""
        return max(self.case.samples - self.done, 0.0)


@dataclass(frozen=True)
class Window:
    """One job's 30 s as telemetry tells it. `steady`: nothing was changed meanwhile, so that it measures `size`.

    `worker_cores_used`, `server_cores_used`: what one member used on average; `_peak`: in bursts, 0 not measured.
    `worker_hosts`: the host of each worker in `worker_rates`. `input_wait`: share of their time that workers waited for input.
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
    worker_cores_peak: float = 0.0
    server_cores_peak: float = 0.0
    worker_hosts: tuple[int, ...] = ()
    input_wait: float = 0.0


@dataclass(frozen=True)
class ClusterView:
    """Jobs that have not ended, in the order of arrival; capacity, of the whole and of each host (cores, GiB), and what is free."""

    jobs: Sequence[JobView]
    cores: float
    gib: float
    free_cores: float
    free_gib: float
    largest_gib: float
    hosts: Sequence[tuple[float, float]] = ()


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
    balances: bool = False  # parameters are assigned anew at every start, so that no server stays hot; on demand by a restart


class Needs(NamedTuple):
    """GiB that one worker needs, one server beside its share of the tables, and all tables at the end."""

    worker_gib: float
    server_gib: float
    tables_gib: float


@dataclass(frozen=True)
class Setting:
    """What a policy is made with: the cluster's menu and, for oracles only, how often one member fails a second, and leave to look
    at the hidden fields of `Case`.
    """

    menu: Menu
    seed: int = 0
    restart_s: float = 660.0
    failures_per_member_s: float = 0.0


class Remedy(NamedTuple):
    """What to do at once: replace a slow worker, give it less work, or move the hot slots of a server."""

    kind: Literal["replace_worker", "smaller_leases", "move_slots"]
    job: str
    member: int
    host: int = -1  # of the worker's successor, by number; -1: any with room


class Wanted(NamedTuple):
    """A size with the host of each member, by number: what a policy that places says; others return (job, size).

    `stays_on`: the hosts of workers that move, and may train on there until their successors come.
    """

    job: str
    size: Size
    worker_hosts: tuple[int, ...] = ()
    server_hosts: tuple[int, ...] = ()
    stays_on: tuple[int, ...] = ()


class Policy(Protocol):
    """Somebody's way to size jobs. Called at every arrival and end, and every `round_s`."""

    name: str
    mechanisms: Mechanisms
    round_s: float

    def plan(self, cluster: ClusterView, now_s: float, regular: bool) -> Sequence[tuple[str, Size] | Wanted]:
        """Sizes wanted, in the order to be tried; jobs left out stay as they are. `regular`: the round's own time has come.

        Hosts that are named are taken where they have room; else the engine places.
        """
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
