"""An agent's rights on a real API server and broker: they are those of its pod's own node, whatever is asked, and end with it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kube_cluster import Cluster
from patience import PATIENCE_S

from rover_bus.auth import agents as granting
from rover_bus.auth.agents import AgentKeys, AgentVault, write_pass
from rover_bus.auth.roles import AGENT_JOINS
from rover_bus.cli import agent_rights
from rover_bus.cli.agent_rights import PodAgent, get_rights
from rover_bus.events import credentials, subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import AccessDenied
from rover_bus.events.join_requests import AgentJoinRequest, HostJoinReply
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, STREAMS
from rover_bus.kube.agents import AUDIENCE, AgentsOf, admit_agents
from rover_bus.kube.api import Api
from rover_bus.kube.kinds import Ref

ACCOUNT = "agents"


@pytest.fixture
def pod(cluster: Cluster, node: str, namespace: str) -> dict[str, Any]:
    """A pod of the agents' account on the node; beside it another account."""
    for each in (ACCOUNT, "others"):
        assert cluster.kubectl("-n", namespace, "create", "serviceaccount", each).returncode == 0
    return run_pod(cluster, namespace, "agent", node)


def run_pod(cluster: Cluster, namespace: str, name: str, node: str, account: str = ACCOUNT) -> dict[str, Any]:
    spec = {
        "nodeName": node,
        "serviceAccountName": account,
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "example.com/any"}],
    }
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    made = cluster.kubectl("-n", namespace, "create", "-o", "json", "-f", "-", given=json.dumps(body))
    assert made.returncode == 0, made.stderr
    answer: dict[str, Any] = json.loads(made.stdout)
    return answer


def token_of(
    cluster: Cluster,
    pod: dict[str, Any],
    audience: str = AUDIENCE,
    bound: bool = True,
    account: str = ACCOUNT,
) -> str:
    """What the kubelet mounts into a pod; the API server makes it."""
    about = pod["metadata"]
    words = ["create", "token", account, f"--audience={audience}", "--duration=10m"]
    if bound:
        words += ["--bound-object-kind=Pod", f"--bound-object-name={about['name']}"]
        words += [f"--bound-object-uid={about['uid']}"]
    made = cluster.kubectl("-n", about["namespace"], *words)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


class Stage(NamedTuple):
    broker: EmbeddedBroker
    vault: AgentVault
    folder: Path

    async def ask(self, token: str) -> tuple[AgentKeys, HostJoinReply]:
        """Ask as an agent does, with any token."""
        shared = self.vault.shared_pass
        user, keys = credentials.read(shared.user), AgentKeys(shared)
        assert user is not None
        bus = await NatsBus.connect(self.broker.url, secret=shared.user)
        try:
            body = encode(AgentJoinRequest(sealed=keys.apply(token)))
            subject = subjects.registrar(user.user, AGENT_JOINS)
            answer = await bus.request(subject, body, timeout_s=PATIENCE_S)
            return keys, decode(answer.body, HostJoinReply)
        finally:
            await bus.close()

    def agent(self, token: str) -> PodAgent:
        """A pod's files."""
        (self.folder / "pass.json").write_text(write_pass(self.vault.shared_pass))
        (self.folder / "token").write_text(token)
        return PodAgent(self.broker.url, self.folder / "pass.json", self.folder / "token")


@asynccontextmanager
async def stage(cluster: Cluster, namespace: str, folder: Path) -> AsyncIterator[Stage]:
    """A broker, and what an operator that leads runs for agents."""
    vault = AgentVault(folder / "auth")
    vault.write_credentials("one")
    api = await Api.connect(str(cluster.config))
    try:
        with EmbeddedBroker(folder / "broker", rights=vault.server_configuration) as broker:
            brain = await NatsBus.connect(broker.url, secret=vault.credentials_file("brain").read_text())
            await brain.ensure(STREAMS, BUCKETS)
            secret = vault.credentials_file("registrar").read_text()

            async def connect() -> NatsBus:
                return await NatsBus.connect(broker.url, secret=secret)

            bus = await connect()
            given = AgentsOf(vault=vault, account=Ref(namespace, ACCOUNT), connect=connect)
            admitting = asyncio.create_task(admit_agents(api, bus, given))
            try:
                yield Stage(broker, vault, folder)
            finally:
                admitting.cancel()
                await asyncio.gather(admitting, return_exceptions=True)
                await bus.close()
                await brain.close()
    finally:
        await api.close()


