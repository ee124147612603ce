"""The rights of a node's agent: asked for by the pass that all agents share and the token of its pod, and again before they end.

Used by serve.py where an agent is started with `--pass`. Level-triggered: without an answer it asks on; agents wait for operators.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rover_bus.auth.agents import VALID_S, AgentGrant, AgentKeys, read_pass
from rover_bus.auth.roles import AGENT_JOINS
from rover_bus.auth.secret_files import write_secret
from rover_bus.events import credentials, subjects
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import AccessDenied, InputError, RoverError
from rover_bus.events.join_requests import AgentJoinRequest, HostJoinReply
from rover_bus.events.logs import get_logger
from rover_bus.events.nats_bus import NatsBus

ANSWER_S, AGAIN_S = 10.0, 2.0
MOST_TOKEN_BYTES = 16 << 10
log = get_logger("rover.agent")


@dataclass(frozen=True, slots=True)
class PodAgent:
    """An agent that is a pod. `pass_file`: what all agents share; `token_file`: of the pod, which the kubelet keeps fresh."""

    url: str
    pass_file: Path
    token_file: Path


@dataclass(frozen=True, slots=True)
class AgentRights:
    """What was granted. `file`: the credentials, for their owner alone; it holds the newest ones."""

    host: str
    file: Path
    _agent: PodAgent
    _keys: AgentKeys

    async def renewed_while(self, work: Awaitable[None]) -> None:
        """Do something on a connection, with rights that do not end meanwhile. Raises what ends the work, or the renewal."""
        tasks = [asyncio.ensure_future(work), asyncio.create_task(self._renew_for_ever())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _renew_for_ever(self) -> None:
        """Have newer credentials in the file before the former ones end, again and again: the next connection shows them."""
        while True:
            await asyncio.sleep(VALID_S / 3)
            grant = await _ask_on(self._agent, self._keys)
            if grant.host != self.host:
                raise AccessDenied(
                    f"this agent's pod is on {grant.host} now, not on {self.host}: start it again"
                )
            _kept(self._keys, grant, self.file)


async def get_rights(agent: PodAgent, folder: Path) -> AgentRights:
    """Return what an agent is granted, as soon as an operator answers. Raises InputError for a pass that is none."""
    keys, file = AgentKeys(read_pass(agent.pass_file)), folder / "creds" / "agent.creds"
    grant = await _ask_on(agent, keys)
    _kept(keys, grant, file)
    return AgentRights(grant.host, file, agent, keys)


def _kept(keys: AgentKeys, grant: AgentGrant, file: Path) -> str:
    text = credentials.write(keys.credential(grant))
    write_secret(file, text)
    return text


async def _ask_on(agent: PodAgent, keys: AgentKeys) -> AgentGrant:
    """Ask until there is a grant: a refusal may be an operator's that does not know this pod yet."""
    said = ""
    while True:
        try:
            return await _ask(agent, keys)
        except InputError:
            raise
        except RoverError as error:
            if str(error) != said:
                log.warning("this agent has no rights yet", why=str(error))
            said = str(error)
        await asyncio.sleep(AGAIN_S)


async def _ask(agent: PodAgent, keys: AgentKeys) -> AgentGrant:
    """Return what an operator grants. Raises AccessDenied where it refuses, BusError where none answers."""
    asking = read_pass(agent.pass_file).user
    user = credentials.read(asking)
    if user is None:
        raise InputError(
            f"{agent.pass_file} holds no credentials: `rover kube prepare --agents SECRET` makes them"
        )
    async with _connected(agent, asking) as bus:
        request = AgentJoinRequest(sealed=keys.apply(_token_in(agent.token_file)))
        subject = subjects.registrar(user.user, AGENT_JOINS)
        answer = await bus.request(subject, encode(request), timeout_s=ANSWER_S)
    reply = decode(answer.body, HostJoinReply)
    if reply.code:
        raise AccessDenied(f"the operator refuses this agent: {reply.problem}")
    return keys.unseal(reply.sealed)


@asynccontextmanager
async def _connected(agent: PodAgent, asking: str) -> AsyncIterator[NatsBus]:
    bus = await NatsBus.connect(
        agent.url, secret=asking, secret_source=str(agent.pass_file), name="agent-without-rights"
    )
    try:
        yield bus
    finally:
        await bus.close()


def _token_in(file: Path) -> str:
    try:
        with file.open() as opened:
            return opened.read(MOST_TOKEN_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the token of this pod in {file}: {error}") from None
