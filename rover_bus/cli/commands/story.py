"""`rover story`: from an event back to what caused it, and on to what followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rover_bus.cli.connection import Address, visit, with_history
from rover_bus.cli.views.tables import json_option

if TYPE_CHECKING:
    from rover_bus.events.nats_bus import NatsBus


DEEPEST = 20  # levels that are indented


@click.command()
@click.argument("event")
@json_option("one object a fact.")
@with_history
def story(stack: Address, event: str, as_json: bool) -> None:
    """Walk the causes of EVENT: a number as `rover events` prints it (or ROVER_FACTS:17), an event id, the position of a fact
    in its job's log (JOB@SEQUENCE.INDEX), or JOB/MEMBER for the story of a member (demo/worker-1.2, demo/worker-1).
    """
    from rover_bus.cli.views.records import event_json, event_line
    from rover_bus.cli.views.stories import find_story

    async def find(bus: NatsBus) -> list[tuple[int, str, str]]:
        told = await find_story(bus, event)
        return [
            (depth, why, event_json(each) if as_json else event_line(each, with_job=True))
            for depth, why, each in told
        ]

    for depth, why, text in visit(stack, find):
        click.echo(text if as_json else f"{'   ' * min(depth, DEEPEST)}{why}{' ' * bool(why)}{text}")
