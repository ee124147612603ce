"""What a host keeps in shared memory when its stack has gone down: staged cuts of jobs that go on, and nothing else.

Fed by `rover down` and by `rover up` when it is told to end: which run belongs to which job, and which job has ended, is read from
the log while there is a broker; what lies in shared memory is looked at when everything has ended. Daemons free a job's cuts at
its end, but one that ended in that moment, or was killed, has left them: memory that nothing on the machine would give back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rover_bus.cli.connection import Address, visit
from rover_bus.cli.views.history import read_facts
from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.errors import RoverError
from rover_bus.events.facts import JobEnded, JobSubmitted
from rover_bus.flash.places import COPIES, PARITY, directories_of
from rover_bus.flash.sweep import sweep


@dataclass(frozen=True, slots=True)
class Runs:
    """The jobs that have not ended, by the uid of their run. `known` False: the log could not be read, and nothing is freed."""

    going_on: dict[str, str]
    known: bool = True


def read_runs(stack: Address) -> Runs:
    """Read from the log which jobs go on."""
    try:
        return visit(stack, _read_runs)
    except RoverError:
        return Runs({}, known=False)


async def _read_runs(bus: Bus) -> Runs:
    found: dict[str, str] = {}
    kinds = (JobSubmitted, JobEnded)
    wanted = subjects.everywhere(*(subjects.job_facts("*", each.kind()) for each in kinds))
    async for happened in read_facts(bus, wanted):
        match happened.fact:
            case JobSubmitted(job=job, uid=uid):
                found[job] = uid
            case JobEnded(job=job):
                found.pop(job, None)
            case _:
                pass  # the others do not matter here
    return Runs({uid: job for job, uid in found.items()})


def free_staged(root: Path, runs: Runs) -> list[str]:
    """Remove what ended jobs have left below a host's `root` in shared memory; return a line for each that is kept."""
    try:
        if runs.known:
            sweep(root, [each for uid in runs.going_on for each in directories_of(uid)])
        return [_line(each, runs) for each in sorted(root.iterdir()) if each.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"shared memory in {root} cannot be looked at: {error.strerror}"]


def _line(directory: Path, runs: Runs) -> str:
    uid = re.sub(f"({COPIES}|{PARITY})$", "", directory.name)
    size = sum(file.stat().st_blocks * 512 for file in directory.rglob("*") if file.is_file())
    held = f"{size / 2**20:,.1f} MiB of shared memory in {directory}"
    if uid not in runs.going_on:
        why = "a process still holds them" if runs.known else "the log could not be read"
        return f"kept: staged cuts of run {uid}, {held}: {why}"
    what = {uid + COPIES: "copies for other hosts", uid + PARITY: "parity for other hosts"}
    return f"kept: {what.get(directory.name, 'staged cuts')} of {runs.going_on[uid]}, {held}: it goes on with `rover up`"
