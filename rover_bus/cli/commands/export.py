"""`rover export`: the trained model in a file that numpy alone can read."""

from __future__ import annotations

from pathlib import Path

import click

from rover_bus.cli.connection import Address, visit, with_stack


@click.command()
@click.argument("job")
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@with_stack
def export(stack: Address, job: str, out: Path) -> None:
    """Write the model of JOB to OUT (.npz): every dense array, and every table as its rows and `<name>.ids`."""
    from rover_bus.cli.history import read_job
    from rover_bus.cli.results import export_model, part_files

    view = visit(stack, lambda bus: read_job(bus, job))
    shapes = export_model(part_files(job, view.summary), out)
    for name, shape in shapes.items():
        click.echo(f"{name:<32} {' x '.join(map(str, shape)) or '1'}")
