"""`rover jobs`: one line a job."""

from __future__ import annotations

from typing import Any

import click

from rover_bus.cli.connection import Address, visit, with_stack
from rover_bus.cli.tables import output_option, show

COLUMNS = (
    "job",
    "state",
    "epoch",
    "committed",
    "total",
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
    from rover_bus.cli.history import JobView, read_jobs

    def row(view: JobView) -> dict[str, Any]:
        return {key: getattr(view, key) for key in view.__slots__}

    views = visit(stack, read_jobs)
    show(map(row, views.values()), COLUMNS, output, empty="no job yet: `rover submit JOB.toml`")
