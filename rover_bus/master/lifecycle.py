"""Decisions on the life of a job and its members: losses and replacements, epochs, the finish, the end.

Generators of records; see decider.py. `consequences` is what follows from a changed state by itself.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import msgspec

from rover_bus.events import causes
from rover_bus.events.checkpoints import RestoreReport
from rover_bus.events.data_facts import EpochClosed, EpochOpened
from rover_bus.events.facts import JobEnd, JobEnded, MemberLeft, MemberLost, PlanSettled, RoutingChanged
from rover_bus.events.identity import Member
from rover_bus.events.job import is_synchronous
from rover_bus.events.log import FinishBegun, Record, Rewound
from rover_bus.events.requests import HeartbeatRequest
from rover_bus.master import cutting, recovery, rollout, searching, slots, withdrawing
from rover_bus.master.ledger import Ledger
from rover_bus.master.phases import Closed, Ended, Finishing, Searching, Starting, Training
from rover_bus.master.planning import begin_again, is_planned, remove_members, replace_members
from rover_bus.master.state import Admitted, State

Consequences = Generator[Record, None, None]
EVALUATE = "evaluate"
MOST_STARTS_A_TICK = 64
MOST_WORDS = 300  # of an ending, where it is part of another text; the whole stands in host.exited


def lose(state: State, member: Member, reason: str, detail: str, cause: str, last: int = 0) -> Consequences:
    """A member is dead or gone: its leases return, it is replaced, or the job ends with it.

    `last`: the platform knows incarnations of this member that this log has forgotten, up to this incarnation (P21).
    """
    yield from lose_together(state, [member], reason, detail, cause, last)


def lose_together(
    state: State,
    members: list[Member],
    reason: str,
    detail: str,
    cause: str,
    last: int = 0,
) -> Consequences:
    """Members are gone, and all are known to be gone before anything is decided on one of them: servers go back by one rewind.

    `cause`: "" where it is the silence of each.
    """
    if isinstance(state.phase, Ended) or not members:
        return
    servers: dict[Member, bool] = {}
    gone = [each.stages_at for each in state.seats.servers() if each.member in members and each.stages_at]
    for member in members:
        if member.role == "ps" and state.slots.routing is not None and member.name not in state.seats.wanted:
            yield MemberLeft(member=member, reason="it gave its slots away", cause=cause or _silence(member))
        elif member.role == "ps":
            servers[member] = _kept_its_state(state, member)
            why = cause or _silence(member)
            yield MemberLost(member=member, reason=reason, detail=detail, last=last, cause=why)
    first = cause or _silence(members[0])
    for keeper in gone:  # what kept the parts that they staged ended with them
        yield from cutting.lose_host(state, keeper, "ended with its server", first)
    yield from _lose_servers(state, servers, _how(reason, detail), first)
    workers = [member for member in members if member.role != "ps"]
    yield from _lose_workers(state, workers, reason, detail, cause, last)
    yield from consequences(state, first)


def _how(reason: str, detail: str) -> str:
    """Return how members ended, for what is said of their job: `killed: SIGKILL`, or with the last line that they wrote."""
    said = reason.replace("_", " ") + (f": {detail}" if detail else "")
    return said if len(said) <= MOST_WORDS else f"{said[:MOST_WORDS]}..."


def _silence(member: Member) -> str:
    return causes.timer("silence", str(member))


def _lose_workers(
    state: State, members: list[Member], reason: str, detail: str, cause: str, last: int
) -> Consequences:
    for member in members:
        if isinstance(state.phase, Ended):
            return
        why = cause or _silence(member)
        yield _lost(state, member, reason, detail, last, why)
        if is_planned(state, member):
            yield from _replace_worker(state, member, reason, why)


def _kept_its_state(state: State, member: Member) -> bool:
    seated = state.seats.admitted.get(member.name)
    return seated is not None and seated.member == member and _started_from(seated, "kept")


def _started_from(server: Admitted, kind: str) -> bool:
    return server.start is not None and server.start.kind == kind


def _lost(state: State, member: Member, reason: str, detail: str, last: int, cause: str) -> MemberLost:
    holder = (
        state.ledger.holders.get(member.index)
        if state.ledger is not None and member.role == "worker"
        else None
    )
    its_own = holder is not None and holder.incarnation == member.incarnation  # not those of a former
    leases = len(holder.leases) if holder is not None and its_own else 0
    return MemberLost(
        member=member, reason=reason, detail=detail, leases_returned=leases, last=last, cause=cause
    )


def spent_budget(state: State) -> tuple[str, str] | None:
    """Return (reason, detail) of the job's end where its workers ended more often than the job file allows."""
    limits, spent = state.job.spec.leases, state.charges
    if spent.relaunches > limits.relaunches:
        return "too_many_failures", f"{spent.relaunches} failures"
    if spent.preemptions > limits.preemptions:
        return "too_many_preemptions", f"{spent.preemptions} losses"
    return None


