"""What the Bus costs: requests served (ours, nats.micro, bare nats-py), appends, publishes, expiries, a killed broker.

    python -m bench.bus [--json] [--requests 20000] [--rounds 3] [--sync always] [--uvloop]

The variants of a round run one after the other against the same broker, so that their ratios hold where the machine is
shared; medians of the rounds are shown. CPU is that of the measured process alone, in microseconds a message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Message
from rover_bus.events.streams import BUCKETS, LEADERS, LOG, STREAMS

IN_FLIGHT = 64
SUBJECT = "rover.rpc.bench.1.lease"
BODY = bytes(120)
Figures = dict[str, list[float]]


def echo(message: Message) -> None:
    assert message.respond is not None
    message.respond(message.body)


async def serve_ours(url: str, secret: str) -> Callable[[], Awaitable[None]]:
    from rover_bus.events.nats_bus import NatsBus

    bus = await NatsBus.connect(url, secret=secret, name="bench")
    await bus.serve("bench", {SUBJECT: echo})
    return bus.close


async def serve_micro(url: str, secret: str) -> Callable[[], Awaitable[None]]:
    import nats
    import nats.micro

    client = await nats.connect(url, token=secret)
    service = await nats.micro.add_service(client, name="bench", version="0.1.0")

    async def handler(request: Any) -> None:
        await request.respond(request.data)

    await service.add_endpoint(name="lease", subject=SUBJECT, handler=handler)
    return client.close


async def serve_bare(url: str, secret: str) -> Callable[[], Awaitable[None]]:
    import nats

    client = await nats.connect(url, token=secret)

    async def handler(msg: Any) -> None:
        await msg.respond(msg.data)

    await client.subscribe(SUBJECT, queue="q", cb=handler)
    return client.close


SERVERS = {"ours": serve_ours, "nats.micro": serve_micro, "bare nats-py": serve_bare}


async def _ask(url: str, secret: str, count: int, ready: Any, go: Any) -> None:
    from rover_bus.events.nats_bus import NatsBus

    bus = await NatsBus.connect(url, secret=secret, name="asker")

    await bus.request(SUBJECT, BODY, timeout_s=30.0)
    ready.set()
    await asyncio.to_thread(go.wait)

    async def ask() -> None:
        for _ in range(count // IN_FLIGHT):
            await bus.request(SUBJECT, BODY, timeout_s=30.0)

    await asyncio.gather(*(ask() for _ in range(IN_FLIGHT)))
    await bus.close()


def ask_from_outside(url: str, secret: str, count: int, ready: Any, go: Any) -> None:
    asyncio.run(_ask(url, secret, count, ready, go))


async def measure_serving(name: str, broker: EmbeddedBroker, count: int, figures: Figures) -> None:
    """Serve requests of another process and note what this one spent on each."""
    close = await SERVERS[name](broker.url, broker.secret)
    spawn = multiprocessing.get_context("spawn")
    ready, go = spawn.Event(), spawn.Event()
    asker = spawn.Process(target=ask_from_outside, args=(broker.url, broker.secret, count, ready, go))
    asker.start()
    await asyncio.to_thread(ready.wait, 30.0)
    wall, cpu = time.perf_counter(), time.process_time()
    go.set()
    await asyncio.to_thread(asker.join)
    if asker.exitcode:
        raise SystemExit(f"the asking process failed against {name}")
    figures.setdefault(f"serve, {name}: requests/s", []).append(count / (time.perf_counter() - wall))
    figures.setdefault(f"serve, {name}: CPU us", []).append(1e6 * (time.process_time() - cpu) / count)
    await close()


async def measure_calls(broker: EmbeddedBroker, count: int, figures: Figures) -> None:
    """Appends one at a time and 64 at a time, and publishes."""
    from rover_bus.events.nats_bus import NatsBus

    bus = await NatsBus.connect(broker.url, secret=broker.secret, name="bench")
    await bus.ensure(STREAMS, BUCKETS)
    latencies: list[float] = []
    for _ in range(count // 20):
        began = time.perf_counter()
        await bus.append(LOG, "rover.job.bench.log", BODY)
        latencies.append(1e6 * (time.perf_counter() - began))
    figures.setdefault("append, one at a time: p50 us", []).append(statistics.median(latencies))

    async def append() -> None:
        for _ in range(count // 4 // IN_FLIGHT):
            await bus.append(LOG, "rover.job.bench.log", BODY)

    async def publish() -> None:
        for _ in range(count):
            await bus.publish("rover.bench", BODY)

    for name, work, done in (("append, 64 in flight", append, count // 4), ("publish", publish, count)):
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(IN_FLIGHT if work is append else 1)))
        await bus.last(LOG, "rover.job.bench.log")
        figures.setdefault(f"{name}: messages/s", []).append(done / (time.perf_counter() - wall))
        figures.setdefault(f"{name}: CPU us", []).append(1e6 * (time.process_time() - cpu) / done)
    await bus.close()


async def measure_absences(broker: EmbeddedBroker, figures: Figures) -> None:
    """How long until the end of a key is told, and until everything is back after the broker was killed."""
    from rover_bus.events.nats_bus import NatsBus

    bus = await NatsBus.connect(broker.url, secret=broker.secret, name="bench")
    await bus.ensure(STREAMS, BUCKETS)
    gone, back = asyncio.Event(), asyncio.Event()
    bus.on_connection(lambda state: back.set() if state == "connected" else None)
    await bus.watch(LEADERS, "*", lambda entry: gone.set() if entry.value is None else None)
    await bus.follow(LOG, ["rover.job.bench.log"], lambda stored: None)
    began = time.perf_counter()
    await bus.put(LEADERS, "bench", b"x", ttl_s=1.0)
    await gone.wait()
    figures.setdefault("end of a key of 1 s: told after ms", []).append(1e3 * (time.perf_counter() - began))
    began = time.perf_counter()
    broker.kill()
    broker.start()
    listening = time.perf_counter()
    await back.wait()
    figures.setdefault("broker killed: port answers after ms", []).append(1e3 * (listening - began))
    figures.setdefault("broker killed: all restored, ms later", []).append(
        1e3 * (time.perf_counter() - listening)
    )
    await bus.close()


async def measure(broker: EmbeddedBroker, count: int, rounds: int) -> dict[str, float]:
    figures: Figures = {}
    for _ in range(rounds):
        for name in SERVERS:
            await measure_serving(name, broker, count, figures)
        await measure_calls(broker, count, figures)
        await measure_absences(broker, figures)
    return {name: statistics.median(values) for name, values in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sync", choices=("default", "always"), default="default")
    parser.add_argument("--uvloop", action="store_true")
    options = parser.parse_args()
    if options.uvloop:
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    else:
        runner = asyncio.Runner()
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedBroker(directory, sync=options.sync) as broker,
        runner,
    ):
        figures = runner.run(measure(broker, options.requests, options.rounds))
    print(
        f"broker sync: {options.sync}; loop: {'uvloop' if options.uvloop else 'asyncio'}; body: {len(BODY)} B"
    )
    for name, value in figures.items():
        print(f"{name:40} {value:12,.1f}")
    if options.json:
        print(json.dumps({"sync": options.sync, "uvloop": options.uvloop, **figures}))


if __name__ == "__main__":
    main()
