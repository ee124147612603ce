"""A part of a cut from the memory of another host: asked of the daemon of one's own host, which holds a copy or fetches one.

For a server that restores and whose own memory does not have the part; the daemon knows which host has it
(`rover.daemon.<host>.part`, docs/design/0015). Called from the thread of the tables, asks on the loop of the bus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rover_bus.events.bus import Bus
from rover_bus.events.checkpoints import PartPlace, PartReply, PartRequest, RestoreOrder
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import BusError, RoverError
from rover_bus.events.logs import get_logger
from rover_bus.events.subjects import daemon
from rover_bus.flash.copies import drop_damaged
from rover_bus.flash.staged import StagedCut
from rover_bus.flash.verified import newest_verified

ANSWER_S, AGAIN_S = 2.0, 0.05
NO_DAEMON_S = (
    15.0  # the daemon that started us may be starting again itself; longer silence is no way to a part
)
FETCH_S = 600.0
MOST_DAMAGED = 4  # of sources in shared memory, before storage is asked
AskDaemon = Callable[[RestoreOrder, PartPlace, bool, list[str]], tuple[StagedCut, str] | None]
log = get_logger("rover.ps")


def ask_daemon(bus: Bus, host: str, job: str) -> AskDaemon:
    """Return a way to parts in other hosts' memory; call it in the loop of the bus, and what it returns in another thread.

    What it finds is checked, mapped copy-on-write, with its source (memory | peer | parity); None: no host has the part, or none
    answers.
    """
    loop = asyncio.get_running_loop()

    def request(order: RestoreOrder, place: PartPlace, elsewhere: bool) -> PartReply:
        asked = PartRequest(
            job=job,
            uid=order.uid,
            part=place.part,
            generation=order.generation,
            cut=order.cut,
            elsewhere=elsewhere,
        )
        return asyncio.run_coroutine_threadsafe(_ask(bus, host, asked), loop).result(FETCH_S + NO_DAEMON_S)

    return partial(_find, request)


def _find(
    request: Callable[[RestoreOrder, PartPlace, bool], PartReply],
    order: RestoreOrder,
    place: PartPlace,
    elsewhere: bool,
    refused: list[str],
) -> tuple[StagedCut, str] | None:
    """Ask, check what is there, and ask on while that is damaged: a damaged copy loses its name, so that it is fetched again."""
    for _ in range(MOST_DAMAGED):
        reply = request(order, place, elsewhere)
        if reply.state != "here":
            refused.append(f"no host has it: {reply.problem}")
            log.info("no other host has the part", part=place.part, cut=order.cut, why=reply.problem)
            return None
        directory = Path(reply.directory)
        try:
            found = newest_verified(
                directory,
                place.part,
                cut=order.cut,
                of=(order.timeline, order.generation),
                writable=True,
            )
        except RoverError as error:
            log.warning("a copy cannot be used", part=place.part, cut=order.cut, why=str(error))
            refused.append(f"{reply.source}: {error}")
            if reply.source == "memory":
                elsewhere = True
            else:
                drop_damaged(directory, place.part)
            continue
        return found.staged, reply.source
    return None


async def _ask(bus: Bus, host: str, request: PartRequest) -> PartReply:
    """Ask until the part is here or absent; silence of the daemon is absence after a while."""
    loop, body = asyncio.get_running_loop(), encode(request)
    end_s, heard_s = loop.time() + FETCH_S, loop.time()
    while loop.time() < end_s and loop.time() - heard_s < NO_DAEMON_S:
        try:
            answer = await bus.request(daemon(host, "part"), body, timeout_s=ANSWER_S)
            reply = decode(answer.body, PartReply)
        except BusError:
            await asyncio.sleep(AGAIN_S)
            continue
        heard_s = loop.time()
        if reply.state != "coming":
            return reply
        await asyncio.sleep(AGAIN_S)
    return PartReply(state="absent", problem=f"the daemon of {host} does not answer")
