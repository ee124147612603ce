"""A fact in a line that a person understands. Fed by history.py; read by `rover events`, `submit --wait`, `demo` and `story`."""

from __future__ import annotations

from collections.abc import Iterable

from rover_bus.cli.plan_narration import tell_plan
from rover_bus.events import facts
from rover_bus.events.facts import Fact
from rover_bus.events.identity import Member

GOOD, BAD, PLAIN, DIM = "green", "red", "", "dim"


def tell(fact: Fact) -> str:
    """Return what happened in one line, without the job's name."""
    match fact:
        case facts.JobSubmitted(spec=spec, by=by):
            return f"submitted{f' by {by}' if by else ''}: {spec.data.epochs} epochs of {spec.data.train}"
        case facts.JobOpened():
            return "a master took the job up: its log begins"
        case facts.JobStopRequested(mode=mode, reason=reason, by=by):
            return (
                f"asked to {'stop' if mode == 'drain' else mode}{f' by {by}' if by else ''}{_because(reason)}"
            )
        case facts.JobEnded(state=state, reason=reason, detail=detail):
            return f"{state}{_because(reason)}{f': {detail}' if detail else ''}"
        case facts.MasterElected(holder=holder, term=term, replayed_records=replayed):
            return f"{holder} leads, term {term}, after replaying {replayed} records"
        case facts.PlanProposed(plan=plan, reason=reason, by=by):
            return f"{by or 'somebody'} proposes plan {plan}: {reason}"
        case facts.PlanApplied(plan=plan, workers=workers, servers=servers):
            return f"plan {plan} is carried out: {_count(workers, 'worker')}, {_count(servers, 'server')}"
        case facts.PlanRefused(plan=plan, reason=reason):
            return f"plan {plan} refused: {reason}"
        case facts.MembersDesired(members=members):
            return f"wanted: {_names(each.member for each in members)}"
        case facts.MemberAdmitted(member=member, host=host, pid=pid):
            return f"{member} joined{f' on {host}' if host else ''}{f' (pid {pid})' if pid else ''}"
        case facts.MemberLost(member=member, reason=reason, leases_returned=leases):
            returned = f"; {_count(leases, 'lease')} returned" if leases else ""
            return f"{member} lost: {_spoken(reason)}{returned}"
        case facts.MemberLeft(member=member, reason=reason):
            return f"{member} left{_because(reason)}"
        case facts.DatasetRegistered(dataset=dataset):
            return f"data set of {dataset.records:,} records in batches of {dataset.batch_size}, {dataset.epochs} epochs"
        case facts.DatasetRefused(member=member, difference=difference):
            return f"{member} registered other data: {difference}"
        case facts.RoutingChanged(generation=generation, epoch=epoch, servers=servers):
            return f"routing ({generation}, {epoch}): {_names(servers)}"
        case facts.EpochOpened(epoch=epoch):
            return f"epoch {epoch} begins"
        case facts.EpochClosed(epoch=epoch, committed=committed, dead_lettered=dead):
            return f"epoch {epoch} is done: {committed:,} samples committed{f', {dead:,} dead-lettered' if dead else ''}"
        case facts.CommitRefused(member=member, reason=reason):
            return f"a commit of {member} refused: {_spoken(reason)}"
        case facts.BatchDeadLettered(epoch=epoch, batch=batch, samples=samples, reason=reason):
            return f"batch {batch} of epoch {epoch} given up ({samples} samples): {reason}"
        case facts.RowsSkipped(file=file, rows=rows):
            return (
                f"{_count(len(rows), 'row')} of {file} unusable, first line {rows[0].line}: {rows[0].reason}"
            )
        case facts.LeaseSpeculated(first=first, batches=batches, second=second):
            return f"batches {first} to {first + batches - 1} leased a second time, to {second}"
        case facts.LedgerRewound(generation=generation, reason=reason):
            return f"ledger rewound, generation {generation}: {reason}"
        case facts.WorkerFailed(member=member, exception=exception, message=message):
            return f"{member} raised {exception}: {message}"
        case facts.ResultReported(task=task, values=values):
            return f"{task}: " + ", ".join(f"{key} {_figure(value)}" for key, value in values.items())
        case facts.JobReported(epoch=epoch, committed=committed, total=total, samples_per_second=rate):
            return f"epoch {epoch}: {committed:,} of {total:,} samples, {rate:,.0f}/s"
        case facts.HostRegistered(host=host, capacity=capacity):
            return f"host {host}: {capacity.cores:g} cores, {capacity.memory_bytes / 2**30:.1f} GiB"
        case facts.HostStarted(process=process, adopted=adopted):
            return f"{process.member} {'adopted' if adopted else 'started'}, pid {process.pid}"
        case facts.HostExited(member=member, exit=exit, ran_s=ran_s):
            detail = f" ({exit.detail})" if exit.detail else ""
            return f"process of {member} ended after {ran_s:.1f} s: {_spoken(exit.reason)}{detail}"
        case facts.HostLeft(host=host, reason=reason):
            return f"host {host} leaves{_because(reason)}"
    return tell_plan(fact) or f"{fact.kind()}"


def mood(fact: Fact) -> str:
    """Return the colour of a fact: what went well, what went wrong, what is only said for the record."""
    match fact:
        case facts.JobEnded(state=state):
            return GOOD if state == "completed" else BAD
        case facts.MasterElected() | facts.EpochClosed() | facts.MemberAdmitted() | facts.ResultReported():
            return GOOD
        case facts.PlanKept() | facts.StragglerRecovered() | facts.IncidentClosed():
            return GOOD
        case facts.PlanRolledBack() | facts.StragglerFound() | facts.IncidentOpened():
            return BAD
        case facts.MemberLost() | facts.WorkerFailed() | facts.BatchDeadLettered() | facts.PlanRefused():
            return BAD
        case facts.CommitRefused() | facts.DatasetRefused() | facts.LedgerRewound() | facts.RowsSkipped():
            return BAD
        case facts.HostExited(exit=exit) if exit.reason not in ("completed", "drained"):
            return BAD
        case facts.JobReported() | facts.MembersDesired() | facts.RoutingChanged():
            return DIM
    return PLAIN


def _because(reason: str) -> str:
    return f" ({_spoken(reason)})" if reason else ""


def _spoken(constant: str) -> str:
    return constant.replace("_", " ")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _names(members: Iterable[Member]) -> str:
    return ", ".join(map(str, members)) or "nobody"


def _figure(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
