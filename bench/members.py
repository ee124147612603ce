"""What a thousand members cost the control plane: processor time and memory of the broker, the master and the Brain.

    python -m bench.members [--members 1000] [--seconds 20] [--json]

One job on a broker of its own. Each worker is spoken for by hand: it commits a lease and takes the next each second, and sends a
sample every two, as a worker does. The master is a real one; the Brain follows the job, and plans nothing, as no host is there. No
work is done: what workers and servers themselves take is told by `bench.overhead`. Shares are of one core, memory is PSS, while
every worker is there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from typing import Any

from bench import rig
from bench.leases_client import BATCH, PROCESSES, Client, result_of
from bench.processes import pss_bytes
from rover_bus.events import subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.codec import encode
from rover_bus.events.job import Dataset, LeaseSpec
from rover_bus.events.profiles import WorkerProfile
from rover_bus.events.requests import Progress

JOB = "members"
DATASET = Dataset(records=10**11, batch_size=BATCH, epochs=1)
LEASE_S, SAMPLE_S = 1.0, 2.0
AFTER_S = 5.0  # all have joined: first samples, first window of the Brain
MEBIBYTE = 1 << 20


async def live(client: Client, until: float, place: float) -> int:
    """Work until the time is up, beginning at a `place` within the first second; returns the shards committed."""
    await asyncio.sleep(place * LEASE_S)
    progress, number, sampled = Progress(), 0, time.monotonic()
    while (began := time.monotonic()) < until:
        number += 1
        reply = await client.lease(number, 1, progress, [])
        uptos = [first + count for first, count in zip(reply.firsts, reply.counts, strict=True)]
        progress = Progress(tokens=reply.tokens, uptos=uptos)
        if began - sampled >= SAMPLE_S:
            sampled = began
            profile = WorkerProfile(
                window_s=SAMPLE_S,
                job=client.job,
                member=client.member,
                samples=int(BATCH * SAMPLE_S),
                batches=int(SAMPLE_S),
                compute_s=SAMPLE_S,
                cores_used=1.0,
                memory_bytes=1 << 28,
            )
            await client.bus.publish(
                subjects.member_profile(client.job, "worker", client.member.index), encode(profile)
            )
        await asyncio.sleep(max(began + LEASE_S - time.monotonic(), 0.0))
    return number


async def clients(url: str, first: int, members: int, seconds: float) -> dict[str, Any]:
    """One process of workers: joins them, waits for the others, works; its result says what was asked."""
    bus = await rig.connect(url, os.environ["BENCH_SECRET"], f"members-{first}")
    many = [Client(bus, JOB, first + index) for index in range(members)]
    await asyncio.gather(*(client.join(DATASET) for client in many))
    until = time.monotonic() + AFTER_S + seconds
    calls = await asyncio.gather(*(live(client, until, place / members) for place, client in enumerate(many)))
    await bus.close()
    return {"calls": sum(calls)}


def measure(members: int, seconds: float) -> dict[str, Any]:
    """Return calls a second, and share of a core and PSS of each part."""
    with rig.broker() as broker:

        async def prepare() -> None:
            bus = await rig.connect(broker.url, broker.secret, "bench")
            await rig.open_job(bus, JOB, workers=members, servers=1, leases=LeaseSpec(max_batches=1))
            await bus.close()

        async def led() -> None:
            bus = await rig.connect(broker.url, broker.secret, "bench")
            await rig.leader_term(bus, JOB)
            await bus.close()

        rig.run(prepare())
        master, brain = rig.start_master(broker.url, broker.secret, JOB, 0), start_brain(broker)
        assert broker.pid is not None
        parts = {"broker": broker.pid, "master": master.pid, "Brain": brain.pid}
        try:
            rig.run(led())
            running = [start_clients(broker, number, members, seconds) for number in range(PROCESSES)]
            time.sleep(AFTER_S + seconds / 2)  # they have joined, as long as that takes
            before, began = {name: rig.cpu_seconds(pid) for name, pid in parts.items()}, time.monotonic()
            time.sleep(seconds / 2)
            window_s = time.monotonic() - began
            shares = {name: (rig.cpu_seconds(pid) - before[name]) / window_s for name, pid in parts.items()}
            memory = {name: pss_bytes(pid) / MEBIBYTE for name, pid in parts.items()}
            calls = sum(result_of(process)["calls"] for process in running)
        finally:
            for process in (master, brain):
                process.terminate()
                process.wait()
    return {
        "members": members,
        "calls_per_second": round(calls / (AFTER_S + seconds), 1),
        "core": {name: round(share, 3) for name, share in shares.items()},
        "pss_mb": {name: round(size, 1) for name, size in memory.items()},
    }


def start_brain(broker: EmbeddedBroker) -> subprocess.Popen[bytes]:
    """Start a Brain as a stack does."""
    command = [sys.executable, "-m", "rover_bus.cli.serve", "brain", "--url", broker.url, "--host", "h"]
    return subprocess.Popen([*command, "--secret-file", str(broker.secret_file)])


def start_clients(
    broker: EmbeddedBroker, number: int, members: int, seconds: float
) -> subprocess.Popen[bytes]:
    """Start one of the processes that speak for workers."""
    share = members // PROCESSES
    command = [sys.executable, "-m", "bench.members", "--members", str(share), "--seconds", str(seconds)]
    environment = {**os.environ, "BENCH_SECRET": broker.secret}
    return subprocess.Popen(
        [*command, "--client", broker.url, str(number * share)], env=environment, stdout=subprocess.PIPE
    )


def main() -> None:
    """Measure few and many, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true", help="print the rows as one last JSON line")
    parser.add_argument("--client", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        url, first = options.client
        print(json.dumps(rig.run(clients(url, int(first), options.members, options.seconds))))
        return
    rows = []
    print("members  calls/s    core: broker master Brain    PSS MB: broker master Brain")
    for members in (20, options.members):
        row = measure(members, options.seconds)
        core, memory = row["core"].values(), row["pss_mb"].values()
        print(
            f"{members:7} {row['calls_per_second']:8}          {' '.join(f'{each:6.3f}' for each in core)}"
            f"            {' '.join(f'{each:6.1f}' for each in memory)}",
            flush=True,
        )
        rows.append(row)
    if options.json:
        print(json.dumps({"bench": "members", "rows": rows}))


if __name__ == "__main__":
    main()
