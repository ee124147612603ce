"""Decisions on servers that change while training goes on: rollouts, and the moves of slots that they are made of (S12 to S15).

Fed by requests to move slots, by plans with another number of servers, by what targets report with their heartbeats, and by losses;
feeds routing, orders to servers, facts. Generators of records, see decider.py; docs/design/0013 has the course of a move.

A rollout: servers join (until all are admitted) -> one move after another -> servers leave -> over. The log alone decides which
server holds a slot: whatever ends a move without a routing leaves the old routing standing. Deadlines are the master's own
(`StepPatience`), never logged.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

from rover_bus.events import causes
from rover_bus.events.checkpoints import part_index
from rover_bus.events.facts import (
    MoveFailed,
    MoveRefused,
    PlanProposed,
    RolloutClosed,
    RolloutOpened,
    RolloutOutcome,
    RoutingChanged,
    SlotsMoved,
    SlotsMoveRequested,
)
from rover_bus.events.identity import DesiredMember, Member
from rover_bus.events.log import MoveBegun, Record
from rover_bus.events.requests import HeartbeatRequest, MoveOrder, MoveStatus
from rover_bus.events.routing import RoutingTable, ServerAddress
from rover_bus.master import slots
from rover_bus.master.phases import Searching, Training, name_of
from rover_bus.master.planning import (
    add_servers,
    is_planned,
    present_servers,
    remove_members,
    replace_members,
)
from rover_bus.master.state import Admitted, Move, Rollout, Seats, State
from rover_bus.master.traffic import Telemetry

Consequences = Generator[Record, None, None]

MOVE_BYTES = (
    64 << 20
)  # about what one move carries: large enough to be few, small enough for a short last delta
MOVE_SLOTS = 256  # while it is not known how large a slot is
ATTEMPTS = 3  # moves of one rollout that may fail

NAMED_S = 2.0  # beyond its patience, a server is waited for: a platform that knows why it does not start says so first
SERVER_NEVER_STARTED = "server_never_started"
MOVES_FAIL = "moves_fail"


class StepPatience:
    """How long the present step of a rollout has lasted without progress, by the master's own clock. Never logged (P19)."""

    def __init__(self) -> None:
        self._step: tuple[object, ...] = ()
        self._since = 0.0

    def lasts(self, step: tuple[object, ...], now: float) -> float:
        """Return how long it has been this very step, in seconds."""
        if step != self._step:
            self._step, self._since = step, now
        return now - self._since


# -- what is asked for -------------------------------------------------------------------------------------------------


def request_move(state: State, fact: SlotsMoveRequested, telemetry: Telemetry, cause: str) -> Consequences:
    """Begin what was asked for, or refuse it in words."""
    reason = _unfit(state)
    if not reason and fact.host:
        yield from _leave_host(state, fact, cause)
        return
    goal: list[int] = []
    if not reason:
        goal, reason = _goal_of(state.seats, slots.expand(state.slots.owners), fact, telemetry)
    if reason:
        yield MoveRefused(reason=reason, cause=cause)
        return
    yield opened(
        state,
        goal,
        Origin(fact.reason or ("hot slots" if fact.hot else "asked"), fact.by),
        cause,
    )


class Origin(NamedTuple):
    """What a rollout is for, what asked for it, by which plan (0: none), and how often it was begun before.

    `first`: the job began with the first of its servers.
    """

    reason: str
    by: str = ""
    plan: int = 0
    again: int = 0
    first: bool = False


def opened(
    state: State,
    goal: list[int],
    asked: Origin,
    cause: str,
    joins: Sequence[int] = (),
    drops: Sequence[int] = (),
) -> RolloutOpened:
    """Return the record that begins a rollout to `goal` (server index by slot)."""
    now = slots.expand(state.slots.owners)
    planned = {d.member.index: d.member for d in state.seats.wanted.values() if d.member.role == "ps"}
    return RolloutOpened(
        rollout=state.slots.last_rollout + 1,
        goal=slots.compress(goal),
        slots=sum(here != then for here, then in zip(now, goal, strict=True)),
        joins=[planned[index] for index in joins],
        drops=[planned[index] for index in drops],
        reason=asked.reason,
        plan=asked.plan,
        again=asked.again,
        first=asked.first,
        by=asked.by,
        cause=cause,
    )


