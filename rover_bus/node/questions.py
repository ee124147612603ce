"""What a daemon is asked: whether a program would start on its host. Before a job is submitted, so that no job need fail for it.

Fed by requests of the bus (`cli/programs.py`); asks the platform, which tries it anew.
"""

from __future__ import annotations

import asyncio

from rover_bus.events.bus import Bus, Message
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import BadMessage
from rover_bus.events.programs import ProgramReply, ProgramRequest
from rover_bus.events.subjects import daemon
from rover_bus.node.port import Platform
from rover_bus.node.turns import insist


async def answer_programs(bus: Bus, host: str, platform: Platform) -> None:
    """Answer whether a program would start here, for ever."""

    def on_asked(message: Message) -> None:
        respond = message.respond
        if respond is None:
            return
        try:
            request = decode(message.body, ProgramRequest)
        except BadMessage as error:
            respond(encode(ProgramReply(state="unknown", problem=str(error))))
            return
        platform.try_program(request, lambda reply: respond(encode(reply)), True)

    endpoints = {daemon(host, "program"): on_asked}
    serving = await insist(lambda: bus.serve("rover-daemon-programs", endpoints, metadata={"host": host}))
    try:
        await asyncio.Event().wait()
    finally:
        await serving.stop()
