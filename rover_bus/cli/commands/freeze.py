"""`rover freeze`: windows in which no running job is changed by the Brain's own choice, kept over restarts."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from rover_bus.cli.connection import Address, visit, with_cluster
from rover_bus.cli.views.tables import output_option, show

if TYPE_CHECKING:
    from rover_bus.brain.state import BrainState
    from rover_bus.events.host_facts import FreezeSet
    from rover_bus.events.nats_bus import NatsBus

COLUMNS = ("freeze", "state", "begins", "ends", "every", "tenant", "by", "reason")
DAY_S = 86_400.0
AGAIN_S = {"day": DAY_S, "week": 7 * DAY_S}


@click.group()
def freeze() -> None:
    """See and set windows in which the Brain changes no running job by its own choice.

    What saves a job is done all the same: memory that would run out, lost members and hosts, a change that does not pay and is
    taken back. So is what a person asks for. A job that waits begins in free room; no frozen job shrinks for it.
    """


@freeze.command("set")
@click.argument("name")
@click.option("--from", "begins", default="now", show_default=True, metavar="TIME", help="When it begins.")
@click.option("--until", "ends", default="", metavar="TIME", help="When it ends.")
@click.option("--for", "lasts", default="", metavar="DURATION", help="How long it lasts: 90m, 12h, 3d.")
@click.option("--every", type=click.Choice(sorted(AGAIN_S)), default=None, help="It comes again.")
@click.option("--of", "tenant", default="", metavar="TENANT", help="Jobs of this tenant alone.")
@click.option("--reason", default="", help="Why: it stands among the events, and in `rover explain`.")
@with_cluster
def set_freeze(  # noqa: PLR0913 - a command's options are its parameters
    stack: Address, name: str, begins: str, ends: str, lasts: str, every: str | None, tenant: str, reason: str
) -> None:
    """Set the window NAME, or change it: `rover freeze set sale --from 2026-12-24T18:00 --for 3d --reason "the sale"`.

    TIME is ISO 8601, in UTC where it names no offset.
    """
    from rover_bus.cli.commands.quota import send_to_cluster
    from rover_bus.cli.submission import asker
    from rover_bus.cli.views.plan_narration import window_text
    from rover_bus.events.host_facts import FreezeSet

    begins_s, ends_s = _window(begins, ends, lasts, every)
    fact = FreezeSet(
        freeze=name,
        begins_s=begins_s,
        ends_s=ends_s,
        repeats_s=AGAIN_S[every] if every else 0.0,
        tenant=tenant,
        reason=reason,
        by=asker(),
    )
    done = f"{name}: no running job{f' of {tenant}' if tenant else ''} is changed {window_text(begins_s, ends_s, fact.repeats_s)}"

    async def send(bus: NatsBus) -> str:
        await _require_format(bus)
        await _require_tenant(bus, fact)
        return await send_to_cluster(bus, fact, done)

    click.echo(visit(stack, send))


@freeze.command("list")
@output_option
@with_cluster
def list_freezes(stack: Address, output: str) -> None:
    """List windows: those that hold, and those to come."""
    from rover_bus.cli.views.brain_state import read_brain

    async def read(bus: NatsBus) -> BrainState:
        return (await read_brain(bus)).state

    rows = rows_of(visit(stack, read), time.time())
    show(rows, COLUMNS, output, empty="plans are frozen by no window: `rover freeze set NAME --for DURATION`")


@freeze.command()
@click.argument("name")
@click.option("--reason", default="", help="Why: it stands among the events.")
@with_cluster
def lift(stack: Address, name: str, reason: str) -> None:
    """End the window NAME now, or let it never come."""
    from rover_bus.cli.commands.quota import send_to_cluster
    from rover_bus.cli.submission import asker
    from rover_bus.cli.views.brain_state import read_brain
    from rover_bus.events.errors import InputError
    from rover_bus.events.host_facts import FreezeLifted

    async def send(bus: NatsBus) -> str:
        known = (await read_brain(bus)).state.freezes
        if name not in known:
            raise InputError(f"there is no freeze {name!r} (`rover freeze list` lists them)")
        fact = FreezeLifted(freeze=name, reason=reason, by=asker())
        return await send_to_cluster(bus, fact, f"{name}: lifted")

    click.echo(visit(stack, send))


def rows_of(state: BrainState, now_s: float) -> list[dict[str, Any]]:
    """Return a record a window: `state` is `holds` or `waits`, and its times are those that come next."""
    from rover_bus.brain.freezing import coming

    rows = []
    for name, each in sorted(state.freezes.items()):
        begins_s, ends_s = coming(each, now_s)
        every = next((noun for noun, seconds in AGAIN_S.items() if seconds == each.repeats_s), "")
        rows.append(
            {
                "freeze": name,
                "state": "holds" if name in state.frozen else "waits",
                "begins": _written(begins_s),
                "ends": _written(ends_s),
                "every": every,
                "tenant": each.tenant,
                "by": each.by,
                "reason": each.reason,
            }
        )
    return rows


def _written(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _window(begins: str, ends: str, lasts: str, every: str | None) -> tuple[float, float]:
    """Return when a window begins and ends, in seconds of Unix time. Raises UsageError."""
    from rover_bus.events.units import parse_seconds

    if bool(ends) == bool(lasts):
        raise click.UsageError("say how long it holds, by --until TIME or by --for DURATION")
    now_s = time.time()
    begins_s = now_s if begins == "now" else _moment(begins, "--from")
    ends_s = _moment(ends, "--until") if ends else begins_s + parse_seconds(lasts, "--for")
    if ends_s <= begins_s:
        raise click.UsageError(
            f"it would end at {_written(ends_s)}, before it begins at {_written(begins_s)}"
        )
    if every and ends_s - begins_s >= AGAIN_S[every]:
        raise click.UsageError(f"it lasts longer than a {every}, and would never end: leave --every out")
    if not every and ends_s <= now_s:
        raise click.UsageError(f"it is over since {_written(ends_s)}")
    return begins_s, ends_s


def _moment(text: str, option: str) -> float:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{option} {text!r} is no time: write it as 2026-12-24T18:00Z") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


async def _require_format(bus: NatsBus) -> None:
    """Raise Refused where a Brain of a former release may lead: it would change jobs in the window."""
    from rover_bus.events.errors import Refused
    from rover_bus.events.formats import written_format
    from rover_bus.events.host_facts import FreezeSet

    if (written := await written_format(bus)) < FreezeSet.since_format:
        raise Refused(
            f"a freeze needs a stack of format {FreezeSet.since_format}, and this one writes {written}: `rover upgrade` raises it "
            "once every process reads it",
            "older_format",
        )


async def _require_tenant(bus: NatsBus, fact: FreezeSet) -> None:
    """Raise InputError for a tenant that the stack does not have: its window would hold for no job."""
    from rover_bus.events.errors import InputError
    from rover_bus.events.streams import TENANTS
    from rover_bus.events.subjects import DEFAULT_TENANT

    if fact.tenant in ("", DEFAULT_TENANT):
        return
    known = [DEFAULT_TENANT, *sorted(await bus.entries(TENANTS, "*"))]
    if fact.tenant not in known:
        raise InputError(f"there is no tenant {fact.tenant!r}: the stack has {', '.join(known)}")