def _unfit(state: State) -> str:
    if not isinstance(state.phase, Training) or state.slots.routing is None or state.ending.stop:
        return f"slots move only while a job trains: it is {'to stop' if state.ending.stop else name_of(state.phase)}"
    if state.slots.rollout is not None:
        return f"rollout {state.slots.rollout.number} is not over yet: ask again afterwards"
    return ""


def _goal_of(
    seats: Seats, by_slot: list[int], fact: SlotsMoveRequested, telemetry: Telemetry
) -> tuple[list[int], str]:
    present = sorted(each.member.index for each in seats.servers() if each.member.name in seats.wanted)
    source, target = part_index(fact.source), part_index(fact.target)
    known = {f"ps-{index}" for index in present}
    for name in (fact.source, fact.target):
        if name and name not in known:
            return [], f"no server {name!r} is admitted: there are {', '.join(sorted(known))}"
    targets = [target] if fact.target else [index for index in present if index != source]
    mine = [slot for slot, index in enumerate(by_slot) if index == source]
    if fact.slots:
        mine = slots.members_of(fact.slots)
    elif fact.hot and fact.source and targets:
        goal = slots.level(by_slot, source, targets, telemetry.loads(by_slot))
        return goal, "" if goal != by_slot else "no slot is hot enough to be worth a move"
    elif fact.source:
        mine = mine[len(mine) - round(len(mine) * fact.share) :]
    if not targets or source in targets:
        return [], "slots need another server to go to: name one, or add one by `rover scale`"
    mine = [slot for slot in mine if by_slot[slot] not in ([target] if fact.target else [])]
    goal = slots.hand_out(by_slot, mine, targets)
    return goal, "" if goal != by_slot else "nothing to move: no slot of it lies elsewhere"


def _leave_host(state: State, fact: SlotsMoveRequested, cause: str) -> Consequences:
    """Every server of a host is replaced by a new one elsewhere, with its slots."""
    there = [d for d in state.seats.wanted.values() if d.member.role == "ps" and d.host == fact.host]
    known = state.seats.hosts
    others = [host for host in known.named if host != fact.host and host not in known.away]
    hosts = [host for host in others if host not in known.slow] or others
    if not there or not hosts:
        where = "no server runs there" if not there else "the plan names no other host"
        yield MoveRefused(reason=f"nothing to move off host {fact.host!r}: {where}", cause=cause)
        return
    yield from _replace(state, there, hosts, Origin(fact.reason or f"off host {fact.host}", fact.by), cause)


def replace_server(state: State, desired: DesiredMember, reason: str, cause: str) -> Consequences:
    """A server is replaced by a new one with the limits that it was to have; refused in words while slots move already."""
    if unfit := _unfit(state):
        yield MoveRefused(reason=f"{reason}; {unfit}", cause=cause)
        return
    known = state.seats.hosts
    others = [host for host in known.named if host != desired.host and host not in known.away]
    yield from _replace(state, [desired], others or [desired.host], Origin(reason), cause)


def _replace(
    state: State, there: list[DesiredMember], hosts: list[str], asked: Origin, cause: str
) -> Consequences:
    """Servers are replaced by new ones, which take all their slots."""
    record, joins = add_servers(state, [d.resources for d in there], hosts, cause, asked.reason)
    instead = dict(zip([d.member.index for d in there], joins, strict=True))
    goal = [instead.get(index, index) for index in slots.expand(state.slots.owners)]
    yield record
    yield opened(state, goal, asked, cause, joins, sorted(instead))


