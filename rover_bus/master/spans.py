"""The spans of a job's log: what a master does with a plan, with members, slots and checkpoints, each made when it ends.

Fed by the shared shell (events/tracing.py) with the records of the log, behind their evolution; the times are the log's own, so
that a successor ends what another master began. What a plan is part of follows from the job's uid and the plan's number, as it does
for the Brain. Pure. Nothing is made of a lease; of commits only the first of each worker is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rover_bus.events import causes, log, subjects, traces
from rover_bus.events.checkpoint_facts import (
    CheckpointFact,
    CheckpointFailed,
    CheckpointOpened,
    CheckpointPersistOrdered,
    CheckpointReady,
    CheckpointStaged,
    CheckpointSuperseded,
)
from rover_bus.events.fact import Fact, Record
from rover_bus.events.facts import (
    MemberAdmitted,
    MemberLeft,
    MemberLost,
    MembersDesired,
    PlanApplied,
    PlanChecked,
    PlanProposed,
    PlanRefused,
    PlanSettled,
    RolloutClosed,
    RolloutOpened,
)
from rover_bus.events.identity import Member
from rover_bus.events.open_spans import OpenSpan, OpenSpans
from rover_bus.events.traces import Context, SpanName, TraceSpan, Value
from rover_bus.master.state import AnyState, State

RECALLED = (
    PlanChecked,
    PlanApplied,
    PlanRefused,
    PlanSettled,
    MembersDesired,
    MemberAdmitted,
    RolloutOpened,
    RolloutClosed,
    CheckpointOpened,
    CheckpointStaged,
    CheckpointPersistOrdered,
    CheckpointReady,
    CheckpointSuperseded,
    CheckpointFailed,
)


class MasterSpans:
    """`state`: of the job as its log tells it up to the record that is taken."""

    def __init__(self, job: str, state: Callable[[], AnyState]) -> None:
        self._job, self._state = job, state
        self._open = OpenSpans()
        self._changes: dict[int, set[str]] = {}  # by number of the member set: who is not there yet
        self._there: set[str] | None = None  # members that are admitted; None: not looked up yet
        self._first_commits = set[tuple[int, int]]()  # workers that have not committed: index, incarnation
        self._takes: dict[type[Record], Callable[[Any, int], list[TraceSpan]]] = {
            log.Committed: self._commit,
            PlanChecked: self._check,
            PlanApplied: self._apply,
            PlanRefused: self._refuse,
            PlanSettled: self._settle,
            MembersDesired: self._want,
            MemberAdmitted: self._admit,
            MemberLost: self._lose,
            MemberLeft: self._lose,
            RolloutOpened: self._open_rollout,
            RolloutClosed: self._close_rollout,
            CheckpointOpened: self._open_checkpoint,
            CheckpointStaged: self._stage,
            CheckpointPersistOrdered: self._order,
            CheckpointReady: self._ready,
            CheckpointSuperseded: self._supersede,
            CheckpointFailed: self._fail,
        }

    @property
    def recalled(self) -> list[str]:
        """The subjects of the facts that begin spans, and end them: what was before a snapshot of the log is read there."""
        return [subjects.job_facts(self._job, each.kind()) for each in RECALLED]

    def take(self, record: Record, time_ms: int) -> list[TraceSpan]:
        """Take a record in, or a fact that it was; return what ended with it."""
        take = self._takes.get(type(record))
        if take is None:
            return []
        if self._there is None:
            self._there = self._admitted()
        return take(record, time_ms)

    def older(self) -> MasterSpans:
        """Return what takes facts in that lie before the first record of the log that was read."""
        return MasterSpans(self._job, self._state)

    def recall(self, older: MasterSpans) -> None:
        """Take over what `older` has open. Of first commits it knows none: the log alone tells of commits."""
        older._drop_first_commits()
        older._keep(self._lacking())
        self._open.recall(older._open)
        self._changes = {**older._changes, **self._changes}

    def context_of(self, fact: Fact) -> Context | None:
        """Return what a fact is part of, as it goes out; None: nothing."""
        match fact:
            case PlanChecked() | PlanRefused() | PlanApplied() | PlanSettled():
                return self._plan(fact.plan)
            case PlanProposed():
                return self._plan(fact.plan)
            case MembersDesired():
                return self._change(fact)
            case CheckpointFact():
                return self._checkpoint(fact)
            case _:
                return None

    # -- names -----------------------------------------------------------------------------------------------------------

    @property
    def _uid(self) -> str:
        state = self._state()
        return state.job.uid if isinstance(state, State) else ""

    def _plan(self, plan: int) -> Context:
        return traces.begun(self._uid, causes.plan(plan))

    def _applying(self, plan: int) -> Context:
        return traces.within(self._plan(plan), "plan.apply")

    def _change(self, fact: MembersDesired) -> Context:
        """A repair is part of no plan: it is a trace of its own."""
        name = f"members:{fact.plan}"
        if not fact.proposal:
            return traces.begun(self._uid, name)
        return traces.within(self._applying(fact.proposal), name)

    def _checkpoint(self, fact: CheckpointFact) -> Context:
        return traces.begun(self._uid, f"{causes.cut(fact.cut)} of {fact.generation}")

    def _span(
        self, name: SpanName, context: Context, parent: Context | None, time_ms: int, **attributes: Value
    ) -> OpenSpan:
        return OpenSpan(name, context, parent, time_ms, {"rover.job": self._job, **attributes})

    # -- plans -----------------------------------------------------------------------------------------------------------

    def _check(self, fact: PlanChecked, time_ms: int) -> list[TraceSpan]:
        if fact.outcome == "waits":
            plan = self._plan(fact.plan)
            context = traces.within(plan, "plan.approval")
            span = self._span("plan.approval", context, plan, time_ms, **{"rover.plan": fact.plan})
            self._open.begin(("approval", fact.plan), span)
        return []

    def _apply(self, fact: PlanApplied, time_ms: int) -> list[TraceSpan]:
        waited = self._open.end(("approval", fact.plan), time_ms, {"rover.by": fact.approved_by})
        context, plan = self._applying(fact.plan), self._plan(fact.plan)
        about: dict[str, Value] = {"rover.plan": fact.plan, "rover.constant": fact.constant}
        about |= {"rover.workers": fact.workers, "rover.servers": fact.servers}
        self._open.begin(("apply", fact.plan), self._span("plan.apply", context, plan, time_ms, **about))
        return waited

    def _refuse(self, fact: PlanRefused, time_ms: int) -> list[TraceSpan]:
        return self._open.end(("approval", fact.plan), time_ms, failed=fact.reason)

    def _settle(self, fact: PlanSettled, time_ms: int) -> list[TraceSpan]:
        return self._open.end(("apply", fact.plan), time_ms)

    # -- members ---------------------------------------------------------------------------------------------------------

    def _want(self, fact: MembersDesired, time_ms: int) -> list[TraceSpan]:
        """Begin the admission of each member that is not there; one that a later set names as well is part of the first."""
        there = self._there or set()
        if ("change", fact.plan) in self._open:
            return []
        wanted = {str(each.member) for each in fact.members}
        ended = [span for number in list(self._changes) for span in self._shrink(number, wanted, time_ms)]
        change = self._change(fact)
        lacking = set[str]()
        for each in fact.members:
            key = ("admission", str(each.member))
            if key not in self._open and str(each.member) not in there:
                lacking.add(str(each.member))
                context = traces.within(change, f"member.admission {each.member}")
                about = {"rover.member": str(each.member), "rover.host": each.host}
                self._open.begin(key, self._span("member.admission", context, change, time_ms, **about))
        parent = self._applying(fact.proposal) if fact.proposal else None
        span = self._span("members.change", change, parent, time_ms, **{"rover.reason": fact.reason})
        self._open.begin(("change", fact.plan), span)
        self._changes[fact.plan] = lacking
        return [*ended, *self._end_change(fact.plan, time_ms)]

    def _shrink(self, number: int, wanted: set[str], time_ms: int) -> list[TraceSpan]:
        """Forget members that nothing wants any more: they are never admitted."""
        for name in self._changes[number] - wanted:
            self._open.drop(("admission", name))
        self._changes[number] &= wanted
        return self._end_change(number, time_ms)

    def _admitted(self) -> set[str]:
        state = self._state()
        if not isinstance(state, State):
            return set()
        return {str(each.member) for each in state.seats.admitted.values()}

    def _lacking(self) -> set[str]:
        """The members that are wanted now and not there."""
        state = self._state()
        if not isinstance(state, State):
            return set()
        wanted = [each.member for each in state.seats.wanted.values()]
        return {str(member) for member in wanted if not state.seats.has(member)}

    def _keep(self, lacking: set[str]) -> None:
        """Only of these the admission is still to come."""
        for number in list(self._changes):
            self._shrink(number, lacking, 0)

    def _end_change(self, number: int, time_ms: int) -> list[TraceSpan]:
        if self._changes[number]:
            return []
        del self._changes[number]
        return self._open.end(("change", number), time_ms)

    def _admit(self, fact: MemberAdmitted, time_ms: int) -> list[TraceSpan]:
        name = str(fact.member)
        if self._there is not None:
            self._there.add(name)
        ended = self._open.end(("admission", name), time_ms, {"rover.host": fact.host})
        for span in ended:
            if fact.member.role == "worker":
                self._await_commit(fact.member, span, time_ms)
        for number in [number for number, lacking in self._changes.items() if name in lacking]:
            self._changes[number].discard(name)
            ended += self._end_change(number, time_ms)
        return ended

    def _await_commit(self, worker: Member, admission: TraceSpan, time_ms: int) -> None:
        parent = admission.parent or admission.context
        context = traces.within(parent, f"member.first_commit {worker}")
        about = {"rover.member": str(worker)}
        self._first_commits.add((worker.index, worker.incarnation))
        key = ("commit", worker.index, worker.incarnation)
        self._open.begin(key, self._span("member.first_commit", context, parent, time_ms, **about))

    def _commit(self, record: log.Committed, time_ms: int) -> list[TraceSpan]:
        which = (record.worker, record.incarnation)
        if which not in self._first_commits:
            return []
        self._first_commits.discard(which)
        return self._open.end(("commit", *which), time_ms)

    def _lose(self, fact: MemberLost | MemberLeft, time_ms: int) -> list[TraceSpan]:
        member = fact.member
        if self._there is not None:
            self._there.discard(str(member))
        self._first_commits.discard((member.index, member.incarnation))
        self._open.drop(("commit", member.index, member.incarnation))
        ended = self._open.end(("admission", str(member)), time_ms, failed=fact.reason)
        for number in [number for number, lacking in self._changes.items() if str(member) in lacking]:
            self._changes[number].discard(str(member))
            ended += self._end_change(number, time_ms)
        return ended

    def _drop_first_commits(self) -> None:
        for which in self._first_commits:
            self._open.drop(("commit", *which))
        self._first_commits.clear()

    # -- slots -----------------------------------------------------------------------------------------------------------

    def _open_rollout(self, fact: RolloutOpened, time_ms: int) -> list[TraceSpan]:
        parent = self._applying(fact.plan) if fact.plan else None
        name = causes.rollout(fact.rollout)
        context = traces.within(parent, name) if parent else traces.begun(self._uid, name)
        about: dict[str, Value] = {"rover.slots": fact.slots, "rover.reason": fact.reason}
        self._open.begin(("rollout", fact.rollout), self._span("rollout", context, parent, time_ms, **about))
        return []

    def _close_rollout(self, fact: RolloutClosed, time_ms: int) -> list[TraceSpan]:
        failed = "" if fact.outcome == "done" else f"{fact.outcome}: {fact.reason}"
        return self._open.end(("rollout", fact.rollout), time_ms, failed=failed)

    # -- checkpoints -----------------------------------------------------------------------------------------------------

    def _open_checkpoint(self, fact: CheckpointOpened, time_ms: int) -> list[TraceSpan]:
        context = self._checkpoint(fact)
        about: dict[str, Value] = {"rover.cut": fact.cut, "rover.generation": fact.generation}
        self._open.begin(
            ("checkpoint", fact.generation, fact.cut),
            self._span("checkpoint", context, None, time_ms, **about),
        )
        self._begin_step(fact, "checkpoint.stage", time_ms)
        return []

    def _begin_step(self, fact: CheckpointFact, name: SpanName, time_ms: int) -> None:
        whole = self._checkpoint(fact)
        step = self._span(name, traces.within(whole, name), whole, time_ms, **{"rover.cut": fact.cut})
        self._open.begin((name, fact.generation, fact.cut), step)

    def _stage(self, fact: CheckpointStaged, time_ms: int) -> list[TraceSpan]:
        parts: dict[str, Value] = {"rover.parts": len(fact.parts)}
        return self._open.end(("checkpoint.stage", fact.generation, fact.cut), time_ms, parts)

    def _order(self, fact: CheckpointPersistOrdered, time_ms: int) -> list[TraceSpan]:
        self._begin_step(fact, "checkpoint.store", time_ms)
        return []

    def _ready(self, fact: CheckpointReady, time_ms: int) -> list[TraceSpan]:
        size: dict[str, Value] = {"rover.size_bytes": fact.size_bytes}
        return self._end_checkpoint(fact, time_ms, "", size)

    def _supersede(self, fact: CheckpointSuperseded, time_ms: int) -> list[TraceSpan]:
        return self._end_checkpoint(fact, time_ms, "", {"rover.superseded_by": fact.newer})

    def _fail(self, fact: CheckpointFailed, time_ms: int) -> list[TraceSpan]:
        return self._end_checkpoint(fact, time_ms, fact.reason, {})

    def _end_checkpoint(
        self, fact: CheckpointFact, time_ms: int, failed: str, about: dict[str, Value]
    ) -> list[TraceSpan]:
        which = (fact.generation, fact.cut)
        ended = self._open.end(("checkpoint.store", *which), time_ms, failed=failed)
        self._open.drop(("checkpoint.stage", *which))
        return [*ended, *self._open.end(("checkpoint", *which), time_ms, about, failed=failed)]
