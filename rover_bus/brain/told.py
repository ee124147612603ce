"""What a scheduler and the Brain say to one another where no bus is between them: the values of `v1`, checked and with units.

Fed by the scheduler, feeds `v1.Brain`; `profiles_of` says a measurement in the words of members, which is what the Brain hears on a
cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from rover_bus.events.identity import Member, Role
from rover_bus.events.invariants import Bytes, Checked, Cores, Count, Fraction, Members, Seconds
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec, Positive, RoleSpec, WorkersSpec
from rover_bus.events.profiles import AnyProfile, HostProfile, ProcessSample, ServerProfile, WorkerProfile

ToldBytes = Annotated[float, msgspec.Meta(ge=0, description="bytes; fractions, as of means, are cut off")]
PLENTY_BYTES = 1 << 50  # of a host whose memory is not counted
MEASURED = "measured"  # whose word processes are heard by: no host that could be missed


class ClusterHost(Checked, frozen=True, kw_only=True):
    """What a host can give. `cores_bind`: it holds members to their cores, so that cores are worth choosing."""

    cores: Cores
    memory_bytes: ToldBytes = PLENTY_BYTES
    cores_bind: bool = False


class TrainingJob(Checked, frozen=True, kw_only=True):
    """A job as it is submitted. Runs of one `family` share what they show; the label is yours, and so is what `samples` are.

    `max_servers` 0: an all-reduce job, which any change starts anew. `start_workers`: what the user asked for, 0 for one;
    `workers` fixes the count. `batch_size` in samples: a worker's, or the whole job's when it is synchronous or has no servers.
    """

    name: str
    family: str = ""
    user: str = ""
    batch_size: Positive = 1
    synchronous: bool = False
    workers: Members = 0
    start_workers: Members = 0
    max_workers: Members = 64
    worker_cores: Cores = 1.0
    most_worker_cores: Cores = 0.0  # above `worker_cores`: the Brain may give a worker up to so many
    worker_memory_bytes: ToldBytes = 0
    max_servers: Members = 0
    server_cores: Cores = 1.0
    most_server_cores: Cores = 0.0
    server_memory_bytes: ToldBytes = 0
    change_s: Seconds = 30.0  # for which a change stops the job
    window_s: Seconds = 30.0  # what one measurement covers at least
    priority: int = 0
    tenant: str = ""

    def spec(self) -> JobSpec:
        """The job as the service knows it."""
        return JobSpec(
            name=self.name,
            program=[self.family or self.name],
            data=DataSpec(train=self.family or self.name, batch_size=self.batch_size),
            workers=WorkersSpec(
                training="synchronous" if self.synchronous or not self.max_servers else "asynchronous",
                count=self.workers,
                start=self.start_workers,
                max_count=max(self.max_workers, self.workers),
                cores=self.worker_cores,
                max_cores=self.most_worker_cores,
                memory_bytes=int(self.worker_memory_bytes),
            ),
            servers=RoleSpec(
                max_count=self.max_servers,
                cores=self.server_cores if self.max_servers else 0.0,
                max_cores=self.most_server_cores,
                memory_bytes=int(self.server_memory_bytes),
            ),
            plan=PlanSpec(window_s=self.window_s, change_s=self.change_s, tenant=self.tenant),
            priority=int(self.priority),
            labels={"family": self.family or self.name, "user": self.user},
        )


class Measurement(Checked, frozen=True, kw_only=True):
    """What a job did in the `seconds` before `now_s`, at the size that it held in all of them; the time of a change left out.

    `samples_per_s` is the whole job's. Everything else may be left out: `worker_samples_per_s` tells slow workers and hosts (equal
    shares else; fewer than it has workers: the others have not come yet), `samples_left` None says that it is not known (a stream),
    the others tell what limits the job.
    """

    job: str
    seconds: Seconds
    samples_per_s: Seconds
    worker_samples_per_s: list[float] = []
    samples_done: float = 0.0
    samples_left: float | None = None
    input_share: Fraction = 0.0  # of workers' time, in which they waited for input
    worker_cores_used: Cores = 0.0
    server_cores_used: Cores = 0.0
    worker_cores_peak: Cores = 0.0  # in the busiest tenths of a second
    server_cores_peak: Cores = 0.0
    server_cores_busy: list[float] = []  # by server: cores that its tables kept busy
    worker_memory_bytes: ToldBytes = 0
    server_memory_bytes: ToldBytes = 0


class JobPlacement(Checked, frozen=True, kw_only=True):
    """What a job shall hold, absolute: the host of each worker and of each server, by index; none: it waits.

    `samples_per_s` is what the Brain believes that this will bring, 0 where it knows nothing; `reason` a constant, `detail` words.
    `stays_on`: where workers were that are elsewhere now and may train on there, one host for each, until the job is settled: the
    Brain counts their room until then.
    """

    job: str
    worker_hosts: list[str] = []
    server_hosts: list[str] = []
    stays_on: list[str] = []
    worker_cores: Cores = 0.0
    server_cores: Cores = 0.0
    worker_memory_bytes: Bytes = 0
    server_memory_bytes: Bytes = 0
    samples_per_s: float = 0.0
    low_90: float = 0.0
    high_90: float = 0.0
    reason: str = ""
    detail: str = ""

    @property
    def workers_by_host(self) -> dict[str, int]:
        """How many workers each host has."""
        return {host: self.worker_hosts.count(host) for host in dict.fromkeys(self.worker_hosts)}


class MemberRemedy(Checked, frozen=True, kw_only=True):
    """What a member needs that is no question of size: a worker replaced, or given smaller leases; slots moved off a server."""

    kind: Literal["replace_worker", "smaller_leases", "move_slots"]
    job: str
    index: Count


def profiles_of(
    sample: Measurement, rates: Mapping[Member, float], servers: int, fresh: Sequence[Member], batches: int
) -> Iterator[AnyProfile]:
    """Say what workers, servers and their processes would have said. `rates`: samples a second of each worker; `fresh`: workers of
    which this is the first sample, which would be taken for a warm-up; a measurement is none. `batches`: of each worker.
    """
    for member in fresh:
        yield WorkerProfile(window_s=0.0, job=sample.job, member=member, samples=0, batches=0)
    own_s = sample.seconds if sample.worker_samples_per_s else 0.0
    for member, rate in rates.items():
        yield WorkerProfile(
            window_s=sample.seconds,
            job=sample.job,
            member=member,
            samples=round(sample.seconds * rate),
            batches=batches,
            read_s=sample.seconds * sample.input_share,
            compute_s=own_s * (1 - sample.input_share),
        )
    for index, busy in zip(range(servers), sample.server_cores_busy, strict=False):
        yield ServerProfile(
            window_s=sample.seconds,
            job=sample.job,
            member=Member("ps", index, 1),
            pulls=0,
            pushes=0,
            ignored=0,
            busy_s=sample.seconds * float(busy),
        )
    processes = [*_processes(sample, "worker", len(rates)), *_processes(sample, "ps", servers)]
    if processes:
        yield HostProfile(
            window_s=sample.seconds,
            host=MEASURED,
            cores=0.0,
            cores_used=0.0,
            memory_bytes=0,
            memory_used_bytes=0,
            processes=processes,
        )


def _processes(sample: Measurement, role: Role, count: int) -> list[ProcessSample]:
    worker = role == "worker"
    cores = sample.worker_cores_used if worker else sample.server_cores_used
    peak = sample.worker_cores_peak if worker else sample.server_cores_peak
    used = sample.worker_memory_bytes if worker else sample.server_memory_bytes
    if not cores and not used:
        return []
    return [
        ProcessSample(
            job=sample.job,
            member=Member(role, i, 1),
            pid=1,
            cores_used=cores,
            memory_bytes=int(used),
            cores_peak=peak,
        )
        for i in range(count)
    ]