def refuse_plan(state: State, proposal: PlanProposed) -> str:
    """Return why a plan with another number of servers cannot be begun now, "" when it can (or changes none)."""
    present = present_servers(state)
    leaving = state.slots.rollout.drops if state.slots.rollout is not None else []
    if not state.seats.wanted or proposal.servers == len(present) - len(leaving):
        return ""
    if not proposal.servers or not present:
        return "servers cannot be added to a job without them, nor the last one be removed"
    return _unfit(state)


def follow_plan(state: State, before: list[int], proposal: PlanProposed, cause: str) -> Consequences:
    """A plan with another number of servers is carried out slot by slot: servers that stay or join share them evenly."""
    joins = [index for index in present_servers(state) if index not in before]
    drops = before[proposal.servers :]
    if state.slots.routing is None or state.slots.rollout is not None or not (joins or drops):
        return
    if isinstance(state.phase, Searching):
        return  # what is routed is gone: they come for what the search finds
    kept = [index for index in before if index not in drops]
    goal = slots.even_out(slots.expand(state.slots.routing.owners), [*kept, *joins])
    yield opened(state, goal, Origin(proposal.reason, proposal.by, proposal.plan), cause, joins, drops)


# -- what follows ------------------------------------------------------------------------------------------------------


def advance(state: State, telemetry: Telemetry, cause: str) -> Consequences:
    """Yield the next step of the rollout that is on, if it is due. Asked after every input, because anything may make it due."""
    rollout = state.slots.rollout
    if rollout is None:
        yield from _resume(state, cause)
        return
    if not isinstance(state.phase, Training) or state.ending.stop:
        yield from stop(
            state,
            rollout,
            "the job is asked to stop" if state.ending.stop else f"the job is {name_of(state.phase)}",
            cause,
        )
        return
    if rollout.move is not None:
        return
    admitted = {seated.member.index: seated for seated in state.seats.servers()}
    waits = any(index not in admitted for index in rollout.joins)
    if waits and not rollout.first:
        return
    now, goal = slots.expand(state.slots.owners), slots.expand(rollout.goal)
    if waits:
        goal = [then if then in admitted else here for here, then in zip(now, goal, strict=True)]
    found = _next_move(now, goal, telemetry)
    if found is None:
        if not waits:
            yield from _end(state, rollout, "done", "", cause)
        return
    source, target, moving = found
    if source not in admitted or target not in admitted:
        return  # lost, and started again: `tick` waits for it only so long
    yield MoveBegun(
        move=state.slots.last_move + 1,
        source=admitted[source].member,
        target=admitted[target].member,
        slots=slots.ranges(moving),
        cause=cause,
    )


def _resume(state: State, cause: str) -> Consequences:
    """A rollout that a rewind interrupted goes on when all are back: nothing else would use or end the servers that it brought."""
    wish = state.slots.interrupted
    if wish is None or state.cuts.back.servers or _unfit(state):
        return
    if is_wanted_again(state):
        yield from _begin_again(state, wish, cause)
    else:
        why = (
            "was interrupted too often"
            if wish.again >= ATTEMPTS
            else "names a server that is not planned any more"
        )
        yield from _release_idle(state, wish, why, cause)


def _begin_again(state: State, wish: Rollout, cause: str) -> Consequences:
    present = present_servers(state)
    drops = [index for index in wish.drops if index in present]
    asked = Origin(wish.reason, wish.by, wish.plan, wish.again + 1, wish.first)
    yield opened(state, slots.expand(wish.goal), asked, cause, wish.joins, drops)


def is_wanted_again(state: State) -> bool:
    """Whether an interrupted rollout is to be begun again: every server in it is still planned, and it was not tried too often."""
    wish = state.slots.interrupted
    if wish is None or wish.again >= ATTEMPTS:
        return False
    return {*wish.joins, *(index for index, _, _ in wish.goal)} <= set(present_servers(state))


