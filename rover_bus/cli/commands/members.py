"""`rover members`: the processes of a job, to be looked at, or killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.connection import Address, visit, with_stack
from rover_bus.cli.views.tables import output_option, show

if TYPE_CHECKING:
    from rover_bus.events.facts import Fact
    from rover_bus.events.nats_bus import NatsBus
    from rover_bus.events.profiles import HostProfile
    from rover_bus.node.local.layout import MemberStatus

COLUMNS = ("role", "index", "incarnation", "host", "pid", "state", "leads", "exit")


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("--all", "everyone", is_flag=True, help="Also those that have ended; their pid is none.")
@output_option
@with_stack
def members(stack: Address, job: str, everyone: bool, output: str) -> None:
    """List the processes of a job: role, index, incarnation, host, pid, state; masters too, and which of them leads.

    Those of this host, and those that run on others. Warm spares follow: host, pid, state, age, memory.
    """
    from rover_bus.cli.views import spares
    from rover_bus.cli.views.elsewhere import find_elsewhere
    from rover_bus.events.errors import BusError

    leader, done = "", frozenset[str]()
    facts: list[Fact] = []
    samples: dict[str, HostProfile] = {}
    try:
        leader, done, facts, samples = visit(stack, lambda bus: _ask_the_bus(bus, job))
    except BusError as error:  # processes of this host are known without a broker
        click.echo(
            f"rover: the leading master and the members on other hosts are not known now: {error}", err=True
        )
    rows = list_members(stack, job, leader, everyone=True, done=done)
    here = {f"{row['role']}-{row['index']}.{row['incarnation']}" for row in rows}
    rows = [row for row in rows if everyone or row["state"] != "ended"]
    rows += find_elsewhere(job, facts, here, leader)
    rows.sort(key=lambda row: (row["role"], row["index"], row["incarnation"]))
    held = list_spares(stack, job, samples)
    if output == "json":
        show([*rows, *held], COLUMNS, output)
        return
    show(rows, COLUMNS, output, empty=f"no process of {job} runs (--all lists those that ended here)")
    if held:
        click.echo()
        show([spares.as_table(each) for each in held], spares.COLUMNS, output)


def list_spares(stack: Address, job: str, samples: dict[str, HostProfile]) -> list[dict[str, Any]]:
    """Return a row for each spare: those of this host from its records, those of others from their last samples."""
    from rover_bus.cli.views import spares
    from rover_bus.node.local import layout

    here = [status.host for status in layout.list_members(stack.home.node)]
    held = {host: sample.spares for host, sample in samples.items() if host not in here}
    if here:
        held[here[-1]] = layout.list_spares(stack.home.node, stack.full_name(job))
    return spares.list_spares(job, held)


async def _ask_the_bus(
    bus: NatsBus, job: str
) -> tuple[str, frozenset[str], list[Fact], dict[str, HostProfile]]:
    """Return the leading master ("": none), the members that left because their work was done, what `find_elsewhere` reads, and the
    last samples of the hosts that are there.
    """
    from rover_bus.cli.views.elsewhere import filters
    from rover_bus.cli.views.hindrances import read_present
    from rover_bus.cli.views.history import read_facts, read_job
    from rover_bus.cli.views.spares import read_samples
    from rover_bus.events import subjects
    from rover_bus.events.facts import JobSubmitted, MemberLeft
    from rover_bus.events.leadership import read_leader
    from rover_bus.events.streams import FACTS, LEADERS

    await read_job(bus, job)
    leader = read_leader(await bus.get(LEADERS, job))
    submitted = [
        stored.sequence async for stored in bus.read(FACTS, subjects.job_facts(job, JobSubmitted.kind()))
    ]
    wanted = [subjects.job_facts(job, MemberLeft.kind()), *filters(job)]
    facts = [
        each.fact async for each in read_facts(bus, wanted, first=submitted[-1]) if each.fact is not None
    ]
    left = [fact for fact in facts if isinstance(fact, MemberLeft) and fact.reason == "done"]
    done = frozenset(str(fact.member) for fact in left)
    samples = await read_samples(bus, (await read_present(bus)).hosts)
    return leader.holder if leader and leader.term else "", done, facts, samples


def list_members(
    stack: Address, job: str, leader: str, everyone: bool = False, done: frozenset[str] = frozenset()
) -> list[dict[str, Any]]:
    """Return a row an incarnation, from the daemon's records. The pid of one that has ended is None: `kill 0` would hit the caller.

    `done`: the members that left by themselves; the host may have asked them to leave before it saw their end, and then calls it
    drained.
    """
    from rover_bus.node.local import layout

    rows = []
    for status in layout.list_members(stack.home.node, stack.full_name(job)):
        if status.state == "ended" and not everyone:
            continue
        rows.append(
            {
                "role": status.member.role,
                "index": status.member.index,
                "incarnation": status.member.incarnation,
                "host": status.host,
                "pid": status.pid or None,
                "state": status.state,
                "leads": str(status.member) == leader if status.member.role == "master" else None,
                "exit": _exit(status, done),
                "log": str(status.log),
            }
        )
    return rows


def _exit(status: MemberStatus, done: frozenset[str]) -> str | None:
    if status.exit is None:
        return None
    return "done" if status.exit.reason == "drained" and str(status.member) in done else status.exit.reason
