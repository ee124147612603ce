"""What a daemon is asked: whether a program would start on its host, and what members wrote there.

Fed by requests of the bus: of `cli/programs.py`, before a job is submitted, so that no job need fail for it, and of `rover logs`
elsewhere; asks the platform, which tries a program again, and the host for its logs.
"""

from __future__ import annotations

import asyncio

from rover_bus.events.bus import Bus, Message
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import BadMessage, RoverError
from rover_bus.events.log_requests import MemberLogReply, MemberLogRequest
from rover_bus.events.programs import ProgramReply, ProgramRequest
from rover_bus.events.subjects import daemon, everywhere, parse
from rover_bus.events.tenancy import of_control
from rover_bus.node.host import Host
from rover_bus.node.port import Platform
from rover_bus.node.turns import insist

MOST_WAITING = 64
MOST_REQUEST_BYTES = 64 << 10


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

    endpoints = dict.fromkeys(everywhere(daemon(host, "program")), on_asked)
    serving = await insist(lambda: bus.serve("rover-daemon-programs", endpoints, metadata={"host": host}))
    try:
        await asyncio.Event().wait()
    finally:
        await serving.stop()


async def answer_logs(bus: Bus, host: Host) -> None:
    """Answer what members of this host wrote, a piece at a time, for ever. Files are read in a thread, one request at a time."""
    waiting: asyncio.Queue[Message] = asyncio.Queue(MOST_WAITING)

    def on_asked(message: Message) -> None:
        if not waiting.full():  # else it is asked again
            waiting.put_nowait(message)

    endpoints = dict.fromkeys(everywhere(daemon(host.name, "log")), on_asked)
    serving = await insist(lambda: bus.serve("rover-daemon-logs", endpoints, metadata={"host": host.name}))
    try:
        while True:
            message = await waiting.get()
            try:
                request = decode(message.body, MemberLogRequest, most_bytes=MOST_REQUEST_BYTES)
                at = parse(message.subject)
                request = of_control(request, at.tenant if at is not None else "")
                reply = await asyncio.to_thread(host.read_log, request)
            except (RoverError, OSError) as error:
                reply = MemberLogReply(problem=str(error))
            if message.respond is not None:
                message.respond(encode(reply))
    finally:
        await serving.stop()
