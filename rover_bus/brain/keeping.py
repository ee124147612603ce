"""The Brain's retention at work: while it leads, it looks now and then, and forgets the jobs that `ended_jobs` names.

Run beside the shell by `cli/serve.py` and by the simulation. Apart from the decider: nothing here changes a plan, and what is read
(submissions, ends, sizes) is the broker's, not the log's. A look that fails is made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rover_bus.brain.ended_jobs import JobRuns, ended_first, next_to_forget
from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Stored
from rover_bus.events.errors import BusError
from rover_bus.events.facts import JobEnded, JobSubmitted
from rover_bus.events.forgetting import forget_job
from rover_bus.events.logs import get_logger
from rover_bus.events.settings import RetentionSettings
from rover_bus.events.streams import FACTS, LOG

LOOK_S = 30.0
BY = "retention"
log = get_logger("rover.retention")


async def keep_within(
    bus: Bus,
    retention: RetentionSettings,
    leads: Callable[[], bool],
    wall_ms: Callable[[], int],
    look_s: float = LOOK_S,
) -> None:
    """Forget for ever, whenever this Brain leads, what `retention` does not keep."""
    while retention.jobs_age_s or retention.store_size_bytes:
        await asyncio.sleep(look_s)
        try:
            while leads() and await _forget_one(bus, retention, wall_ms()):
                pass
        except BusError as error:
            log.info("retention waits for the bus", why=str(error))


async def _forget_one(bus: Bus, retention: RetentionSettings, now_ms: int) -> bool:
    jobs = JobRuns()
    for stored in await _read(bus):
        jobs.take(stored)
    stored_bytes = sum([await bus.size(stream) for stream in (LOG, FACTS)])
    due = next_to_forget(ended_first(jobs.known), retention, stored_bytes, now_ms)
    if due is None:
        return False
    job, uid, reason = due
    tenant, bare = subjects.split_job(job)
    await forget_job(bus.of(tenant), bare, uid, by=BY, reason=reason)
    log.info("an ended job is forgotten", job=job, why=reason)
    return True


async def _read(bus: Bus) -> list[Stored]:
    kinds = (JobSubmitted.kind(), JobEnded.kind())
    filters = subjects.everywhere(*(subjects.job_facts(kind=kind) for kind in kinds))
    found = [stored for each in filters async for stored in bus.read(FACTS, each)]
    return sorted(found, key=lambda stored: stored.sequence)
