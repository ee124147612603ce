"""What members of pods tell and ask a node's daemon of spares, over the bus: taken apart, and answered by its platform.

Run by operator.py beside the daemon, once that has taken over what a former one left: before that, a spare that is a member already
would be told that it is none.
"""

from __future__ import annotations

import asyncio

from rover_bus.events.bus import Bus, Message
from rover_bus.events.codec import decode_any, encode
from rover_bus.events.errors import BadMessage
from rover_bus.events.logs import get_logger
from rover_bus.events.spare_requests import MOST_BYTES, LoadedReport, SpareQuestion, SpareReply
from rover_bus.events.subjects import everywhere, parse, spares
from rover_bus.kube.platform import KubePlatform
from rover_bus.node.turns import insist

log = get_logger("rover.kube")


async def answer_spares(bus: Bus, host: str, platform: KubePlatform) -> None:
    """Answer until cancelled."""

    def on_asked(message: Message) -> None:
        at, respond = parse(message.subject), message.respond
        if at is None or respond is None:
            return

        def say(reply: SpareReply) -> None:
            respond(encode(reply))

        try:
            asked = decode_any(message.body) if len(message.body) <= MOST_BYTES else None
        except BadMessage as error:
            log.warning("a question of a spare cannot be read", subject=message.subject, why=str(error))
            return
        if isinstance(asked, LoadedReport):
            say(platform.note_loaded(at.full_job, asked))
        elif isinstance(asked, SpareQuestion):
            platform.answer_spare(at.full_job, asked, say)

    await platform.adopted.wait()
    endpoints = dict.fromkeys(everywhere(spares(host, "*")), on_asked)
    serving = await insist(lambda: bus.serve("rover-daemon-spares", endpoints, metadata={"host": host}))
    try:
        await asyncio.Event().wait()
    finally:
        await serving.stop()
