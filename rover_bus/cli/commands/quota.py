"""`rover quota`: what the jobs of a tenant may use together, said while everything runs and kept over restarts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from rover_bus.cli.connection import Address, visit, with_cluster
from rover_bus.cli.views.tables import output_option, show

if TYPE_CHECKING:
    from rover_bus.brain.state import BrainState
    from rover_bus.events.host_facts import ClusterFact
    from rover_bus.events.nats_bus import NatsBus

COLUMNS = ("tenant", "cores", "cores_used", "memory_bytes", "jobs")
ANSWER_S = 5.0


@click.group()
def quota() -> None:
    """See and set what the jobs of a tenant (`rover auth list`) may use together.

    A plan that would pass a quota is withheld and names it. A quota holds until it is set again or removed.
    """


@quota.command("list")
@output_option
@with_cluster
def list_quotas(stack: Address, output: str) -> None:
    """List tenants: their quotas, what their jobs hold of them, and how many there are."""
    from rover_bus.cli.views.brain_state import read_brain

    async def read(bus: NatsBus) -> BrainState:
        _require_cluster(bus)
        return (await read_brain(bus)).state

    show(
        rows_of(visit(stack, read)),
        COLUMNS,
        output,
        empty="no tenant has a quota: `rover quota set TENANT=CORES[:MEMORY]`",
    )


@quota.command("set")
@click.argument("word", metavar="TENANT=CORES[:MEMORY]")
@click.option("--reason", default="", help="Why: it stands among the events.")
@with_cluster
def set_quota(stack: Address, word: str, reason: str) -> None:
    """Let the jobs of TENANT use so many cores, and so much memory, together: `rover quota set ads=8:32GiB`."""
    from rover_bus.cli.options import parse_quotas
    from rover_bus.cli.submission import asker
    from rover_bus.cli.views.plan_narration import quota_text
    from rover_bus.events.host_facts import QuotaSet

    [(tenant, budget)] = parse_quotas([word], "").items()
    memory = -1 if budget.memory_bytes == float("inf") else int(budget.memory_bytes)
    fact = QuotaSet(tenant=tenant, cores=budget.cores, memory_bytes=memory, reason=reason, by=asker())
    click.echo(
        visit(stack, lambda bus: send_to_cluster(bus, fact, f"{tenant}: {quota_text(fact)} from now on"))
    )


@quota.command()
@click.argument("tenant")
@click.option("--reason", default="", help="Why: it stands among the events.")
@with_cluster
def remove(stack: Address, tenant: str, reason: str) -> None:
    """Let the jobs of TENANT use as much as there is."""
    from rover_bus.cli.submission import asker
    from rover_bus.events.host_facts import QuotaSet

    fact = QuotaSet(tenant=tenant, reason=reason, by=asker())
    click.echo(visit(stack, lambda bus: send_to_cluster(bus, fact, f"{tenant}: no quota from now on")))


def rows_of(state: BrainState) -> list[dict[str, Any]]:
    """Return a record a tenant that has a quota or a job."""
    from rover_bus.brain.totals import present

    named = {job.spec.plan.tenant for job in state.jobs.values()} - {""}
    rows = []
    for tenant in sorted(named | set(state.quotas)):
        jobs = [job for job in state.jobs.values() if job.spec.plan.tenant == tenant]
        held = [job.charge(size) for job in jobs if (size := present(job)) is not None]
        budget = state.quotas.get(tenant)
        limited = budget is not None and budget.memory_bytes != float("inf")
        rows.append(
            {
                "tenant": tenant,
                "cores": budget.cores if budget else None,
                "cores_used": round(sum(each.cores for each in held), 2),
                "memory_bytes": int(budget.memory_bytes) if budget and limited else None,
                "jobs": len(jobs),
            }
        )
    return rows


def _require_cluster(bus: NatsBus) -> None:
    """Raise AccessDenied for credentials of a tenant: what is of all tenants is not for them."""
    from rover_bus.events.errors import AccessDenied
    from rover_bus.events.subjects import DEFAULT_TENANT

    if bus.tenant != DEFAULT_TENANT:
        raise AccessDenied(
            f"quotas and modes are of the whole stack, and these credentials of the tenant {bus.tenant}: ask its operator"
        )


async def send_to_cluster(bus: NatsBus, fact: ClusterFact, done: str) -> str:
    """Store a person's word for the whole cluster; return it, and whether the Brain has heard it already. Raises AccessDenied."""
    _require_cluster(bus)
    import secrets

    from rover_bus.cli.submission import publish_cluster
    from rover_bus.cli.views.brain_state import read_brain

    before = await read_brain(bus)
    await publish_cluster(bus, fact, f"{fact.kind()}.{secrets.token_hex(8)}")
    for _ in range(round(ANSWER_S / 0.25)):
        now = await read_brain(bus)
        if now.said > before.said:
            return done
        await asyncio.sleep(0.25)
    return f"{done}; said, but no Brain has heard it yet: it will, when it is there"
