"""`rover jobs`: one line a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rover_bus.cli.connection import Address, visit, with_stack
from rover_bus.cli.views.tables import output_option, show

if TYPE_CHECKING:
    from rover_bus.cli.views.history import JobRow

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

    from rover_bus.cli.views.job_progress import read_with_progress

    def row(view: JobRow) -> dict[str, Any]:
        return {
            key: getattr(view, key)
            for key in view.__slots__
            if key not in ("checkpoints", "spec", "forgotten")
        }

    views = visit(stack, read_with_progress)
    show(map(row, views.values()), COLUMNS, output, empty="no job yet: `rover submit JOB.toml`")
