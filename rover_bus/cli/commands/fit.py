"""`rover fit`: throughput of unmeasured sizes from a few measured ones. Needs nothing else of ours."""

from __future__ import annotations

import math
import shlex
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from rover_bus.cli.views.tables import json_option

if TYPE_CHECKING:
    from rover_bus.brain.fitting import GroupFit, Probe
    from rover_bus.brain.tables import Table

MEASURE_TIMEOUT_S = 3600.0
FilePath = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("file", required=False, type=FilePath)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    help="With FILE: fit so many rows of a group, predict the others.",
)
@click.option("--seed", type=int, default=0, help="Which rows are drawn [0].")
@click.option("--train", type=FilePath, help="Fit this table ...")
@click.option("--test", type=FilePath, help="... and predict this one.")
@click.option("--choose", type=click.IntRange(min=1), help="Let the model choose so many probes ...")
@click.option("--candidates", type=FilePath, help="... among these (workers, ps) ...")
@click.option(
    "--measure",
    default="",
    metavar="CMD",
    help="... measured by `CMD WORKERS PS`, which prints a throughput.",
)
@click.option(
    "--unit", type=click.Choice(["steps", "samples"]), default="steps", help="What throughput counts [steps]."
)
@click.option("--predictions", type=FilePath, help="Write group,workers,ps,predicted,low_90,high_90,guess.")
@click.option("--plot", type=FilePath, help="Draw measured against predicted.")
@json_option("the last line on stdout is one object.")
def fit(  # noqa: PLR0913 - the options of a command
    file: Path | None,
    samples: int | None,
    seed: int,
    train: Path | None,
    test: Path | None,
    choose: int | None,
    candidates: Path | None,
    measure: str,
    unit: Literal["steps", "samples"],
    predictions: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Fit measured throughput: CSV with workers, ps, throughput (and worker_cores, ps_cores, batch_size, mode, group).

    \b
    rover fit FILE.csv --samples 10 --seed 1
    rover fit --train A.csv --test B.csv --predictions OUT.csv
    rover fit --choose 10 --candidates C.csv --measure ./measure.sh
    """
    from rover_bus.brain import fitting

    if file and samples:
        fits = _fit_split(file, samples, seed, unit)
    elif train and test:
        fits = fitting.fit_and_predict(_read(train, unit), _read(test, unit, measured=False))
    elif choose and candidates and measure:
        fits = [_fit_chosen(candidates, choose, measure, seed, unit)]
    else:
        raise click.UsageError(
            "give FILE with --samples, or --train with --test, or --choose with --candidates and --measure"
        )
    _hand_out(fits, predictions, plot, as_json)


def _hand_out(fits: list[GroupFit], predictions: Path | None, plot: Path | None, as_json: bool) -> None:
    """Write what was asked for, and say the rest."""
    from rover_bus.brain import fitting

    if predictions:
        fitting.write_predictions(predictions, fits)
    if plot:
        fitting.plot_predictions(plot, fits)
    for line in (line for each in fits for line in fit_lines(each)):
        click.echo(line, err=as_json)
    if as_json:
        click.echo(fitting.json_line(fits))


def _read(
    path: Path, unit: Literal["steps", "samples"], *, measured: bool = True, only: tuple[str, ...] = ()
) -> Table:
    from rover_bus.brain.fitting import left_out_text
    from rover_bus.brain.tables import COLUMNS, read_table

    table = read_table(path, unit, measured, only or COLUMNS)
    for line in left_out_text(str(path), table.left_out):
        click.echo(line, err=True)
    return table


def _fit_split(path: Path, samples: int, seed: int, unit: Literal["steps", "samples"]) -> list[GroupFit]:
    from rover_bus.brain.fitting import fit_and_predict, split_table

    return fit_and_predict(*split_table(_read(path, unit), samples, seed))


def _fit_chosen(
    candidates: Path, choose: int, measure: str, seed: int, unit: Literal["steps", "samples"]
) -> GroupFit:
    from rover_bus.brain.fitting import choose_and_predict
    from rover_bus.brain.tables import CANDIDATES

    command = _command(measure)

    def run(workers: int, ps: int) -> float:
        return _measure(command, workers, ps)

    def print_probe(probe: Probe) -> None:
        click.echo(
            f"probe {probe.order}: {probe.workers} workers, {probe.ps} ps: {probe.throughput:g} {unit}/s",
            err=True,
        )

    table = _read(candidates, unit, measured=False, only=CANDIDATES)
    _, fitted = choose_and_predict(table, choose, run, seed=seed, on_probe=print_probe)
    return fitted


def _command(measure: str) -> list[str]:
    """The words of --measure. Raises InputError when nothing can be run by that name."""
    from rover_bus.events.errors import InputError

    try:
        words = shlex.split(measure)
    except ValueError as error:
        raise InputError(f"--measure {measure}: {error}; quote it as a shell would") from error
    if not words or shutil.which(words[0]) is None:
        raise InputError(f"--measure {measure}: there is no such program, or it may not be executed")
    return words


def _measure(command: list[str], workers: int, ps: int) -> float:
    """Run the user's command; what fails, or prints no number, is a failed probe and is named with its own last words."""
    words = [*command, str(workers), str(ps)]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=MEASURE_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        return _failed(words, str(error))
    if done.returncode:
        said = done.stderr.strip().splitlines() or done.stdout.strip().splitlines() or ["it said nothing"]
        return _failed(words, f"exit code {done.returncode}: {said[-1][:200]}")
    printed = done.stdout.split() or [""]
    try:
        throughput = float(printed[-1])
    except ValueError:
        return _failed(words, f"its last word is {printed[-1][:40]!r}, not a throughput")
    if not (math.isfinite(throughput) and throughput > 0):
        return _failed(words, f"it printed {printed[-1][:40]}, not a number above 0")
    return throughput


def _failed(words: list[str], why: str) -> float:
    click.echo(f"{shlex.join(words)}: {why}", err=True)
    return math.nan


def fit_lines(fitted: GroupFit) -> list[str]:
    """Return one group's fit in a line, and below it each doubt of the model in a line of its own."""
    group = fitted.group or "all rows"
    if fitted.prediction is None:
        return [f"{group}: {fitted.name}"]
    errors = fitted.errors().tolist()
    error = f", median error {statistics.median(errors):.1%}" if errors else ""
    said = f"{group}: {fitted.name} on {fitted.samples} rows, {len(fitted.rows)} predicted{error}"
    return [said, *(f"  beware: {warning}" for warning in fitted.warnings)]
