"""How records of routing, rollouts and moves change the state: the part of `evolution` that concerns the slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rover_bus.events import facts, log
from rover_bus.events.log import Record
from rover_bus.events.routing import RoutingTable
from rover_bus.master.state import Move, Rollout, State


def route(state: State, record: facts.RoutingChanged) -> None:
    """Slots lie so from now on."""
    slots = state.slots
    slots.routing = RoutingTable(
        timeline=state.job.timeline,
        generation=record.generation,
        epoch=record.epoch,
        owners=record.owners,
        servers=record.servers,
        early_bytes=record.early_bytes,
    )
    acking = [server.incarnation for server in record.servers]
    if acking not in slots.acking:
        slots.acking.append(acking)
    slots.owners = record.owners


def rewind(state: State) -> None:
    """Nothing is routed in a new generation yet."""
    slots = state.slots
    slots.routing, slots.rollout, slots.acking = None, None, []


def _rollout(state: State) -> Rollout:
    if state.slots.rollout is None:
        raise ValueError("a move without a rollout: this log does not belong to a job")
    return state.slots.rollout


def _open(state: State, record: facts.RolloutOpened) -> None:
    slots = state.slots
    slots.last_rollout = record.rollout
    slots.interrupted = None
    slots.rollout = Rollout(
        record.rollout,
        record.goal,
        [member.index for member in record.joins],
        [member.index for member in record.drops],
        reason=record.reason,
        by=record.by,
        plan=record.plan,
        again=record.again,
        first=record.first,
    )


def _begin_move(state: State, record: log.MoveBegun) -> None:
    state.slots.last_move = record.move
    _rollout(state).move = Move(record.move, record.source, record.target, record.slots)


def _end_move(state: State, _record: facts.SlotsMoved) -> None:
    rollout = _rollout(state)
    rollout.move = None
    rollout.moved += 1
    state.counts.moves += 1


def _fail_move(state: State, _record: facts.MoveFailed) -> None:
    rollout = _rollout(state)
    rollout.move = None
    rollout.failures += 1


def _close(state: State, record: facts.RolloutClosed) -> None:
    slots = state.slots
    slots.interrupted = slots.rollout if record.outcome == "interrupted" else None
    slots.rollout = None


EVOLUTIONS: dict[type[Record], Callable[[State, Any], None]] = {
    facts.RolloutOpened: _open,
    log.MoveBegun: _begin_move,
    facts.SlotsMoved: _end_move,
    facts.MoveFailed: _fail_move,
    facts.RolloutClosed: _close,
}
