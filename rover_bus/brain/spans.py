"""The spans of the Brain's log: a plan from its proposal to the end of its change, how it was checked and measured; and its rounds.

Fed by the shared shell (events/tracing.py) with the records of the log and their times, so that a successor ends what another Brain
began. A plan's span is the first of its trace; master, daemons and operators make theirs within it. A round is no record:
`RoundSpans` is asked by the shell that decides, and no replay makes a round again. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rover_bus.brain.log import FactObserved, JobGone
from rover_bus.brain.state import BrainState
from rover_bus.events import causes, subjects, traces
from rover_bus.events.fact import Fact, Record
from rover_bus.events.facts import (
    JobFact,
    PlanChecked,
    PlanKept,
    PlanMeasured,
    PlanProposed,
    PlanRefused,
    PlanRolledBack,
    PlanSettled,
)
from rover_bus.events.open_spans import MS, OpenSpan, OpenSpans
from rover_bus.events.traces import Context, TraceSpan, Value

RECALLED = (
    PlanProposed,
    PlanChecked,
    PlanRefused,
    PlanSettled,
    PlanMeasured,
    PlanKept,
    PlanRolledBack,
)

MOST_NAMED = 50  # plans, in the span of the round that proposed them
OfPlan = PlanChecked | PlanRefused | PlanSettled | PlanMeasured | PlanKept | PlanRolledBack


class BrainSpans:
    """`state`: of the cluster as the log tells it up to the record that is taken."""

    def __init__(self, state: Callable[[], BrainState]) -> None:
        self._state = state
        self._open = OpenSpans()
        self._plans: dict[str, tuple[int, Context]] = {}  # by job: the newest plan, and its span

    @property
    def recalled(self) -> list[str]:
        """The subjects of the facts that begin spans, and end them: what was before a snapshot of the log is read there."""
        return subjects.everywhere(*(subjects.job_facts(kind=each.kind()) for each in RECALLED))

    def take(self, record: Record, time_ms: int) -> list[TraceSpan]:
        """Take a record in, or a fact that it was; return what ended with it."""
        match record:
            case FactObserved(fact=JobFact() as fact):
                return self._end(fact, time_ms)
            case PlanProposed():
                return self._propose(record, time_ms)
            case JobGone():
                return self._lose(record.job, time_ms)
            case JobFact():
                return self._end(record, time_ms)
            case _:
                return []

    def older(self) -> BrainSpans:
        """Return what takes facts in that lie before the first record of the log that was read."""
        return BrainSpans(self._state)

    def recall(self, older: BrainSpans) -> None:
        """Take over what `older` has open of jobs that are known."""
        self._open.recall(older._open)
        jobs = self._state().jobs
        self._plans = {
            **{job: plan for job, plan in older._plans.items() if job in jobs},
            **self._plans,
        }

    def context_of(self, fact: Fact) -> Context | None:
        """Return what a fact is part of, as it goes out; None: nothing."""
        match fact:
            case PlanProposed() | PlanMeasured() | PlanKept() | PlanRolledBack():
                return self._plan(fact.job, fact.plan)
            case _:
                return None

    # -- plans -----------------------------------------------------------------------------------------------------------

    def _plan(self, job: str, plan: int) -> Context:
        newest = self._plans.get(job)
        if newest is not None and newest[0] == plan:
            return newest[1]
        known = self._state().jobs.get(job)
        return traces.begun(known.uid if known is not None else "", causes.plan(plan))

    def _propose(self, fact: PlanProposed, time_ms: int) -> list[TraceSpan]:
        """A job has one plan at a time: what is open of a former one ends."""
        job, ended = fact.job, self._end_plan(fact.job, time_ms, "superseded")
        plan = self._plan(job, fact.plan)
        self._plans[job] = fact.plan, plan
        about: dict[str, Value] = {
            "rover.job": job,
            "rover.plan": fact.plan,
            "rover.step": fact.step,
            "rover.mode": fact.mode,
            "rover.constant": fact.constant,
            "rover.workers": fact.workers,
            "rover.servers": fact.servers,
        }
        self._open.begin(("plan", job), OpenSpan("plan", plan, None, time_ms, about))
        check = OpenSpan("plan.check", traces.within(plan, "plan.check"), plan, time_ms, _about(fact))
        self._open.begin(("check", job), check)
        return ended

    def _end(self, fact: JobFact, time_ms: int) -> list[TraceSpan]:
        job = fact.job
        match fact:
            case PlanChecked() if self._is_newest(fact):
                outcome: dict[str, Value] = {"rover.outcome": fact.outcome}
                ended = self._open.end(("check", job), time_ms, outcome)
                return ended if fact.outcome != "observed" else ended + self._over(job, time_ms, "observed")
            case PlanRefused() if self._is_newest(fact):
                ended = self._open.end(("check", job), time_ms, failed=fact.reason)
                return [*ended, *self._over(job, time_ms, "refused", fact.reason)]
            case PlanSettled() if self._is_newest(fact):
                plan = self._plan(job, fact.plan)
                measure = traces.within(plan, "plan.measure")
                self._open.begin(
                    ("measure", job), OpenSpan("plan.measure", measure, plan, time_ms, _about(fact))
                )
                return self._over(job, time_ms, "settled")
            case PlanMeasured() | PlanKept() | PlanRolledBack() if self._is_newest(fact):
                verdict: dict[str, Value] = {
                    "rover.verdict": fact.kind(),
                    "rover.before": fact.before,
                    "rover.after": fact.after,
                }
                return self._open.end(("measure", job), time_ms, verdict)
            case _:
                return []

    def _is_newest(self, fact: OfPlan) -> bool:
        newest = self._plans.get(fact.job)
        return newest is None or newest[0] == fact.plan

    def _over(self, job: str, time_ms: int, outcome: str, failed: str = "") -> list[TraceSpan]:
        return self._open.end(("plan", job), time_ms, {"rover.outcome": outcome}, failed=failed)

    def _end_plan(self, job: str, time_ms: int, outcome: str) -> list[TraceSpan]:
        """End what is open of a job's plan without a verdict."""
        for step in ("check", "measure"):
            self._open.drop((step, job))
        return self._over(job, time_ms, outcome) if ("plan", job) in self._open else []

    def _lose(self, job: str, time_ms: int) -> list[TraceSpan]:
        ended = self._end_plan(job, time_ms, "the job is over")
        self._plans.pop(job, None)
        return ended


