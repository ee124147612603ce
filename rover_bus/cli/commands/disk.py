"""`rover disk`: what each job costs on disk, and will at its end."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.connection import Address, visit, with_stack
from rover_bus.cli.views.tables import output_option, show

if TYPE_CHECKING:
    from rover_bus.cli.views.disk import JobDisk
    from rover_bus.events.nats_bus import NatsBus


@click.command()
@click.argument("job", shell_complete=complete_jobs, default="")
@output_option
@with_stack
def disk(stack: Address, job: str, output: str) -> None:
    """Show what JOB, or each job, costs on disk: its log and facts at the broker, its newest checkpoint on storage, what log and
    facts grow by in an hour, and what all of it will be at its end.
    """
    from rover_bus.cli.views.disk import COLUMNS, read_disk
    from rover_bus.events.errors import InputError

    wanted = stack.full_name(job) if job else ""

    async def read(bus: NatsBus) -> list[JobDisk]:
        return await read_disk(bus, lambda row: wanted in ("", row.job, stack.full_name(row.job)))

    rows = visit(stack, read)
    if job and not rows:
        raise InputError(f"there is no job {job!r} (`rover jobs` lists them)")
    show(
        [asdict(row) if output == "json" else row.as_table() for row in rows],
        COLUMNS,
        output,
        empty="no job yet",
    )
