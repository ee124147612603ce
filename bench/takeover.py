"""How long no client is served when the leading master is killed: SIGKILL, then the next lease reply that any client gets.

    python -m bench.takeover [--kills 10] [--past 1000000] [--json]

A hot standby runs; 32 clients in two processes lease one shard a call and compute half of the time. After each kill a new
standby is started, as the node daemon would. `--past`: the job has so many leases and facts behind it (takeover_past.py), and the
first standby's way from its start to the first lease is printed as well. Prints each time and the median.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time

from bench import rig
from bench.takeover_past import write_past
from rover_bus.events import subjects
from rover_bus.events.codec import decode_any, encode
from rover_bus.events.errors import BusError
from rover_bus.events.identity import Member
from rover_bus.events.job import Dataset
from rover_bus.events.leadership import read_leader
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.requests import (
    METHODS,
    JoinReply,
    JoinRequest,
    LeaseReply,
    LeaseRequest,
    Progress,
    RegisterRequest,
    Reply,
    Request,
)
from rover_bus.events.streams import LEADERS

CLIENTS, PROCESSES, COMPUTE_S = 32, 2, 0.02
NAMES: dict[type[Request], str] = {cls: name for name, cls in METHODS.items()}
JOB = "takeover"
DATASET = Dataset(records=10**9, batch_size=100)


async def ask(bus: NatsBus, request: Request, term: int) -> tuple[Reply, int]:
    """Ask the leader as a worker does: on silence look up the leadership key and repeat the same request."""
    while True:
        try:
            if term:
                subject = subjects.rpc(JOB, term, NAMES[type(request)])
                reply = decode_any((await bus.request(subject, encode(request), timeout_s=1.0)).body)
                assert isinstance(reply, Reply)
                return reply, term
        except BusError:
            term = 0
        try:
            entry = await bus.get(LEADERS, JOB)
        except BusError:
            entry = None
        leader = read_leader(entry)
        term = leader.term if leader is not None else 0
        if not term:
            await asyncio.sleep(0.05)


async def client(bus: NatsBus, index: int) -> None:
    member = Member("worker", index, 1)
    joined, term = await ask(bus, JoinRequest(member=member, nonce=f"takeover-{index}"), 0)
    assert isinstance(joined, JoinReply), joined
    _, term = await ask(bus, RegisterRequest(member=member, timeline=joined.timeline, dataset=DATASET), term)
    progress, number = Progress(), int(os.environ.get("BENCH_REQUESTS", "0"))
    while True:
        number += 1
        request = LeaseRequest(
            member=member, timeline=joined.timeline, request=number, rate=0.01, progress=progress
        )
        began = time.monotonic()
        reply, term = await ask(bus, request, term)
        assert isinstance(reply, LeaseReply), reply
        print(f"{time.monotonic():.4f} {reply.term}", flush=True)
        progress = Progress(
            tokens=reply.tokens, uptos=[a + n for a, n in zip(reply.firsts, reply.counts, strict=True)]
        )
        spin_until = time.perf_counter() + min(time.monotonic() - began, COMPUTE_S) / CLIENTS
        while time.perf_counter() < spin_until:
            pass
        await asyncio.sleep(COMPUTE_S)


async def clients(url: str, first: int) -> None:
    bus = await rig.connect(url, os.environ["BENCH_SECRET"], f"clients-{first}")
    await asyncio.gather(*(client(bus, first + i) for i in range(CLIENTS // PROCESSES)))


Replies = list[tuple[float, int]]  # when each came, and the term that it named


async def drive(url: str, secret: str, kills: int, past: int) -> list[float]:
    """Kill the leader again and again; the clients' output says when the next reply came."""
    bus = await rig.connect(url, secret, "bench")
    if past:
        requests, seconds = await write_past(bus, JOB, CLIENTS, DATASET, past)
        os.environ["BENCH_REQUESTS"] = str(requests)
        print(f"a past of {past} leases and facts, written in {seconds:.0f} s", flush=True)
    else:
        await rig.open_job(bus, JOB, workers=CLIENTS)
    began = time.monotonic()
    masters = {index: rig.start_master(url, secret, JOB, index) for index in range(2)}
    processes = [await start_clients(url, secret, n * CLIENTS // PROCESSES) for n in range(PROCESSES)]
    replies: Replies = []
    readers = [asyncio.create_task(read(process, replies)) for process in processes]
    term, times, chance = 0, [], random.Random(1)
    try:
        await rig.leader_term(bus, JOB, timeout_s=120.0)
        print(f"the first master led {time.monotonic() - began:.2f} s after its start", flush=True)
        for _ in range(kills):
            term = await rig.leader_term(bus, JOB, above=term)
            await asyncio.sleep(1.5 + chance.random())
            index = await leading(bus)
            times.append(await kill_and_wait(masters[index], term, replies))
            masters[index] = rig.start_master(url, secret, JOB, index)
    finally:
        for process in processes:
            process.kill()
        for master in masters.values():
            master.kill()
            master.wait()
        await asyncio.gather(*readers, *(process.wait() for process in processes))
        await bus.close()
    return times


async def start_clients(url: str, secret: str, first: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "bench.takeover", "--client", url, str(first)],
        env={**os.environ, "BENCH_SECRET": secret},
        stdout=subprocess.PIPE,
    )


async def read(process: asyncio.subprocess.Process, replies: Replies) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        at, term = line.split()
        replies.append((float(at), int(term)))


async def leading(bus: NatsBus) -> int:
    """Return which of the masters leads."""
    entry = await bus.get(LEADERS, JOB)
    leader = read_leader(entry)
    assert leader is not None
    return int(leader.holder.split("-")[1].split(".")[0])


async def kill_and_wait(master: subprocess.Popen[bytes], term: int, replies: Replies) -> float:
    """Kill the leader of a term; return the seconds until a reply names a later one."""
    killed = time.monotonic()
    master.send_signal(signal.SIGKILL)
    master.wait()
    while not any(t > term and at > killed for at, t in replies[-2000:]):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return min(at for at, t in replies if t > term) - killed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--past", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--client", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        rig.run(clients(args.client[0], int(args.client[1])))
        return
    with rig.broker() as broker:
        times = rig.run(drive(broker.url, broker.secret, args.kills, args.past))
    print("seconds without a lease:", " ".join(f"{seconds:.2f}" for seconds in times))
    print(f"median {statistics.median(times):.2f} s, max {max(times):.2f} s, {len(times)} kills")
    if args.json:
        print(json.dumps({"takeover_seconds": times, "median": statistics.median(times)}))


if __name__ == "__main__":
    main()
