"""A host that joins a stack: it makes its keys, asks by its token, keeps what it gets, and is a host from then on.

Fed by `rover join` and, in the directory of a host that has joined, by `rover up`; feeds stack.py, to which a joined host is one
more host of a broker that runs elsewhere (docs/design/0052).
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from rover_bus.auth.host_vault import HostVault
from rover_bus.auth.joining import HostGrant, JoiningKeys, JoinToken, read_token
from rover_bus.auth.roles import JOIN
from rover_bus.cli.home import Home
from rover_bus.cli.stack import Here, OtherBroker, RunningStack, host_name
from rover_bus.events import credentials, subjects
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import AccessDenied, BusError, InputError, Refused
from rover_bus.events.join_requests import HostJoinReply, HostJoinRequest
from rover_bus.events.nats_bus import NatsBus

ANSWER_S, AGAIN_S = 5.0, 0.3
PATIENCE_S = 30.0  # with a stack that starts, or whose Brain is just starting again


def join(home: Home, token_file: str, here: Here) -> None:
    """Make a directory that of a host; one that has joined the token's stack already stays as it is, and needs no token any more.

    Raises AccessDenied for a token that was used, has expired or is another stack's.
    """
    vault = HostVault(home.auth)
    if vault.is_of_a_stack:
        raise InputError(
            f"{home.root} is the directory of a stack: a host that joins another one needs its own --dir"
        )
    if not token_file or (vault.is_joined and not Path(token_file).exists()):
        if not vault.is_joined:
            raise InputError("this directory has joined no stack yet: `rover join --token-file FILE`")
        return
    token = read_token(Path(token_file))
    if vault.is_joined:
        if vault.record.fingerprint != token.fingerprint:
            raise AccessDenied(
                f"{home.root} has joined another stack than that of {token_file}: choose another --dir"
            )
        return
    host, keys = here.name or host_name(), JoiningKeys()
    grant = asyncio.run(_ask(token, token_file, keys, keys.request(host)))
    home.create()
    vault.keep(token, keys, grant, host, here.bind)


def joined_stack(home: Home, here: Here, settings: Sequence[str]) -> RunningStack:
    """Return the host of a directory that has joined, to be started. Raises InputError."""
    vault = HostVault(home.auth)
    record = vault.record
    if here.name and here.name != record.host:
        raise InputError(
            f"this host has joined as {record.host!r}: to rename it, join again from another --dir"
        )
    bind = here.bind or record.bind or address_towards(record.url)
    return RunningStack(
        home,
        broker=OtherBroker(record.url, vault.credentials_file("daemon", record.host)),
        brain=None,
        here=Here(record.host, bind),
        settings=settings,
    )


def address_towards(url: str) -> str:
    """Return the address of this machine by which it reaches a broker. Raises BusError where there is no way to it."""
    problem = ""
    for server in map(urlsplit, url.split(",")):
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((server.hostname, server.port))  # sends nothing
                return str(probe.getsockname()[0])
        except OSError as error:
            problem = str(error.strerror)
    raise BusError(f"this machine has no way to {url} ({problem}): name its address with --bind")


async def _ask(token: JoinToken, token_file: str, keys: JoiningKeys, request: HostJoinRequest) -> HostGrant:
    """Return what the stack grants. Raises AccessDenied, Refused, InputError, or BusError when no registrar answers in time."""
    asker = token.credential.user
    bus = await _connect(token, token_file)
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                answer = await bus.request(
                    subjects.registrar(asker, JOIN), encode(request), timeout_s=ANSWER_S
                )
                reply = decode(answer.body, HostJoinReply)
                if reply.code != "not_now":
                    return _read(reply, keys, token_file)
                problem = reply.problem
            except BusError as error:
                problem = str(error)
            if time.monotonic() > deadline_s:
                raise BusError(
                    f"the stack at {token.url} does not answer a host that joins ({problem}): does its Brain run?"
                )
            await asyncio.sleep(AGAIN_S)
    finally:
        await bus.close()


def _read(reply: HostJoinReply, keys: JoiningKeys, token_file: str) -> HostGrant:
    match reply.code:
        case "":
            return keys.unseal(reply.sealed)
        case "access_denied":
            raise AccessDenied(f"{token_file}: {reply.problem}")
        case "host_exists":
            raise Refused(reply.problem, reply.code)
        case "bad_input" | "not_now":
            raise InputError(reply.problem)


async def _connect(token: JoinToken, token_file: str) -> NatsBus:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            shown = credentials.write(token.credential)
            return await NatsBus.connect(token.url, secret=shown, secret_source=token_file, name="joiner")
        except AccessDenied:
            if time.time() >= token.expires_s:
                raise AccessDenied(
                    f"the token in {token_file} has expired: `rover auth token` makes another"
                ) from None
            raise
        except BusError:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(AGAIN_S)