def _next_move(
    by_slot: list[int], goal: list[int], telemetry: Telemetry
) -> tuple[int, int, list[int]] | None:
    """Return source, target and slots of the next move: of the first pair that differs from the goal, what one may carry.

    In equal parts: every hand-over lets workers wait, so none is made for a rest.
    """
    differing = [slot for slot in range(slots.SLOTS) if by_slot[slot] != goal[slot]]
    if not differing:
        return None
    source, target = by_slot[differing[0]], goal[differing[0]]
    pair = [slot for slot in differing if (by_slot[slot], goal[slot]) == (source, target)]
    size = telemetry.row_bytes.get(source, 0.0)
    most = int(MOVE_BYTES * by_slot.count(source) / size) if size > 0 else MOVE_SLOTS
    parts = max(1, round(len(pair) / max(1, most)))
    return source, target, pair[: -(-len(pair) // parts)]


def _end(state: State, rollout: Rollout, outcome: RolloutOutcome, reason: str, cause: str) -> Consequences:
    """The rollout is over: servers that own no slot, and were to leave or never got one, leave."""
    yield RolloutClosed(rollout=rollout.number, outcome=outcome, reason=reason, cause=cause)
    routing = state.slots.routing
    if routing is not None and routing.early_bytes is not None and not _unfit(state):
        yield _routed(state, routing, slots.expand(routing.owners), None, cause)  # no other server comes
    yield from _release_idle(state, rollout, outcome, cause)


def _release_idle(state: State, rollout: Rollout, why: str, cause: str) -> Consequences:
    """Servers that were to leave, or were brought, and own no slots now, leave."""
    owning = {index for index, _, _ in state.slots.owners}
    idle = {f"ps-{index}" for index in (*rollout.drops, *rollout.joins) if index not in owning}
    if gone := {name for name in idle if name in state.seats.wanted}:
        yield remove_members(state, gone, cause, f"rollout {rollout.number} {why}: they own no slots")


def stop(state: State, rollout: Rollout, reason: str, cause: str) -> Consequences:
    """End a rollout, wherever it is; the routing stands as it is."""
    moved = rollout.moved
    yield from _give_up(rollout, reason, cause)
    yield from _end(state, rollout, "stopped" if moved else "rolled_back", reason, cause)


def _give_up(rollout: Rollout, reason: str, cause: str) -> Consequences:
    """End the move that is on, if one is: the routing stands."""
    move = rollout.move
    if move is not None:
        yield MoveFailed(move=move.number, source=move.source, target=move.target, reason=reason, cause=cause)


def interrupt(state: State, reason: str, cause: str) -> Consequences:
    """The job is about to be rewound: the slots will lie as the new generation says."""
    rollout = state.slots.rollout
    if rollout is not None:
        yield from _give_up(rollout, reason, cause)
        yield RolloutClosed(rollout=rollout.number, outcome="interrupted", reason=reason, cause=cause)


def tick(state: State, patience: StepPatience, telemetry: Telemetry, now: float) -> Consequences:
    """Time has passed: a step that takes too long is given up (S14).

    The first servers of a job wait for the others as long as the job itself would.
    """
    rollout, patient = state.slots.rollout, state.job.spec.moves
    if rollout is None:
        return
    if rollout.move is None and rollout.first:
        return
    if rollout.move is None:
        within_s = patient.start_patience_s + NAMED_S
        if patience.lasts((rollout.number, rollout.moved, rollout.failures), now) > within_s:
            yield from stop(
                state,
                rollout,
                SERVER_NEVER_STARTED,
                causes.timer("server start", causes.rollout(rollout.number)),
            )
    else:
        move = rollout.move.number
        if (
            patience.lasts((rollout.number, move, telemetry.progress.get(move)), now)
            > patient.progress_patience_s
        ):
            yield from _fail(
                state,
                rollout,
                f"no progress for {patient.progress_patience_s:g} s",
                causes.timer("move", causes.rollout(rollout.number)),
            )


def _fail(state: State, rollout: Rollout, reason: str, cause: str) -> Consequences:
    yield from _give_up(rollout, reason, cause)
    if rollout.failures >= ATTEMPTS:
        yield from stop(state, rollout, f"{MOVES_FAIL}: {reason}", cause)


def report(state: State, request: HeartbeatRequest) -> Consequences:
    """A server reports on the moves to it: one that is ready is decided now, in the log and nowhere else."""
    rollout, routing = state.slots.rollout, state.slots.routing
    if rollout is None or rollout.move is None or routing is None:
        return
    move = rollout.move
    for status in request.moves:
        if status.move != move.number or request.member != move.target:
            continue
        cause = causes.request(move.target, f"move-{move.number}")
        if status.phase == "failed":
            yield from _fail(state, rollout, status.detail or "the target gave up", cause)
        elif status.phase == "ready" and isinstance(state.phase, Training) and not state.ending.stop:
            yield from _hand_over(state, routing, move, status, cause)
        return


def _hand_over(
    state: State, routing: RoutingTable, move: Move, status: MoveStatus, cause: str
) -> Consequences:
    by_slot = slots.expand(routing.owners)
    for slot in slots.members_of(move.slots):
        by_slot[slot] = move.target.index
    yield SlotsMoved(
        move=status.move,
        source=move.source,
        target=move.target,
        slots=move.slots,
        epoch=routing.epoch + 1,
        rows=status.rows,
        bytes=status.bytes,
        cause=cause,
    )
    rollout = state.slots.rollout
    is_done = rollout is None or by_slot == slots.expand(rollout.goal)
    yield _routed(state, routing, by_slot, None if is_done else routing.early_bytes, cause)


def _routed(
    state: State, before: RoutingTable, by_slot: list[int], early_bytes: int | None, cause: str
) -> RoutingChanged:
    """Return the next routing of a generation."""
    admitted = {seated.member.index: seated for seated in state.seats.servers()}
    return RoutingChanged(
        generation=state.generation,
        epoch=before.epoch + 1,
        owners=slots.compress(by_slot),
        servers=[address(admitted[index]) for index in sorted(set(by_slot))],
        early_bytes=early_bytes,
        cause=cause,
    )


def address(seated: Admitted) -> ServerAddress:
    return ServerAddress(seated.member.index, seated.member.incarnation, seated.addresses)


# -- what others ask ---------------------------------------------------------------------------------------------------


def owns_slots(state: State, member: Member) -> bool:
    """Whether an incarnation of a server holds a part of the model by the present routing."""
    return state.slots.routing is not None and any(
        (server.index, server.incarnation) == (member.index, member.incarnation)
        for server in state.slots.routing.servers
    )


def lose_idle_server(state: State, member: Member, cause: str) -> Consequences:
    """A server without slots is gone: nothing is lost with it. It is started again, and a rollout that needs it waits a while."""
    rollout = state.slots.rollout
    if (
        rollout is not None
        and rollout.move is not None
        and member in (rollout.move.source, rollout.move.target)
    ):
        yield from _give_up(rollout, f"{member} is lost", cause)
    if rollout is not None and rollout.failures >= ATTEMPTS:
        yield from stop(state, rollout, f"{MOVES_FAIL}: {member.name} was lost again and again", cause)
    if is_planned(state, member):
        yield replace_members(state, [member], cause, f"{member} lost, without slots")


def orders_for(state: State, member: Member) -> list[MoveOrder]:
    """Return every move that a server takes part in now: absolute, so that one that is not listed is over."""
    move = state.slots.rollout.move if state.slots.rollout is not None else None
    if move is None or state.slots.routing is None or member not in (move.source, move.target):
        return []
    admitted = {seated.member: seated for seated in state.seats.servers()}
    if move.source not in admitted or move.target not in admitted:
        return []
    return [
        MoveOrder(
            move=move.number,
            plan=state.seats.plan,
            epoch=state.slots.routing.epoch,
            slots=move.slots,
            source=address(admitted[move.source]),
            target=address(admitted[move.target]),
            rate_bytes=state.job.spec.moves.rate_bytes,
        )
    ]
