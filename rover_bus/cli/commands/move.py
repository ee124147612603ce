"""`rover move` and `rover scale`: servers of a running job change by a person's word, while it trains (docs/design/0013).

Both only ask: the master decides, refuses in words or begins a rollout; with `--wait` its end is told.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.connection import Address, visit, with_stack

if TYPE_CHECKING:
    from rover_bus.events.facts import JobFact
    from rover_bus.events.nats_bus import NatsBus


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("--from", "source", default="", metavar="ps-N", help="The server that gives slots away.")
@click.option(
    "--to", "target", default="", metavar="ps-N", help="The server that takes them [all the others]."
)
@click.option(
    "--share", type=click.FloatRange(0, 1), default=1.0, help="How much of its slots.  [default: 1]"
)
@click.option("--hot", is_flag=True, help="The hottest slots, until its traffic is level with the others'.")
@click.option(
    "--off", "host", default="", metavar="HOST", help="Everything off a host, onto new servers elsewhere."
)
@click.option("--reason", default="", help="Why: it stands in the job's history.")
@click.option("--wait/--no-wait", default=True, help="Return when the slots have moved.  [default: wait]")
@with_stack
def move(  # noqa: PLR0913 - the options of a command
    stack: Address,
    job: str,
    source: str,
    target: str,
    share: float,
    hot: bool,
    host: str,
    reason: str,
    wait: bool,
) -> None:
    """Move slots of parameters from one server to another while the job trains."""
    from rover_bus.cli.submission import asker
    from rover_bus.events.errors import InputError
    from rover_bus.events.facts import SlotsMoveRequested

    if not source and not host:
        raise InputError("say from where: --from ps-0, or --off HOST (`rover members` lists both)")
    wish = SlotsMoveRequested(
        job=job, source=source, target=target, share=share, hot=hot, host=host, reason=reason, by=asker()
    )

    async def ask(bus: NatsBus) -> str:
        return await _ask(bus, job, wish, wait)

    click.echo(f"{job}: {visit(stack, ask)}")


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("--workers", type=click.IntRange(1), help="How many workers [as many as now].")
@click.option("--servers", type=click.IntRange(1, 64), help="How many parameter servers [as many as now].")
@click.option("--reason", default="", help="Why: it stands in the job's history.")
@click.option("--wait/--no-wait", default=True, help="Return when it is carried out.  [default: wait]")
@with_stack
def scale(
    stack: Address, job: str, workers: int | None, servers: int | None, reason: str, wait: bool
) -> None:
    """Give a running job more or fewer workers or parameter servers; it trains meanwhile.

    `rover plan try` changes workers on trial instead: the Brain reverts what does not pay.
    """
    if workers is None and servers is None:
        raise click.UsageError("say how many: --workers N, --servers N, or both")

    async def ask(bus: NatsBus) -> str:
        from rover_bus.cli.plan_words import open_plans
        from rover_bus.cli.trials import ask_size
        from rover_bus.events.facts import PlanRequested

        await open_plans(bus, job)
        request = PlanRequested(job=job, workers=workers or 0, servers=servers or 0, reason=reason)
        plan, sequence = await ask_size(bus, request)
        return await _followed(bus, job, sequence, plan.plan) if wait else "asked"

    click.echo(f"{job}: {visit(stack, ask)}")


async def _ask(bus: NatsBus, job: str, wish: JobFact, wait: bool) -> str:
    """Publish a wish; say what became of it. Raises Refused with the master's words."""
    from rover_bus.cli.submission import publish
    from rover_bus.cli.views.history import read_job
    from rover_bus.events.errors import Refused

    view = await read_job(bus, job)
    if view.ended_ms:
        raise Refused(f"job {job!r} has ended already: {view.state}", "ended")
    sequence = await publish(bus, wish, f"move.{secrets.token_hex(8)}")
    return await _followed(bus, job, sequence) if wait else "asked"


async def _followed(bus: NatsBus, job: str, sequence: int, plan: int = 0) -> str:
    from rover_bus.cli.rollouts import follow_rollout

    moved = await follow_rollout(bus, job, sequence, lambda line: click.echo(line, err=True), plan)
    return f"done, {moved.moves} moves, {moved.bytes / 2**20:.1f} MiB" if moved.moves else "done"
