"""`rover jobs`: one line a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rover_bus.cli.connection import Address, visit, with_stack
from rover_bus.cli.views.tables import output_option, show

if TYPE_CHECKING:
    from rover_bus.cli.views.history import JobRow
    from rover_bus.events.nats_bus import NatsBus

COLUMNS = (
    "job",
    "state",
    "epoch",
    "committed",
    "total",
    "dead_lettered",
    "samples_per_second",
    "workers",
    "servers",
    "leader",
    "reason",
)


@click.command()
@output_option
@with_stack
def jobs(stack: Address, output: str) -> None:
    """List the jobs of a stack in the order of their submission, and what became of them."""

    def row(view: JobRow) -> dict[str, Any]:
        return {
            key: getattr(view, key)
            for key in view.__slots__
            if key not in ("checkpoints", "spec", "forgotten")
        }

    views = visit(stack, read_with_progress)
    show(map(row, views.values()), COLUMNS, output, empty="no job yet: `rover submit JOB.toml`")


async def read_with_progress(bus: NatsBus) -> dict[str, JobRow]:
    """Return all jobs; of those that have not ended the phase and the counts of their own logs, and what they wait for."""
    from rover_bus.cli.views.hindrances import Present, hindrance, read_present
    from rover_bus.cli.views.history import read_jobs
    from rover_bus.cli.views.progress import JobProgress
    from rover_bus.events import subjects
    from rover_bus.events.journal import LogDamaged
    from rover_bus.master.phases import name_of

    views = await read_jobs(bus)
    presents: dict[str, Present] = {}
    for view in views.values():
        if view.ended_ms:
            continue
        tenant, job = subjects.split_job(view.job)
        inside = bus.of(tenant)
        present = presents[tenant] = presents.get(tenant) or await read_present(inside)
        view.leader = present.leaders.get(job, "")
        progress = JobProgress(inside, job)
        try:
            await progress.read()
        except LogDamaged:
            view.reason = "its log is damaged: `rover doctor`"
            continue
        view.reason = hindrance(view, progress.state, present, progress.waiting)
        ledger = progress.ledger
        if progress.state is not None:
            view.state = "paused" if progress.state.paused else name_of(progress.state.phase)
        if ledger is not None:
            view.committed, view.dead_lettered = ledger.samples_done()
            view.total, view.epoch = ledger.dataset.samples_total, max(ledger.epoch, 0)
    return views