def _replace_worker(state: State, member: Member, reason: str, cause: str) -> Consequences:
    over = isinstance(state.phase, Closed | Finishing) or bool(state.ending.stop)
    if over and (state.seats.lasting_workers() or not result_needs_a_worker(state)):
        yield remove_members(state, {member.name}, cause, f"{member} {reason}; nothing is left to do")
    elif spent := spent_budget(state):
        yield from end(state, "failed", *spent, cause)
    elif not state.seats.repairing:
        yield replace_members(state, [member], cause, f"{member} lost: {reason}")
    # else: others were lost with it: the next tick names one plan for all of them (S20)


def fill_gaps(state: State) -> Consequences:
    """One plan for all workers that were lost together, so many at a time that a platform can start them (S20)."""
    if not state.seats.gaps or isinstance(state.phase, Finishing | Ended):
        return
    lost = [state.seats.wanted[name].member for name in state.seats.gaps[:MOST_STARTS_A_TICK]]
    cause = causes.lost(lost[0])
    if state.ending.stop and not (result_needs_a_worker(state) and not state.seats.lasting_workers()):
        yield remove_members(state, set(state.seats.gaps), cause, "nothing is left to do")
    else:
        yield replace_members(state, lost, cause, f"{len(lost)} workers lost together")
    yield from consequences(state, cause)


def _lose_servers(state: State, lost: dict[Member, bool], how: str, cause: str) -> Consequences:
    """`lost`: what is gone, and whether it had kept its state over a rewind. A holder of a part comes first: a rewind is
    for all of them, and after it nothing is left to decide on those that it replaced. `how`: they ended.
    """
    if isinstance(state.phase, Searching):
        yield from _replace_waiting(state, lost, how, cause)
        return
    written = state.phase.parts if isinstance(state.phase, Finishing) else {}
    open_ = {member: kept for member, kept in lost.items() if member.index not in written}
    holding = [member for member, kept in open_.items() if _holds_a_part(state, member, kept)]
    generation = state.generation
    for member in [*holding, *(each for each in open_ if each not in holding)]:
        if isinstance(state.phase, Ended) or (
            state.generation != generation and not is_planned(state, member)
        ):
            continue
        if member not in holding and not _too_many_losses(state):
            yield from _replace_server(state, member, cause)
        else:
            gone = holding or [member]
            what = "is gone with its part" if len(gone) == 1 else "are gone with their parts"
            detail = f"{', '.join(map(str, gone))} ({how}) {what} of the model"
            yield from lose_state(state, "server_lost", detail, cause, member)


def _replace_waiting(state: State, lost: Iterable[Member], how: str, cause: str) -> Consequences:
    """Servers died that wait for what a search finds: they held nothing."""
    gone = [member for member in lost if is_planned(state, member)]
    if gone and _too_many_losses(state):
        detail = f"servers die while storage is searched, {gone[-1]} the last ({how})"
        yield from end(state, "failed", "server_lost", detail, cause)
    elif gone:
        yield replace_members(state, gone, cause, "lost while storage is searched")


def _holds_a_part(state: State, member: Member, kept: bool) -> bool:
    """Whether a part of the model went with a server. Before the routing is fixed no worker trained on it, unless it kept one."""
    if state.slots.routing is not None:
        return rollout.owns_slots(state, member)
    return bool(state.ending.stop) or (
        kept and any(index == member.index for index, _, _ in state.slots.owners)
    )


