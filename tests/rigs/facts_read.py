"""A job's facts, read in this process as `rover events JOB -k KIND --json` reads them.

A test that waits asks several times a second: a command each time takes a core from the job that is waited for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rover_bus.cli.connection import find_stack, visit
from rover_bus.cli.views.history import read_happened
from rover_bus.cli.views.records import event_record
from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.errors import RoverError
from rover_bus.events.streams import FACTS


def records_of(home: Path, job: str, kind: str) -> list[dict[str, Any]] | None:
    """Return the records of a job's facts of a kind, in order; None where no stack runs in `home`, or no broker answers."""
    try:
        return visit(find_stack(str(home), "", ""), lambda bus: _read(bus, job, kind))
    except RoverError:
        return None


async def _read(bus: Bus, job: str, kind: str) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for each in subjects.everywhere("rover.>"):
        async for stored in bus.read(FACTS, each):
            parsed = subjects.parse(stored.subject)
            if parsed is None or not f"{parsed.noun_verb}.".startswith(f"{kind}."):
                continue
            happened = read_happened(stored)
            if job in (happened.job, parsed.job):
                found[stored.sequence] = event_record(happened)
    return [record for _, record in sorted(found.items())]
