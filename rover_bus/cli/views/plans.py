"""The plans of a job as its facts tell them: what was proposed, what became of it, what it brought.

Fed by history.py; read by `rover plan`, `rover explain` and the demo. One view a plan, evolved fact by fact; nothing is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rover_bus.events import facts
from rover_bus.events.checkpoint_facts import CheckpointNoneUsable
from rover_bus.events.errors import InputError, Refused
from rover_bus.events.facts import Fact, Size

if TYPE_CHECKING:
    from rover_bus.events.bus import Bus

State = Literal[
    "proposed", "waits", "observed", "refused", "rejected", "passed", "applied", "live", "kept", "rolled back"
]
MEASURED = (
    "measured"  # the verdict on a plan that promised nothing: its windows are known now, whatever they say
)
WHY_MEASURED = {
    "probe": "a trial: it was to be measured, and the next plan follows from that",
    "rollback": "what was held before",
    "asked": "as a person asked",
}
Judged = facts.PlanMeasured | facts.PlanKept | facts.PlanRolledBack


@dataclass(slots=True)
class PlanView:
    """One plan. `why` is the newest word on it: a refusal, a verdict; times are Unix milliseconds, 0: not yet."""

    proposed: facts.PlanProposed
    state: State = "proposed"
    why: str = ""
    person: str = ""  # the name of the one that approved or rejected it
    applied_ms: int = 0
    judged: Judged | None = None
    undone_by: int = 0

    @property
    def number(self) -> int:
        return self.proposed.plan

    def take(self, fact: Fact, time_ms: int) -> None:
        """Take a fact about this plan in."""
        match fact:
            case facts.PlanChecked(outcome=outcome):
                self.state = outcome
            case facts.PlanRefused(reason=reason):
                self.state, self.why = "rejected" if fact.constant == "rejected" else "refused", reason
            case facts.PlanApproved(by=by) | facts.PlanRejected(by=by):
                self.person = by
            case facts.PlanApplied():
                self.state, self.applied_ms = "applied", time_ms
            case facts.PlanSettled():
                self.state = "live"
            case facts.PlanMeasured():
                self.judged = fact
            case facts.PlanKept(constant=constant):
                self.state, self.judged = "kept", fact
                self.why = (
                    WHY_MEASURED.get(self.proposed.step, constant) if constant == MEASURED else constant
                )
            case facts.PlanRolledBack(constant=constant, by_plan=by_plan):
                self.state, self.why, self.judged, self.undone_by = "rolled back", constant, fact, by_plan
            case _:
                pass  # the others do not matter here


@dataclass(slots=True)
class PlanTable:
    """All plans of one job, by number, in the order in which they were proposed."""

    job: str
    by_number: dict[int, PlanView] = field(default_factory=dict)
    mode: str = ""  # what a person set; "": as the job file says
    paused: bool = False
    released: bool = False
    unusable: list[str] = field(default_factory=list)  # why no checkpoint can be restored: a person is asked
    ended: str = ""
    forecast: facts.JobForecast | None = None  # of when the job reaches what its `stop` asks for

    def take(self, fact: Fact, time_ms: int) -> None:
        """Take a fact of this job in; others change nothing."""
        match fact:
            case facts.JobSubmitted(spec=spec):
                self.mode = self.mode or spec.plan.mode
            case facts.PlanModeSet(mode=mode):
                self.mode = mode
            case facts.JobPaused() | facts.JobResumed():
                self.paused = isinstance(fact, facts.JobPaused)
                self.released = isinstance(fact, facts.JobPaused) and fact.release
                self.unusable = self.unusable if self.paused else []
            case CheckpointNoneUsable(choice="ask", problems=problems):
                self.unusable = problems or ["storage is empty"]
            case facts.JobEnded(state=state):
                self.ended = state
            case facts.JobForecast():
                self.forecast = fact
            case facts.PlanProposed(plan=plan):
                self.by_number.setdefault(plan, PlanView(fact))
            case _ if (view := self.by_number.get(getattr(fact, "plan", -1))) is not None:
                view.take(fact, time_ms)
            case _:
                pass  # of no plan that is known

    @property
    def newest(self) -> PlanView | None:
        """The last plan that was proposed."""
        return next(reversed(self.by_number.values()), None)

    @property
    def carried_out(self) -> PlanView | None:
        """The last plan that was applied: what the job holds."""
        return next((view for view in reversed(self.by_number.values()) if view.applied_ms), None)

    def find(self, number: int | None) -> PlanView:
        """Return a plan by its number, or the newest. Raises InputError naming those that there are."""
        view = self.newest if number is None else self.by_number.get(number)
        if view is None:
            known = ", ".join(map(str, self.by_number)) or "none yet"
            what = "plan" if number is None else f"plan {number}"
            raise InputError(f"job {self.job!r} has no {what} (there is: {known})")
        return view

    def waiting(self, number: int | None) -> PlanView:
        """Return the plan that waits for a person. Raises Refused when none does, or another one than `number`."""
        waits = [view for view in self.by_number.values() if view.state == "waits"]
        if not waits:
            raise Refused(
                f"no plan of {self.job!r} waits for a word (its plans are in mode {self.mode!r})",
                "none_waits",
            )
        last = waits[-1].number
        if number not in (None, last):
            state = self.find(number).state
            raise Refused(f"plan {number} of {self.job!r} is {state}; plan {last} waits", "not_waiting")
        return waits[-1]


async def read_plans(bus: Bus, job: str) -> PlanTable:
    """Return the plans of a job. Raises InputError when there is no such job."""
    from rover_bus.cli.views.history import read_facts, read_job
    from rover_bus.events import subjects

    await read_job(bus, job)
    plans = PlanTable(job)
    async for happened in read_facts(bus, [subjects.job_facts(job)]):
        if happened.fact is not None:
            plans.take(happened.fact, happened.stored.time_ms)
    return plans


def size_text(size: Size) -> str:
    """Return a size as people write it: `4 workers x 2 cores, 1 server`."""

    def role(count: int, noun: str, cores: float, memory_bytes: int) -> str:
        each = [f"{cores:g} cores"] * bool(cores) + [f"{memory_bytes / 2**30:.2g} GiB"] * bool(memory_bytes)
        return " ".join([f"{count} {noun}{'' if count == 1 else 's'}", *(["x", *each] if each else [])])

    return ", ".join(
        (
            role(size.workers, "worker", size.worker_cores, size.worker_memory_bytes),
            role(size.servers, "server", size.server_cores, size.server_memory_bytes),
        )
    )


def change_text(held: Size | None, wanted: Size) -> str:
    """Return what a plan changes: `workers 1 -> 4`, or the whole size where nothing was held."""
    if held is None:
        return size_text(wanted)
    names = {
        "workers": "workers",
        "servers": "servers",
        "worker_cores": "cores a worker",
        "server_cores": "cores a server",
        "worker_memory_bytes": "bytes a worker",
        "server_memory_bytes": "bytes a server",
    }
    changes = [
        f"{noun} {getattr(held, name):,g} -> {getattr(wanted, name):,g}"
        for name, noun in names.items()
        if getattr(held, name) != getattr(wanted, name)
    ]
    return ", ".join(changes) or "nothing"


def plan_row(view: PlanView) -> dict[str, Any]:
    """Return a plan as a record: a line of `rover plan list`."""
    proposed, judged = view.proposed, view.judged
    return {
        "plan": view.number,
        "step": proposed.step,
        "change": change_text(proposed.held, proposed.size),
        "state": view.state,
        "why": view.why or proposed.constant,
        "measured": proposed.measured or None,
        "predicted": proposed.predicted or None,
        "after": judged.after if judged else None,
        "reason": proposed.reason,
        "by": proposed.by,
        "person": view.person,
        "undone_by": view.undone_by or None,
    }
