"""What a worker had loaded when it joined: the list from which its host makes spares ready (docs/design/0042, 0087).

Called by `job.join` where the platform names a file, which node/local reads, or a host whose daemon is told over the bus. Apart
because it is about the interpreter, not the job.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rover_bus.events import subjects
from rover_bus.events.errors import RoverError

if TYPE_CHECKING:
    from rover_bus.events.bus import Bus
    from rover_bus.events.identity import Member

ANSWER_S = 5.0
AGAIN_S = 3.0  # while none has answered yet
TOLD_EVERY_S = 30.0  # a daemon that was started again knows nothing of it


class LoadedList(NamedTuple):
    """How old the process was, in seconds, and the list, packed."""

    start_s: float
    packed: bytes


class SpareHost(NamedTuple):
    """Whose daemon makes spares of a run of a job, and how it is reached."""

    bus: Bus
    host: str
    job: str
    uid: str


def read_loaded() -> dict[str, object]:
    """Return names and files of all modules in the order of their loading, `sys.path`, and how old this process is in seconds."""
    named = [(name, _origin(module)) for name, module in list(sys.modules.items())]
    modules = [[name, origin] for name, origin in named if origin]
    return {"start_s": _age_s(), "path": [str(each) for each in sys.path], "modules": modules}


def tell_loaded(path: Path) -> None:
    """Write it down. A disk that is full costs the job its spares, nothing else."""
    fresh = path.with_name(f"{path.name}.new")
    with suppress(OSError):
        fresh.write_text(json.dumps(read_loaded()))
        fresh.rename(path)


def pack_loaded() -> LoadedList | None:
    """Return it as a message carries it; None for a list that is longer than any."""
    from rover_bus.events.spare_requests import MOST_BYTES, pack  # only where spares are pods

    found = read_loaded()
    packed = pack(found)
    return LoadedList(float(str(found["start_s"])), packed) if len(packed) < MOST_BYTES else None


async def keep_told(at: SpareHost, member: Member, loaded: LoadedList) -> None:
    """Tell a host's daemon now, and whenever it does not know it any more, until cancelled. Else there are no spares."""
    from rover_bus.events.codec import decode, encode
    from rover_bus.events.spare_requests import LoadedReport, SpareReply

    wanted, wait_s = True, AGAIN_S
    while True:
        record = loaded.packed if wanted else b""
        report = LoadedReport(uid=at.uid, member=member, start_s=loaded.start_s, record=record)
        with suppress(RoverError):
            said = await at.bus.request(subjects.loaded(at.host, at.job), encode(report), timeout_s=ANSWER_S)
            wanted = decode(said.body, SpareReply).what == "wanted"
            if wanted and not record:
                continue
            wait_s = TOLD_EVERY_S
        await asyncio.sleep(wait_s)


def _origin(module: object) -> str:
    """The file that a module came from; "" for what is no module that an import would find again."""
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None)
    return origin if isinstance(origin, str) and getattr(spec, "has_location", False) else ""


def _age_s() -> float:
    try:
        words = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return round(time.clock_gettime(time.CLOCK_BOOTTIME) - int(words[19]) / os.sysconf("SC_CLK_TCK"), 3)
    except (OSError, ValueError, AttributeError):
        return 0.0
