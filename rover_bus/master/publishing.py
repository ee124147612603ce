"""From records to what leaves the master: readable facts with their place in the log (P18), and the routing table in its bucket.

A pure function of the record (and the job's name), so that a successor derives the same facts from the same log. Leases and
commits, the hot records, make none: `rover top` reads progress from `job.reported`, and the log has every detail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from rover_bus.events import causes, facts, log
from rover_bus.events.facts import JobFact, Position
from rover_bus.events.identity import Member, Resources
from rover_bus.events.log import Record
from rover_bus.events.outbox import FactOut, Outgoing, PutValue
from rover_bus.events.requests import RoutingTable
from rover_bus.events.streams import ROUTING
from rover_bus.master import cut_publishing, slots
from rover_bus.master.state import State

FACTS_A_RECORD = 4  # at most; a fact's index in its batch is record index * 4 + its number
Publisher = Callable[[str, Any, State, int], list[JobFact]]


def outgoing(job: str, record: Record, position: Position, state: State, term: int) -> list[Outgoing]:
    """Return the facts that a record makes, each with its position and cause, then bucket values."""
    publisher = _PUBLISHERS.get(type(record))
    if publisher is None:
        return []
    cause = _cause(record)
    made: list[Outgoing] = []
    for number, fact in enumerate(publisher(job, record, state, term)):
        place = (position[0], position[1] * FACTS_A_RECORD + number)
        made.append(FactOut(fact.replace(position=place, cause=cause), place, term))
    if isinstance(record, log.RoutingFixed):
        made += standing(job, state)
    return made


def _cause(record: Record) -> str:
    """Hot records name no cause of their own: it is the request that they bear."""
    match record:
        case (
            log.Granted(worker=worker, incarnation=incarnation, request=request)
            | log.Committed(worker=worker, incarnation=incarnation, request=request)
        ):
            return causes.request(Member("worker", worker, incarnation), request)
        case log.Refusal(member=member):
            return str(member)
    return str(getattr(record, "cause", ""))


def standing(job: str, state: State) -> list[Outgoing]:
    """Return the absolute bucket values of the present state; a new leader writes them again."""
    if state.routing is None:
        return []
    return [PutValue(ROUTING, job, routing_value(state.routing))]


def routing_value(table: RoutingTable) -> bytes:
    """Routing as JSON: `nats kv get ROVER_ROUTING <job>` must be readable."""
    return msgspec.json.encode(table)


def _planned(job: str, record: log.MembersPlanned, state: State, term: int) -> list[JobFact]:
    made: list[JobFact] = [
        facts.MembersDesired(
            job=job,
            term=term,
            plan=record.plan,
            members=record.members,
            uid=state.uid,
            masters=record.masters,
        )
    ]
    if record.proposal:
        made.append(
            facts.PlanApplied(
                job=job,
                plan=record.proposal,
                workers=record.workers,
                servers=record.servers,
                reason=record.reason,
                size=_size(record),
                constant=record.constant,
                approved_by=record.approved_by,
                members_plan=record.plan,
            )
        )
    return made


def _size(record: log.MembersPlanned) -> facts.Size:
    """What the members of a plan are: those of a role are equal."""
    each = {desired.member.role: desired.resources for desired in record.members}
    worker, server = each.get("worker", Resources()), each.get("ps", Resources())
    return facts.Size(
        workers=record.workers,
        servers=record.servers,
        worker_cores=worker.cores,
        server_cores=server.cores,
        worker_memory_bytes=worker.memory_bytes,
        server_memory_bytes=server.memory_bytes,
    )


def _checked(job: str, record: log.PlanCheck, state: State, term: int) -> list[JobFact]:
    if record.outcome == "early":
        return []  # said once the job is known, by what becomes of the plan
    return [facts.PlanChecked(job=job, plan=record.plan, outcome=record.outcome, mode=record.mode)]  # type: ignore[arg-type]


def _paused(job: str, record: log.PauseSet, state: State, term: int) -> list[JobFact]:
    if record.paused:
        return [facts.JobPaused(job=job, reason=record.reason, workers=record.workers, by=record.by)]
    return [facts.JobResumed(job=job, workers=record.workers, by=record.by)]


def _rule_switched(job: str, record: log.RuleSwitched, state: State, term: int) -> list[JobFact]:
    if not record.off:
        return [facts.RuleSwitchedOn(job=job, rule=record.rule, release=record.release)]
    off = facts.RuleSwitchedOff(
        job=job, rule=record.rule, why=record.why, release=record.release, exact=record.exact
    )
    return [off]


def _committed(job: str, record: log.Committed, state: State, term: int) -> list[JobFact]:
    if not record.skipped:
        return []
    epoch = state.ledger.epoch if state.ledger is not None else 0
    return [facts.RowsSkipped(job=job, epoch=epoch, file=record.skipped_file, rows=record.skipped)]


def _granted(job: str, record: log.Granted, state: State, term: int) -> list[JobFact]:
    if not record.peer:
        return []
    return [
        facts.LeaseSpeculated(
            job=job,
            epoch=state.ledger.epoch if state.ledger is not None else 0,
            first=record.firsts[0],
            batches=record.counts[0],
            token=record.peer,
            second=Member("worker", record.worker, record.incarnation),
        )
    ]


def _charged(job: str, record: log.Charged, state: State, term: int) -> list[JobFact]:
    return [
        facts.WorkerFailed(
            job=job,
            member=record.member,
            exception=record.exception,
            message=record.message,
            traceback=record.traceback,
            charged_epoch=record.epoch,
            charged_batch=record.batch,
        )
    ]


def _rewound(job: str, record: log.Rewound, state: State, term: int) -> list[JobFact]:
    ledger = state.ledger
    return [
        facts.LedgerRewound(
            job=job,
            generation=record.generation,
            epoch=max(ledger.epoch, 0) if ledger is not None else 0,
            committed_batches=ledger.done.total if ledger is not None else 0,
            reason=record.reason,
            cut=record.cut,
            servers=[
                state.planned[f"ps-{index}"].member
                for index in record.servers
                if f"ps-{index}" in state.planned
            ],
            samples_again=record.samples_again,
        )
    ]


def _opened_rollout(job: str, record: log.RolloutBegun, state: State, term: int) -> list[JobFact]:
    routing = state.routing
    differ = zip(slots.expand(routing.owners if routing else []), slots.expand(record.goal), strict=True)
    planned = {d.member.index: d.member for d in state.planned.values() if d.member.role == "ps"}
    return [
        facts.RolloutOpened(
            job=job,
            rollout=record.rollout,
            slots=sum(now != then for now, then in differ),
            joins=[planned[index] for index in record.joins if index in planned],
            drops=[planned[index] for index in record.drops if index in planned],
            reason=record.reason,
            plan=record.proposal,
        )
    ]


def _ended_move(job: str, record: log.MoveEnded, state: State, term: int) -> list[JobFact]:
    names: dict[str, Any] = {
        "job": job,
        "move": record.move,
        "source": record.source,
        "target": record.target,
    }
    if not record.done:
        return [facts.MoveFailed(**names, reason=record.reason)]
    return [
        facts.SlotsMoved(
            **names, slots=record.slots, epoch=record.epoch, rows=record.rows, bytes=record.bytes
        )
    ]


_PUBLISHERS: dict[type[Record], Publisher] = {
    log.TermBegun: lambda job, r, state, term: [
        facts.MasterElected(job=job, term=term, holder=r.holder, replayed_records=r.replayed_records)
    ],
    log.JobTaken: lambda job, r, state, term: [facts.JobOpened(job=job, uid=r.uid, history=r.history)],
    log.DatasetFixed: lambda job, r, state, term: [
        facts.DatasetRegistered(job=job, dataset=r.dataset, member=r.member)
    ],
    log.DatasetRefusal: lambda job, r, state, term: [
        facts.DatasetRefused(job=job, member=r.member, difference=r.difference)
    ],
    log.MembersPlanned: _planned,
    log.PlanRefusal: lambda job, r, state, term: [
        facts.PlanRefused(job=job, plan=r.plan, reason=r.reason, constant=r.constant)
    ],
    log.PlanCheck: _checked,
    log.PlanLive: lambda job, r, state, term: [
        facts.PlanSettled(job=job, plan=r.plan, members_plan=state.plan)
    ],
    log.PauseSet: _paused,
    log.RuleSwitched: _rule_switched,
    log.Admitted: lambda job, r, state, term: [
        facts.MemberAdmitted(job=job, member=r.member, host=r.host, pid=r.pid, state=r.state)
    ],
    log.Lost: lambda job, r, state, term: [
        facts.MemberLost(
            job=job, member=r.member, reason=r.reason, detail=r.detail, leases_returned=r.leases_returned
        )
    ],
    log.HostLost: lambda job, r, state, term: [
        facts.MembersDisplaced(job=job, host=r.host, reason=r.reason, members=r.members)
    ],
    log.Left: lambda job, r, state, term: [facts.MemberLeft(job=job, member=r.member, reason=r.reason)],
    log.RoutingFixed: lambda job, r, state, term: [
        facts.RoutingChanged(
            job=job,
            generation=r.generation,
            epoch=r.epoch,
            servers=[Member("ps", server.index, server.incarnation) for server in r.servers],
        )
    ],
    log.RolloutBegun: _opened_rollout,
    log.MoveEnded: _ended_move,
    log.MoveRefusal: lambda job, r, state, term: [facts.MoveRefused(job=job, reason=r.reason)],
    log.RolloutEnded: lambda job, r, state, term: [
        facts.RolloutClosed(job=job, rollout=r.rollout, outcome=r.outcome, reason=r.reason)
    ],
    log.EpochBegun: lambda job, r, state, term: [
        facts.EpochOpened(job=job, epoch=r.epoch, generation=state.generation)
    ],
    log.EpochEnded: lambda job, r, state, term: [
        facts.EpochClosed(job=job, epoch=r.epoch, committed=r.committed, dead_lettered=r.dead_lettered)
    ],
    log.Granted: _granted,
    log.Committed: _committed,
    log.Refusal: lambda job, r, state, term: [
        facts.CommitRefused(job=job, member=r.member, token=r.token, reason=r.reason)
    ],
    log.Charged: _charged,
    log.DeadLettered: lambda job, r, state, term: [
        facts.BatchDeadLettered(
            job=job,
            epoch=r.epoch,
            batch=r.batch,
            first_position=r.first_position,
            samples=r.samples,
            reason=r.reason,
            members=r.members,
        )
    ],
    log.Reported: lambda job, r, state, term: [
        facts.JobReported(
            job=job,
            epoch=r.epoch,
            committed=r.committed,
            dead_lettered=r.dead_lettered,
            total=r.total,
            samples_per_second=r.samples_per_second,
        )
    ],
    log.TaskDone: lambda job, r, state, term: [
        facts.ResultReported(job=job, member=r.member, task=r.task, values=r.values)
    ],
    log.Rewound: _rewound,
    **cut_publishing.PUBLISHERS,
    log.Ended: lambda job, r, state, term: [
        facts.JobEnded(job=job, state=r.state, reason=r.reason, detail=r.detail, summary=r.summary)
    ],
}