def _replace_server(state: State, member: Member, cause: str) -> Consequences:
    if state.slots.routing is not None:
        yield from rollout.lose_idle_server(state, member, cause)
    elif is_planned(state, member):
        yield replace_members(state, [member], cause, f"{member} lost before it served")


def _too_many_losses(state: State) -> bool:
    lost, limits = state.counts, state.job.spec.leases
    return (
        lost.servers_lost - lost.servers_taken > limits.relaunches or lost.servers_taken > limits.preemptions
    )


def lose_state(
    state: State, reason: str, detail: str, cause: str, lost: Member | None = None, *, search: bool = False
) -> Consequences:
    """A part of the model is gone: the job goes back to a cut, or ends, or starts again from nothing (P11, P24).

    Never a silent half model, never a silent new one: without a cut that the log knows storage is searched; where nothing lies
    there all servers are replaced by new, empty ones under a new generation.
    `lost`: the one server whose state is gone; None: what any of them holds is not what the log says.
    `search`: storage may hold newer checkpoints than the log knows, so it is searched first.
    """
    spec = state.job.spec
    if isinstance(state.phase, Ended | Searching):
        return
    left = _left_with_its_host(state, lost)
    if _ends_it(state, lost, left):
        if lost is not None and spec.checkpoint is None:
            detail += ", and no [checkpoint] table had it kept"
        yield from end(state, "failed", reason, detail, cause)
        return
    yield from rollout.interrupt(state, detail, cause)
    wanted = left or bool(state.cuts.back.servers) or spec.on_server_lost == "restore"
    stored = wanted and searching.is_worthwhile(state)
    if wanted and recovery.can_go_back(state, lost) and not (search and stored):
        yield from recovery.go_back(state, lost, detail, cause)
        return
    if stored:
        yield from searching.begin(state, detail, cause)
        return
    yield from begin_anew(state, detail, cause)


def begin_anew(state: State, detail: str, cause: str) -> Consequences:
    """Begin from position 0, with new and empty servers. After a search they are new already, and wait for it."""
    are_new = isinstance(state.phase, Searching)
    yield from cutting.end_all(state, cause, "the job begins again from nothing")
    yield Rewound(
        generation=state.generation + 1,
        ledger=msgspec.Raw(msgspec.msgpack.encode(empty_ledger(state))),
        reason=f"{detail}: all servers start empty",
        samples_again=state.ledger.samples_done()[0] if state.ledger is not None else 0,
        cause=cause,
    )
    if are_new:
        return
    servers = [desired.member for desired in state.seats.wanted.values() if desired.member.role == "ps"]
    yield begin_again(state, servers, cause, f"{detail}: all servers start empty")
    for seated in state.seats.servers():
        yield MemberLeft(
            member=seated.member, reason="replaced: the job starts again from nothing", cause=cause
        )


def _ends_it(state: State, lost: Member | None, left: bool) -> bool:
    """Whether the loss of a part of the model ends the job. `left`: with a host that had said so, and a cut has what it held.

    A server on its way back to a cut of that kind goes back again, also in a job that ends when a server is lost.
    """
    if state.ending.stop or (_too_many_losses(state) and not left):
        return True
    usable = recovery.can_go_back(state, lost) or searching.is_worthwhile(state)
    back = left or (bool(state.cuts.back.servers) and usable)
    return state.job.spec.on_server_lost == "fail" and not back


def _left_with_its_host(state: State, lost: Member | None) -> bool:
    """Whether a server went as its host had announced (S29), and a cut has what it held: no failure, whatever the job file says."""
    desired = state.seats.wanted.get(lost.name) if lost is not None else None
    return (
        desired is not None
        and desired.host in state.seats.hosts.leaving
        and recovery.can_go_back(state, lost)
    )


def knows_more(state: State, request: HeartbeatRequest) -> bool:
    """Whether a server follows a routing of this generation that the log does not know: only the log can have made it (P21)."""
    return request.routing_epoch > (state.slots.routing.epoch if state.slots.routing is not None else 0)


def lose_log(state: State, member: Member) -> Consequences:
    """The log has forgotten where slots went: servers hold what it gives to others. Nothing that they hold is what it says."""
    detail = f"the log lost its tail: {member} knows a later routing"
    yield from lose_state(state, "log_lost", detail, str(member))
    yield from consequences(state, str(member))


