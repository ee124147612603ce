"""What nats-py and JetStream leave to their user, provoked with a real broker: nats.md's traps must stay hidden."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rover_bus.events import nats_bus, nats_follow
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Entry, Message, Stored
from rover_bus.events.errors import (
    AccessDenied,
    BrokerUnreachable,
    BusError,
    BusTimeout,
    InputError,
    NotConnected,
    StreamFull,
)
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, FACTS, LEADERS, LOG, STREAMS, StreamSpec

pytestmark = pytest.mark.broker
JOB_LOG = "rover.job.demo.log"
LEASE = "rover.rpc.demo.1.lease"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "broker") as started:
        yield started


@pytest.fixture
def quick_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_bus, "TICK_S", 0.05)


async def connect(broker: EmbeddedBroker, **options: Any) -> NatsBus:
    bus = await NatsBus.connect(**{"url": broker.url, "secret": broker.secret, **options})
    try:
        await bus.ensure(STREAMS, BUCKETS)
    except BusError:
        await bus.close()
        raise
    return bus


async def come_true(claim: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not claim():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def eventually(call: Callable[[], Awaitable[Any]], within_s: float = 20.0) -> Any:
    deadline = time.monotonic() + within_s
    while True:
        try:
            return await call()
        except BusError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)


class Proxy:
    """Stands between a client and the broker: can cut, delay, swallow, and speak in the broker's name."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.delay_s = 0.0
        self.dropped = b""  # the first chunk from the broker that holds this is swallowed
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        self._writers += [writer, far_writer]
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._tasks.append(asyncio.create_task(self._pipe(source, sink, sink is writer)))

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, inward: bool) -> None:
        try:
            while chunk := await source.read(65536):
                if inward and self.dropped and self.dropped in chunk:
                    self.dropped = b""
                else:
                    await asyncio.sleep(self.delay_s)
                    sink.write(chunk)
                    await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()

    def say(self, line: bytes) -> None:
        self._writers[-2].write(line + b"\r\n")

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()


@asynccontextmanager
async def through_proxy(broker: EmbeddedBroker) -> Any:
    proxy = Proxy(broker.port)
    await proxy.start()
    bus = await connect(broker, url=f"nats://127.0.0.1:{proxy.port}")
    try:
        yield proxy, bus
    finally:
        await bus.close()
        await proxy.stop()


async def serves_again(bus: NatsBus, heard: list[Message], facts: list[Stored]) -> None:
    """The connection is whole: subscriptions, followers and appends work."""
    await come_true(lambda: bus.connected)
    before = len(heard)
    await eventually(lambda: bus.append(FACTS, "rover.job.demo.plan.applied", b"again"))
    await come_true(lambda: len(heard) > before)
    await come_true(lambda: bool(facts) and facts[-1].body == b"again")


async def listen(bus: NatsBus) -> tuple[list[Message], list[Stored], list[str]]:
    heard: list[Message] = []
    facts: list[Stored] = []
    states: list[str] = []
    await bus.subscribe("rover.job.*.*.*", heard.append)
    await bus.follow(FACTS, ["rover.job.*.*.*"], facts.append)
    bus.on_connection(states.append)
    return heard, facts, states


# Connecting


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


# Followers and watches


def test_a_follower_whose_consumer_is_deleted_goes_on(
    broker: EmbeddedBroker, quick_watchdog: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_follow, "HEARTBEAT_S", 0.2)

    async def program() -> None:
        bus = await connect(broker)
        facts: list[Stored] = []
        await bus.follow(FACTS, ["rover.job.*.*.*"], facts.append, start="first")
        await bus.append(FACTS, "rover.job.demo.plan.applied", b"1")
        await come_true(lambda: len(facts) == 1)
        names = await bus.request(f"$JS.API.CONSUMER.NAMES.{FACTS}", b"", timeout_s=2.0)
        for name in json.loads(names.body)["consumers"]:
            await bus.request(f"$JS.API.CONSUMER.DELETE.{FACTS}.{name}", b"", timeout_s=2.0)
        await bus.append(FACTS, "rover.job.demo.plan.applied", b"2")
        await come_true(lambda: len(facts) == 2)
        assert [stored.body for stored in facts] == [b"1", b"2"]
        await bus.close()

    asyncio.run(program())


def test_a_follower_notices_a_message_lost_on_the_way(broker: EmbeddedBroker) -> None:
    async def program() -> None:
        async with through_proxy(broker) as (proxy, bus):
            writer = await connect(broker)
            facts: list[Stored] = []
            await bus.follow(FACTS, ["rover.job.*.*.*"], facts.append)
            await writer.append(FACTS, "rover.job.demo.plan.applied", b"one")
            await come_true(lambda: len(facts) == 1)
            proxy.dropped = b"swallowed"
            await writer.append(FACTS, "rover.job.demo.plan.applied", b"swallowed")
            await come_true(lambda: not proxy.dropped)
            await writer.append(FACTS, "rover.job.demo.plan.applied", b"three")
            await come_true(lambda: len(facts) == 3)
            assert [stored.body for stored in facts] == [b"one", b"swallowed", b"three"]
            await writer.close()

    asyncio.run(program())


