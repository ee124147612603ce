"""`rover pause` and `rover resume`: the workers of a job leave and come back; its servers keep the model meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.connection import Address, visit, with_stack

if TYPE_CHECKING:
    from rover_bus.events.nats_bus import NatsBus


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("--reason", default="", help="Why: it stands in the job's history.")
@with_stack
def pause(stack: Address, job: str, reason: str) -> None:
    """Let the workers of JOB part-commit what they hold and leave. Its servers stay: the model lives there."""
    click.echo(visit(stack, lambda bus: ask(bus, job, reason, away=True)))


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("--reason", default="", help="Why: it stands in the job's history.")
@with_stack
def resume(stack: Address, job: str, reason: str) -> None:
    """Let JOB go on where it was, with the workers that it had."""
    click.echo(visit(stack, lambda bus: ask(bus, job, reason, away=False)))


async def ask(bus: NatsBus, job: str, reason: str, *, away: bool) -> str:
    """Ask for a pause or its end; return what the master made of it. Raises Refused where it is so already."""
    from rover_bus.cli.commands.plan import ANSWER_S, heard, open_plans, say
    from rover_bus.cli.submission import asker
    from rover_bus.events.errors import Refused
    from rover_bus.events.facts import JobPaused, JobPauseRequested, JobResumed, JobResumeRequested

    if (await open_plans(bus, job)).paused == away:
        raise Refused(f"job {job!r} is {'paused already' if away else 'not paused'}", "already")
    asked = JobPauseRequested if away else JobResumeRequested
    sequence = await say(bus, job, asked(job=job, reason=reason, by=asker()))
    answer = JobPaused if away else JobResumed
    if not await heard(bus, job, sequence, lambda fact: isinstance(fact, answer)):
        return f"{job}: asked; no master answered within {ANSWER_S:g} s (`rover jobs`, `rover events {job} -n 5`)"
    return f"{job}: {'paused' if away else 'goes on'}"
