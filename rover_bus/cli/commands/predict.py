"""`rover predict`: score the rows of a data file with an exported model, without a stack."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("model", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("data", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write row,score here [stdout].")
@click.option(
    "--scoring", default="", metavar="MODULE:FUNCTION", help="What predicts [as the job file said]."
)
def predict(model: Path, data: Path, out: Path | None, scoring: str) -> None:
    """Score each row of DATA with MODEL, a file of `rover export`: `row,score`, empty where a row cannot be used.

    DATA has the columns of the training data; the label may be absent. An id that training never saw has its first value.
    """
    from rover_bus.cli.views.results import write_whole
    from rover_bus.client.scoring import load, score_lines

    scores, unusable = load(model, scoring).predict_file(data)
    text = score_lines(scores)
    if out is not None:
        write_whole(out, lambda file: file.write(text.encode()))
    else:
        click.echo(text, nl=False)
    for line in unusable[:10]:
        click.echo(f"{data}, {line}", err=True)
    click.echo(f"{len(scores) - len(unusable)} rows scored, {len(unusable)} cannot be used", err=True)