def test_a_thousand_keys_are_watched_and_each_expiry_is_told_once(broker: EmbeddedBroker) -> None:
    async def program() -> None:
        bus = await connect(broker)
        seen: list[Entry] = []
        await bus.watch(LEADERS, ">", seen.append)
        await asyncio.gather(*(bus.put(LEADERS, f"job-{n}", b"x", ttl_s=1.0) for n in range(1000)))
        await come_true(lambda: len(seen) >= 2000)
        assert sorted(entry.key for entry in seen if entry.value is None) == sorted(
            f"job-{n}" for n in range(1000)
        )
        await bus.close()

    asyncio.run(program())


# Limits and rights


def test_a_full_disk_is_stream_full_and_recovers_after_a_purge(tmp_path: Path) -> None:
    async def program(broker: EmbeddedBroker) -> None:
        bus = await connect(broker)
        accepted = 0

        async def fill() -> None:
            nonlocal accepted
            while accepted < 100:
                await bus.append(LOG, JOB_LOG, bytes(200_000), message_id=str(accepted))
                accepted += 1

        with pytest.raises(StreamFull, match="free space"):
            await fill()
        with pytest.raises(StreamFull):
            await bus.append(FACTS, "rover.job.demo.plan.applied", bytes(200_000))
        assert len([1 async for _ in bus.read(LOG, JOB_LOG)]) == accepted
        await bus.purge(LOG, JOB_LOG)
        await eventually(lambda: bus.append(LOG, JOB_LOG, bytes(200_000)))
        await bus.close()

    with EmbeddedBroker(tmp_path / "small", max_file_store_bytes=2 << 20) as broker:
        asyncio.run(program(broker))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A broker's directory whose store is a tmpfs of 3 MiB."""
    store = tmp_path / "broker" / "store"
    store.mkdir(parents=True)
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(store)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        yield store
    finally:
        subprocess.run(["umount", str(store)], check=True)


async def fill_log(bus: NatsBus, error: type[BusError]) -> int:
    accepted = 0
    try:
        while accepted < 100:
            await bus.append(LOG, JOB_LOG, bytes(200_000), message_id=str(accepted), timeout_s=2.0)
            accepted += 1
    except error:
        return accepted
    raise AssertionError("the disk never filled")


def test_a_broker_limits_its_store_to_its_disk_also_when_it_finds_it_half_full(small_disk: Path) -> None:
    async def program(broker: EmbeddedBroker) -> None:
        bus = await connect(broker)
        states: list[str] = []
        bus.on_connection(states.append)
        accepted = await fill_log(bus, StreamFull)
        assert accepted > 5
        broker.restart()
        assert broker.write_error() is None
        await come_true(lambda: states == ["disconnected", "connected"])
        with pytest.raises(StreamFull):
            await bus.append(LOG, JOB_LOG, bytes(200_000))
        await eventually(lambda: bus.purge(LOG, JOB_LOG))
        broker.restart()
        await eventually(lambda: bus.append(LOG, JOB_LOG, bytes(200_000)))
        await bus.close()

    with EmbeddedBroker(small_disk.parent) as broker:
        asyncio.run(program(broker))


def test_a_disk_filled_by_others_times_appends_out_is_told_and_heals_with_room_and_a_restart(
    small_disk: Path,
) -> None:
    async def program(broker: EmbeddedBroker) -> None:
        bus = await connect(broker)
        accepted = await fill_log(bus, BusTimeout)
        assert "no space left" in (broker.write_error() or "")
        make_room()
        broker.restart()
        assert broker.write_error() is None
        kept = await eventually(lambda: count(bus))
        assert kept == accepted
        await eventually(lambda: bus.append(LOG, JOB_LOG, b"x", expected_last=kept))
        await bus.close()

    def make_room() -> None:
        subprocess.run(["mount", "-o", "remount,size=30m", str(small_disk)], check=True)

    async def count(bus: NatsBus) -> int:
        return len([1 async for _ in bus.read(LOG, JOB_LOG)])

    with EmbeddedBroker(small_disk.parent, max_file_store_bytes=1 << 30) as broker:
        asyncio.run(program(broker))


def test_a_body_above_the_brokers_limit_is_refused_by_name(broker: EmbeddedBroker) -> None:
    async def program() -> None:
        bus = await connect(broker)
        for call in (bus.append(LOG, JOB_LOG, bytes(9 << 20)), bus.publish("rover.test", bytes(9 << 20))):
            with pytest.raises(InputError, match="pack less"):
                await call
        for subject in ("rover.te st", "", "rover.a\r\nPUB x 0"):
            with pytest.raises(InputError):
                await bus.publish(subject, b"")
        assert bus.connected
        await bus.close()

    asyncio.run(program())


