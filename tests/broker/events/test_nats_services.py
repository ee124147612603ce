"""Streams and services as others see them: `rover doctor`, `nats micro`, the client library."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from live_bus import LEASE, connect

from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Message
from rover_bus.events.errors import BusError
from rover_bus.events.formats import FORMAT
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, FACTS, STREAMS, StreamSpec

pytestmark = pytest.mark.broker


def test_doctor_hears_what_is_missing_and_what_differs(broker: EmbeddedBroker) -> None:
    async def program() -> None:
        bus = await NatsBus.connect(broker.url, secret=broker.secret)
        missing = await bus.differences(STREAMS, BUCKETS)
        assert len(missing) == len(STREAMS) + len(BUCKETS)
        assert all("is missing" in line and "`rover restore`" in line for line in missing)
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
            {"job": "demo", "format": str(FORMAT)},
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
