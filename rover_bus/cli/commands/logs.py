"""`rover logs`: what members wrote, on this host and on others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.connection import connect, find_stack, split_name, stack_options
from rover_bus.cli.home import Home, NoStack
from rover_bus.events.errors import AccessDenied, BusError, InputError
from rover_bus.events.subjects import DEFAULT_TENANT, qualified, split_job

if TYPE_CHECKING:
    from rover_bus.cli.connection import Address
    from rover_bus.cli.views.member_lines import MemberLines

LOOK_S = 0.2
Say = Callable[[str], None]


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.argument("member", default="")
@click.option("--follow", "-f", is_flag=True, help="Wait for more.")
@stack_options
def logs(  # noqa: PLR0913 - the options of a command
    job: str, member: str, follow: bool, directory: str, url: str, secret_file: str, whose: str
) -> None:
    """Print what the members of a job wrote, or one of them: `rover logs JOB worker-0` (or worker-0.2, its second incarnation).

    Logs of this host are read from its state directory, whether a stack runs or not; those of other hosts by their daemons.
    """
    from rover_bus.cli.views.member_lines import MemberLines

    home = Home.find(directory).of_running()
    named = {"job": job}
    tenant = split_name(named, whose)
    written = MemberLines(qualified(tenant, named["job"]), member, click.echo)
    try:
        asyncio.run(_print(find_stack(directory, url, secret_file, tenant), home, written, follow))
        return
    except NoStack:
        pass
    except (BusError, AccessDenied) as error:
        click.echo(f"rover: what members on other hosts wrote is not known now: {error}", err=True)
    _print_here(home.node, written, follow)


async def _print(stack: Address, home: Home, written: MemberLines, follow: bool) -> None:
    """Print what there is on every host, and what comes. Raises BusError, InputError where there is nothing."""
    from rover_bus.cli.views.member_lines import LogsElsewhere

    bus = await connect(stack)
    local = bus.tenant == DEFAULT_TENANT  # what a tenant's people see of hosts they ask of daemons
    written.job = written.job if local else split_job(written.job)[1]
    elsewhere = LogsElsewhere(bus, written, lambda line: click.echo(f"rover: {line}", err=True))
    try:
        await elsewhere.find(home.node if local else None)
        while True:
            if local:
                written.take_local(home.node)
            await elsewhere.take()
            if not follow:
                break
            await asyncio.sleep(LOOK_S)
    finally:
        await elsewhere.close()
        await bus.close()
    written.end()
    if not written.found:
        raise _nothing(written, home.node)


def _print_here(node: Path, written: MemberLines, follow: bool) -> None:
    while True:
        written.take_local(node)
        if not follow:
            break
        time.sleep(LOOK_S)
    written.end()
    if not written.found:
        raise _nothing(written, node)


def _nothing(written: MemberLines, node: Path) -> InputError:
    what = f"{written.member or 'members'} of job {written.job!r}"
    return InputError(f"no logs of {what} in {node} or on a host that answers: `rover jobs` lists jobs")
