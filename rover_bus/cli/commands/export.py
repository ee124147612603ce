"""`rover export`: the trained model in one file, with what scoring a row needs."""

from __future__ import annotations

from pathlib import Path

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.connection import Address, visit, with_history


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@with_history
def export(stack: Address, job: str, out: Path) -> None:
    """Write the model of JOB to OUT (.npz): dense arrays, tables as rows and `<name>.ids`, and what they mean.

    numpy alone reads the file (docs/model-file.md). `rover predict OUT DATA` scores rows with it.
    """
    from rover_bus.cli.views.history import read_job
    from rover_bus.cli.views.results import model_of_parts, part_files, read_card, write_whole
    from rover_bus.client.model_file import write_model

    view, card = visit(stack, lambda bus: read_job(bus, job)), visit(stack, lambda bus: read_card(bus, job))
    model = model_of_parts(part_files(job, view.summary), card)
    write_whole(out, lambda file: write_model(file, model))
    for name, array in model.arrays.items():
        click.echo(f"{name:<32} {' x '.join(map(str, array.shape)) or '1'}")
