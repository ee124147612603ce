"""What a real broker cannot take or may not give: full disks, bodies above its limit, forbidden subjects."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from live_bus import JOB_LOG, come_true, connect, eventually

from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import MESSAGE_ID
from rover_bus.events.errors import AccessDenied, BusError, BusTimeout, InputError, StreamFull
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, FACTS, LOG, STREAMS

pytestmark = pytest.mark.broker


def test_a_full_disk_is_stream_full_and_recovers_after_a_purge(tmp_path: Path) -> None:
    async def program(broker: EmbeddedBroker) -> None:
        bus = await connect(broker)
        accepted = 0

        async def fill() -> None:
            nonlocal accepted
            while accepted < 100:
                await bus.append(LOG, JOB_LOG, bytes(200_000), headers={MESSAGE_ID: str(accepted)})
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
            await bus.append(LOG, JOB_LOG, bytes(200_000), headers={MESSAGE_ID: str(accepted)}, timeout_s=2.0)
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


def test_a_broker_that_starts_while_its_disk_is_full_keeps_its_limit_and_its_streams_declared(
    small_disk: Path,
) -> None:
    """Its limit was a share of what was free just then, below what its streams had reserved: no service could start any more."""
    subprocess.run(["mount", "-o", "remount,size=120m", str(small_disk)], check=True)
    ballast = small_disk / "ballast"

    async def program(broker: EmbeddedBroker) -> None:
        bus = await connect(broker)
        limit = broker.store_limit_bytes()
        await bus.append(LOG, JOB_LOG, b"x")
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        broker.restart()
        ballast.unlink()
        await eventually(lambda: bus.ensure(STREAMS, BUCKETS))
        assert broker.store_limit_bytes() == limit
        await eventually(lambda: bus.append(LOG, JOB_LOG, b"y"))
        await bus.close()

    with EmbeddedBroker(small_disk / "broker") as broker:
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
