"""A person's plans: a trial of a size, kept by the Brain only if it pays, and a size that is simply asked for.

Used by `rover plan try`, by `rover scale` and by the demo. The plan is a fact like the Brain's, without a Brain's term: the
master carries it out whatever the mode, because a person needs no permission of his own; its constant tells the Brain to judge
it like one of its own.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from rover_bus.cli.submission import asker, publish
from rover_bus.events.errors import Refused
from rover_bus.events.facts import PlanProposed, Size
from rover_bus.events.plan_facts import TRIAL

if TYPE_CHECKING:
    from rover_bus.cli.views.plans import PlanTable
    from rover_bus.events.bus import Bus


async def try_size(
    bus: Bus, plans: PlanTable, *, workers: int, reason: str, limited: bool = True
) -> PlanProposed:
    """Ask for another number of workers on trial; return the plan. `limited`: to what the job file leaves to the Brain.

    Raises Refused when it holds so many, or none was applied, or the job file allows fewer.
    """
    held = held_size(plans)
    if held.workers == workers:
        raise Refused(f"job {plans.job!r} has {workers} workers already", "already")
    plan = trial(plans, held, workers, reason, limited=limited)
    await publish(bus, plan, f"plan.{plan.plan}.{secrets.token_hex(4)}")
    return plan


def held_size(plans: PlanTable) -> Size:
    """Return what a job holds now. Raises Refused when nothing was carried out yet."""
    view = plans.carried_out
    if view is None:
        raise Refused(f"job {plans.job!r} holds nothing yet: its first plan comes first", "too_early")
    return view.proposed.size


def trial(plans: PlanTable, held: Size, workers: int, reason: str, *, limited: bool = True) -> PlanProposed:
    """Return the plan of a trial: what is held, with another number of workers. Raises Refused when the job file allows fewer."""
    if limited and 0 < plans.most_workers < workers:
        raise Refused(
            f"{workers} workers exceed the limit of {plans.most_workers} ([workers] max_count in the job file)",
            "limit_exceeded",
        )
    why = f"{held.workers} -> {workers} workers on trial{f': {reason}' if reason else ''}"
    return by_hand(plans, held.replace(workers=workers), reason=why, constant=TRIAL)


def by_hand(plans: PlanTable, size: Size, *, reason: str, constant: str) -> PlanProposed:
    """Return a person's plan of a size, behind the newest plan of the job."""
    assert plans.newest is not None
    former = plans.newest.proposed
    return PlanProposed(
        job=plans.job,
        plan=plans.newest.number + 1,
        workers=size.workers,
        servers=size.servers,
        worker_cores=size.worker_cores,
        server_cores=size.server_cores,
        worker_memory_bytes=size.worker_memory_bytes,
        server_memory_bytes=size.server_memory_bytes,
        hosts=former.hosts,
        masters=former.masters,
        reason=reason,
        constant=constant,
        step="asked",
        held=held_size(plans),
        by=asker(),
    )
