"""A stack with a page, and a job that trains while a plan of it waits for a person's word."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from all_rights import connect
from asked_page import AskedPage, page_of
from patience import until
from small_job import SmallJob

from rover_bus.cli.own_broker import LOOPBACK
from rover_bus.cli.stack import Here, RunningStack
from rover_bus.events import subjects
from rover_bus.events.codec import encode
from rover_bus.events.envelope import Envelope
from rover_bus.events.plan_facts import PlanMode, PlanProposed
from rover_bus.events.reading import digest, event_id
from rover_bus.events.streams import FACTS

PLAN = 50


class Scene(NamedTuple):
    """What there is."""

    stack: RunningStack
    page: AskedPage
    job: SmallJob


@contextmanager
def waiting_plan(folder: Path) -> Iterator[Scene]:
    """Have it while the body runs."""
    with RunningStack(folder / "state", here=Here(page=LOOPBACK)) as stack:
        page = page_of(stack)
        until(lambda: page.ready, "the page")
        job = SmallJob(
            folder=folder,
            home=folder / "state",
            rows=40_000,
            epochs=1,
            workers=0,
            start=1,
            servers=1,
            checkpoint="",
            top='plan = { mode = "approve", window = "5m" }',
        )
        job.submit()
        until(
            lambda: shown(page, job).get("committed"), "training", more=lambda: page.ask("/api/v1/jobs").body
        )
        asyncio.run(propose(folder / "state", job.name))
        until(
            lambda: shown(page, job)["plan_waits"] == PLAN,
            "a plan that waits",
            more=lambda: job.facts("plan.refused"),
        )
        yield Scene(stack, page, job)
        job.finish()


def shown(page: AskedPage, job: SmallJob) -> dict[str, Any]:
    """Return the job as it is listed."""
    return next((each for each in page.ask("/api/v1/jobs").json if each["job"] == job.name), {})


async def propose(home: Path, job: str, plan: int = PLAN, mode: PlanMode = "approve", **size: int) -> None:
    """Store a plan as a Brain would that wants two workers, or this size: none here would try that while the test lasts."""
    place, size = (1_000_000 + plan, 0), {"workers": 2, "servers": 1} | size
    fact = PlanProposed(
        job=job, plan=plan, brain_term=1, brain_position=place, step="scale", mode=mode, **size
    )
    body, id_ = encode(fact), event_id("brain", 1, 1, place)
    envelope = Envelope(id=id_, type=fact.tag(), source="brain", job=job, term=1, digest=digest(body))
    bus = await connect(home)
    try:
        await bus.append(FACTS, subjects.job_fact(job, fact.kind()), body, headers=envelope.headers())
    finally:
        await bus.close()
