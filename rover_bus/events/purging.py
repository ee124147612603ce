"""Purges that a master asks for, of its job's log and facts and nothing of any other job; and ended jobs that their tenant forgets.

A broker grants the right to purge by stream, never by subject, so a master has none: it asks on `rover.keeper.<job>.purge`, which
it may do for its own job only, and the Brain's process purges. A tenant's submitter has none either: it asks on
`tenant.<t>.rover.keeper.<job>.forget`, as the control account has it, and a job that has ended is forgotten in its account.
Asked by nats_storage.py and forgetting.py, answered by cli/serve.py; apart because what is checked here is all that stands between
one job's credentials and the history of all others.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Message
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import BadMessage, BusError, RoverError
from rover_bus.events.facts import JobEnded, JobSubmitted
from rover_bus.events.forgetting import forget_job
from rover_bus.events.logs import get_logger
from rover_bus.events.purge_requests import ForgetRequest, PurgeReply, PurgeRequest
from rover_bus.events.reading import read_fact
from rover_bus.events.streams import FACTS, LOG

MOST_WAITING = 64  # a master whose purge is refused asks again a round later
log = get_logger("rover.keeper")


class _Asked(NamedTuple):
    message: Message
    request: PurgeRequest | ForgetRequest


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
    """Purge what masters may ask for, and forget what tenants do, one after the other, for ever."""
    waiting: asyncio.Queue[_Asked] = asyncio.Queue(MOST_WAITING)

    def on_asked(message: Message) -> None:
        at = subjects.parse(message.subject)
        forgets = at is not None and at.kind == "forget"
        try:
            request: PurgeRequest | ForgetRequest
            if forgets:
                request, problem = decode(message.body, ForgetRequest), ""
            else:
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

    forgotten_on = subjects.of_tenant("*", subjects.keeper("*", "forget"))
    asked_on = [*subjects.everywhere(subjects.keeper("*", "purge")), forgotten_on]
    serving = await bus.serve("rover-keeper", dict.fromkeys(asked_on, on_asked))
    try:
        while True:
            asked, problem = await waiting.get(), ""
            try:
                await _carry_out(bus, asked)
            except RoverError as error:
                problem = str(error)
            if asked.message.respond is not None:
                asked.message.respond(encode(PurgeReply(problem=problem)))
    finally:
        await serving.stop()


async def _carry_out(bus: Bus, asked: _Asked) -> None:
    """Do what is asked, in the asker's account. Raises BusError."""
    at, request = subjects.parse(asked.message.subject), asked.request
    assert at is not None  # one of the subjects that are served
    where = bus.of(at.tenant) if at.tenant else bus
    if isinstance(request, PurgeRequest):
        await where.purge(request.stream, request.subject, before=request.before or None)
        return
    await _require_ended(where, at.job, request.uid)
    await forget_job(where, at.job, request.uid, by=request.by, reason=request.reason)


async def _require_ended(bus: Bus, job: str, uid: str) -> None:
    """Raise BusError unless this run of a job is its last one, and has ended, or was forgotten halfway."""
    submitted, ended = [
        await bus.last(FACTS, subjects.job_fact(job, kind.kind())) for kind in (JobSubmitted, JobEnded)
    ]
    fact = read_fact(submitted) if submitted is not None else None
    if not isinstance(fact, JobSubmitted) or fact.uid != uid or submitted is None:
        raise BusError(f"{job!r} has no run {uid!r}: `rover jobs` lists what there is")
    if ended is None or ended.sequence < submitted.sequence:
        raise BusError(f"job {job!r} has not ended: `rover cancel {job}` ends it")