def give_up_cut(state: State, member: Member, restored: RestoreReport, cause: str) -> Consequences:
    """A server could not restore the cut that it was admitted with: go back further, in its next incarnation.

    To the same cut, where it was stored after the server had been told that it was in memory alone.
    """
    seated = state.seats.admitted.get(member.name)
    if seated is None or seated.member != member or not _started_from(seated, "cut"):
        return
    if member.index not in state.cuts.back.servers:
        yield from end(state, "failed", "restore_failed", f"{member}: {restored.problem}", cause)
        return
    cut = state.cuts.known.get(restored.cut)
    if cut is not None and cut.path == restored.path:
        yield cut.not_restored(f"{member} could not restore it: {restored.problem}", restored.path, cause)
    yield MemberLost(member=member, reason="restore_failed", detail=restored.problem, cause=cause)
    detail = f"{member} could not be restored ({_how('restore_failed', restored.problem)})"
    yield from lose_state(state, "server_lost", detail, cause, member)
    yield from consequences(state, cause)


def empty_ledger(state: State) -> Ledger | None:
    """Return the next generation's ledger of position 0; None before the data set is known: then only servers begin again."""
    if state.ledger is None:
        return None
    empty = Ledger.new(state.ledger.dataset, state.generation + 1, synchronous=is_synchronous(state.job.spec))
    empty.begin_epoch(EpochOpened(epoch=0))
    return empty


# -- what follows by itself ----------------------------------------------------------------------------------------------


def consequences(state: State, cause: str) -> Consequences:
    """Yield what the present state implies: routing when all servers are there, the finish, the end."""
    if isinstance(state.phase, Searching) and state.ending.stop:
        detail = state.phase.detail
        yield from end(state, "failed", "server_lost", f"{detail}, and the job was to stop", cause)
    if isinstance(state.phase, Starting):
        yield from _route(state, cause)
    if (
        state.plans.settling
        and not state.paused  # its workers are still to come
        and state.slots.rollout is None
        and not rollout.is_wanted_again(state)
        and _all_there(state)
    ):
        yield PlanSettled(plan=state.plans.settling, members_plan=state.seats.plan, cause=cause)
    if isinstance(state.phase, Training | Starting | Closed) and _may_finish(state):
        yield FinishBegun(cause=cause)
    if isinstance(state.phase, Finishing):
        yield from _end_when_finished(state, state.phase, cause)


def _all_there(state: State) -> bool:
    """Every member that the plan wants takes part, and none that it dropped is left."""
    if any(
        name not in state.seats.admitted or state.seats.admitted[name].member != desired.member
        for name, desired in state.seats.wanted.items()
    ):
        return False
    return not any(
        seated.planned and name not in state.seats.wanted for name, seated in state.seats.admitted.items()
    )


def _route(state: State, cause: str) -> Consequences:
    servers = {p.member.index: p.member for p in state.seats.wanted.values() if p.member.role == "ps"}
    admitted = {seated.member.index: seated for seated in state.seats.servers()}
    if not state.seats.wanted or any(
        index not in admitted or admitted[index].member != m for index, m in servers.items()
    ):
        return
    if not withdrawing.has_its_least(state, servers):
        return
    owners = _owners(state, sorted(servers))
    yield RoutingChanged(
        generation=state.generation,
        epoch=1,
        owners=owners,
        servers=[rollout.address(admitted[index]) for index in sorted({index for index, _, _ in owners})],
        cause=cause,
    )


def _owners(state: State, servers: list[int]) -> list[tuple[int, int, int]]:
    """As last routed, while those servers are all wanted; a server that owned nothing then (a rollout brought it) still waits."""
    known = {index for index, _, _ in state.slots.owners}
    if known and known <= set(servers):
        return state.slots.owners
    return slots.share_out(servers)


def _may_finish(state: State) -> bool:
    """Training is over (or to be stopped), and no worker is left that could still do something."""
    if state.seats.workers():
        return False
    if state.ending.stop == "drain":
        return True
    return (isinstance(state.phase, Closed) or state.ending.stop == "finish") and not result_needs_a_worker(
        state
    )


def result_needs_a_worker(state: State) -> bool:
    if state.ending.stop in ("drain", "cancel") or not state.job.spec.data.evaluate:
        return False
    task = state.ending.tasks.get(EVALUATE)
    return task is None or not task.done


