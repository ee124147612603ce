"""Purges that a master asks for: its job's log and facts, and nothing of any other job.

A broker grants the right to purge by stream, never by subject, so a master has none: it asks on `rover.keeper.<job>.purge`, which
it may do for its own job only, and the Brain's process purges. Asked by nats_storage.py, answered by cli/serve.py; apart because
what is checked here is all that stands between one job's credentials and the history of all others.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Message
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import BadMessage, RoverError
from rover_bus.events.logs import get_logger
from rover_bus.events.purge_requests import PurgeReply, PurgeRequest
from rover_bus.events.streams import FACTS, LOG

MOST_WAITING = 64  # a master whose purge is refused asks again a round later
log = get_logger("rover.keeper")


class _Asked(NamedTuple):
    message: Message
    request: PurgeRequest


def refusal(asked_on: str, request: PurgeRequest) -> str:
    """Return why a purge is not done, "" for one that may be: of the log or of facts of the job in whose name it is asked."""
    at, what = subjects.parse(asked_on), subjects.parse(request.subject)
    family = {LOG: "log", FACTS: "fact"}.get(request.stream)
    if at is None or at.family != "keeper" or what is None or what.family != family or not what.job:
        return f"nothing of {request.stream} is purged by the name {request.subject}"
    if what.job != at.job or what.tenant:
        return f"the master of {at.job} may not purge {request.subject}"
    return ""


async def keep_purging(bus: Bus) -> None:
    """Purge what masters may ask for, one after the other, for ever."""
    waiting: asyncio.Queue[_Asked] = asyncio.Queue(MOST_WAITING)

    def on_asked(message: Message) -> None:
        try:
            request = decode(message.body, PurgeRequest)
            problem = refusal(message.subject, request)
            if not problem:
                waiting.put_nowait(_Asked(message, request))
                return
        except BadMessage as error:
            problem = str(error)
        except asyncio.QueueFull:
            problem = f"{MOST_WAITING} purges wait already"
        log.warning("a purge is refused", subject=message.subject, why=problem)
        if message.respond is not None:
            message.respond(encode(PurgeReply(problem=problem)))

    asked_on = subjects.everywhere(subjects.keeper("*", "purge"))
    serving = await bus.serve("rover-keeper", dict.fromkeys(asked_on, on_asked))
    try:
        while True:
            message, request = await waiting.get()
            problem = ""
            try:
                at = subjects.parse(message.subject)
                where = bus.of(at.tenant) if at is not None and at.tenant else bus
                await where.purge(request.stream, request.subject, before=request.before or None)
            except RoverError as error:
                problem = str(error)
            if message.respond is not None:
                message.respond(encode(PurgeReply(problem=problem)))
    finally:
        await serving.stop()