def _about(fact: PlanProposed | PlanSettled) -> dict[str, Value]:
    return {"rover.job": fact.job, "rover.plan": fact.plan}


class RoundSpans:
    """The rounds of all jobs that one process decides. `rounds`: how many it has finished, and whether one is under way."""

    def __init__(self, rounds: Callable[[], tuple[int, bool]]) -> None:
        self._rounds = rounds
        self._finished, self._began_ms = rounds()[0], 0

    def decided(self, records: Sequence[Record], began_ms: int, ended_ms: int) -> list[TraceSpan]:
        """One input was decided: return the round that is over with it, also where nothing came of it."""
        finished, under_way = self._rounds()
        if under_way:
            self._began_ms = self._began_ms or began_ms
        if finished == self._finished:
            return []
        self._finished, start_ms, self._began_ms = finished, self._began_ms or began_ms, 0
        plans = [f"{each.job}/{each.plan}" for each in records if isinstance(each, PlanProposed)]
        about: dict[str, Value] = {"rover.proposed": len(plans), "rover.plans": " ".join(plans[:MOST_NAMED])}
        return [
            TraceSpan(
                name="brain.round",
                context=traces.begun("brain", f"round {finished} of {start_ms}"),
                parent=None,
                start_ns=start_ms * MS,
                end_ns=ended_ms * MS,
                attributes=about,
            )
        ]