def _end_when_finished(state: State, phase: Finishing, cause: str) -> Consequences:
    if _with_parts(state) <= set(phase.parts):
        why = "target_reached" if state.ending.stop == "finish" else "asked"
        if state.ending.stop:
            yield from end(state, "stopped", why, _why_stopped(state, phase), cause)
        else:
            yield from end(state, "completed", "", "", cause)


def _why_stopped(state: State, phase: Finishing) -> str:
    """What was asked; of a job whose servers are away also where its model is."""
    words = [state.ending.reason] if state.ending.reason else []
    if (state.release or not state.seats.wanted) and not phase.parts and state.cuts.last_ready:
        words.append(f"its servers were released: its model is checkpoint {state.cuts.last_ready}")
    return "; ".join(words)


def _with_parts(state: State) -> set[int]:
    """Return the servers that hold a part of the model. Some may have joined and own no slots yet, or have given them away."""
    if state.slots.routing is not None:
        return {server.index for server in state.slots.routing.servers}
    return {p.member.index for p in state.seats.wanted.values() if p.member.role == "ps"}


def close_epoch(state: State, cause: str) -> Consequences:
    """Every batch of the epoch is committed or dead: close it, open the next if there is one."""
    ledger = state.ledger
    if ledger is None or not isinstance(state.phase, Training | Starting):
        return
    committed, dead = ledger.samples_here()
    epoch = ledger.epoch
    yield EpochClosed(epoch=epoch, committed=committed, dead_lettered=dead, cause=cause)
    if ledger.streams is None and (not ledger.dataset.epochs or epoch + 1 < ledger.dataset.epochs):
        yield EpochOpened(epoch=epoch + 1, generation=state.generation, cause=cause)


def end(state: State, ended: JobEnd, reason: str, detail: str, cause: str) -> Consequences:
    if not isinstance(state.phase, Ended):
        yield from cutting.end_all(state, cause, "the job is over")
        yield JobEnded(state=ended, reason=reason, detail=detail, summary=summary(state), cause=cause)


def summary(state: State) -> dict[str, Any]:
    """The job in figures, from the ledger's present state (P8)."""
    ledger = state.ledger
    committed, dead = ledger.samples_done() if ledger is not None else (0, 0)
    total = ledger.samples_total if ledger is not None else 0
    parts = state.phase.parts if isinstance(state.phase, Finishing) else {}
    values = {key: value for task in state.ending.tasks.values() for key, value in task.values.items()}
    return {
        "samples_total": total,
        "samples_committed": committed,
        "samples_dead_lettered": dead,
        "samples_retrained": ledger.samples_retrained if ledger is not None else 0,
        "values_missing": ledger.values_missing if ledger is not None else 0,
        "workers_lost": state.counts.workers_lost,
        "servers_lost": state.counts.servers_lost,
        "masters_elected": state.counts.masters_elected,
        "commits_refused": state.counts.commits_refused,
        "leases_speculated": state.counts.speculated,
        "rewinds": state.counts.rewinds,
        "moves": state.counts.moves,
        "epochs": ledger.dataset.epochs if ledger is not None else 0,
        "updates_ignored": int(sum(p.statistics.get("updates_ignored", 0) for p in parts.values())),
        "parts": [part.path for _, part in sorted(parts.items()) if part.path],
        "server_statistics": {str(index): part.statistics for index, part in sorted(parts.items())},
        "result": values,
    }


def order_for(state: State, member: Member) -> tuple[str, str]:
    """Return the order that a heartbeat's answer carries, and for `finish` the name of the part to write."""
    if isinstance(state.phase, Ended):
        return "stop", ""
    if member.role == "ps":
        if member.name not in state.seats.wanted:
            return "stop", ""
        if isinstance(state.phase, Finishing) and member.index in _with_parts(state) - set(state.phase.parts):
            again = f".{state.generation}" if state.generation else ""
            return "finish", f"part-{member.index}.{member.incarnation}{again}"
        return "go_on", ""
    seated = state.seats.admitted.get(member.name)
    dropped = seated is not None and state.seats.drops(seated)
    return ("drain", "") if state.ending.stop == "drain" or dropped else ("go_on", "")
