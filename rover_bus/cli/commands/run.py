"""`rover run`: a training program without a stack of ours: a job file in one process, or any command line."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.connection import split_name, tenant_option
from rover_bus.cli.open_files import LEAST_FILES, check_open_files
from rover_bus.cli.plain import alone_or_joined, run_plain_file
from rover_bus.cli.views.tables import json_option

if TYPE_CHECKING:
    pass


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--plain", is_flag=True, help="Train a job file in one process: no bus, no servers, the same figures."
)
@json_option("with --plain, the last line on stdout is one object.")
@click.option("--seed", type=int, help="With --plain: instead of data.seed.")
@click.option(
    "--predictions",
    type=click.Path(path_type=Path),
    help="With --plain: write row,score for the evaluation file.",
)
@click.option(
    "--job",
    default="",
    help="Join this job of the running stack as one more worker.",
    shell_complete=complete_jobs,
)
@click.option("--dir", "directory", default="", help="State directory of that stack [$ROVER_HOME, ./.rover].")
@tenant_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(  # noqa: PLR0913 - the options of a command
    context: click.Context,
    plain: bool,
    as_json: bool,
    seed: int | None,
    predictions: Path | None,
    job: str,
    directory: str,
    whose: str,
    command: tuple[str, ...],
) -> None:
    """Run `rover run --plain JOB.toml`, or wrap a command: `rover run -- python train.py`.

    A wrapped program that calls `rover_bus.client.join()` trains alone, or as a worker of --job.
    """
    check_open_files("a training program", most=LEAST_FILES)
    if plain:
        if len(command) != 1:
            raise click.UsageError("--plain takes one job file")
        report = run_plain_file(Path(command[0]), seed=seed, predictions=predictions, quiet=as_json)
        _print(report, as_json)
    else:
        named = {"job": job}
        tenant = split_name(named, whose)
        context.exit(_wrap(list(command), alone_or_joined(named["job"], directory, tenant)))


def _wrap(command: list[str], environment: dict[str, str]) -> int:
    """Run a program and return its exit code. Raises InputError when it cannot be started."""
    from rover_bus.events.errors import InputError

    try:
        return subprocess.call(command, env=environment)
    except OSError as error:
        raise InputError(f"cannot run {command[0]}: {error.strerror or error}") from None


def _print(report: dict[str, Any], as_json: bool) -> None:
    from rover_bus.cli.decode import to_line
    from rover_bus.cli.views.report import report_lines

    for line in report_lines(report):
        click.echo(line, err=as_json)
    if as_json:
        click.echo(to_line(report))
