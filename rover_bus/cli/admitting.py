"""Which hosts may join: each token once, for a name that no living host has; the asker alone can read the answer (0052).

Run in the Brain's process, where the keys of the stack are at hand. A token that was used is noted on the broker, which takes one
note of a name: of two registrars, and of two hosts with one token, one wins. The same request again gets an answer again: the first
one may have been lost on its way.
"""

from __future__ import annotations

import asyncio

from rover_bus.auth.joining import seal
from rover_bus.auth.roles import JOIN
from rover_bus.auth.vault import Vault
from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Message
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import BadMessage, InputError, RoverError, WrongSequence
from rover_bus.events.join_requests import HostJoinReply, HostJoinRequest
from rover_bus.events.logs import get_logger
from rover_bus.events.streams import JOINED, PRESENCE, SETTINGS

MOST_WAITING = 16
MOST_REQUEST_BYTES = 4096
log = get_logger("rover.registrar")


async def admit_hosts(bus: Bus, vault: Vault) -> None:
    """Answer hosts that ask to join, one after the other, for ever."""
    waiting: asyncio.Queue[Message] = asyncio.Queue(MOST_WAITING)

    def on_asked(message: Message) -> None:
        try:
            waiting.put_nowait(message)
        except asyncio.QueueFull:
            _answer(
                message, HostJoinReply(code="not_now", problem=f"{MOST_WAITING} hosts ask to join already")
            )

    serving = await bus.serve("rover-registrar", {subjects.registrar("*", JOIN): on_asked})
    try:
        while True:
            message = await waiting.get()
            _answer(message, await _decide(bus, vault, message))
    finally:
        await serving.stop()


def _answer(message: Message, reply: HostJoinReply) -> None:
    if reply.problem:
        log.warning("a host may not join", subject=message.subject, why=reply.problem)
    if message.respond is not None:
        message.respond(encode(reply))


async def _decide(bus: Bus, vault: Vault, message: Message) -> HostJoinReply:
    """Return what a host gets that asks, or why it gets nothing; a token is used up by the first alone."""
    asked_on = subjects.parse(message.subject)
    assert asked_on is not None  # the one subject that is served
    try:
        request = decode(message.body, HostJoinRequest, most_bytes=MOST_REQUEST_BYTES)
        sealed = seal(vault.grant(request), request.seal)
    except (BadMessage, InputError) as error:
        return HostJoinReply(code="bad_input", problem=str(error))
    try:
        present = await bus.get(PRESENCE, request.host)
        if present is not None and present.value:
            why = f"a host {request.host!r} is there already: give this one a name of its own with --name"
            return HostJoinReply(code="host_exists", problem=why)
        if not await _use_up(bus, asked_on.user, message.body):
            why = "the token was used already: each is for one host, `rover auth token` makes another"
            return HostJoinReply(code="access_denied", problem=why)
    except RoverError as error:
        return HostJoinReply(code="not_now", problem=str(error))
    log.info("a host joins", host=request.host, token=asked_on.user)
    return HostJoinReply(sealed=sealed)


async def _use_up(bus: Bus, user: str, request: bytes) -> bool:
    """Note what a token is used for; False when it was used for something else. Raises BusError."""
    key = f"{JOINED}.{user}"
    try:
        await bus.put(SETTINGS, key, request, expected=0)
    except WrongSequence:
        noted = await bus.get(SETTINGS, key)
        return noted is not None and noted.value == request
    return True
