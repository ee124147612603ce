"""`rover logs`: what members wrote."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.home import Home

if TYPE_CHECKING:
    from rover_bus.events.nats_bus import NatsBus

LOOK_S = 0.2


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.argument("member", default="")
@click.option("--follow", "-f", is_flag=True, help="Wait for more.")
@click.option("--dir", "directory", default="", help="State directory [$ROVER_HOME, ./.rover].")
def logs(job: str, member: str, follow: bool, directory: str) -> None:
    """Print what the members of a job wrote, or one of them: `rover logs JOB worker-0` (or worker-0.2, its second incarnation)."""
    from rover_bus.events.errors import InputError
    from rover_bus.node.local.layout import read_logs

    home = Home.find(directory).of_running()
    name, _, incarnation = member.partition(".")

    def find() -> list[Path]:
        found = read_logs(home.node, job, name)
        return [log for log in found if not incarnation or log.name == f"{member}.log"]

    if not find():
        host = _host_of(name, job, directory)
        where = f"{member} runs on host {host}: run `rover logs` there" if host else "`rover jobs` lists jobs"
        raise InputError(f"no logs of {member or 'members'} of job {job!r} in {home.node}: {where}")
    read: dict[Path, int] = {}
    while True:
        for log in find():
            _print_news(log, read)
        if not follow:
            return
        time.sleep(LOOK_S)


def _host_of(name: str, job: str, directory: str) -> str:
    """Return the host that a member was last started on, "" where the facts do not say it."""
    from rover_bus.cli.connection import find_stack, visit
    from rover_bus.cli.views.history import read_facts
    from rover_bus.events import subjects
    from rover_bus.events.errors import RoverError
    from rover_bus.events.host_facts import HostStarted

    async def find(bus: NatsBus) -> str:
        host = ""
        async for each in read_facts(bus, [subjects.host_facts(fact=HostStarted.kind())]):
            if isinstance(each.fact, HostStarted) and each.fact.job == job:
                process = each.fact.process
                host = process.host if process.member.name == name else host
        return host

    try:
        return visit(find_stack(directory, "", ""), find)
    except RoverError:
        return ""


def _print_news(log: Path, read: dict[Path, int]) -> None:
    """Print what a log has gained, each line with the name of its member."""
    with log.open("rb") as file:
        file.seek(read.get(log, 0))
        for line in file:
            read[log] = file.tell()
            sys.stdout.write(f"{log.stem} | {line.decode(errors='replace').rstrip()}\n")
    sys.stdout.flush()
