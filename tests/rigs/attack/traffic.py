"""What does not belong on the bus: keys that are no leader's, facts that nobody told, told ones that were changed on the way.

Facts that ask for something (a stop, a move, a plan) are left alone: a master that obeys one of these does what it is for.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
from all_rights import connect

from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.streams import FACTS, LEADERS, PRESENCE, ROUTING

ASKING = ("requested", "proposed", "approved", "rejected", "mode_set", "submitted")
BUCKETS = {"foreign_leader": LEADERS, "foreign_presence": PRESENCE, "foreign_routing": ROUTING}


def send(home: Path, act: str, job: str, chance: random.Random) -> str:
    """Put it there; return what it was."""
    return asyncio.run(_send(home, act, job, chance))


async def _send(home: Path, act: str, job: str, chance: random.Random) -> str:
    bus = await connect(home, "attacker")
    try:
        if bucket := BUCKETS.get(act):
            key = "ghost" if bucket == PRESENCE else job
            await bus.put(bucket, key, chance.randbytes(chance.choice((0, 3, 40))))
            return f"{bucket} {key}"
        wanted = subjects.host_facts() if act == "foreign_host_fact" else subjects.job_facts(job)
        return await _say_again(bus, wanted, chance)
    finally:
        await bus.close()


async def _say_again(bus: Bus, wanted: str, chance: random.Random) -> str:
    stored = [each async for each in bus.read(FACTS, wanted) if not each.subject.endswith(ASKING)]
    if not stored:
        return ""
    former = chance.choice(stored)
    body = _changed(former.body, chance)
    await bus.append(FACTS, former.subject, body)
    return f"{former.subject} {body.hex()}"


def _changed(body: bytes, chance: random.Random) -> bytes:
    """The same once more, garbage, another's name in it, or a few bytes changed."""
    kind = chance.choice(("again", "garbage", "renamed", "changed", "changed"))
    if kind == "garbage":
        return chance.randbytes(chance.randrange(80))
    if kind == "renamed":
        fields: dict[str, Any] = msgspec.msgpack.decode(body)
        fields |= {key: "No Such/Name" for key in ("job", "host") if key in fields}
        return msgspec.msgpack.encode(fields)
    changed = bytearray(body)
    for _ in range(chance.randint(1, 4) if kind == "changed" else 0):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)
