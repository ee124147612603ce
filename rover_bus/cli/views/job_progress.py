"""Jobs by their facts, and those that run by their own logs too: the exact progress, and what each waits for.

Feeds `rover jobs` and what serves HTTP.
"""

from __future__ import annotations

from rover_bus.cli.views.hindrances import Present, hindrance, read_present
from rover_bus.cli.views.history import JobRow, read_jobs
from rover_bus.cli.views.progress import JobProgress
from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.journal import LogDamaged
from rover_bus.master.phases import name_of


async def read_with_progress(bus: Bus) -> dict[str, JobRow]:
    """Return all jobs; of those that have not ended the phase and the counts of their own logs, and what they wait for."""
    views = await read_jobs(bus)
    presents: dict[str, Present] = {}
    for view in views.values():
        if view.ended_ms:
            continue
        tenant, _ = subjects.split_job(view.job)
        present = presents[tenant] = presents.get(tenant) or await read_present(bus.of(tenant))
        await add_progress(bus, view, present)
    return views


async def add_progress(bus: Bus, view: JobRow, present: Present) -> None:
    """Add to a job that runs what its own log says. `present`: of its tenant."""
    tenant, job = subjects.split_job(view.job)
    view.leader = present.leaders.get(job, "")
    progress = JobProgress(bus.of(tenant), job)
    try:
        await progress.read()
    except LogDamaged:
        view.reason = "its log is damaged: `rover doctor`"
        return
    view.reason = hindrance(view, progress.state, present, progress.waiting)
    ledger = progress.ledger
    if progress.state is not None:
        view.state = "paused" if progress.state.paused else name_of(progress.state.phase)
    if ledger is not None:
        view.committed, view.dead_lettered = ledger.samples_done()
        view.total, view.epoch = ledger.dataset.samples_total, max(ledger.epoch, 0)
