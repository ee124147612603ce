"""`rover events`: facts as they happened, with filters and colour."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.connection import Address, visit, with_history
from rover_bus.cli.views.tables import json_option

if TYPE_CHECKING:
    from rover_bus.cli.views.history import Happened
    from rover_bus.events.nats_bus import NatsBus


@click.command()
@click.argument("job", shell_complete=complete_jobs, default="")
@click.option(
    "--kind",
    "-k",
    "kinds",
    multiple=True,
    metavar="NOUN[.VERB]",
    help="Only these, for example -k plan -k member.lost.",
)
@click.option("--follow", "-f", is_flag=True, help="Wait for more.")
@click.option("--last", "-n", "count", type=click.IntRange(min=0), help="Only the newest so many.")
@json_option("one object a line, every field.")
@with_history
def events(
    stack: Address, job: str, kinds: tuple[str, ...], follow: bool, count: int | None, as_json: bool
) -> None:
    """Print facts of all jobs and hosts, or of one JOB, in the order in which they were stored."""
    from rover_bus.cli.home import NoStack
    from rover_bus.cli.views.records import event_json, event_line
    from rover_bus.events import subjects

    if follow and stack.stopped:
        raise NoStack(f"no stack runs in {stack.home.root}: nothing more will come, leave --follow out")
    if job:
        subjects.name(job, "job")
    _check_kinds(kinds)

    def wanted(happened: Happened) -> bool:
        parsed = subjects.parse(happened.stored.subject)
        kind = parsed.noun_verb if parsed else ""
        ours = not job or job in (happened.job, parsed.job if parsed else "")
        return ours and (not kinds or any(kind == each or kind.startswith(f"{each}.") for each in kinds))

    def say(happened: Happened) -> None:
        click.echo(event_json(happened) if as_json else event_line(happened, with_job=not job))

    visit(stack, lambda bus: _print(bus, job, wanted, say, follow, count))


def _check_kinds(kinds: tuple[str, ...]) -> None:
    """Raise InputError for a kind that no fact has, naming a close one."""
    from difflib import get_close_matches

    from rover_bus.events.codec import EVENTS
    from rover_bus.events.errors import InputError
    from rover_bus.events.facts import Fact

    facts = {cls.tag().rpartition(".")[0] for cls in EVENTS.values() if issubclass(cls, Fact)}
    known = facts | {kind.partition(".")[0] for kind in facts}
    for kind in kinds:
        if kind not in known:
            close = get_close_matches(kind, sorted(known), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ": docs/cli.md and schemas/ name them"
            raise InputError(f"there are no events of kind {kind!r}{hint}")


async def _print(bus: NatsBus, job: str, wanted: Any, say: Any, follow: bool, count: int | None) -> None:
    from rover_bus.cli.views.history import read_facts, read_happened, read_job
    from rover_bus.events.streams import FACTS
    from rover_bus.events.subjects import everywhere

    found, newest = [], 0
    async for happened in read_facts(bus):
        newest = happened.stored.sequence
        if wanted(happened):
            found.append(happened)
    if job and not found and not follow:
        await read_job(bus, job)  # nothing happened to it, or there is no such job: then it says so
    for happened in found if count is None else found[len(found) - min(count, len(found)) :]:
        say(happened)
    if not follow:
        return
    coming: asyncio.Queue[Happened] = asyncio.Queue()
    await bus.follow(
        FACTS,
        everywhere("rover.>"),
        lambda stored: coming.put_nowait(read_happened(stored)),
        start=newest + 1,
    )
    while True:
        happened = await coming.get()
        if wanted(happened):
            say(happened)
            sys.stdout.flush()
