"""The Config DB as a projection of facts: one line a job, what it was, asked, got, used, and how it ended.

Fed by facts in their order, feeds warm starts and exports (history_files.py). Nothing here is truth: replaying the facts
rebuilds it (design §2).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.decisions.warm_start import JobTraits
from rover_bus.events.facts import Fact, JobEnded, JobReported, JobSubmitted, PlanApplied, PlanProposed
from rover_bus.events.host_facts import HostExited
from rover_bus.events.invariants import Bytes, Checked, Count, Seconds
from rover_bus.events.job import JobSpec


class Usage(Checked, frozen=True, kw_only=True):
    """What the incarnations of one role used, as the kernel counted it at their ends.

    `member_s` is the sum of their lengths, `cpu_s` the processor seconds of their groups, `peak_memory_bytes` the largest
    resident set of one process.
    """

    incarnations: Count = 0
    member_s: Seconds = 0.0
    cpu_s: Seconds = 0.0
    peak_memory_bytes: Bytes = 0

    @property
    def cores(self) -> float:
        """Cores that one member kept busy, on average over its run."""
        return self.cpu_s / self.member_s if self.member_s else 0.0

    def add(self, exited: HostExited) -> Usage:
        """Take one more incarnation in."""
        return Usage(
            incarnations=self.incarnations + 1,
            member_s=self.member_s + exited.ran_s,
            cpu_s=self.cpu_s + exited.cpu_s,
            peak_memory_bytes=max(self.peak_memory_bytes, exited.peak_memory_bytes),
        )


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """One job. `asked` is the user's wish (0: left open), `planned` the newest proposal, `held` the last one applied.

    `used` is by role, and holds the incarnations that have ended. `auc` and `logloss` are what the program reported at its end.
    """

    job: str
    traits: JobTraits
    asked: Allocation
    submitted_at_s: float
    planned: tuple[int, Allocation] | None = None
    held: Allocation | None = None
    plans_applied: int = 0
    used: dict[str, Usage] = {}
    samples_committed: int = 0
    samples_dead_lettered: int = 0
    peak_samples_per_s: float = 0.0
    state: str = "running"
    reason: str = ""
    ended_at_s: float = 0.0
    auc: float | None = None
    logloss: float | None = None


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


def traits_of(spec: JobSpec) -> JobTraits:
    """What a job is before it runs. Labels `user` and `family` are the user's; the family is the program where he says none."""
    family = spec.labels.get("family") or " ".join(spec.program[:2])
    sizes = {"batch_size": float(spec.data.batch_size), "epochs": float(spec.data.epochs)}
    return JobTraits(user=spec.labels.get("user", ""), dataset=spec.data.train, family=family, sizes=sizes)


def _evolve(line: JobLine, fact: Fact, at_s: float) -> JobLine:
    replace = msgspec.structs.replace
    match fact:
        case PlanProposed():
            return replace(line, planned=(fact.plan, _planned(fact)))
        case PlanApplied():
            return replace(line, held=_held(line, fact), plans_applied=line.plans_applied + 1)
        case HostExited(member=member):
            usage = line.used.get(member.role, Usage()).add(fact)
            return replace(line, used={**line.used, member.role: usage})
        case JobReported():
            return replace(
                line,
                samples_committed=fact.committed,
                samples_dead_lettered=fact.dead_lettered,
                peak_samples_per_s=max(line.peak_samples_per_s, fact.samples_per_second),
            )
        case JobEnded():
            return _ended(line, fact, at_s)
        case _:
            pass  # the others do not matter here
    return line


def _ended(line: JobLine, fact: JobEnded, at_s: float) -> JobLine:
    """The summary of the end is exact where the last report was minutes old."""
    summary, result = fact.summary, fact.summary.get("result", {})
    return msgspec.structs.replace(
        line,
        state=fact.state,
        reason=fact.reason,
        ended_at_s=at_s,
        samples_committed=summary.get("samples_committed", line.samples_committed),
        samples_dead_lettered=summary.get("samples_dead_lettered", line.samples_dead_lettered),
        auc=result.get("auc"),
        logloss=result.get("logloss"),
    )


def _held(line: JobLine, fact: PlanApplied) -> Allocation:
    proposed = line.planned[1] if line.planned and line.planned[0] == fact.plan else None
    held = proposed or line.held or line.asked
    return held.replace(workers=fact.workers, servers=fact.servers)


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
