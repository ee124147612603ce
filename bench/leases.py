"""How many data shards a master leases: 64 clients in two processes, no work, every lease with its own token and its own commit.

    python -m bench.leases [--seconds 5] [--sync default|always|both] [--peer PYTHON] [--waiting | --traces [--pairs 5]] [--json]

Prints, for 1 and 16 shards a call: shards a second (lease + commit = 1), latency p50/p99 of a call, CPU of the master a call and a
shard, and whether the log, replayed afterwards, holds the same count. Then the ledger alone, in process: pairs a second and memory.
`--waiting`: instead, what workers cost that wait for the end of an epoch, 20 and 1,000 of them (leases_waiting.py).
`--traces`: instead, the same load with the master's traces off and on, in turn (leases_traced.py).
`--peer`: an interpreter with DLRover 0.6.1 (leases_peer.py says how to make one); its master then serves the same load too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import rig
from bench.leases_client import BATCH, PROCESSES, START_S, Client, result_of
from bench.leases_waiting import show_waiting, waiters
from rover_bus.events import subjects
from rover_bus.events.data_facts import EpochOpened
from rover_bus.events.errors import BusError
from rover_bus.events.job import Dataset
from rover_bus.events.journal import Journal
from rover_bus.events.log import Committed, Granted, LogBatch
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import LOG
from rover_bus.master.evolution import evolve
from rover_bus.master.ledger import Ledger
from rover_bus.master.state import AnyState, State, Unopened, load

CLIENTS = 64
DATASET = Dataset(records=10**11, batch_size=BATCH, epochs=1)


async def clients(url: str, job: str, first: int, shards: int, seconds: float) -> dict[str, Any]:
    bus = await rig.connect(url, os.environ["BENCH_SECRET"], f"clients-{first}")
    many = [Client(bus, job, first + index) for index in range(CLIENTS // PROCESSES)]
    await asyncio.gather(*(client.join(DATASET) for client in many))
    until = time.monotonic() + seconds
    results = await asyncio.gather(*(client.work(shards, until) for client in many))
    await bus.close()
    latencies = sorted(latency for _, each in results for latency in each)
    return {
        "committed": sum(committed for committed, _ in results),
        "calls": len(latencies),
        "p50_ms": 1e3 * latencies[len(latencies) // 2],
        "p99_ms": 1e3 * latencies[int(len(latencies) * 0.99)],
    }


async def replayed(bus: NatsBus, job: str) -> int:
    """Replay the log as a new master would, from its last snapshot on; return the shards that its ledger has as committed."""
    state: AnyState = Unopened()
    journal = Journal(bus, subjects.job_log(job), job, "bench", LogBatch, lambda: 0)
    async for stored in bus.read(LOG, subjects.job_log(job)):
        snapshot, records = journal.take(stored)
        if snapshot is not None:
            state = load(snapshot)
        for record in records:
            state = evolve(state, record)
    assert isinstance(state, State)
    assert state.ledger is not None
    return sum(state.ledger.samples_done()) // BATCH


def start_clients(
    url: str, secret: str, job: str, shards: int, seconds: float
) -> list[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "bench.leases", "--shards", str(shards), "--seconds", str(seconds)]
    share, environment = CLIENTS // PROCESSES, {**os.environ, "BENCH_SECRET": secret}
    return [
        subprocess.Popen(
            [*command, "--client", url, job, str(number * share)], env=environment, stdout=subprocess.PIPE
        )
        for number in range(PROCESSES)
    ]


def measure(sync: rig.SyncMode, shards: int, seconds: float) -> dict[str, Any]:
    job = f"leases-{shards}"
    with rig.broker(sync) as broker:

        async def prepare() -> None:
            bus = await rig.connect(broker.url, broker.secret, "bench")
            await rig.open_job(bus, job, workers=CLIENTS)
            await bus.close()

        async def count() -> int:
            bus = await rig.connect(broker.url, broker.secret, "bench")
            try:
                return await replayed(bus, job)
            finally:
                await bus.close()

        async def led() -> None:
            bus = await rig.connect(broker.url, broker.secret, "bench")
            await rig.leader_term(bus, job)
            await bus.close()

        rig.run(prepare())
        master = rig.start_master(broker.url, broker.secret, job, 0)
        try:
            rig.run(led())
            before = rig.cpu_seconds(master.pid)
            running = start_clients(broker.url, broker.secret, job, shards, seconds)
            outputs = [result_of(process) for process in running]
            spent = rig.cpu_seconds(master.pid) - before
            in_log = rig.run(count())
        finally:
            master.terminate()
            master.wait()
    committed = sum(output["committed"] for output in outputs)
    calls = sum(output["calls"] for output in outputs)
    return {
        "sync": sync,
        "shards_a_call": shards,
        "shards_per_second": round(committed / seconds),
        "p50_ms": round(max(output["p50_ms"] for output in outputs), 2),
        "p99_ms": round(max(output["p99_ms"] for output in outputs), 2),
        "master_cpu_us_a_call": round(1e6 * spent / calls, 1),
        "master_cpu_us_a_shard": round(1e6 * spent / max(committed, 1), 2),
        "log_agrees": in_log == committed,
    }


def measure_peer(python: str, seconds: float) -> dict[str, Any]:
    """Measure DLRover's master with as many clients in as many processes, one shard a call; it syncs nothing and keeps no log."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet: dict[str, Any] = {
        "stderr": subprocess.DEVNULL,
        "env": {**os.environ, "DLROVER_LOG_LEVEL": "ERROR"},
    }
    serve = ["-m", "dlrover.python.master.main", "--job_name", "bench", "--platform", "local"]
    master = subprocess.Popen(
        [python, *serve, "--port", str(port), "--node_num", str(CLIENTS)], stdout=subprocess.DEVNULL, **quiet
    )
    try:
        wait_for_port(port, master)
        load = str(Path(__file__).with_name("leases_peer.py"))
        command = [python, load, f"127.0.0.1:{port}", str(seconds), str(CLIENTS // PROCESSES)]
        before = rig.cpu_seconds(master.pid)
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, **quiet) for _ in range(PROCESSES)]
        outputs = [result_of(process) for process in running]
        spent = rig.cpu_seconds(master.pid) - before
    finally:
        master.kill()
        master.wait()
    committed = sum(output["committed"] for output in outputs)
    return {
        "sync": "peer",
        "shards_a_call": 1,
        "shards_per_second": round(committed / seconds),
        "p50_ms": round(max(output["p50_ms"] for output in outputs), 2),
        "p99_ms": round(max(output["p99_ms"] for output in outputs), 2),
        "master_cpu_us_a_call": round(1e6 * spent / (2 * max(committed, 1)), 1),
        "master_cpu_us_a_shard": round(1e6 * spent / max(committed, 1), 2),
        "log_agrees": None,
    }


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return when the service listens. Raises SystemExit when the process ended, or takes too long."""
    deadline_s = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit(
        "DLRover's master did not start: does this interpreter have dlrover, grpcio, kubernetes?"
    )


def ledger_alone(shards: int, pairs: int = 400_000) -> int:
    """Lease + commit pairs a second of the ledger in this process, records made and judged as the decider does."""
    ledger = Ledger.new(Dataset(records=10**9, batch_size=BATCH))
    ledger.begin_epoch(EpochOpened(epoch=0))
    for worker in range(CLIENTS):
        ledger.admit(worker, 1)
    held: dict[int, list[int]] = {}
    began = time.perf_counter()
    for turn in range(pairs // shards):
        worker = turn % CLIENTS
        holder = ledger.holders[worker]
        number = holder.request + 1
        if tokens := held.get(worker):
            uptos = [lease.end for lease in map(holder.leases.__getitem__, tokens)]
            _, good, until = ledger.judge(holder, tokens, uptos)
            ledger.commit(Committed(worker=worker, incarnation=1, request=number, tokens=good, uptos=until))
        firsts, counts = ledger.propose(shards, 1)
        first = ledger.next_token
        ledger.grant(
            Granted(
                worker=worker, incarnation=1, request=number, first_token=first, firsts=firsts, counts=counts
            )
        )
        held[worker] = list(range(first, first + len(firsts)))
    return round(pairs / (time.perf_counter() - began))


def memory_mb(outstanding: int) -> float:
    """Memory that a ledger of 10^9 records adds after 10^6 leases, `outstanding` of them held at most. In a fresh process."""
    code = (
        "import resource; from bench.leases import fill; r = resource.getrusage;"
        f"b = r(0).ru_maxrss; fill({outstanding}); print((r(0).ru_maxrss - b) / 1024)"
    )
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


def fill(outstanding: int, leases: int = 1_000_000) -> Ledger:
    ledger = Ledger.new(Dataset(records=10**9, batch_size=BATCH))
    ledger.begin_epoch(EpochOpened(epoch=0))
    ledger.admit(0, 1)
    holder = ledger.holders[0]
    for number in range(1, leases // 16 + 1):
        firsts, counts = ledger.propose(16, 1)
        ledger.grant(
            Granted(
                worker=0,
                incarnation=1,
                request=number,
                first_token=ledger.next_token,
                firsts=firsts,
                counts=counts,
            )
        )
        while len(holder.leases) > outstanding:
            token = next(iter(holder.leases))
            upto = holder.leases[token].end
            ledger.commit(Committed(worker=0, incarnation=1, request=number, tokens=[token], uptos=[upto]))
    return ledger


def show(row: dict[str, Any]) -> dict[str, Any]:
    """Print a row, and return it."""
    print(
        f"{row['sync']:8} {row['shards_a_call']:11} {row['shards_per_second']:9,} {row['p50_ms']:8} {row['p99_ms']:7}"
        f" {row['master_cpu_us_a_call']:15} {row['master_cpu_us_a_shard']:9}  {row['log_agrees']}",
        flush=True,
    )
    return row


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--sync", choices=["default", "always", "both"], default="both")
    parser.add_argument("--shards", type=int, default=0, help="shards a call; default: 1 and 16")
    parser.add_argument(
        "--peer", metavar="PYTHON", help="measure DLRover's master too, with this interpreter"
    )
    parser.add_argument(
        "--waiting", action="store_true", help="measure workers that wait for an epoch's end instead"
    )
    parser.add_argument("--traces", action="store_true", help="measure what a master's traces cost instead")
    parser.add_argument("--pairs", type=int, default=5, help="with --traces: runs of each arm")
    parser.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print one last line of JSON")
    parser.add_argument("--client", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = read_arguments()
    if args.client:
        url, job, first = args.client
        if args.workers:
            print(json.dumps(rig.run(waiters(url, job, int(first), args.workers, args.seconds))))
            return
        print(json.dumps(rig.run(clients(url, job, int(first), args.shards, args.seconds))))
        return
    if args.waiting:
        show_waiting(args.seconds, args.json)
        return
    if args.traces:
        from bench.leases_traced import show_traced  # needs OpenTelemetry

        show_traced(lambda: measure("default", args.shards or 1, args.seconds), args.pairs, args.json)
        return
    rows: list[dict[str, Any]] = []
    modes: list[rig.SyncMode] = ["default", "always"] if args.sync == "both" else [args.sync]
    print("sync     shards/call  shards/s   p50 ms  p99 ms  master us/call  us/shard  log agrees")
    for sync in modes:
        for shards in [args.shards] if args.shards else [1, 16]:
            rows.append(show(measure(sync, shards, args.seconds)))
    if args.peer:
        rows.append(show(measure_peer(args.peer, args.seconds)))
    alone = {f"pairs_per_second_at_{n}": ledger_alone(n) for n in (1, 16)}
    memory = {f"memory_mb_{n}_outstanding": round(memory_mb(n), 1) for n in (1_000, 1_000_000)}
    print("ledger alone:", ", ".join(f"{key} {value:,}" for key, value in {**alone, **memory}.items()))
    if args.json:
        print(json.dumps({"rows": rows, "ledger": {**alone, **memory}}))


if __name__ == "__main__":
    try:
        main()
    except BusError as error:
        raise SystemExit(f"the broker did not answer: {error}") from None
