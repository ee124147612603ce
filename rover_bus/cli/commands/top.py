"""`rover top`: jobs and their members, live."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from rover_bus.cli.connection import Address, visit, with_stack

if TYPE_CHECKING:
    from rich.table import Table

    from rover_bus.cli.views.history import JobRow
    from rover_bus.cli.views.picture import Picture
    from rover_bus.cli.views.progress import JobProgress
    from rover_bus.events.nats_bus import NatsBus
    from rover_bus.events.profiles import ProcessSample

REDRAW_S = 0.5
ONCE_S = 2.5  # long enough to hear every worker once


@click.command()
@click.option("--once", is_flag=True, help="Print once and return.")
@with_stack
def top(stack: Address, once: bool) -> None:
    """Watch jobs and the processes of their members until Ctrl-C."""
    visit(stack, lambda bus: _watch(bus, once))


async def _follow_logs(bus: NatsBus, picture: Picture, progress: dict[str, JobProgress]) -> None:
    """Follow the logs of jobs that have not ended: only there is their exact progress."""
    from rover_bus.cli.views.progress import JobProgress
    from rover_bus.events.subjects import split_job

    for name, known in list(picture.jobs.items()):
        if not known.row.ended_ms and name not in progress:
            tenant, job = split_job(name)
            progress[name] = JobProgress(bus.of(tenant), job)
            await progress[name].follow()


async def _watch(bus: NatsBus, once: bool) -> None:
    from rich.console import Console, Group
    from rich.live import Live

    from rover_bus.cli.views.picture import Picture
    from rover_bus.cli.views.progress import JobProgress

    picture, progress = Picture(), dict[str, JobProgress]()
    await picture.follow(bus)
    await asyncio.sleep(REDRAW_S)

    async def draw() -> Any:
        await _follow_logs(bus, picture, progress)
        return Group(draw_jobs(picture, progress), "", draw_members(picture))

    if once:
        await draw()
        await asyncio.sleep(ONCE_S)
        Console().print(await draw())
        return
    with Live(await draw(), refresh_per_second=4, screen=True) as live:
        while True:
            await asyncio.sleep(REDRAW_S)
            live.update(await draw())


def draw_jobs(picture: Picture, logs: dict[str, JobProgress]) -> Table:
    """Return the jobs as a table; those that ended come last."""
    from rich.table import Table

    table = Table(
        "job", "state", "done", "workers", "servers", "samples/s", "leader", box=None, pad_edge=False
    )
    there = [known.row for known in picture.jobs.values()]
    for view in sorted(there, key=lambda each: (each.ended_ms > 0, -each.submitted_ms)):
        progress = None if view.ended_ms else logs.get(view.job)
        done = progress.fraction if progress else view.committed / view.total if view.total else 0.0
        table.add_row(
            view.job,
            _state(view, progress),
            f"{done:.1%}",
            str(view.workers),
            str(view.servers),
            f"{picture.rate(view.job):,.0f}" if progress else "-",
            f"{view.leader} (term {view.term})" if view.leader else "-",
        )
    return table


def _state(view: JobRow, progress: JobProgress | None) -> str:
    from rover_bus.master.phases import name_of

    if progress is None or progress.state is None:
        return view.state
    return "log damaged" if progress.damaged else name_of(progress.state.phase)


def draw_members(picture: Picture) -> Table:
    """Return the processes of all hosts as a table, then members that no host measures."""
    from rich.table import Table

    table = Table("host", "job", "member", "pid", "cores", "MiB", box=None, pad_edge=False)
    for host in picture.hosts.values():
        used = f"{host.cores_used:.2f} of {host.cores:g}"
        table.add_row(host.host, "", "", "", used, f"{host.memory_used_bytes / 2**20:,.0f}", style="dim")
        for process in host.processes:
            table.add_row(host.host, *_cells(process))
    measured = {(each.job, each.member) for host in picture.hosts.values() for each in host.processes}
    for job, processes in picture.processes().items():
        running = picture.jobs[job].members.running if job in picture.jobs else {}
        for process in processes:
            if (job, process.member) not in measured:  # in a pod: by its own word
                there = running.get(str(process.member))
                table.add_row(there.host if there is not None else "", *_cells(process))
    return table


def _cells(process: ProcessSample) -> tuple[str, ...]:
    cores, memory = f"{process.cores_used:.2f}", f"{process.memory_bytes / 2**20:,.0f}"
    return process.job, str(process.member), str(process.pid or "-"), cores, memory
