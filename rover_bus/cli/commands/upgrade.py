"""`rover upgrade`: which release each process runs, and raising the stack's format when all of them read the next (0073)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from rover_bus.cli.connection import Address, visit, with_cluster
from rover_bus.cli.views.tables import output_option, show
from rover_bus.events.errors import Refused

if TYPE_CHECKING:
    from rover_bus.cli.upgrading import StackFormat

COLUMNS = ("role", "name", "job", "release", "reads")


@click.command()
@click.option("--check", is_flag=True, help="Change nothing: list the processes, and what is in the way.")
@output_option
@with_cluster
def upgrade(stack: Address, check: bool, output: str) -> None:
    """Raise the stack's format, once every process runs a release that reads it.

    Until then all parts write what the release before reads, and each may be put back. Afterwards no older release starts; the way
    back is a backup from before. Nothing is interrupted, and a second call changes nothing.
    """
    from rover_bus.cli.upgrading import SETTLE_S, raise_format, read_stack
    from rover_bus.events.formats import FIRST_RELEASES, FORMAT

    if check:
        _print(visit(stack, read_stack), output)
        return
    if visit(stack, raise_format):
        click.echo(
            f"the stack writes format {FORMAT}: no release before {FIRST_RELEASES[FORMAT]} starts in it any more "
            f"(no older process appeared within {SETTLE_S:.0f} s)"
        )
    else:
        click.echo(f"the stack writes format {FORMAT} already")


def _print(found: StackFormat, output: str) -> None:
    """Print what there is. Raises Refused while something is in the way of the format that this release reads."""
    rows = [msgspec.to_builtins(each) for each in found.parts]
    show(rows, COLUMNS, output, empty="no process of the stack runs")
    from rover_bus.cli.upgrading import name_older

    told = f"the stack writes format {found.writes}, this release reads up to {found.reads}"
    if found.older:
        raise Refused(f"{told}; {name_older(found)}", "older_processes")
    if found.raising:
        told += f"; raising it to {found.raising} was begun and did not end: `rover upgrade` ends it"
    elif found.writes < found.reads:
        told += "; every process reads it: `rover upgrade` raises it"
    click.echo(told, err=output == "json")
