"""What nats-py leaves to its user, provoked with a real broker: connections that end, calls under way. Its traps stay hidden."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from live_bus import (
    JOB_LOG,
    LEASE,
    come_true,
    connect,
    listen,
    serves_again,
    through_proxy,
)
from patience import PATIENCE_S

from rover_bus.events import nats_client
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Message
from rover_bus.events.errors import AccessDenied, BrokerUnreachable, BusError, NotConnected
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import LEADERS, LOG

pytestmark = pytest.mark.broker


def test_a_wrong_secret_is_told_with_the_file_to_check(broker: EmbeddedBroker) -> None:
    with pytest.raises(AccessDenied, match=r"run/secret"):
        asyncio.run(NatsBus.connect(broker.url, secret="wrong", secret_source="run/secret"))
    with pytest.raises(AccessDenied):
        asyncio.run(NatsBus.connect(broker.url))


def test_an_absent_broker_is_told_with_its_url_and_what_to_do(broker: EmbeddedBroker) -> None:
    url = broker.url
    broker.stop()
    with pytest.raises(BrokerUnreachable, match=rf"{url}.*rover up"):
        asyncio.run(NatsBus.connect(url, secret=broker.secret))
    with pytest.raises(BrokerUnreachable, match=r"nowhere\.invalid"):
        asyncio.run(NatsBus.connect("nats://nowhere.invalid:4222"))


def test_a_port_that_says_nothing_is_no_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(BrokerUnreachable):
        asyncio.run(NatsBus.connect(f"nats://127.0.0.1:{mute.getsockname()[1]}", timeout_s=0.3))


def test_a_foreign_server_is_no_broker() -> None:
    async def program() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            await reader.read(1)
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        try:
            with pytest.raises(BrokerUnreachable):
                await NatsBus.connect(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        finally:
            server.close()
            await server.wait_closed()

    asyncio.run(program())


def test_the_port_and_the_client_library_do_not_import_nats() -> None:
    program = "import sys, rover_bus.events.bus, rover_bus.events.streams; sys.exit('nats' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == 0


# Losing and regaining the connection


@pytest.mark.parametrize("fault", ["cut", "unknown error", "revoked", "dead read loop", "garbage"])
def test_whatever_ends_a_client_it_is_rebuilt(
    broker: EmbeddedBroker, quick_watchdog: None, fault: str
) -> None:
    async def program() -> None:
        async with through_proxy(broker) as (proxy, bus):
            heard, facts, states = await listen(bus)
            match fault:
                case "cut":
                    proxy.cut()
                case "unknown error":
                    proxy.say(b"-ERR 'Something New'")
                case "revoked":
                    proxy.say(b"-ERR 'User Authentication Expired'")
                case "dead read loop":  # an exception in it leaves a client that looks connected
                    bus._client._reading_task.cancel()  # type: ignore[union-attr]
                case "garbage":
                    proxy.say(b"HTTP/1.1 400 Bad Request")
            await come_true(lambda: states == ["disconnected", "connected"])
            await serves_again(bus, heard, facts)

    asyncio.run(program())


def test_a_broker_that_hangs_is_noticed_and_left(broker: EmbeddedBroker, quick_watchdog: None) -> None:
    async def program() -> None:
        bus = await connect(broker, timeout_s=0.5)
        heard, facts, states = await listen(bus)
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            flood = [  # more than the sockets hold: a plain close would wait for ever
                asyncio.ensure_future(bus.publish("rover.profile.demo.worker.0", bytes(100_000)))
                for _ in range(200)
            ]
            asking = asyncio.ensure_future(bus.request(LEASE, b"", timeout_s=600.0))
            await come_true(lambda: states == ["disconnected"])
            with pytest.raises(NotConnected):
                await asking
            with pytest.raises(NotConnected):
                await bus.publish("rover.test", b"")
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        await come_true(lambda: states == ["disconnected", "connected"])
        await serves_again(bus, heard, facts)
        await asyncio.gather(*flood, return_exceptions=True)
        await bus.close()

    asyncio.run(program())


def test_a_pause_of_our_own_is_not_taken_for_the_brokers_silence(
    broker: EmbeddedBroker, quick_watchdog: None
) -> None:
    async def program() -> None:
        async with through_proxy(broker) as (proxy, bus):
            _, _, states = await listen(bus)
            proxy.delay_s = 0.03  # so that a pause nearly always meets a ping on its way
            for _ in range(6):
                await asyncio.sleep(0.1)
                time.sleep(0.6)  # noqa: ASYNC251  more than twice the watchdog's patience
            await asyncio.sleep(0.2)
            assert states == []

    asyncio.run(program())


@pytest.mark.parametrize("way", ["cancelled", "late"])
def test_an_answer_that_comes_when_it_is_awaited_no_more_leaves_the_client_hearing(
    broker: EmbeddedBroker, way: str
) -> None:
    async def program() -> None:
        address = nats_client.BrokerAddress(broker.url, broker.secret, "secret", "tester", 5.0)
        client = await nats_client.dial(address, lambda error: None, lambda client: None)
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGSTOP)
        asking = asyncio.ensure_future(nats_client.answers_ping(client, 1.0))
        await asyncio.sleep(0.1)
        if way == "cancelled":
            asking.cancel()
        await asyncio.wait({asking})
        os.kill(broker.pid, signal.SIGCONT)
        assert await nats_client.answers_ping(client, PATIENCE_S)
        await nats_client.end(client)

    asyncio.run(program())


def test_a_broker_that_stays_away_is_awaited_and_calls_fail_at_once(broker: EmbeddedBroker) -> None:
    async def program() -> None:
        bus = await connect(broker)
        heard, facts, states = await listen(bus)
        broker.kill()
        await come_true(lambda: states == ["disconnected"])
        for call in (
            lambda: bus.append(LOG, JOB_LOG, b""),
            lambda: bus.get(LEADERS, "demo"),
            lambda: bus.publish("rover.test", b""),
            lambda: bus.request(LEASE, b"", timeout_s=600.0),
        ):
            with pytest.raises(NotConnected):
                await call()
        await asyncio.sleep(0.5)
        broker.start()
        await serves_again(bus, heard, facts)
        await bus.close()

    asyncio.run(program())


def test_who_subscribes_while_the_broker_dies_is_not_held_up_and_hears_when_it_is_back(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_client, "CALL_TIMEOUT_S", 10 * PATIENCE_S)  # who waited for it would be seen

    async def program() -> None:
        bus = await connect(broker)
        heard: list[bytes] = []
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGSTOP)  # the subscription is sent, and never confirmed
        subscribing = asyncio.ensure_future(bus.subscribe("rover.test", lambda msg: heard.append(msg.body)))
        await asyncio.sleep(0.1)
        broker.kill()
        await asyncio.wait_for(subscribing, PATIENCE_S)
        await come_true(lambda: not bus.connected)  # where the pong was quicker than the signal
        broker.start()
        await come_true(lambda: bus.connected)
        await bus.publish("rover.test", b"back")
        await come_true(lambda: heard == [b"back"])
        await bus.close()

    asyncio.run(program())


def test_a_bus_can_be_closed_while_the_broker_is_away(broker: EmbeddedBroker) -> None:
    async def program() -> None:
        bus = await connect(broker)
        await listen(bus)
        broker.kill()
        await come_true(lambda: not bus.connected)
        await bus.close()
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    asyncio.run(program())


class PlainBroker(EmbeddedBroker):
    """May come back without JetStream, as a server does whose store is damaged."""

    storage = True

    def _configuration(self) -> str:
        return (
            super()._configuration() if self.storage else super()._configuration().partition("jetstream {")[0]
        )


def test_a_broker_that_comes_back_without_storage_is_still_good_for_requests(tmp_path: Path) -> None:
    async def program(broker: PlainBroker) -> None:
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(context["exception"])
        )
        bus = await connect(broker)
        heard, facts, states = await listen(bus)
        broker.storage = False
        broker.restart()
        await come_true(lambda: states == ["disconnected", "connected"])
        await bus.serve("master", {LEASE: lambda message: message.respond and message.respond(b"yes")})  # type: ignore[arg-type,return-value]
        assert (await bus.request(LEASE, b"", timeout_s=2.0)).body == b"yes"
        with pytest.raises(BusError, match="JetStream"):
            await bus.append(LOG, JOB_LOG, b"")
        assert any("JetStream" in str(error) for error in reported)
        broker.storage = True
        broker.restart()
        await come_true(lambda: states == ["disconnected", "connected"] * 2)
        await serves_again(bus, heard, facts)
        await bus.close()

    with PlainBroker(tmp_path / "plain") as broker:
        asyncio.run(program(broker))


def test_many_appends_at_once_all_get_their_own_sequence(broker: EmbeddedBroker) -> None:
    async def program() -> None:
        bus = await connect(broker)
        sequences = await asyncio.gather(*(bus.append(LOG, JOB_LOG, b"%d" % n) for n in range(2000)))
        assert sorted(sequences) == list(range(1, 2001))
        await bus.close()

    asyncio.run(program())


def test_a_cancelled_call_leaves_the_connection_whole(broker: EmbeddedBroker) -> None:
    async def program() -> None:
        bus = await connect(broker)
        heard, facts, states = await listen(bus)
        for delay_s in (0.0, 0.0001, 0.001):
            for work in (
                bus.subscribe("rover.test", heard.append),
                bus.append(LOG, JOB_LOG, b""),
                bus.watch(LEADERS, "*", lambda entry: None),
            ):
                task = asyncio.ensure_future(work)
                await asyncio.sleep(delay_s)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await serves_again(bus, heard, facts)
        assert states == []
        await bus.close()

    asyncio.run(program())


def test_a_subscription_whose_caller_gave_up_delivers_nothing(broker: EmbeddedBroker) -> None:
    async def program() -> None:
        bus = await connect(broker)
        got: list[Message] = []
        settle = bus._settle

        async def given_up(_client: object) -> None:
            raise asyncio.CancelledError

        bus._settle = given_up  # type: ignore[method-assign, assignment]
        with pytest.raises(asyncio.CancelledError):
            await bus.subscribe("rover.test.one", got.append)
        bus._settle = settle  # type: ignore[method-assign]
        await bus.publish("rover.test.one", b"1")
        await bus.subscribe("rover.test.two", got.append)  # the broker has seen what was sent before
        await asyncio.sleep(0.2)
        assert got == []
        await bus.close()

    asyncio.run(program())
