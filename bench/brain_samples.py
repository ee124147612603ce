"""What a sample costs the Brain's process with the bus: published by another process, stored, delivered, decoded, taken in.

    python -m bench.brain_samples [--samples 60000] [--rate 8000] [--json]

A broker of its own, the Brain's shell and decider over a cluster of 100 jobs. Seconds are of the Brain's process alone. What its
looks take meanwhile (windows, sizes) is shown apart: `python -m bench.brain` measures that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import click

from bench.brain import cluster, profile_of
from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.service import build_brain
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.codec import encode
from rover_bus.events.deciding import ServiceProcess
from rover_bus.events.inputs import Input, Sampled
from rover_bus.events.streams import BUCKETS, STREAMS

JOBS, TOGETHER = 100, 100


def publish(url: str, secret: str, samples: int, rate: float) -> None:
    """Publish so many samples, so many a second, of all workers in turn."""

    async def run() -> None:
        import nats

        client = await nats.connect(url, token=secret)
        of_workers = [
            (f"rover.profile.{name}.worker.{member.index}", encode(profile_of(name, member, 4.0)))
            for name, job in cluster(JOBS).jobs.items()
            for member in job.members
            if member.role == "worker"
        ]
        began = time.monotonic()
        for number, (subject, body) in enumerate(islice(cycle(of_workers), samples)):
            await client.publish(subject, body)
            if number % TOGETHER == 0:
                await asyncio.sleep(max(number / rate - (time.monotonic() - began), 0))
        await client.close()

    asyncio.run(run())


async def until(holds: Callable[[], object]) -> None:
    """Wait until something holds that another task or process brings about."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def measure(samples: int, rate: float) -> dict[str, float]:
    """Take samples in, and return what each cost."""
    from rover_bus.events.nats_bus import NatsBus

    with tempfile.TemporaryDirectory() as directory, EmbeddedBroker(directory) as broker:
        bus = await NatsBus.connect(broker.url, secret=broker.secret, name="brain")
        await bus.ensure(STREAMS, BUCKETS)
        process = ServiceProcess("bench", time.monotonic, lambda: int(time.time() * 1000))
        shell, decider = build_brain(bus, process, timeline=1)
        serving = asyncio.create_task(shell.run())
        await until(lambda: shell.leading)
        filled = BrainDecider(1)
        filled.state = cluster(JOBS)
        filled.state.timeline = decider.state.timeline
        decider.restore(filled.dump())
        taken, looks_s = 0, 0.0
        decide = decider.decide

        def counted(input: Input, now: float) -> Any:
            nonlocal taken, looks_s
            if isinstance(input, Sampled):
                taken += 1
                return decide(input, now)
            began = time.process_time()
            decision = decide(input, now)
            looks_s += time.process_time() - began
            return decision

        decider.decide = counted  # type: ignore[method-assign]
        sender = multiprocessing.get_context("spawn").Process(
            target=publish, args=(broker.url, broker.secret, samples, rate)
        )
        sender.start()
        await until(lambda: taken)
        began, before, looked = time.process_time(), taken, looks_s
        await until(lambda: not sender.is_alive() and taken > 0.99 * samples)
        took = time.process_time() - began - (looks_s - looked)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        await bus.close()
    each = took / (taken - before)
    return {
        "samples": taken,
        "microseconds_each": 1e6 * each,
        "core_at_30000": 30_000 * each,
        "looks_s": looks_s,
    }


@click.command(help=__doc__)
@click.option("--samples", default=60_000, show_default=True)
@click.option("--rate", default=8_000.0, show_default=True, help="A second.")
@click.option("--json", "as_json", is_flag=True, help="Print one last line of JSON.")
def main(samples: int, rate: float, as_json: bool) -> None:
    found = asyncio.run(measure(samples, rate))
    print("  ".join(f"{name} {value:.6g}" for name, value in found.items()))
    if as_json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
