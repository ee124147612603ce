"""`rover replay`: a job as it was at one moment of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.connection import Address, visit, with_history
from rover_bus.cli.views.tables import output_option

if TYPE_CHECKING:
    from rover_bus.web.bodies import MomentOfLog, StateShown


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option(
    "--at", type=click.IntRange(min=1), help="After this sequence of the log's stream [the newest]."
)
@output_option
@with_history
def replay(stack: Address, job: str, at: int | None, output: str) -> None:
    """Print the state of JOB as it was after a record of its log, read by the master's own code. The page's slider shows the same.

    A moment before the first that is kept is refused with the sequence and time of that one.
    """
    import msgspec

    from rover_bus.cli.views.moments import read_state

    state = visit(stack, lambda bus: read_state(bus, job, at))
    click.echo(msgspec.json.encode(state) if output == "json" else "\n".join(state_lines(state)))


def state_lines(state: StateShown) -> list[str]:
    """Return a state as lines."""
    lines = [
        f"{state.job}, after {_moment(state.at)}; kept from {_moment(state.first)} to {_moment(state.newest)}",
        f"phase        {state.phase}{', paused' if state.paused else ''}; term {state.term}, generation {state.generation}",
        f"plan         {state.plan or 'none'} is carried out"
        + (f"; plan {state.waiting_plan} waits for a word" if state.waiting_plan else ""),
        f"members      {', '.join(state.members) or 'none'}",
        f"samples      {state.committed:,} committed, {state.dead_lettered:,} dead-lettered, of {state.total:,}",
    ]
    if (ledger := state.ledger) is not None:
        lines.append(
            f"epoch {ledger.epoch:<6} {ledger.committed_batches:,} of {ledger.batches:,} batches committed, "
            f"{ledger.leased_batches:,} leased, {ledger.returned_batches:,} returned, {len(ledger.dead):,} dead-lettered"
        )
    owners: dict[int, int] = {}
    for server, first, end in state.slots:
        owners[server] = owners.get(server, 0) + end - first
    lines += [f"slots        ps-{server}: {count}" for server, count in sorted(owners.items())]
    lines += [f"checkpoint   {number}: {is_now}" for number, is_now in state.checkpoints.items()]
    return lines


def _moment(moment: MomentOfLog) -> str:
    from datetime import datetime

    return (
        f"{moment.sequence} ({datetime.fromtimestamp(moment.time_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S})"
    )
