"""Samples: what members and hosts measure, a window at a time. Short-lived and lossy; nothing exact may rest on them."""

from __future__ import annotations

from typing import Literal

import msgspec

from rover_bus.events.identity import Member
from rover_bus.events.invariants import Bytes, Checked, Cores, Count, Fraction, Seconds


class Profile(Checked, frozen=True, kw_only=True, tag_field="type"):
    """Base of samples. `window_s` is the time that the figures cover."""

    window_s: Seconds


class WorkerProfile(Profile, frozen=True, kw_only=True, tag="profile.worker.v1"):
    """A worker's window: where its time went.

    `cores_used`, `memory_bytes`: of this process by its own word; a host's word comes before it. 0 bytes: it says nothing of that.
    `cores_peak`: cores that it used in its busiest tenths of a second (`events.peaks`); 0: not measured.
    """

    job: str
    member: Member
    samples: Count
    batches: Count
    read_s: Seconds = 0.0
    pull_s: Seconds = 0.0
    compute_s: Seconds = 0.0
    push_s: Seconds = 0.0
    wait_s: Seconds = 0.0  # for leases
    barrier_s: Seconds = 0.0  # for the other workers of its group (`job.waiting`)
    staleness_batches: float = 0.0
    loss: float = 0.0
    metrics: dict[str, float] = {}  # the program's own, the latest value of each (`job.report`)
    cores_used: Cores = 0.0
    memory_bytes: Bytes = 0
    cores_peak: Cores = 0.0


class ServerProfile(Profile, frozen=True, kw_only=True, tag="profile.ps.v1"):
    """A server's window. `cores_used`, `memory_bytes`, `cores_peak`: as a worker's.

    `unstaged_bytes`: shared memory that its next cuts will take beyond what its cuts take now, as large as its tables are now.
    """

    job: str
    member: Member
    pulls: Count
    pushes: Count
    ignored: Count
    busy_s: Seconds = 0.0
    table_bytes: Bytes = 0
    rows: Count = 0
    slots: Count = 0
    keys_per_s: float = 0.0  # pulled and pushed, decayed
    hottest: list[tuple[int, float]] = []  # (slot, keys a second), hottest first
    cores_used: Cores = 0.0
    memory_bytes: Bytes = 0
    unstaged_bytes: Bytes = 0
    cores_peak: Cores = 0.0


class ProcessSample(msgspec.Struct, frozen=True, kw_only=True):
    """One member's process group on a host. `cores_peak`: in its busiest tenths of a second; 0: not measured."""

    job: str
    member: Member
    pid: int
    cores_used: float
    memory_bytes: int
    threads: int = 0
    cores_peak: float = 0.0


class SpareSample(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a host that waits to be a job's next worker (docs/design/0042). `number`: of its daemon, from 1 on."""

    job: str
    number: int
    pid: int
    state: Literal["loading", "ready"]
    age_s: float
    memory_bytes: int


class HostProfile(Profile, frozen=True, kw_only=True, tag="profile.host.v1"):
    """A host's window. Pressure is the share of time some task waited (PSI `some`), -1 where the kernel has none.

    `wall_ms`: the host's clock at its end, milliseconds of Unix time; 0: a release that said nothing of it, or a simulated host.
    """

    host: str
    cores: Cores
    cores_used: Cores
    memory_bytes: Bytes
    memory_used_bytes: Bytes
    cpu_pressure: float = -1.0
    memory_pressure: float = -1.0
    io_pressure: float = -1.0
    throttled: Fraction = 0.0
    processes: list[ProcessSample] = []
    spares: list[SpareSample] = []
    wall_ms: Count = 0


REACTION_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class OperatorProfile(Profile, frozen=True, kw_only=True, tag="profile.operator.v1"):
    """What an operator on Kubernetes did since it leads, which is its window.

    `reactions`: how often it took so long from the receipt of a desired state to the first request for a pod that it makes, removes
    or changes: up to each of REACTION_BOUNDS_S, and longer than the last. `reacted_s`: all of them together.
    """

    operator: str
    reactions: list[Count]
    reacted_s: Seconds


AnyProfile = WorkerProfile | ServerProfile | HostProfile | OperatorProfile
PROFILES: tuple[type[Profile], ...] = (WorkerProfile, ServerProfile, HostProfile, OperatorProfile)