class ScopedBroker(EmbeddedBroker):
    """With a second user whose rights end at its job."""

    def _configuration(self) -> str:
        users = (
            'authorization { users: [ {user: "all", password: "all"}, '
            '{user: "scoped", password: "scoped", permissions: {'
            ' publish: ["rover.rpc.mine.>", "rover.profile.mine.>"], subscribe: ["_INBOX.>", "rover.job.mine.>"] }} ] }\n'
        )
        lines = super()._configuration().splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("authorization")) + users


def test_a_forbidden_subject_is_an_error_that_names_it(tmp_path: Path) -> None:
    async def program(broker: EmbeddedBroker) -> None:
        url = broker.url.replace("nats://", "nats://scoped:scoped@")
        bus = await NatsBus.connect(url)
        with pytest.raises(AccessDenied, match=r"rover\.rpc\.Other\.1\.lease"):
            await bus.request("rover.rpc.Other.1.lease", b"", timeout_s=600.0)
        with pytest.raises(AccessDenied, match=r"rover\.job\.other\.log"):
            await bus.subscribe("rover.job.other.log", lambda message: None)
        await bus.publish("rover.profile.other.worker.0", b"")

        async def noticed() -> None:
            await bus.publish("rover.profile.other.worker.0", b"")
            raise BusError("not yet")

        with pytest.raises(AccessDenied, match=r"rover\.profile\.other"):
            await eventually(noticed)
        await bus.subscribe("rover.job.mine.>", lambda message: None)
        await bus.publish("rover.profile.mine.worker.0", b"")
        assert bus.connected
        await bus.close()

    with ScopedBroker(tmp_path / "scoped") as broker:
        asyncio.run(program(broker))


# Streams and services as others see them


def test_doctor_hears_what_is_missing_and_what_differs(broker: EmbeddedBroker) -> None:
    async def program() -> None:
        bus = await NatsBus.connect(broker.url, secret=broker.secret)
        missing = await bus.differences(STREAMS, BUCKETS)
        assert len(missing) == len(STREAMS) + len(BUCKETS)
        assert all("is missing" in line for line in missing)
        await bus.ensure(STREAMS, BUCKETS)
        await bus.ensure(STREAMS, BUCKETS)
        assert await bus.differences(STREAMS, BUCKETS) == []
        changed = StreamSpec(name=FACTS, subjects=["rover.job.*.*.*", "rover.host.*.*"], max_bytes=1000)
        await bus.ensure([changed], [])  # never changes what is there
        lines = await bus.differences([changed], [])
        assert any("max_bytes" in line for line in lines)
        assert any("discard" in line for line in lines)
        await bus.close()

    asyncio.run(program())


def test_services_answer_what_nats_micro_asks(broker: EmbeddedBroker) -> None:
    async def program() -> None:
        server, asker = await connect(broker), await connect(broker)

        def fail(message: Message) -> None:
            raise ValueError("a broken handler")

        def answer(message: Message) -> None:
            assert message.respond is not None
            message.respond(b"")

        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        service = await server.serve(
            "rover-master", {LEASE: answer, "rover.rpc.demo.1.fail": fail}, metadata={"job": "demo"}
        )
        for _ in range(3):
            await asker.request(LEASE, b"", timeout_s=2.0)
        with pytest.raises(BusError, match="ValueError"):
            await asker.request("rover.rpc.demo.1.fail", b"", timeout_s=2.0)
        assert [str(context["exception"]) for context in reported] == ["a broken handler"]

        async def ask(subject: str) -> Any:
            return json.loads((await asker.request(subject, b"", timeout_s=2.0)).body)

        ping = await ask("$SRV.PING")
        assert (ping["type"], ping["name"], ping["metadata"]) == (
            "io.nats.micro.v1.ping_response",
            "rover-master",
            {"job": "demo"},
        )
        info = await ask("$SRV.INFO.rover-master")
        assert [endpoint["subject"] for endpoint in info["endpoints"]] == [LEASE, "rover.rpc.demo.1.fail"]
        stats = await ask(f"$SRV.STATS.rover-master.{ping['id']}")
        by_name = {endpoint["name"]: endpoint for endpoint in stats["endpoints"]}
        assert (by_name["lease"]["num_requests"], by_name["lease"]["num_errors"]) == (3, 0)
        assert by_name["lease"]["processing_time"] > 0
        assert (by_name["fail"]["num_errors"], "broken" in by_name["fail"]["last_error"]) == (1, True)
        await service.stop()
        with pytest.raises(BusError):
            await ask("$SRV.PING")
        await server.close()
        await asker.close()

    asyncio.run(program())


def test_the_clients_own_micro_library_reads_our_answers(broker: EmbeddedBroker) -> None:
    async def program() -> None:
        from nats.micro.service import ServiceInfo, ServicePing, ServiceStats

        bus = await connect(broker)
        await bus.serve("rover-master", {LEASE: lambda message: None}, metadata={"job": "demo"})
        for verb, reader in (("PING", ServicePing), ("INFO", ServiceInfo), ("STATS", ServiceStats)):
            body = (await bus.request(f"$SRV.{verb}", b"", timeout_s=2.0)).body
            assert reader.from_dict(json.loads(body)).name == "rover-master"
        await bus.close()

    asyncio.run(program())


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
