"""`rover members`: the processes of a job, so that anybody can look at them, or kill them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rover_bus.cli.connection import Address, visit, with_stack
from rover_bus.cli.tables import output_option, show

if TYPE_CHECKING:
    from rover_bus.events.leadership import LeaderEntry
    from rover_bus.events.nats_bus import NatsBus

COLUMNS = ("role", "index", "incarnation", "pid", "state", "leads", "exit")


@click.command()
@click.argument("job")
@click.option("--all", "everyone", is_flag=True, help="Also those that have ended; their pid is none.")
@output_option
@with_stack
def members(stack: Address, job: str, everyone: bool, output: str) -> None:
    """List the processes of a job on this host: role, index, incarnation, pid, state; masters too, and which of them leads."""
    from rover_bus.events.errors import BusError

    try:
        leader = visit(stack, lambda bus: _find_leader(bus, job))
    except BusError as error:  # processes are known without a broker
        click.echo(f"rover: who leads is not known now: {error}", err=True)
        leader = None
    rows = list_members(stack, job, leader.holder if leader and leader.term else "", everyone)
    show(rows, COLUMNS, output, empty=f"no process of {job} runs here (--all lists those that ended)")


async def _find_leader(bus: NatsBus, job: str) -> LeaderEntry | None:
    from rover_bus.cli.history import read_job
    from rover_bus.events.leadership import read_leader
    from rover_bus.events.streams import LEADERS

    await read_job(bus, job)
    entry = await bus.get(LEADERS, job)
    return read_leader(entry.value) if entry else None


def list_members(stack: Address, job: str, leader: str, everyone: bool = False) -> list[dict[str, Any]]:
    """Return one row a life, from the daemon's records. The pid of who does not run is None: `kill 0` would hit the caller."""
    from rover_bus.node import layout

    rows = []
    for status in layout.list_members(stack.home.node, job):
        if status.state == "ended" and not everyone:
            continue
        rows.append(
            {
                "role": status.member.role,
                "index": status.member.index,
                "incarnation": status.member.incarnation,
                "pid": status.pid or None,
                "state": status.state,
                "leads": str(status.member) == leader if status.member.role == "master" else None,
                "exit": status.exit.reason if status.exit else None,
                "log": str(status.log),
            }
        )
    return rows
