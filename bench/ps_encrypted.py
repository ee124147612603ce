"""What encryption between hosts costs: the same steps through servers on TCP and on TLS, in turns; ratios are of the same round.

    python -m bench.ps_encrypted [--json] [--steps 20] [--rounds 9]

Two servers and a worker on this machine, which all compete for its cores; batches, tables and arithmetic of bench.ps (one hashed
table). A step is one pull and one push. CPU: what the worker's process used for a step. Then parts of checkpoints: a part of
PART_MIB from one daemon's memory to another's, digests checked, both in this process.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from bench.ps import BATCH, FEATURES, SECRET, WIDTH, declare, fill, make_batches, run, running_servers
from rover_bus.flash.copies import hold_copy
from rover_bus.flash.lineage import digest_staged
from rover_bus.flash.staged import newest_staged
from rover_bus.flash.store import FlashStore
from rover_bus.node.storage.peers import PartServer, PeerSource
from rover_bus.node.storage.state import PartOfCut
from rover_bus.ps.client import RemoteParameters

TRANSPORTS = ("tcp", "tls")
BINDS = {"tcp": "127.0.0.1", "tls": "127.0.0.2"}  # a daemon encrypts at every address but loopback's own
PART_MIB = 128


def measure(skew: str, arguments: argparse.Namespace) -> dict[str, float | str]:
    """Return milliseconds of a step over each, and the ratio TLS to TCP in time and in CPU: median, lowest, highest."""
    rng = np.random.default_rng(7)
    batches = make_batches(skew, 1, arguments.steps, rng)
    gradients = {name: np.full((*ids.shape, WIDTH), 1e-3, np.float32) for name, ids in batches[0].items()}
    wall: dict[str, list[float]] = {each: [] for each in TRANSPORTS}
    used: dict[str, list[float]] = {each: [] for each in TRANSPORTS}
    with ExitStack() as ends:
        remotes = {}
        for each in TRANSPORTS:
            routing, _ = ends.enter_context(running_servers(2, each))
            remotes[each] = ends.enter_context(RemoteParameters(routing, SECRET))
            remotes[each].declare(*declare("hashed", 1))
            fill(remotes[each], 1)
            run(remotes[each], batches[:5], gradients, 10**6)
        for number in range(arguments.rounds):
            for each in TRANSPORTS if number % 2 else TRANSPORTS[::-1]:
                began = time.process_time()
                wall[each].append(run(remotes[each], batches, gradients, number * arguments.steps))
                used[each].append((time.process_time() - began) / arguments.steps)
    ratios = sorted(tls / tcp for tcp, tls in zip(wall["tcp"], wall["tls"], strict=True))
    cpu = sorted(tls / tcp for tcp, tls in zip(used["tcp"], used["tls"], strict=True))
    return {
        "ids": skew,
        **{f"{each}_ms": round(statistics.median(wall[each]) * 1e3, 2) for each in TRANSPORTS},
        "ratio": round(statistics.median(ratios), 2),
        "ratio_low": round(ratios[0], 2),
        "ratio_high": round(ratios[-1], 2),
        "worker_cpu_ratio": round(statistics.median(cpu), 2),
    }


def measure_parts(rounds: int) -> dict[str, float | str]:
    """Return MiB a second of a part that is copied in the clear and encrypted, and the ratio in time: median, lowest, highest."""
    root = Path(tempfile.mkdtemp(prefix="rover-bench-", dir="/dev/shm"))
    state = {"rows": np.random.default_rng(7).random((PART_MIB << 14, 16), np.float32)}
    store = FlashStore("u1", "ps-0", root=root / "own", threads=1, background=False, model="m")
    servers = {each: PartServer(root / "own", SECRET, bind) for each, bind in BINDS.items()}
    times: dict[str, list[float]] = {each: [] for each in BINDS}
    try:
        store.prepare(state)
        store.save(state, 1)
        store.write_links()
        digest_staged(newest_staged(root / "own" / "u1", "ps-0", model="m"))
        for number in range(rounds + 1):
            for each in TRANSPORTS if number % 2 else TRANSPORTS[::-1]:
                began = time.perf_counter()
                peer = PeerSource(servers[each].address, SECRET, PartOfCut("u1", "ps-0", (0, 1)))
                hold_copy(root / f"held-{each}-{number}", "u1", "ps-0", peer)
                peer.close()
                times[each].append(time.perf_counter() - began)
                shutil.rmtree(root / f"held-{each}-{number}")
    finally:
        for server in servers.values():
            server.close()
        store.close()
        shutil.rmtree(root, ignore_errors=True)
    ratios = sorted(tls / tcp for tcp, tls in zip(times["tcp"][1:], times["tls"][1:], strict=True))
    return {
        "part_mib": PART_MIB,
        **{f"{each}_mib_s": round(PART_MIB / statistics.median(times[each][1:])) for each in BINDS},
        "ratio": round(statistics.median(ratios), 2),
        "ratio_low": round(ratios[0], 2),
        "ratio_high": round(ratios[-1], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20, help="steps a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print the result as one last JSON line")
    arguments = parser.parse_args()
    print(f"{BATCH} x {FEATURES} ids, width {WIDTH}, 2 servers: TLS against TCP, {arguments.rounds} rounds")
    cells = [measure(skew, arguments) for skew in ("zipf", "uniform")]
    cells.append(measure_parts(arguments.rounds))
    for got in cells:
        print("  ".join(f"{name} {value}" for name, value in got.items()))
    if arguments.json:
        print(json.dumps({"bench": "ps_encrypted", "cells": cells}))


if __name__ == "__main__":
    main()
