"""`rover top`: jobs and their members, live."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import click

from rover_bus.cli.connection import Address, visit, with_stack

if TYPE_CHECKING:
    from rich.table import Table

    from rover_bus.cli.views.history import JobRow
    from rover_bus.cli.views.progress import JobProgress
    from rover_bus.events.bus import Stored
    from rover_bus.events.nats_bus import NatsBus
    from rover_bus.events.profiles import HostProfile

REDRAW_S = 0.5
ONCE_S = 2.5  # long enough to hear every worker once
RATE_MEMORY_S = 10.0


@click.command()
@click.option("--once", is_flag=True, help="Print once and return.")
@with_stack
def top(stack: Address, once: bool) -> None:
    """Watch jobs and the processes of their members until Ctrl-C."""
    visit(stack, lambda bus: _watch(bus, once))


class Picture:
    """What is known now: jobs by their facts, hosts and workers by their samples."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobRow] = {}
        self.hosts: dict[str, HostProfile] = {}
        self.progress: dict[str, JobProgress] = {}
        self.rates: dict[
            tuple[str, str], tuple[float, float]
        ] = {}  # (job, worker) -> (seen at, samples a second)

    def take_fact(self, stored: Stored) -> None:
        from rover_bus.cli.views.history import JobRow, read_happened
        from rover_bus.events.facts import JobFact

        fact = read_happened(stored).fact
        if isinstance(fact, JobFact):
            self.jobs.setdefault(fact.job, JobRow(fact.job)).take(fact, stored.time_ms)

    def take_sample(self, stored: Stored) -> None:
        from rover_bus.events.codec import decode_any
        from rover_bus.events.errors import BadMessage
        from rover_bus.events.profiles import HostProfile, WorkerProfile
        from rover_bus.events.subjects import parse
        from rover_bus.events.tenancy import of_control

        try:
            sample = decode_any(stored.body)
        except BadMessage:
            return
        at = parse(stored.subject)
        sample = of_control(sample, at.tenant if at is not None else "")
        if isinstance(sample, HostProfile):
            self.hosts[sample.host] = sample
        elif isinstance(sample, WorkerProfile) and sample.window_s > 0:
            self.rates[sample.job, str(sample.member)] = (time.monotonic(), sample.samples / sample.window_s)

    async def follow_logs(self, bus: NatsBus) -> None:
        """Follow the logs of jobs that have not ended: only there is their exact progress."""
        from rover_bus.cli.views.progress import JobProgress
        from rover_bus.events.subjects import split_job

        for view in list(self.jobs.values()):
            if not view.ended_ms and not view.forgotten and view.job not in self.progress:
                tenant, job = split_job(view.job)
                self.progress[view.job] = JobProgress(bus.of(tenant), job)
                await self.progress[view.job].follow()

    def rate(self, job: str) -> float:
        """Samples a second of a job, by the samples of its workers that were heard lately."""
        since = time.monotonic() - RATE_MEMORY_S
        return sum(rate for (name, _), (at, rate) in self.rates.items() if name == job and at >= since)


async def _watch(bus: NatsBus, once: bool) -> None:
    from rich.console import Console, Group
    from rich.live import Live

    from rover_bus.events import subjects
    from rover_bus.events.streams import FACTS, PROFILES

    picture = Picture()
    await bus.follow(FACTS, subjects.everywhere(subjects.job_facts()), picture.take_fact, start="first")
    await bus.follow(PROFILES, subjects.everywhere("rover.profile.>"), picture.take_sample)
    await asyncio.sleep(REDRAW_S)

    async def draw() -> Any:
        await picture.follow_logs(bus)
        return Group(draw_jobs(picture), "", draw_members(picture))

    if once:
        await draw()
        await asyncio.sleep(ONCE_S)
        Console().print(await draw())
        return
    with Live(await draw(), refresh_per_second=4, screen=True) as live:
        while True:
            await asyncio.sleep(REDRAW_S)
            live.update(await draw())


def draw_jobs(picture: Picture) -> Table:
    """Return the jobs as a table; those that ended come last."""
    from rich.table import Table

    table = Table(
        "job", "state", "done", "workers", "servers", "samples/s", "leader", box=None, pad_edge=False
    )
    there = [view for view in picture.jobs.values() if view.submitted_ms or not view.forgotten]
    for view in sorted(there, key=lambda each: (each.ended_ms > 0, -each.submitted_ms)):
        progress = None if view.ended_ms else picture.progress.get(view.job)
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
    """Return the processes of all hosts as a table."""
    from rich.table import Table

    table = Table("host", "job", "member", "pid", "cores", "MiB", box=None, pad_edge=False)
    for host in picture.hosts.values():
        used = f"{host.cores_used:.2f} of {host.cores:g}"
        table.add_row(host.host, "", "", "", used, f"{host.memory_used_bytes / 2**20:,.0f}", style="dim")
        for process in host.processes:
            table.add_row(
                host.host,
                process.job,
                str(process.member),
                str(process.pid),
                f"{process.cores_used:.2f}",
                f"{process.memory_bytes / 2**20:,.0f}",
            )
    return table
