"""`rover witness`: how often each sample was trained, as the servers saw it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.connection import Address, visit, with_history
from rover_bus.cli.views.tables import json_option

if TYPE_CHECKING:
    from rover_bus.cli.views.history import JobRow
    from rover_bus.events.job import Dataset
    from rover_bus.events.nats_bus import NatsBus


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the raw table: .npy, int32[epochs, records].",
)
@json_option("the counts as one object.")
@with_history
def witness(stack: Address, job: str, out: Path | None, as_json: bool) -> None:
    """Count how often each sample of JOB was applied. Every entry is 1, or its row was dead-lettered, or something is wrong."""
    import numpy as np

    from rover_bus.cli.decode import to_line
    from rover_bus.cli.views.results import count_witness, load_witness, part_files, write_whole
    from rover_bus.events.errors import InputError

    view, dataset = visit(stack, lambda bus: _find(bus, job))
    if dataset is None:
        raise InputError(f"job {job!r} has not registered its data yet: there is no witness of it")
    table = load_witness(part_files(job, view.summary), dataset)
    if out:
        write_whole(out, lambda file: np.save(file, table, allow_pickle=False))
    count = count_witness(table)
    if as_json:
        click.echo(to_line({"samples": table.size, **asdict(count)}))
    else:
        click.echo(
            f"{table.size:,} samples: {count.applied:,} applied, {count.missing:,} never, {count.duplicated:,} more than once"
        )


async def _find(bus: NatsBus, job: str) -> tuple[JobRow, Dataset | None]:
    from rover_bus.cli.views.history import read_facts, read_job
    from rover_bus.events import subjects
    from rover_bus.events.data_facts import DatasetRegistered

    view = await read_job(bus, job)
    kind = DatasetRegistered.kind()
    async for happened in read_facts(bus, [subjects.job_facts(job, kind)]):
        if isinstance(happened.fact, DatasetRegistered):
            return view, happened.fact.dataset
    return view, None
