"""Decisions on failures of user code: charge, dead-letter, or see that nothing can help (protocol "Poison and faults"; S2, S28)."""

from __future__ import annotations

from collections.abc import Generator

from rover_bus.events import causes
from rover_bus.events.data_facts import BatchDeadLettered
from rover_bus.events.facts import WorkerFailed
from rover_bus.events.identity import Exit, Member
from rover_bus.events.log import Record
from rover_bus.events.requests import EARLY, FailureReply, FailureRequest, Reply
from rover_bus.master import lifecycle
from rover_bus.master.ledger import Ledger
from rover_bus.master.phases import Ended, Finishing, Starting, Training
from rover_bus.master.planning import is_planned
from rover_bus.master.progress import report_progress
from rover_bus.master.state import State

Steps = Generator[Record, None, Reply | None]

ENDED_EARLY = "its program ended in order (status 0) while the job had batches for it: it must read `job.batches()` to the end"


def failure(state: State, request: FailureRequest) -> Steps:
    """User code raised: keep the progress, charge the first uncommitted batch of the lease it happened on."""
    yield from report_progress(state, request, 0, request.progress)
    charged = not is_known(state, request.member)
    if charged:
        yield from charge(state, request.member, causes.request(request.member, "failure"), request)
    return FailureReply(term=state.term, generation=state.generation, charged=charged)


def charge(
    state: State, member: Member, cause: str, report: FailureRequest | None = None, exit: Exit | None = None
) -> Generator[Record, None, None]:
    """Charge a failure of `member` and decide what follows: a dead letter, or the end of the job.

    It reported what it met (`report`), or its process ended (`exit`), perhaps before it could join.
    """
    ended = f"{exit.reason}:{exit.status}:{exit.signal}" if exit else ""
    failure = WorkerFailed(
        member=member,
        charged_epoch=state.ledger.epoch if state.ledger is not None else -1,
        charged_batch=first_uncommitted(state, member, report.token if report else 0),
        exception=report.exception if report else "",
        message=report.message if report else exit.describe() if exit else "",
        traceback=report.traceback if report else exit.stderr if exit else "",
        fingerprint=report.fingerprint if report else ended,
        group=_group_of(state, member),
        cause=cause,
    )
    yield failure
    if not failure.group:  # else the whole group's failures are judged together (stepping)
        yield from weigh(state, failure, cause)


def charge_early_end(state: State, member: Member, cause: str) -> Generator[Record, None, None]:
    """A program ended in order while its job has work for it: a failure of the program, of no batch; without an end it is started
    for ever. Of a group, whose others wait for it, the broken step is judged instead."""
    works = isinstance(state.phase, Starting | Training) and not state.ending.stop
    expected = member.role == "worker" and works and is_planned(state, member) and not is_known(state, member)
    if not expected or _group_of(state, member):
        return
    epoch = state.ledger.epoch if state.ledger is not None else -1
    failure = WorkerFailed(
        member=member, exception="", message=ENDED_EARLY, fingerprint=EARLY, charged_epoch=epoch, cause=cause
    )
    yield failure
    yield from weigh(state, failure, cause)


def weigh(state: State, failure: WorkerFailed, cause: str) -> Generator[Record, None, None]:
    """Decide what follows from a failure that was charged: a dead letter, or the end of the job."""
    if isinstance(state.phase, Finishing | Ended):
        return
    if same := state.charges.deterministic(state.job.spec.leases.deterministic_failures):
        said = f"{failure.exception}: {failure.message}" if failure.exception else failure.message
        yield from lifecycle.end(state, "failed", "deterministic_failure", said or same, cause)
        return
    if failure.charged_batch >= 0 and state.ledger is not None:
        yield from _dead_letter(state, state.ledger, failure.charged_batch, cause)


def is_known(state: State, member: Member) -> bool:
    """Whether this failure of a member was noted before: an exit after a report is the same failure."""
    lockstep = state.ledger.lockstep if state.ledger is not None else None
    return member in state.charges.charged or (lockstep is not None and lockstep.failed(member))


def _group_of(state: State, member: Member) -> int:
    """Return the group whose step a member takes; 0: none."""
    lockstep = state.ledger.lockstep if state.ledger is not None else None
    takes_part = isinstance(state.phase, Training) and lockstep is not None and lockstep.has(member)
    return lockstep.number if lockstep is not None and takes_part else 0


def first_uncommitted(state: State, member: Member, token: int) -> int:
    """Return the first uncommitted batch of the lease that the member worked on: `token`, or its oldest; -1 when it held none."""
    holder = state.ledger.holders.get(member.index) if state.ledger is not None else None
    if (
        member.role != "worker"
        or holder is None
        or holder.incarnation != member.incarnation
        or not holder.leases
    ):
        return -1
    lease = holder.leases.get(token) or holder.leases[min(holder.leases)]
    return lease.first


def _dead_letter(state: State, ledger: Ledger, batch: int, cause: str) -> Generator[Record, None, None]:
    epoch, limit = ledger.epoch, state.job.spec.leases.failures_per_batch
    members = state.charges.poisoned(epoch, batch, limit)
    if not members or batch in ledger.dead or ledger.done.covers(batch, batch + 1):
        return
    dataset = ledger.dataset
    yield BatchDeadLettered(
        epoch=epoch,
        batch=batch,
        first_position=batch * dataset.batch_size,
        samples=ledger.samples_of(batch),
        reason=f"failed on {len(members)} incarnations; it may be partly applied",
        members=members,
        cause=cause,
    )
    if ledger.complete:
        yield from lifecycle.close_epoch(state, cause)
