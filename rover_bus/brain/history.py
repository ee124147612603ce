"""The Config DB as a projection of facts: one line a job, what it was, asked, got, and how it ended.

Fed by facts in their order, feeds warm starts and exports. Nothing here is truth: replaying the facts rebuilds it (design §2).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

import msgspec

from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.decisions.warm_start import JobTraits, PastJob
from rover_bus.events.facts import Fact, JobEnded, JobReported, JobSubmitted, PlanApplied, PlanProposed
from rover_bus.events.job import JobSpec


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """One job. `asked` is the user's wish (0: left open), `planned` the newest proposal, `held` the last one applied."""

    job: str
    traits: JobTraits
    asked: Allocation
    submitted_at_s: float
    planned: tuple[int, Allocation] | None = None
    held: Allocation | None = None
    plans_applied: int = 0
    samples_committed: int = 0
    samples_dead_lettered: int = 0
    peak_samples_per_s: float = 0.0
    state: str = "running"
    reason: str = ""
    ended_at_s: float = 0.0


History = Mapping[str, JobLine]


def evolve_history(history: History, fact: Fact, at_s: float) -> History:
    """Take in one fact with its time in seconds since the epoch. Facts about unknown jobs change nothing."""
    if isinstance(fact, JobSubmitted):
        line = JobLine(
            job=fact.job, traits=traits_of(fact.spec), asked=_asked(fact.spec), submitted_at_s=at_s
        )
        return {**history, fact.job: line}
    known = history.get(getattr(fact, "job", ""))
    if known is None:
        return history
    return {**history, known.job: _evolve(known, fact, at_s)}


def past_jobs(history: History) -> list[PastJob]:
    """The finished jobs that warm starts may learn from."""
    return [
        PastJob(
            job=line.job,
            traits=line.traits,
            final=line.held,
            ended_at_s=line.ended_at_s,
            completed=line.state == "completed",
        )
        for line in history.values()
        if line.state != "running" and line.held is not None
    ]


def traits_of(spec: JobSpec) -> JobTraits:
    """What a job is before it runs. Labels `user` and `family` are the user's; the family is the program where he says none."""
    family = spec.labels.get("family") or " ".join(spec.program[:2])
    sizes = {"batch_size": float(spec.data.batch_size), "epochs": float(spec.data.epochs)}
    return JobTraits(user=spec.labels.get("user", ""), dataset=spec.data.train, family=family, sizes=sizes)


def history_csv(history: History) -> str:
    """Export as CSV, a line a job, in the order of submission."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = (
        "workers",
        "servers",
        "worker_cores",
        "server_cores",
        "worker_memory_bytes",
        "server_memory_bytes",
    )
    facts = ("job", "submitted_at_s", "ended_at_s", "state", "reason", "plans_applied")
    figures = ("samples_committed", "samples_dead_lettered", "peak_samples_per_s")
    writer.writerow(
        [
            *facts,
            "user",
            "dataset",
            "family",
            *(f"asked_{n}" for n in names),
            *(f"held_{n}" for n in names),
            *figures,
        ]
    )
    for line in sorted(history.values(), key=lambda entry: (entry.submitted_at_s, entry.job)):
        held = [getattr(line.held, name) if line.held else "" for name in names]
        writer.writerow(
            [getattr(line, name) for name in facts]
            + [line.traits.user, line.traits.dataset, line.traits.family]
            + [getattr(line.asked, name) for name in names]
            + held
            + [getattr(line, name) for name in figures]
        )
    return out.getvalue()


def _evolve(line: JobLine, fact: Fact, at_s: float) -> JobLine:
    match fact:
        case PlanProposed():
            return msgspec.structs.replace(line, planned=(fact.plan, _planned(fact)))
        case PlanApplied():
            held = (
                line.planned[1] if line.planned and line.planned[0] == fact.plan else line.held or line.asked
            )
            held = held.replace(workers=fact.workers, servers=fact.servers)
            return msgspec.structs.replace(line, held=held, plans_applied=line.plans_applied + 1)
        case JobReported():
            peak = max(line.peak_samples_per_s, fact.samples_per_second)
            return msgspec.structs.replace(
                line,
                samples_committed=fact.committed,
                samples_dead_lettered=fact.dead_lettered,
                peak_samples_per_s=peak,
            )
        case JobEnded():
            return msgspec.structs.replace(line, state=fact.state, reason=fact.reason, ended_at_s=at_s)
    return line


def _asked(spec: JobSpec) -> Allocation:
    return Allocation(
        workers=spec.workers.count,
        servers=spec.servers.count,
        worker_cores=spec.workers.cores,
        server_cores=spec.servers.cores,
        worker_memory_bytes=spec.workers.memory_bytes,
        server_memory_bytes=spec.servers.memory_bytes,
    )


def _planned(fact: PlanProposed) -> Allocation:
    return Allocation(
        workers=fact.workers,
        servers=fact.servers,
        worker_cores=fact.worker_cores,
        server_cores=fact.server_cores,
        worker_memory_bytes=fact.worker_memory_bytes,
        server_memory_bytes=fact.server_memory_bytes,
    )
