"""A person's plans: a trial of a size, kept by the Brain only if it pays, and a size that is simply asked for.

Used by `rover plan try`, `rover scale` and the demo. The request is a fact; the Brain answers with a plan that needs no
permission, or with the limit, quota or capacity that stands against it. Only the Brain knows what other jobs hold.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from rover_bus.cli.submission import asker, publish
from rover_bus.cli.views.history import read_happened
from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Stored
from rover_bus.events.errors import BusTimeout, Refused
from rover_bus.events.fact import JobFact
from rover_bus.events.facts import PlanProposed, PlanRequested, PlanWithheld
from rover_bus.events.streams import FACTS

ANSWER_S = 10.0


async def ask_size(bus: Bus, asked: PlanRequested) -> tuple[PlanProposed, int]:
    """Ask for a size of a job in the caller's name; return the Brain's plan of it, and the sequence of the request.

    Raises Refused with what stands against it, BusTimeout when no Brain answers.
    """
    job, asked = asked.job, asked.replace(by=asker())
    sequence = await publish(bus, asked, f"plan.{secrets.token_hex(8)}")
    ours = f"{FACTS}:{sequence}"
    answer = await first_fact(
        bus,
        job,
        sequence + 1,
        lambda fact: isinstance(fact, PlanProposed | PlanWithheld) and fact.cause == ours,
    )
    if isinstance(answer, PlanWithheld):
        raise Refused(f"{job!r}: {answer.reason}", answer.constant)
    if not isinstance(answer, PlanProposed):
        raise BusTimeout(
            f"no Brain answered within {ANSWER_S:g} s: the request stands until one is up (`rover doctor`)"
        )
    return answer, sequence


async def first_fact(bus: Bus, job: str, first: int, wanted: Callable[[JobFact], bool]) -> JobFact | None:
    """Wait for a fact of a job, from sequence `first` on; None when it did not come in time."""
    came: asyncio.Future[JobFact] = asyncio.get_running_loop().create_future()

    def take(stored: Stored) -> None:
        fact = read_happened(stored).fact
        if isinstance(fact, JobFact) and not came.done() and wanted(fact):
            came.set_result(fact)

    following = await bus.follow(FACTS, [subjects.job_facts(job)], take, start=first)
    try:
        async with asyncio.timeout(ANSWER_S):
            return await came
    except TimeoutError:
        return None
    finally:
        await following.stop()
