"""Spares of jobs, as `rover members` lists them and `rover doctor` judges them (docs/design/0042).

Fed by the state directory of this host, the last samples of other hosts and the facts of failed spares. Apart from `elsewhere`,
because a spare is no member: no log names it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rover_bus.events.bus import Bus, Stored
from rover_bus.events.codec import decode
from rover_bus.events.errors import BadMessage
from rover_bus.events.facts import Fact
from rover_bus.events.host_facts import HostSpareFailed, HostSpareMended
from rover_bus.events.profiles import HostProfile, SpareSample
from rover_bus.events.streams import PROFILES
from rover_bus.events.subjects import host_facts, host_profile

AGAIN = 2  # failures in a row that are no accident
COLUMNS = ("spare", "host", "pid", "state", "age_s", "memory")


async def read_samples(bus: Bus, hosts: Collection[str]) -> dict[str, HostProfile]:
    """Return the last sample of each of these hosts that has published one."""
    found = {}
    for host in hosts:
        if (last := await last_sample(bus, host)) is not None:
            found[host] = last[0]
    return found


async def last_sample(bus: Bus, host: str) -> tuple[HostProfile, Stored] | None:
    """Return the last sample of a host, and as what it is stored; None where there is none, or none that can be read."""
    stored = await bus.last(PROFILES, host_profile(host))
    if stored is None:
        return None
    try:
        return decode(stored.body, HostProfile), stored
    except BadMessage:
        return None


def list_spares(job: str, spares: Mapping[str, Iterable[SpareSample]]) -> list[dict[str, Any]]:
    """Return a row for each spare of a job. `spares`: those of each host."""
    return [
        {
            "role": "spare",
            "index": each.number,
            "incarnation": None,
            "host": host,
            "pid": each.pid or None,
            "state": each.state,
            "age_s": each.age_s,
            "memory_bytes": each.memory_bytes,
        }
        for host, held in sorted(spares.items())
        for each in held
        if each.job == job
    ]


def as_table(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `list_spares` as people read it."""
    return {**row, "spare": row["index"], "memory": f"{row['memory_bytes'] / 2**20:,.0f} MiB"}


def filters() -> list[str]:
    """Return the subjects of the facts that `failing` reads."""
    return [host_facts(fact=each.kind()) for each in (HostSpareFailed, HostSpareMended)]


def failing(facts: Iterable[Fact], daemons: Mapping[str, str]) -> dict[tuple[str, str], list[str]]:
    """Return, by job and uid, what is wrong with its spares, a line a host, and what to do about it.

    `daemons`: the incarnation of each host's daemon: what a former one counted is over.
    """
    newest: dict[tuple[str, str, str], HostSpareFailed | None] = {}
    for fact in facts:
        if isinstance(fact, HostSpareFailed):
            newest[fact.job, fact.uid, fact.host] = fact if daemons.get(fact.host) == fact.daemon else None
        elif isinstance(fact, HostSpareMended):
            newest[fact.job, fact.uid, fact.host] = None
    found: dict[tuple[str, str], list[str]] = {}
    for (job, uid, host), failed in sorted(newest.items()):
        if failed is not None and failed.failures >= AGAIN:
            found.setdefault((job, uid), []).append(
                f"spares fail on host {host}, {failed.failures} in a row, so workers start cold there; the last: {failed.why} "
                f"(mend what the program does while it is imported, or set `[workers] spares = 0`; the next is tried after "
                f"{failed.again_s:,.0f} s)"
            )
    return found
