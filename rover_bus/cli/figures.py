"""The figures that are scraped, from what commands show: every family of `web/families.py` by name, each series also while it is 0.

Fed by a picture (views/picture.py) and by what is there now; feeds `web/rendering.py`. How many series there are is bounded by
hosts and by jobs that run, or ended lately: never by time, samples or members.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean

from rover_bus.cli.views.hindrances import Present
from rover_bus.cli.views.picture import KnownOfJob, Picture
from rover_bus.events.job import JobSpec
from rover_bus.events.nats_jetstream import StoreUsage
from rover_bus.events.profiles import REACTION_BOUNDS_S, OperatorProfile, ProcessSample, WorkerProfile
from rover_bus.events.subjects import DEFAULT_TENANT
from rover_bus.web.port import Figure

GONE_AFTER_S = 600.0  # so long an ended job has series of its own
HOST_GONE_AFTER_S = 3600.0  # and a host that is not there any more
MOST_JOBS = 200  # that have series of their own: those that were submitted last
STATES = ("submitted", "starting", "running", "paused", "completed", "failed", "stopped", "cancelled")
ROLES = ("worker", "ps", "master")
PLANS = ("proposed", "applied", "refused", "rejected", "kept", "rolled_back")
CHECKPOINTS = ("opened", "ready", "failed")


@dataclass(slots=True)
class Surroundings:
    """What is there beside facts. `stream_bytes`: by stream; `now_ms`: of the clock of the machine, Unix milliseconds.

    `stores`: bytes and limit of each tenant's account; `store_limit_bytes`: of the broker; 0: not known.
    """

    present: Present = field(default_factory=Present)
    connected: bool = False
    stream_bytes: dict[str, int] = field(default_factory=dict)
    now_ms: int = 0
    stores: dict[str, StoreUsage] = field(default_factory=dict)
    store_limit_bytes: int = 0


def figures_of(picture: Picture, around: Surroundings) -> list[Figure]:
    """Return all series."""
    found = list(_of_stack(picture, around))
    found += _of_hosts(picture, around)
    processes = picture.processes()
    for known in shown_jobs(picture, around.now_ms):
        found += _of_job(picture, known, around.now_ms)
        found += _of_members(known, processes.get(known.row.job, []))
    return found


def shown_jobs(picture: Picture, now_ms: int) -> list[KnownOfJob]:
    """Return the jobs that have series of their own."""
    there = [
        known
        for known in picture.jobs.values()
        if not known.row.ended_ms or now_ms - known.row.ended_ms < 1000 * GONE_AFTER_S
    ]
    return there[-MOST_JOBS:]


def seconds_left(known: KnownOfJob) -> float:
    """Return how long a job trains on at its present speed; infinite while it does not, 0 once it has ended."""
    row = known.row
    if row.ended_ms:
        return 0.0
    left = row.total - row.committed - row.dead_lettered
    if not row.total or not row.samples_per_second or known.state != "running":
        return math.inf
    return max(left, 0) / row.samples_per_second


def _of_stack(picture: Picture, around: Surroundings) -> Iterator[Figure]:
    yield Figure("rover_bus_connected", (), around.connected)
    yield Figure("rover_brain_leads", (), around.present.brain)
    yield Figure("rover_facts_sequence", (), picture.sequence)
    yield Figure("rover_newest_fact_timestamp_seconds", (), picture.newest_ms / 1000)
    yield Figure("rover_facts_refused_total", (), picture.refused)
    for stream, size_bytes in around.stream_bytes.items():
        yield Figure("rover_stream_bytes", (stream,), size_bytes)
    yield from _of_stores(around)
    yield from _each("rover_jobs", STATES, Counter(known.state for known in picture.jobs.values()))
    yield from _of_operator(picture.operator)


def _of_operator(said: OperatorProfile | None) -> Iterator[Figure]:
    """As a histogram has it: how many were at most so long."""
    bounds = [*map(str, REACTION_BOUNDS_S), "+Inf"]
    counts = said.reactions if said is not None else [0] * len(bounds)
    for bound, count in zip(bounds, accumulate(counts), strict=False):
        yield Figure("rover_operator_reaction_seconds", (bound,), count)
    yield Figure("rover_operator_reaction_seconds", ("sum",), said.reacted_s if said is not None else 0.0)


def _of_stores(around: Surroundings) -> Iterator[Figure]:
    stores = around.stores or {DEFAULT_TENANT: StoreUsage(0, 0)}
    yield Figure("rover_store_bytes", (), sum(each.stored_bytes for each in stores.values()))
    yield Figure("rover_store_limit_bytes", (), around.store_limit_bytes)
    for tenant, used in stores.items():
        yield Figure("rover_tenant_store_bytes", (tenant,), used.stored_bytes)
        yield Figure("rover_tenant_store_limit_bytes", (tenant,), used.limit_bytes)


def _of_hosts(picture: Picture, around: Surroundings) -> Iterator[Figure]:
    hosts, since_ms = around.present.hosts, around.now_ms - 1000 * HOST_GONE_AFTER_S
    for host in sorted(hosts | {name for name, seen_ms in picture.hosts_seen.items() if seen_ms > since_ms}):
        yield Figure("rover_host_up", (host,), host in hosts)
        yield Figure("rover_host_slow", (host,), host in picture.slow_hosts)
        if host in hosts and (sample := picture.hosts.get(host)):
            yield Figure("rover_host_cores", (host,), sample.cores)
            yield Figure("rover_host_used_cores", (host,), sample.cores_used)
            yield Figure("rover_host_memory_bytes", (host,), sample.memory_bytes)
            yield Figure("rover_host_used_memory_bytes", (host,), sample.memory_used_bytes)


def _of_job(picture: Picture, known: KnownOfJob, now_ms: int) -> Iterator[Figure]:
    row, job = known.row, (known.row.job,)
    yield from _each("rover_job_state", STATES, {known.state: 1}, job)
    yield Figure("rover_job_samples", job, row.total)
    yield Figure("rover_job_committed_samples", job, row.committed)
    yield Figure("rover_job_dead_lettered_samples", job, row.dead_lettered)
    trains = known.state == "running"
    yield Figure("rover_job_throughput", job, (row.samples_per_second or 0.0) if trains else 0.0)
    carried_out = known.plans.carried_out
    yield Figure(
        "rover_job_predicted_throughput",
        job,
        carried_out.proposed.predicted if carried_out and trains else 0.0,
    )
    yield Figure("rover_job_remaining_seconds", job, seconds_left(known))
    yield Figure("rover_job_epoch", job, row.epoch)
    yield from _of_workers(picture.workers(row.job).values(), job)
    yield from _of_history(known, job, now_ms)


def _of_members(known: KnownOfJob, processes: Iterable[ProcessSample]) -> Iterator[Figure]:
    job, ended = (known.row.job,), bool(known.row.ended_ms)
    wanted = {} if ended else {**known.occurrences.members, "master": len(known.row.master_hosts)}
    yield from _each("rover_job_desired_members", ROLES, wanted, job)
    running = Counter(str(process.member.role) for process in known.members.running.values())
    yield from _each("rover_job_running_members", ROLES, running, job)
    processes = [each for each in processes if str(each.member) in known.members.running]
    yield from _each("rover_job_used_cores", ROLES, _sums(processes, "cores_used"), job)
    yield from _each("rover_job_used_memory_bytes", ROLES, _sums(processes, "memory_bytes"), job)


def _of_workers(samples: Iterable[WorkerProfile], job: tuple[str]) -> Iterator[Figure]:
    samples = list(samples)
    for activity in ("read", "pull", "compute", "push", "wait", "barrier"):
        shares = [getattr(each, f"{activity}_s") / each.window_s for each in samples]
        yield Figure("rover_job_worker_time_ratio", (*job, activity), fmean(shares) if shares else 0.0)
    losses = [each.loss for each in samples if each.loss]
    yield Figure("rover_job_loss", job, fmean(losses) if losses else math.nan)
    late = [each.staleness_batches for each in samples]
    yield Figure("rover_job_staleness_batches", job, fmean(late) if late else 0.0)


def _of_history(known: KnownOfJob, job: tuple[str], now_ms: int) -> Iterator[Figure]:
    row, happened = known.row, known.occurrences
    yield from _each("rover_job_lost_members_total", ("worker", "ps"), happened.lost, job)
    yield Figure("rover_job_failures_total", job, happened.failures)
    yield Figure("rover_job_elections_total", job, happened.elections)
    yield Figure("rover_job_rewinds_total", job, happened.rewinds)
    yield Figure("rover_job_moved_slots_total", job, happened.moves)
    yield from _each("rover_job_plans_total", PLANS, happened.plans, job)
    waits = (
        []
        if row.ended_ms
        else [view.number for view in known.plans.by_number.values() if view.state == "waits"]
    )
    yield Figure("rover_job_waiting_plan", job, max(waits, default=0))
    yield from _each("rover_job_checkpoints_total", CHECKPOINTS, happened.checkpoints, job)
    age_s = max(now_ms - happened.ready_ms, 0) / 1000 if happened.ready_ms else math.inf
    yield Figure("rover_job_checkpoint_age_seconds", job, age_s)
    yield Figure("rover_job_checkpoint_wanted", job, _stores(row.spec) and not row.ended_ms)
    yield Figure("rover_job_switched_off_rules", job, len(row.rules_off))


def _stores(spec: JobSpec | None) -> bool:
    return spec is not None and spec.checkpoint is not None and spec.checkpoint.persist


def _each(
    family: str,
    values: Iterable[str],
    known: dict[str, int] | Counter[str] | dict[str, float],
    job: tuple[str, ...] = (),
) -> Iterator[Figure]:
    """A series for each value of the last label, 0 where nothing is known."""
    for value in values:
        yield Figure(family, (*job, value), known.get(value, 0))


def _sums(processes: Iterable[ProcessSample], field: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in processes:
        found[each.member.role] = found.get(each.member.role, 0.0) + getattr(each, field)
    return found
