"""What parameter servers cost: pull + push through two server processes against the same arithmetic in one process.

    python -m bench.ps [--json] [--steps 60] [--rounds 7] [--transport shm|tcp|tls|unix] [--profile] [--runs 10] [--cores 0,0,1]

Batches of 512 x 26 ids, width 16, Adagrad, 10^6 rows, hashed and growing tables, Zipf(1.05) and nearly uniform ids; one table or
26. Gradients are given: no model is computed. Local and remote steps alternate round by round; ratios are of the same round.
`--runs`: new processes each time, because where the scheduler puts them lasts as long as they do; each cell's median and range
over the runs. `--cores`: pin the worker and each server to one core (the same arithmetic in one process to the worker's).
`--profile` times the stages of a step at the worker and at the servers instead (its ratios are those of wrapped functions).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.ps_profile import SERVER, WORKER, Stopwatch
from rover_bus.events.requests import ServerAddress
from rover_bus.events.starts import EMPTY
from rover_bus.ps.client import RemoteParameters
from rover_bus.ps.core import ServerCore
from rover_bus.ps.local import LocalParameters
from rover_bus.ps.routing import divide_slots
from rover_bus.ps.server import Server
from rover_bus.ps.spec import Adagrad, Growing, Hashed, Normal, Table
from rover_bus.ps.store import BatchKey, Parameters

FEATURES, BATCH, WIDTH, ROWS = 26, 512, 16, 1_000_000
SECRET = b"bench"
Batch = dict[str, npt.NDArray[np.int64]]


def serve(index: int, transport: str, profile: bool, core: int, pipe: Connection) -> None:
    """One server process: says its address, is told the routing, serves until told to stop. `core`: to be pinned to, -1: none."""
    if core >= 0:
        os.sched_setaffinity(0, {core})
    watch = Stopwatch(SERVER, waits_in_receive=False) if profile else None
    tables = ServerCore(index, incarnation=1)
    name = f"@rover-bench-{time.time_ns()}-{index}"
    server = Server(
        tables, SECRET, [f"{transport}:127.0.0.1:0" if transport in ("tcp", "tls") else f"{transport}:{name}"]
    )
    pipe.send(ServerAddress(index, 1, server.addresses))
    tables.admit(timeline=0, generation=0, start=EMPTY, seed=1)
    tables.route(pipe.recv())
    pipe.send("ready")
    if watch:
        threading.Thread(target=report, args=(watch, server, pipe), daemon=True).start()
    server.serve()


def report(watch: Stopwatch, server: Server, pipe: Connection) -> None:
    """Begin a window of the stopwatch at every word from the pipe; answer what was read before."""
    while True:
        pipe.recv()
        pipe.send(server.call(watch.read).result())
        server.call(watch.reset).result()


@contextmanager
def running_servers(
    count: int, transport: str, profile: bool = False, cores: list[int] | None = None
) -> Iterator[tuple[Any, list[Connection]]]:
    """Start servers; yield their routing table and the pipes to them; end them."""
    context = multiprocessing.get_context("spawn")
    members = []
    for index in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=serve, args=(index, transport, profile, cores[index] if cores else -1, theirs), daemon=True
        )
        process.start()
        members.append((process, ours))
    try:
        routing = divide_slots([pipe.recv() for _, pipe in members])
        for _, pipe in members:
            pipe.send(routing)
        for _, pipe in members:
            pipe.recv()
        yield routing, [pipe for _, pipe in members]
    finally:
        for process, _ in members:
            process.terminate()
            process.join()


def make_batches(skew: str, tables: int, count: int, rng: np.random.Generator) -> list[Batch]:
    """Ids by table; each table has ROWS / tables ids, hot ones spread over the range."""
    rows = ROWS // tables
    chances = np.arange(1, rows + 1) ** -1.05 if skew == "zipf" else np.ones(rows)
    cumulative = np.cumsum(chances / chances.sum())
    spread = rng.permutation(rows)
    shape = (BATCH, FEATURES // tables)
    return [
        {
            f"t{t}": spread[np.searchsorted(cumulative, rng.random(shape)).clip(0, rows - 1)]
            for t in range(tables)
        }
        for _ in range(count)
    ]


def declare(kind: str, tables: int) -> list[Table]:
    adagrad, init = Adagrad(rate=0.05), Normal(0.01)
    if kind == "growing":
        return [Growing(name=f"t{t}", width=WIDTH, optimizer=adagrad, init=init) for t in range(tables)]
    rows = ROWS // tables
    return [Hashed(name=f"t{t}", rows=rows, width=WIDTH, optimizer=adagrad, init=init) for t in range(tables)]


def fill(parameters: Parameters, tables: int) -> None:
    """Push every id once: growing tables are measured at their full size."""
    rows = ROWS // tables
    for number, ids in enumerate(np.array_split(np.arange(rows), max(1, rows * tables // 200_000))):
        pulled = parameters.pull({f"t{t}": ids for t in range(tables)})
        gradients = {name: np.full_like(values, 1e-3) for name, values in pulled.items()}
        parameters.push(BatchKey(1_000_000, number), gradients)


def run(parameters: Parameters, batches: list[Batch], gradients: dict[str, Any], first: int) -> float:
    """Return the median seconds of a step; a step is one pull and one push, the last push flushed."""
    times = []
    for number, ids in enumerate(batches, first):
        start = time.perf_counter()
        parameters.pull(ids)
        parameters.push(BatchKey(0, number), gradients)
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    parameters.flush()
    times[-1] += time.perf_counter() - start
    return statistics.median(times)


def measure(kind: str, skew: str, tables: int, arguments: argparse.Namespace) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    batches = make_batches(skew, tables, arguments.steps, rng)
    gradients = {
        name: rng.standard_normal((*ids.shape, WIDTH)).astype(np.float32) * np.float32(1e-3)
        for name, ids in batches[0].items()
    }
    distinct = statistics.median(sum(len(np.unique(ids)) for ids in batch.values()) for batch in batches)
    with (
        running_servers(2, arguments.transport, cores=arguments.cores[1:]) as (routing, _),
        RemoteParameters(routing, SECRET) as remote,
    ):
        local = LocalParameters(seed=1)
        for parameters in (local, remote):
            parameters.declare(*declare(kind, tables))
            fill(parameters, tables)
            run(parameters, batches[:5], gradients, 10**6)
        pairs = []
        for number in range(arguments.rounds):
            first = number * arguments.steps
            pairs.append(tuple(run(p, batches, gradients, first) for p in (local, remote)))
    local_s, remote_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(a / b for a, b in pairs)
    return {
        "kind": kind,
        "ids": skew,
        "tables": tables,
        "distinct": int(distinct),
        "local_ms": round(local_s * 1e3, 3),
        "servers_ms": round(remote_s * 1e3, 3),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_low": round(ratios[0], 3),
        "ratio_high": round(ratios[-1], 3),
    }


def profile(kind: str, skew: str, tables: int, arguments: argparse.Namespace, watch: Stopwatch) -> list[Any]:
    """Return the milliseconds of a step by stage: the worker's, then each server's."""
    rng = np.random.default_rng(7)
    batches = make_batches(skew, tables, arguments.steps, rng)
    gradients = {name: np.full((*ids.shape, WIDTH), 1e-3, np.float32) for name, ids in batches[0].items()}
    with (
        running_servers(2, arguments.transport, profile=True) as (routing, pipes),
        RemoteParameters(routing, SECRET) as remote,
    ):
        remote.declare(*declare(kind, tables))
        fill(remote, tables)
        run(remote, batches[:5], gradients, 10**6)
        for pipe in pipes:
            pipe.send("begin")
            pipe.recv()
        watch.reset()
        for number in range(arguments.rounds):
            run(remote, batches, gradients, number * arguments.steps)
        readings = [watch.read()]
        for pipe in pipes:
            pipe.send("end")
            readings.append(pipe.recv())
    steps = arguments.rounds * arguments.steps
    return [{stage: round(s / steps * 1e3, 3) for stage, s in reading.items()} for reading in readings]


def main_profile(arguments: argparse.Namespace) -> None:
    watch = Stopwatch(WORKER, waits_in_receive=True)
    print("milliseconds of a step by stage; of two servers, the mean")
    results = []
    for kind in ("hashed", "growing"):
        for skew in ("zipf", "uniform"):
            for tables in (1, FEATURES):
                worker, *servers = profile(kind, skew, tables, arguments, watch)
                server = {stage: round(statistics.mean(s[stage] for s in servers), 3) for stage in servers[0]}
                print(f"{kind}, {skew}, tables {tables}", flush=True)
                for name, stages in (("worker", worker), ("server", server)):
                    print(f"  {name}: " + "  ".join(f"{stage} {ms:.2f}" for stage, ms in stages.items()))
                results.append(
                    {"kind": kind, "ids": skew, "tables": tables, "worker": worker, "server": server}
                )
    if arguments.json:
        print(json.dumps({"bench": "ps_profile", "unit": "ms", "cells": results}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60, help="steps a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--transport", choices=["shm", "tcp", "tls", "unix"], default="shm")
    parser.add_argument("--json", action="store_true", help="print the result as one last JSON line")
    parser.add_argument("--runs", type=int, default=1, help="each with new processes")
    parser.add_argument(
        "--cores", type=lambda text: [int(core) for core in text.split(",")], default=[], metavar="W,S,S"
    )
    parser.add_argument("--profile", action="store_true", help="time the stages of a step instead")
    arguments = parser.parse_args()
    if arguments.profile:
        main_profile(arguments)
        return
    if arguments.cores:
        os.sched_setaffinity(0, {arguments.cores[0]})
    pinned = f", pinned to cores {arguments.cores}" if arguments.cores else ""
    print(
        f"{BATCH} x {FEATURES} ids, width {WIDTH}, Adagrad, {ROWS:,} rows, 2 servers over {arguments.transport}{pinned}"
    )
    print("table    ids      tables  distinct  local ms  servers ms  ratio (low .. high)")
    results = []
    for _ in range(arguments.runs):
        for kind in ("hashed", "growing"):
            for skew in ("zipf", "uniform"):
                for tables in (1, FEATURES):
                    got = measure(kind, skew, tables, arguments)
                    results.append(got)
                    print(
                        f"{kind:8} {skew:8} {tables:6} {got['distinct']:9} {got['local_ms']:9} {got['servers_ms']:11}"
                        f"  {got['ratio']:.2f} ({got['ratio_low']:.2f} .. {got['ratio_high']:.2f})",
                        flush=True,
                    )
    if arguments.runs > 1:
        print(f"medians over {arguments.runs} runs (lowest .. highest)")
        for kind, skew, tables in dict.fromkeys((r["kind"], r["ids"], r["tables"]) for r in results):
            of_cell = sorted(
                r["ratio"] for r in results if (r["kind"], r["ids"], r["tables"]) == (kind, skew, tables)
            )
            middle = statistics.median(of_cell)
            print(f"{kind:8} {skew:8} {tables:6}  {middle:.2f} ({of_cell[0]:.2f} .. {of_cell[-1]:.2f})")
    if arguments.json:
        print(json.dumps({"bench": "ps", "transport": arguments.transport, "cells": results}))


if __name__ == "__main__":
    main()