def test_an_agent_gets_the_rights_of_its_pods_node_and_of_no_other(
    cluster: Cluster, namespace: str, node: str, pod: dict[str, Any], tmp_path: Path
) -> None:
    async def run() -> None:
        async with stage(cluster, namespace, tmp_path) as on:
            rights = await get_rights(on.agent(token_of(cluster, pod)), tmp_path / "state")
            assert rights.host == node
            assert rights.file.stat().st_mode & 0o077 == 0
            bus = await NatsBus.connect(on.broker.url, secret=rights.file.read_text())
            try:
                await bus.append("ROVER_FACTS", subjects.host_fact(node, "storage_opened"), b"x")
                for forbidden in (
                    subjects.host_fact("other", "storage_opened"),
                    subjects.host_fact(node, "exited"),
                    subjects.job_fact("demo", "members.desired"),
                ):
                    with pytest.raises(AccessDenied):
                        await bus.append("ROVER_FACTS", forbidden, b"x")
            finally:
                await bus.close()

    asyncio.run(run())


Wrong = Callable[[Cluster, dict[str, Any]], str]
WRONG: dict[str, tuple[Wrong, str]] = {
    "made up": (lambda _cluster, _pod: "eyJhbGciOiJSUzI1NiJ9.e30.c2ln", "not of a living pod"),
    "of another audience": (
        lambda cluster, pod: token_of(cluster, pod, "https://kubernetes.default.svc"),
        "not of a living pod",
    ),
    "of an account, and of no pod": (
        lambda cluster, pod: token_of(cluster, pod, bound=False),
        "bound to no pod",
    ),
}


@pytest.mark.parametrize(("make", "why"), WRONG.values(), ids=WRONG)
def test_a_token_that_proves_no_pod_gets_nothing(
    cluster: Cluster, namespace: str, pod: dict[str, Any], tmp_path: Path, make: Wrong, why: str
) -> None:
    async def run() -> None:
        async with stage(cluster, namespace, tmp_path) as on:
            _, reply = await on.ask(make(cluster, pod))
            assert (reply.code, reply.sealed) == ("access_denied", b"")
            assert why in reply.problem

    asyncio.run(run())


def test_a_pod_of_another_account_and_one_that_was_deleted_get_nothing(
    cluster: Cluster, namespace: str, node: str, pod: dict[str, Any], tmp_path: Path
) -> None:
    other = run_pod(cluster, namespace, "other", node, "others")
    tokens = [token_of(cluster, other, account="others"), token_of(cluster, pod)]
    gone = cluster.kubectl("-n", namespace, "delete", "pod", "agent", "--timeout=60s")
    assert gone.returncode == 0, gone.stderr

    async def run() -> None:
        async with stage(cluster, namespace, tmp_path) as on:
            problems = []
            for token in tokens:
                _, reply = await on.ask(token)
                assert reply.code == "access_denied"
                problems.append(reply.problem)
            assert "is not the account of agents" in problems[0]
            assert "not of a living pod" in problems[1]

    asyncio.run(run())


def test_rights_are_renewed_while_an_agent_works_and_end_when_they_are_not(
    cluster: Cluster,
    namespace: str,
    node: str,
    pod: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection is dialled again when a token ends; a work of four tokens' time sees no refusal."""
    valid_s = 3
    monkeypatch.setattr(agent_rights, "VALID_S", valid_s)
    monkeypatch.setattr(granting.AgentVault.grant_agent, "__defaults__", (valid_s,))

    async def run() -> None:
        async with stage(cluster, namespace, tmp_path) as on:
            rights = await get_rights(on.agent(token_of(cluster, pod)), tmp_path / "state")
            bus = await NatsBus.connect(on.broker.url, secret=partial(credentials.read_file, rights.file))
            first = credentials.read(rights.file.read_text())
            assert first is not None

            async def work() -> None:
                while time.time() < first.expires_s + 3 * valid_s:  # noqa: ASYNC110 - time is what passes
                    await asyncio.sleep(0.2)
                async with asyncio.timeout(PATIENCE_S):
                    while not bus.connected:  # noqa: ASYNC110 - it dials
                        await asyncio.sleep(0.05)
                await bus.append("ROVER_FACTS", subjects.host_fact(node, "storage_opened"), b"x")

            await rights.renewed_while(work())
            async with asyncio.timeout(PATIENCE_S):
                refused = await bus.turned_away()
            assert "expired" in str(refused)
            await bus.close()

    asyncio.run(run())
