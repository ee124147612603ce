"""What members of pods tell and ask a node's daemon of spares, over the bus: taken apart, and answered by its platform.

Run by operator.py beside the daemon, once that has taken over what a former one left: before that, a spare that is a member already
would be told that it is none.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from rover_bus.events.bus import Bus, Message
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import BadMessage
from rover_bus.events.logs import get_logger
from rover_bus.events.spare_requests import MOST_BYTES, LoadedReport, SpareQuestion
from rover_bus.events.subjects import everywhere, loaded, parse, spares
from rover_bus.kube.platform import KubePlatform
from rover_bus.kube.spares import Respond
from rover_bus.node.turns import insist

M = TypeVar("M", LoadedReport, SpareQuestion)
log = get_logger("rover.kube")


async def answer_spares(bus: Bus, host: str, platform: KubePlatform) -> None:
    """Answer until cancelled."""

    def on_told(message: Message) -> None:
        if (asked := _read(message, LoadedReport)) is not None:
            job, told, say = asked
            say(platform.note_loaded(job, told))

    def on_asked(message: Message) -> None:
        if (asked := _read(message, SpareQuestion)) is not None:
            platform.answer_spare(*asked)

    await platform.adopted.wait()
    endpoints = dict.fromkeys(everywhere(spares(host, "*")), on_asked)
    endpoints |= dict.fromkeys(everywhere(loaded(host, "*")), on_told)
    serving = await insist(lambda: bus.serve("rover-daemon-spares", endpoints, metadata={"host": host}))
    try:
        await asyncio.Event().wait()
    finally:
        await serving.stop()


def _read(message: Message, wanted: type[M]) -> tuple[str, M, Respond] | None:
    """Return whose a message is, what it says, and how it is answered; None for one that cannot be read, or wants no answer."""
    at, respond = parse(message.subject), message.respond
    if at is None or respond is None:
        return None
    try:
        asked = decode(message.body, wanted, most_bytes=MOST_BYTES)
    except BadMessage as error:
        log.warning("a message about spares cannot be read", subject=message.subject, why=str(error))
        return None
    return at.full_job, asked, lambda reply: respond(encode(reply))
