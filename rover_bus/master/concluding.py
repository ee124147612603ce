"""Decisions on how a member's work ends: leaving, the task that one does for all, a server's part of the final state."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import PurePath

from rover_bus.events import causes
from rover_bus.events.facts import MemberLeft, ResultReported
from rover_bus.events.log import Record, ServerFinished, TaskGiven
from rover_bus.events.requests import (
    EARLY,
    ElectReply,
    ElectRequest,
    FinishedReply,
    FinishedRequest,
    LeaveReply,
    LeaveRequest,
    Reply,
)
from rover_bus.master import lifecycle
from rover_bus.master.failing import charge_early_end
from rover_bus.master.phases import Closed, Finishing
from rover_bus.master.planning import is_planned, remove_members, replace_members
from rover_bus.master.progress import report_progress
from rover_bus.master.state import State

Steps = Generator[Record, None, Reply | None]


def leave(state: State, request: LeaveRequest) -> Steps:
    answers = yield from report_progress(state, request, 0, request.progress)
    known = state.seats.admitted.get(request.member.name)
    taken = known.taken if known is not None and known.member == request.member else ""
    cause = known.taken_cause if known is not None and taken else causes.request(request.member, "leave")
    if state.ledger is not None and state.ledger.complete:
        yield from lifecycle.close_epoch(state, cause)
    member = request.member
    if request.reason == EARLY:
        yield from charge_early_end(state, member, cause)
    yield MemberLeft(member=member, reason=request.reason, taken=taken, cause=cause)
    done = isinstance(state.phase, Closed | Finishing) or bool(state.ending.stop)
    if is_planned(state, member) and member.role == "worker":
        if done and not (lifecycle.result_needs_a_worker(state) and not state.seats.lasting_workers()):
            yield remove_members(state, {member.name}, cause, f"{member} is done")
        elif spent := lifecycle.spent_budget(state):
            yield from lifecycle.end(state, "failed", *spent, cause)
        else:
            reason = f"{member} left: {taken or request.reason}"
            yield replace_members(state, [member], cause, reason, left=True)
    yield from lifecycle.consequences(state, cause)
    return LeaveReply(term=state.term, generation=state.generation, answers=answers)


def elect(state: State, request: ElectRequest) -> Steps:
    """One worker does the task for all; the next one when it is lost. A result is taken from the worker that the task is with."""
    cause = causes.request(request.member, "elect")
    task = state.ending.tasks.get(request.task)
    if request.done:
        if task is not None and task.member == request.member and not task.done:
            yield ResultReported(task=request.task, member=request.member, values=request.values, cause=cause)
    elif task is None or (task.member is None and not task.done):
        yield TaskGiven(task=request.task, member=request.member, cause=cause)
    task = state.ending.tasks.get(request.task)
    mine = task is not None and task.member == request.member
    outcome = "done" if task is not None and task.done else "yours" if mine else "wait"
    return ElectReply(term=state.term, generation=state.generation, outcome=outcome)  # type: ignore[arg-type]


def finished(state: State, request: FinishedRequest) -> Steps:
    """A server wrote its part; when all have, the job is over. A part of another name is of a former generation, or of no use."""
    cause = causes.request(request.member, "finished")
    order, name = lifecycle.order_for(state, request.member)
    if order == "finish" and (not request.path or PurePath(request.path).name == f"{name}.npz"):
        yield ServerFinished(
            member=request.member,
            path=request.path,
            size_bytes=request.size_bytes,
            statistics=request.statistics,
            cause=cause,
        )
        yield from lifecycle.consequences(state, cause)
    return FinishedReply(term=state.term, generation=state.generation)
