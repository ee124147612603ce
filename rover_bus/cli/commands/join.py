"""`rover join`: this machine becomes one more host of a stack that runs elsewhere."""

from __future__ import annotations

import click

from rover_bus.cli.commands.up import detach_stack, run_until_signal
from rover_bus.cli.home import Home
from rover_bus.cli.joining import join as join_stack
from rover_bus.cli.joining import joined_stack
from rover_bus.cli.stack import Here


@click.command()
@click.option(
    "--token-file",
    default="",
    metavar="FILE",
    help="What `rover auth token` wrote; needed the first time only.",
)
@click.option("--dir", "directory", default="", help="State directory [$ROVER_HOME, ./.rover].")
@click.option("--name", default="", help="Name of this host [its own].")
@click.option(
    "--bind",
    default="",
    metavar="ADDRESS",
    help="Where other hosts reach it [the address that reaches the broker].",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of this host's processes; may be repeated.",
)
@click.option("--detach", is_flag=True, help="Run in the background; `rover down` ends it.")
@click.option("--quiet", "-q", is_flag=True, help="Say nothing.")
@click.pass_context
def join(  # noqa: PLR0913 - a command's options are its parameters
    context: click.Context,
    token_file: str,
    directory: str,
    name: str,
    bind: str,
    settings: tuple[str, ...],
    detach: bool,
    quiet: bool,
) -> None:
    """Join a stack by a token, and run its node daemon here until Ctrl-C.

    The host's own credentials come over the broker's encrypted connection, sealed for it alone, and stay in the state directory:
    later starts there (`rover join`, `rover up`) need no token. One that was used, has expired or is another stack's: exit code 5.
    """
    home, here = Home.find(directory), Here(name, bind)
    join_stack(home, token_file, here)
    stack = joined_stack(home, here, settings)
    if detach:
        detach_stack(home)
    else:
        context.exit(run_until_signal(stack, quiet=quiet))
