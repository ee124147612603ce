"""Decisions on leases, progress and heartbeats: the hot path (P6, P7). Generators of records; see decider.py.

Guided self-scheduling (design §5): a lease holds a worker's measured rate times the target lease time, and at most 1/(2 * workers)
of what is unassigned, so that no worker holds much when the epoch ends; slow workers get little, fast ones more. And no worker gets
more than its share of what is not done yet, what it holds already included: a worker that reads ahead would else take the last
batches while another one waits for the epoch's end.

A request costs what it changes: nothing here walks over all workers or all leases. What needs such a walk (which lease of the
epoch's tail is late) is looked for on ticks, once for all requests that wait (waiting.py).
"""

from __future__ import annotations

import math
from collections.abc import Generator
from functools import partial

import msgspec

from rover_bus.events import causes
from rover_bus.events.data_facts import LeaseSpeculated
from rover_bus.events.deciding import Hold
from rover_bus.events.job import JobSpec, LeaseSpec
from rover_bus.events.log import Granted, Record, Returned, Sealed
from rover_bus.events.requests import (
    HeartbeatReply,
    HeartbeatRequest,
    LeaseReply,
    LeaseRequest,
    Reply,
    Request,
)
from rover_bus.master import cutting, lifecycle, rollout, stepping
from rover_bus.master.fences import fence, refusal
from rover_bus.master.ledger import Holder, Ledger
from rover_bus.master.phases import Closed, Finishing, Training, name_of
from rover_bus.master.progress import report_progress
from rover_bus.master.state import State
from rover_bus.master.stream import StreamPartition, Streams
from rover_bus.master.watch import Liveness, is_known

Steps = Generator[Record, None, Reply | Hold | None]
MAX_WANTED = 1024
FIRST_LEASE_BATCHES = 8  # before a worker has a rate: enough to measure one, little to lose
WAITING = ("wait", "idle")  # outcomes that a change of the ledger turns into a grant


class LateLease(msgspec.Struct, frozen=True):
    """A lease of the epoch's tail that an idle worker shall take too: the index of the worker that holds it, and its token."""

    worker: int
    token: int


def lease(
    state: State, request: LeaseRequest, watch: Liveness, gathering: stepping.Gathering, now: float
) -> Steps:
    """Process the progress, take back what the worker never got, then grant. A request that brings and gets nothing is held.

    What a request reports is answered at once: only then may its worker report more.
    """
    ledger = state.ledger
    if request.member.role != "worker":
        return refusal(state, "wrong_role", f"{request.member} is no worker: it gets no leases")
    if ledger is None:
        return refusal(state, "not_registered", "register the data set before asking for leases")
    holder = ledger.holders[request.member.index]
    number = request.request
    retry = number == holder.request and number != 0
    progress = request.progress
    answers: list[int] = []
    if progress.tokens:
        answers = yield from report_progress(state, request, number, progress)
    if not retry and holder.leases:
        known = {*request.held, *progress.tokens}
        forgotten = ledger.forgotten(holder, number, known)
        if forgotten:
            yield Returned(
                worker=request.member.index, incarnation=request.member.incarnation, tokens=forgotten
            )
    if ledger.streams is not None:
        yield from _seal(ledger, ledger.streams, request, watch)
    if ledger.complete:
        yield from lifecycle.close_epoch(state, causes.request(request.member, number))
    tokens, gathered = list[int](), partial(gathering.is_over, state, ledger, now)
    if retry:
        tokens = [token for token, lease in holder.leases.items() if lease.request == number]
    if (
        not tokens
        and request.wanted > 0
        and (_may_have_more(state, request) or stepping.owes(state, ledger, request.member))
    ):
        tokens = yield from _grant(state, ledger, request, holder, watch, gathered)
    if tokens or answers:
        watch.move(request.member.index, request.rate, now)
    reply = leased(state, ledger, request, answers, tokens)
    if tokens or answers or reply.cancelled or request.wanted <= 0 or reply.outcome not in WAITING:
        return reply
    return Hold(request.member)


def lease_again(
    state: State, request: LeaseRequest, watch: Liveness, gathering: stepping.Gathering, now: float
) -> Steps:
    """Decide on a held request again. It is no sign of life of its worker: that was noted when it came (P19)."""
    refused = fence(state, request)
    if refused is not None:
        return refused
    return (yield from lease(state, request, watch, gathering, now))


def may_grant(state: State) -> bool:
    """Whether work is given out at all."""
    return isinstance(state.phase, Training) and not state.ending.stop


