"""A broker beyond loopback speaks TLS alone, with those that trust its stack's authority; it renews without a restart."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from rover_bus.auth import certificates
from rover_bus.auth.vault import Vault
from rover_bus.cli.commands.nats import context
from rover_bus.cli.connection import Address
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.errors import AccessDenied, BrokerUnreachable
from rover_bus.events.facts import PlanProposed
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, FACTS, STREAMS
from rover_bus.events.subjects import job_fact

pytestmark = pytest.mark.broker
AFTER_RENEWAL, MOST_SENT = 50, 2000  # messages
HERE, OF_BRAIN = "127.0.0.1", job_fact("own", PlanProposed.kind())


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    made = Vault(tmp_path / "auth")
    made.certificate(HERE)
    made.write_credentials("h1")
    return made


@pytest.fixture
def broker(vault: Vault, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    made = EmbeddedBroker(tmp_path / "broker", rights=vault.server_configuration)
    with made.encrypt(vault.certificate) as running:
        yield running


def connected(broker: EmbeddedBroker, secret: str, work: Callable[[NatsBus], Awaitable[None]]) -> None:
    async def run() -> None:
        bus = await NatsBus.connect(broker.url, secret=secret)
        try:
            await work(bus)
        finally:
            await bus.close()

    asyncio.run(run())


def secret_of(vault: Vault, role: str = "brain") -> str:
    return vault.credentials_file(role).read_text()  # type: ignore[arg-type]


def shown(broker: EmbeddedBroker) -> bytes:
    """The certificate that the broker shows now."""
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((broker.host, broker.port), 5) as plain,
        unchecked.wrap_socket(plain) as encrypted,
    ):
        found = encrypted.getpeercert(binary_form=True)
    assert found
    return found


def test_nothing_is_said_in_the_clear(broker: EmbeddedBroker) -> None:
    assert broker.url.startswith("tls://")
    with socket.create_connection((broker.host, broker.port), 5) as plain:
        plain.settimeout(0.5)
        with pytest.raises(TimeoutError):
            plain.recv(1)  # a broker that speaks first says its name, version and a nonce here


def test_the_stacks_own_are_connected(broker: EmbeddedBroker, vault: Vault) -> None:
    async def work(bus: NatsBus) -> None:
        await bus.ensure(STREAMS, BUCKETS)
        await bus.append(FACTS, OF_BRAIN, b"x" * 100_000)

    connected(broker, secret_of(vault), work)


def test_a_member_is_connected_with_what_its_daemon_hands_it(broker: EmbeddedBroker, vault: Vault) -> None:
    from rover_bus.events import credentials

    text = vault.member_credentials("worker", "own", "0123456789ab", "worker-0.1", "h1")
    found = credentials.read(text)
    assert found
    assert found.authority == vault.authority != ""


def test_a_broker_of_another_stack_is_refused_in_one_line(broker: EmbeddedBroker, tmp_path: Path) -> None:
    other = Vault(tmp_path / "other")
    other.certificate(HERE)
    other.write_credentials("h1")

    async def work(_: NatsBus) -> None:
        raise AssertionError

    with pytest.raises(AccessDenied, match="is not of the stack that made these credentials"):
        connected(broker, secret_of(other), work)


def test_a_plain_connection_is_none(broker: EmbeddedBroker, vault: Vault) -> None:
    async def plain() -> None:
        await NatsBus.connect(broker.url.replace("tls://", "nats://"), secret=secret_of(vault), timeout_s=1.0)

    with pytest.raises(BrokerUnreachable):
        asyncio.run(plain())


def test_a_certificate_is_renewed_and_connections_stay(
    broker: EmbeddedBroker, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shown(broker)
    broker.renew()
    later = certificates.now_utc() + timedelta(days=certificates.SERVED_DAYS * 0.7)

    async def work(bus: NatsBus) -> None:
        states, received = list[str](), list[bytes]()
        listener = await NatsBus.connect(broker.url, secret=secret_of(vault, "operator"))
        for each in (bus, listener):
            each.on_connection(states.append)
        await bus.ensure(STREAMS, BUCKETS)
        await listener.subscribe(OF_BRAIN, lambda message: received.append(message.body))
        monkeypatch.setattr(certificates, "now_utc", lambda: later)
        sent, after = list[bytes](), 0
        renewing = asyncio.create_task(asyncio.to_thread(broker.renew))
        while after < AFTER_RENEWAL and len(sent) < MOST_SENT:
            sent.append(str(len(sent)).encode())
            assert await bus.append(FACTS, OF_BRAIN, sent[-1])
            await asyncio.sleep(0.005)
            after += after > 0 or (await asyncio.to_thread(shown, broker)) != before
        await renewing
        assert after == AFTER_RENEWAL, "it shows the certificate of before"
        while len(received) < len(sent):  # noqa: ASYNC110 - a test's time limit ends it
            await asyncio.sleep(0.01)
        assert received == sent, "each message once, and in order"
        assert states == [], "no connection was broken"
        await listener.close()

    connected(broker, secret_of(vault), work)


def test_the_context_for_the_nats_cli_names_the_authority(broker: EmbeddedBroker, vault: Vault) -> None:
    found = context(Address(broker.url, vault.credentials_file("operator"), None))  # type: ignore[arg-type]
    assert found["tls_first"] is True
    assert Path(str(found["ca"])).read_text().startswith("-----BEGIN CERTIFICATE")
