"""`rover demo`: a model trains under a control plane that is being killed, and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from rover_bus.cli.demo.chaos import Choice
from rover_bus.cli.views.tables import json_option

if TYPE_CHECKING:
    from rich.console import Console

PICTURE_COLUMNS = 136


@click.command()
@click.option("--seed", type=int, default=1, help="Draws the data, the model and what is killed when [1].")
@click.option(
    "--act",
    type=click.Choice(["whole", "servers"]),
    default="whole",
    help="servers: a second act; a killed parameter server, a hot one, a lost host [whole].",
)
@click.option("--chaos", type=click.Choice(get_args(Choice)), default="all", help="What is killed [all].")
@click.option(
    "--headless",
    is_flag=True,
    help="Plain lines on stderr; kills at the seed's times instead of the story's order.",
)
@json_option("the last line on stdout is one object.")
@click.option(
    "--compare",
    is_flag=True,
    help="Run the off column of the verdict instead of showing a recorded run (some minutes).",
)
@click.option("--no-reference", is_flag=True, help="Do not train the same job in one process for comparison.")
@click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep state, logs and model there."
)
@click.option(
    "--picture", type=click.Path(path_type=Path, dir_okay=False), help="Save what was narrated as SVG."
)
def demo(  # noqa: PLR0913 - the options of a command
    seed: int,
    act: str,
    chaos: Choice,
    headless: bool,
    as_json: bool,
    compare: bool,
    no_reference: bool,
    keep: Path | None,
    picture: Path | None,
) -> None:
    """Train a recommendation model under a real elastic control plane on this machine: watch it find its size, and kill it.

    A little more than a minute; the act of the servers less than one. Leaves nothing behind, also after Ctrl-C.
    """
    from rover_bus.cli.decode import to_line
    from rover_bus.cli.demo.demonstration import Choices, Demonstration
    from rover_bus.cli.demo.narrator import Narrator

    console = make_console(headless, as_json, picture is not None)
    narrator = Narrator(console, live=console.is_terminal and not headless and picture is None)
    choices = Choices(
        seed=seed,
        chaos=chaos,
        story=not headless,
        keep=keep,
        reference=not no_reference,
        compare=compare,
    )
    if act == "servers":
        from rover_bus.cli.demo.server_demonstration import ServersDemonstration

        report = ServersDemonstration(choices, narrator).run()
    else:
        report = Demonstration(choices, narrator).run()
    if picture:
        narrator.save_picture(picture)
    if as_json:
        click.echo(to_line(report))


def make_console(headless: bool, as_json: bool, recording: bool) -> Console:
    """Return where the story is told: stderr when stdout belongs to the JSON line, wide enough to be drawn when recorded."""
    from rich.console import Console

    return Console(
        stderr=headless or as_json,
        record=recording,
        width=PICTURE_COLUMNS if recording else None,
        force_terminal=True if recording else None,
        no_color=True if headless else None,
        highlight=False,
    )