def speculate(
    state: State,
    ledger: Ledger,
    request: LeaseRequest,
    late: LateLease,
    watch: Liveness,
    now: float,
) -> Steps:
    """Lease what another worker holds a second time, to a worker that has nothing to do."""
    held = ledger.holders[late.worker].leases[late.token]
    token = ledger.next_token
    yield Granted(
        worker=request.member.index,
        incarnation=request.member.incarnation,
        request=request.request,
        first_token=token,
        firsts=[held.first],
        counts=[held.end - held.first],
        peer=late.token,
        peer_worker=late.worker,
    )
    yield LeaseSpeculated(
        epoch=ledger.epoch,
        first=held.first,
        batches=held.end - held.first,
        token=late.token,
        second=request.member,
        cause=causes.request(request.member, request.request),
    )
    watch.move(request.member.index, request.rate, now)
    return leased(state, ledger, request, [], [token])


def _grant(
    state: State,
    ledger: Ledger,
    request: LeaseRequest,
    holder: Holder,
    watch: Liveness,
    gathered: stepping.Gathered,
) -> Generator[Record, None, list[int]]:
    spec = state.job.spec
    if ledger.lockstep is not None:
        cause, opens = causes.request(request.member, request.request), may_grant(state)
        yield from stepping.form(state, ledger, cause, gathered)
        return (yield from stepping.grant(state, ledger, ledger.lockstep, request, opens, gathered))
    free = ledger.unassigned
    if not free and ledger.streams is None:
        return []
    wanted, size = _how_much(ledger, spec, free, request, holder, watch)
    spans: list[tuple[str, int, int, int, int]] = []
    firsts, counts = ledger.propose(wanted, size)
    if ledger.streams is not None and len(firsts) < wanted:
        by_rate = lease_batches(spec.leases, request.rate, 1 << 40, 1)
        more = ledger.streams.propose(ledger.frontier, wanted - len(firsts), by_rate, request.high_water)
        firsts, counts, spans = firsts + more[0], counts + more[1], more[2]
    if not firsts:
        return []
    first_token = ledger.next_token
    yield Granted(
        worker=request.member.index,
        incarnation=request.member.incarnation,
        request=request.request,
        first_token=first_token,
        firsts=firsts,
        counts=counts,
        spans=spans,
    )
    return list(range(first_token, first_token + len(firsts)))


