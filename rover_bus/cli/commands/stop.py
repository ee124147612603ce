"""`rover stop` and `rover cancel`: a job's end by a person's word, which stands in the log with his name."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.connection import Address, visit, with_stack

if TYPE_CHECKING:
    from rover_bus.events.nats_bus import NatsBus

CANCEL_WAIT_S = 15.0


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("--reason", default="", help="Why: it stands in the job's history.")
@click.option("--wait", is_flag=True, help="Return when the job has ended.")
@with_stack
def stop(stack: Address, job: str, reason: str, wait: bool) -> None:
    """Let a job end in order: workers finish or part-commit what they hold, servers write the model as it is."""
    end(stack, job, "drain", reason, wait)


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("--reason", default="", help="Why: it stands in the job's history.")
@with_stack
def cancel(stack: Address, job: str, reason: str) -> None:
    """End a job at once: its processes are ended, its model is not kept."""
    end(stack, job, "cancel", reason, wait=True)


def end(stack: Address, job: str, mode: str, reason: str, wait: bool) -> None:
    """Ask for the end of a job that has not ended; with `wait` see it happen."""
    from rover_bus.cli.submission import ask_to_stop, follow_job
    from rover_bus.cli.views.history import read_job
    from rover_bus.events.errors import BusTimeout, Refused

    async def ask(bus: NatsBus) -> str:
        view = await read_job(bus, job)
        if view.ended_ms:
            raise Refused(f"job {job!r} has ended already: {view.state}", "ended")
        sequence = await ask_to_stop(bus, job, mode, reason)
        if not wait:
            return "asked to stop"
        try:
            async with asyncio.timeout(CANCEL_WAIT_S if mode == "cancel" else None):
                ended = await follow_job(bus, job, sequence, lambda _: None)
        except TimeoutError:
            raise BusTimeout(
                f"job {job!r} is asked to end, and has not ended within {CANCEL_WAIT_S:g} s: `rover jobs` says what it waits for"
            ) from None
        return ended.state

    click.echo(f"{job}: {visit(stack, ask)}")
