"""A person's word on the plans of a job: a fact with its author's name, and what the master makes of it.

Used by `rover plan`, by the commands that ask something else of a job that runs, and by what serves HTTP. A word is stored
before it is judged: the master checks the plan once more, because the world may have changed since it was proposed.
"""

from __future__ import annotations

import secrets

from rover_bus.cli.submission import publish
from rover_bus.cli.trials import ANSWER_S, first_fact
from rover_bus.cli.views.plans import PlanTable, change_text, read_plans
from rover_bus.events.bus import Bus
from rover_bus.events.errors import Refused
from rover_bus.events.facts import JobFact, PlanApplied, PlanApproved, PlanRefused, PlanRejected


async def answer_plan(bus: Bus, job: str, number: int | None, said: tuple[str, str], *, yes: bool) -> str:
    """Say yes or no to the plan that waits; return what the master made of it. `said`: by whom, and why.

    Raises Refused when none waits.
    """
    by, reason = said
    view = (await open_plans(bus, job)).waiting(number)
    word = PlanApproved if yes else PlanRejected
    sequence = await send(bus, job, word(job=job, plan=view.number, reason=reason, by=by))

    def wanted(fact: JobFact) -> bool:
        return isinstance(fact, PlanApplied | PlanRefused) and fact.plan == view.number

    if await first_fact(bus, job, sequence, wanted) is None:
        return f"said; no master answered within {ANSWER_S:g} s: `rover plan list {job}` shows what becomes of it"
    return await what_became(bus, job, view.number)


async def what_became(bus: Bus, job: str, number: int) -> str:
    """Return what became of a plan, in words."""
    view = (await read_plans(bus, job)).find(number)
    change = change_text(view.proposed.held, view.proposed.size)
    return f"{job}: plan {number} ({change}) is {view.state}{f': {view.why}' if view.why else ''}"


async def open_plans(bus: Bus, job: str) -> PlanTable:
    """Return the plans of a job that has not ended. Raises Refused."""
    plans = await read_plans(bus, job)
    if plans.ended:
        raise Refused(f"job {job!r} has ended already: {plans.ended}", "ended")
    return plans


async def send(bus: Bus, job: str, fact: JobFact) -> int:
    """Store a person's word; return its sequence. Raises Refused when the job has ended."""
    await open_plans(bus, job)
    return await publish(bus, fact, f"{fact.kind()}.{secrets.token_hex(8)}")