def _how_much(
    ledger: Ledger, spec: JobSpec, free: int, request: LeaseRequest, holder: Holder, watch: Liveness
) -> tuple[int, int]:
    """Return how many leases this worker may get, and how large. When more is leased than is free, each has its share."""
    wanted = min(request.wanted, MAX_WANTED)
    size = lease_batches(spec.leases, request.rate, free, len(ledger.holders))
    if ledger.streams is not None or 2 * free > ledger.remaining:
        return wanted, size
    room = _room(ledger, request, holder, watch)
    size = min(size, room) or 1
    return min(wanted, -(-room // size)), size


def _room(ledger: Ledger, request: LeaseRequest, holder: Holder, watch: Liveness) -> int:
    """Return how many batches more this worker may hold at the end of an epoch; one that holds none may always have one."""
    held = sum(lease.end - lease.first for lease in holder.leases.values())
    part = watch.part(request.member.index, request.rate, len(ledger.holders))
    room = share_left(ledger.remaining, held, part)
    return room if held else max(room, 1)


def _seal(
    ledger: Ledger, streams: Streams, request: LeaseRequest, watch: Liveness
) -> Generator[Record, None, None]:
    """End partitions behind the last record that any worker has reported, or was granted: one of them may see fewer than others.

    A report beyond a seal moves the seal, as long as the epoch is open.
    """
    watch.note_readable(request.high_water)
    for partition in sorted(request.high_water):
        part = streams.partitions.get(partition) or StreamPartition()
        if part.end < 0 and partition not in request.sealed:
            continue
        end = max(watch.readable[partition], part.assigned)
        if end > part.end and (part.end < 0 or not ledger.complete):
            yield Sealed(partition=partition, end_offset=end, cause=f"{request.member}")


def leased(
    state: State, ledger: Ledger, request: LeaseRequest, answers: list[int], tokens: list[int]
) -> LeaseReply:
    """Return the reply to a lease request as the ledger is now; without tokens it says why there are none."""
    leases = ledger.holders[request.member.index].leases
    firsts = [leases[token].first for token in tokens]
    counts = [leases[token].end - leases[token].first for token in tokens]
    spans: list[tuple[str, int, int, int, int]] = []
    if ledger.streams is not None:
        for first, count in zip(firsts, counts, strict=True):
            spans += ledger.streams.slices(first, first + count)
    outcome = "granted" if tokens else _outcome(state, ledger, request)
    reply = LeaseReply(
        term=state.term,
        generation=state.generation,
        request=request.request,
        outcome=outcome,  # type: ignore[arg-type]
        epoch=ledger.epoch,
        tokens=tokens,
        firsts=firsts,
        counts=counts,
        answers=answers,
        cancelled=[token for token in request.held if token not in leases] if request.held else [],
        spans=spans,
    )
    if ledger.lockstep is None:
        return reply
    group = stepping.group_of(state, ledger, request, tokens)
    return reply if group is None else msgspec.structs.replace(reply, group=group)


def _closed_before(state: State) -> int:
    """Epochs before this one are closed, and no cut that is still usable lies in them (P11)."""
    epoch = max(state.ledger.epoch, 0) if state.ledger is not None else 0
    return min((cut.epoch for cut in state.cuts.known.values()), default=epoch)


def _settled(state: State) -> tuple[int, int]:
    """Return an epoch, and how many of its first batches are committed or dead, in every usable cut as well (P3).

    Not just now: a dead batch is leased again after a rewind to a cut before its end, and survivors must not hold it then.
    """
    if state.cuts.known:
        return min((cut.epoch, cut.settled) for cut in state.cuts.known.values())
    ledger = state.ledger
    return (max(ledger.epoch, 0), ledger.settled) if ledger is not None else (0, 0)


def _outcome(state: State, ledger: Ledger, request: LeaseRequest) -> str:
    if state.ending.stop == "finish":
        return "wait" if ledger.outstanding else "closed"
    if state.ending.stop or _is_dropped(state, request):
        return "drain"
    if request.retiring:
        return "drain"
    if isinstance(state.phase, Closed | Finishing):
        return "closed"
    return "idle" if ledger.streams is not None and not ledger.outstanding else "wait"


def _may_have_more(state: State, request: LeaseRequest) -> bool:
    return may_grant(state) and not _is_dropped(state, request)


def _is_dropped(state: State, request: Request) -> bool:
    seated = state.seats.admitted.get(request.member.name)
    return seated is not None and state.seats.drops(seated)


def heartbeat(state: State, request: HeartbeatRequest, watch: Liveness, now: float) -> Steps:
    """Progress between lease calls, the tokens held, and the master's orders on the way back."""
    member = request.member
    answers: list[int] = []
    cancelled: list[int] = []
    ledger = state.ledger
    if member.role == "worker" and ledger is not None:
        holder = ledger.holders[member.index]
        if request.progress.tokens:
            answers = yield from report_progress(state, request, request.request, request.progress)
            watch.touch(member.index, now)
        if holder.leases and request.request:
            known = {*request.held, *request.progress.tokens}
            if forgotten := ledger.forgotten(holder, request.request, known):
                yield Returned(worker=member.index, incarnation=member.incarnation, tokens=forgotten)
        if ledger.complete:
            yield from lifecycle.close_epoch(state, str(member))
        cancelled = [token for token in request.held if token not in holder.leases]
    order, path = lifecycle.order_for(state, member)
    routing = state.slots.routing
    return HeartbeatReply(
        term=state.term,
        generation=state.generation,
        answers=answers,
        cancelled=cancelled,
        order=order,  # type: ignore[arg-type]
        path=path,
        routing=routing if routing is not None and routing.epoch > request.routing_epoch else None,
        job_state=name_of(state.phase),
        moves=rollout.orders_for(state, member) if state.slots.rollout is not None else [],
        closed_before=_closed_before(state),
        settled=_settled(state) if member.role == "ps" else (0, 0),
        cut=cutting.order_for(state, member) if member.role == "ps" else None,
    )


# -- how much ------------------------------------------------------------------------------------------------------------


def lease_batches(spec: LeaseSpec, rate: float, unassigned: int, workers: int) -> int:
    """Return the batches of the next lease, at least 1.

    rate: batches a second of this worker, 0 when unknown; unassigned: batches free now; workers: those alive.
    """
    by_rate = round(rate * spec.target_s) if is_known(rate) else FIRST_LEASE_BATCHES
    by_tail = -(-unassigned // (2 * max(workers, 1)))
    return max(1, min(by_rate, by_tail, spec.max_batches))


def share_left(remaining: int, held: int, part: float) -> int:
    """Return how many batches more a worker may hold so that all workers end the epoch together, at least 0.

    remaining: batches not done yet, leased ones included; held: those of this worker; part: its part of what all workers do.
    """
    return max(0, math.ceil(remaining * part) - held)
