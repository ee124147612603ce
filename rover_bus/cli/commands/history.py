"""`rover history`: what jobs were, asked, got, used, and how they ended, from the facts; as a table, CSV or Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rover_bus.cli.connection import Address, visit, with_history
from rover_bus.cli.views.tables import output_option, show

if TYPE_CHECKING:
    from rover_bus.brain.history import History
    from rover_bus.events.nats_bus import NatsBus

COLUMNS = (
    "job",
    "state",
    "ran_s",
    "asked",
    "held",
    "plans",
    "samples",
    "peak_samples_per_s",
    "worker_cores_used",
    "worker_peak_mib",
    "server_peak_mib",
    "auc",
)


@click.command()
@click.option(
    "--export",
    "out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="F.csv|F.parquet",
    help="Write every column there.",
)
@output_option
@with_history
def history(stack: Address, out: Path | None, output: str) -> None:
    """One record a job: what it was, asked, got, used, and how it ended. Replayed from the facts; nothing else is kept.

    The table shows sizes as workers x servers; `-o json` and --export have every column (docs/cli.md).
    """
    from rover_bus.brain.history_files import history_rows, write_history

    known = visit(stack, read_history)
    if out:
        write_history(out, known)
        click.echo(f"{len(known)} job{'s' * (len(known) != 1)} in {out}", err=output == "json")
        return
    rows = history_rows(known)
    show(rows if output == "json" else map(brief, rows), COLUMNS, output, empty="no job yet")


async def read_history(bus: NatsBus) -> History:
    """Replay all facts into the Brain's projection."""
    from rover_bus.brain.history import evolve_history
    from rover_bus.cli.views.history import read_facts

    known: History = {}
    async for happened in read_facts(bus):
        if happened.fact is not None:
            known = evolve_history(known, happened.fact, happened.stored.time_ms / 1000)
    return known


def brief(row: dict[str, Any]) -> dict[str, Any]:
    """Return a record as a line for the screen."""
    busy_s = row["worker_member_s"]
    return {
        "job": row["job"],
        "state": row["state"],
        "ran_s": row["ended_at_s"] and row["ended_at_s"] - row["submitted_at_s"],
        "asked": _size(row, "asked"),
        "held": _size(row, "held"),
        "plans": row["plans_applied"],
        "samples": row["samples_committed"],
        "peak_samples_per_s": row["peak_samples_per_s"] or None,
        "worker_cores_used": row["worker_cpu_s"] / busy_s if busy_s else None,
        "worker_peak_mib": row["worker_peak_memory_bytes"] / 2**20 or None,
        "server_peak_mib": row["ps_peak_memory_bytes"] / 2**20 or None,
        "auc": None if row["auc"] is None else f"{row['auc']:.4f}",
    }


def _size(row: dict[str, Any], which: str) -> str:
    counts = [row[f"{which}_workers"], row[f"{which}_servers"]]
    return " x ".join(str(count) if count else "?" for count in counts)
