"""`rover move` and `rover scale`: servers of a running job change by a person's word, while it trains (docs/design/0013).

Both only ask: the master decides, refuses in words or begins a rollout; with `--wait` its end is told.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import click

from rover_bus.cli.connection import Address, visit, with_stack

if TYPE_CHECKING:
    from rover_bus.events.facts import JobFact, PlanProposed
    from rover_bus.events.nats_bus import NatsBus


@click.command()
@click.argument("job")
@click.option("--from", "source", default="", metavar="ps-N", help="The server that gives slots away.")
@click.option("--to", "target", default="", metavar="ps-N", help="Who gets them; without it: all the others.")
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
def move(
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
        return await _ask(bus, job, wish, "move", wait)

    click.echo(f"{job}: {visit(stack, ask)}")


@click.command()
@click.argument("job")
@click.option("--servers", type=click.IntRange(1, 64), required=True, help="How many parameter servers.")
@click.option("--reason", default="", help="Why: it stands in the job's history.")
@click.option("--wait/--no-wait", default=True, help="Return when the slots have moved.  [default: wait]")
@with_stack
def scale(stack: Address, job: str, servers: int, reason: str, wait: bool) -> None:
    """Give a running job more or fewer parameter servers; it trains meanwhile."""

    async def ask(bus: NatsBus) -> str:
        plan = await _plan(bus, job, servers, reason)
        return await _ask(bus, job, plan, "plan", wait)

    click.echo(f"{job}: {visit(stack, ask)}")


async def _plan(bus: NatsBus, job: str, servers: int, reason: str) -> PlanProposed:
    """Return the last plan of a job with another number of servers."""
    from rover_bus.cli.history import read_facts, read_job
    from rover_bus.cli.submission import asker
    from rover_bus.events import subjects
    from rover_bus.events.errors import Refused
    from rover_bus.events.facts import PlanProposed

    await read_job(bus, job)
    facts = [each.fact async for each in read_facts(bus, [subjects.job_facts(job, "plan.proposed")])]
    plans = [fact for fact in facts if isinstance(fact, PlanProposed)]
    if not plans:
        raise Refused(f"job {job!r} has no plan yet: wait until it trains", "not_ready")
    last = plans[-1]
    return PlanProposed(
        job=job,
        plan=max(plan.plan for plan in plans) + 1,
        workers=last.workers,
        servers=servers,
        worker_cores=last.worker_cores,
        server_cores=last.server_cores,
        worker_memory_bytes=last.worker_memory_bytes,
        server_memory_bytes=last.server_memory_bytes,
        hosts=last.hosts,
        masters=last.masters,
        reason=reason or f"{servers} servers, asked for",
        step="asked",
        constant="asked",
        by=asker(),
    )


async def _ask(bus: NatsBus, job: str, wish: JobFact, what: str, wait: bool) -> str:
    """Publish a wish; say what became of it. Raises Refused with the master's words."""
    from rover_bus.cli.history import read_job
    from rover_bus.cli.rollouts import follow_wish
    from rover_bus.cli.submission import publish
    from rover_bus.events.errors import Refused

    view = await read_job(bus, job)
    if view.ended_ms:
        raise Refused(f"job {job!r} has ended already: {view.state}", "ended")
    sequence = await publish(bus, wish, f"{what}.{secrets.token_hex(8)}")
    if not wait:
        return "asked"
    moved = await follow_wish(bus, job, sequence, lambda line: click.echo(line, err=True))
    return f"done, {moved.moves} moves, {moved.bytes / 2**20:.1f} MiB"
