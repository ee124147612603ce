"""Which host an agent may speak for: the API server says which pod shows a token, and on which node it is (docs/design/0062).

Run beside an operator that leads, on a connection that may answer agents and do nothing else. What an agent says of itself is not
believed; the same application again gets a grant again, because the first answer may have been lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from rover_bus.auth.agents import AgentVault
from rover_bus.auth.roles import AGENT_JOINS
from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Message
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import BadMessage, InputError, RoverError
from rover_bus.events.join_requests import AgentJoinRequest, HostJoinReply
from rover_bus.events.logs import get_logger
from rover_bus.kube.api import Api, ApiRefused, decoded
from rover_bus.kube.kinds import Ref
from rover_bus.kube.pods import host_of

AUDIENCE = "rover-bus.io/agent"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
POD = "authentication.kubernetes.io/pod-name"
POD_UID = "authentication.kubernetes.io/pod-uid"
NODE = "authentication.kubernetes.io/node-name"
SERVICE_ACCOUNT = "system:serviceaccount:"  # what the name of a user begins with that is one
MOST_WAITING = 512  # agents: each node's asks when an operator comes back
MOST_REQUEST_BYTES = 32 << 10
log = get_logger("rover.registrar")


class _User(msgspec.Struct, frozen=True, kw_only=True):
    username: str = ""
    extra: dict[str, list[str]] = {}


class _Status(msgspec.Struct, frozen=True, kw_only=True):
    authenticated: bool = False
    audiences: list[str] = []
    error: str = ""
    user: _User = _User()


class _Review(msgspec.Struct, frozen=True, kw_only=True):
    status: _Status = _Status()


@dataclass(frozen=True, kw_only=True)
class AgentsOf:
    """What an operator needs to admit agents. account: `NAMESPACE/NAME`, the service account of agents; connect: a bus with the
    rights of the role `registrar`.
    """

    vault: AgentVault
    account: Ref
    connect: Callable[[], Awaitable[Bus]]


@dataclass(frozen=True, slots=True)
class ProvenPod:
    """What the API server vouches for. `account`: of the pod, `NAMESPACE/NAME`."""

    account: Ref
    pod: str
    uid: str
    node: str


async def prove(api: Api, token: str) -> ProvenPod:
    """Return which pod a token is of. Raises InputError for one that is no living pod's, or not meant for us."""
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [AUDIENCE]},
    }
    return read_review(await api.call("POST", REVIEWS, body))


def read_review(body: bytes) -> ProvenPod:
    """Return which pod an answered review vouches for. Raises InputError where it vouches for none."""
    status = decoded(body, _Review).status
    if not status.authenticated or AUDIENCE not in status.audiences:
        raise InputError(
            f"the token is not of a living pod, or not for {AUDIENCE}: {status.error or 'refused'}"
        )
    found = {key: values[0] for key, values in status.user.extra.items() if values}
    kind, _, account = status.user.username.partition(SERVICE_ACCOUNT)
    namespace, _, name = account.partition(":")
    if kind or not name or not all(found.get(each) for each in (POD, POD_UID, NODE)):
        raise InputError(
            "the token is bound to no pod: take the one that the kubelet mounts (Kubernetes 1.33)"
        )
    return ProvenPod(Ref(namespace, name), found[POD], found[POD_UID], found[NODE])


async def admit_agents(api: Api, bus: Bus, agents: AgentsOf) -> None:
    """Answer agents that ask for their rights, one after the other, for ever."""
    waiting: asyncio.Queue[Message] = asyncio.Queue(MOST_WAITING)

    def on_asked(message: Message) -> None:
        try:
            waiting.put_nowait(message)
        except asyncio.QueueFull:
            _answer(message, HostJoinReply(code="not_now", problem=f"{MOST_WAITING} agents ask already"))

    serving = await bus.serve("rover-agents", {subjects.registrar("*", AGENT_JOINS): on_asked})
    try:
        while True:
            message = await waiting.get()
            _answer(message, await _decide(api, agents, message))
    finally:
        await serving.stop()


def _answer(message: Message, reply: HostJoinReply) -> None:
    if reply.problem:
        log.warning("an agent gets no rights", why=reply.problem)
    if message.respond is not None:
        message.respond(encode(reply))


async def _decide(api: Api, agents: AgentsOf, message: Message) -> HostJoinReply:
    try:
        asked = agents.vault.read(
            decode(message.body, AgentJoinRequest, most_bytes=MOST_REQUEST_BYTES).sealed
        )
        proven = await prove(api, asked.token)
        if proven.account != agents.account:
            return HostJoinReply(
                code="access_denied", problem=f"{proven.account} is not the account of agents"
            )
        host = host_of(proven.node)
        sealed = agents.vault.grant_agent(asked, host)
    except (BadMessage, InputError) as error:
        return HostJoinReply(code="access_denied", problem=str(error))
    except ApiRefused as error:
        return HostJoinReply(code="not_now", problem=f"the operator may not ask about tokens: {error}")
    except RoverError as error:
        return HostJoinReply(code="not_now", problem=str(error))
    log.info("an agent has its rights", host=host, pod=proven.pod)
    return HostJoinReply(sealed=sealed)
