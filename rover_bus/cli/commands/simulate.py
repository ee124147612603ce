"""`rover simulate`: play a deterministic history of the whole system, or many, and let the witness judge."""

from __future__ import annotations

import json
import sys

import click

from rover_bus.cli.views.tables import json_option


@click.command()
@click.option("--seed", default=0, show_default=True, help="The history to play, or the first of --count.")
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many histories, from --seed on.",
)
@click.option("--watch", is_flag=True, help="Show the history as it unfolds.")
@json_option("one last line.")
def simulate(seed: int, count: int, watch: bool, as_json: bool) -> None:
    """Play deterministic histories of the whole system on a virtual clock.

    Real masters, Brain, daemon, workers' sessions and servers' admission on a broker in memory; the seed decides delays, losses,
    doubles, crashes and restarts. The judge is a witness table in which each sample adds 1 at its own position. A failing
    seed replays exactly. Exit status 1 when a history goes wrong.
    """
    import logging

    from rover_bus.events.errors import RoverError
    from rover_bus.simulation.history import live
    from rover_bus.simulation.plan import draw

    logging.getLogger("rover").setLevel(logging.CRITICAL)

    def say(at_s: float, what: str) -> None:
        if watch:
            click.echo(f"{at_s:9.3f} s  {what}")

    bad: list[int] = []
    for number in range(seed, seed + count):
        if watch:
            click.echo(str(draw(number)))
        try:
            wrong = live(number, say=say).wrong
        except RoverError as error:
            wrong = (str(error),)
        if wrong:
            bad.append(number)
            click.echo(f"seed {number}: {'; '.join(wrong)} (replay: rover simulate --seed {number} --watch)")
        elif watch:
            click.echo(f"seed {number}: every sample applied exactly once, or dead-lettered by name")
        elif count > 1 and (number - seed + 1) % 100 == 0:
            click.echo(f"{number - seed + 1} histories, {len(bad)} wrong", err=True)
    click.echo(f"{count - len(bad)} of {count} histories good")
    if as_json:
        click.echo(json.dumps({"histories": count, "wrong": bad}))
    sys.exit(1 if bad else 0)
