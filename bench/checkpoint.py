"""What a checkpoint costs: blocking time of saves against memcpy into warm shared memory, restore, digests,
storage, parity.

    python -m bench.checkpoint [--json] [--gib 1] [--width 64] [--rounds 7] [--threads 0] [--storage DIR [--peer PYTHON]]

State: 26 tables with Adagrad rows of the same width, and MLPs, float32. Memcpy and saves run in turn, with the same
number of threads; ratios are of the same round. With --storage, torch.save, torch's DCP async and DLRover's flash checkpoint
run after them, where this interpreter, or the one that --peer names, has them (checkpoint_peer.py says how to make one). What
a persister costs beside training is measured by bench/persisting.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from bench.checkpoint_state import SPAN_BYTES, TABLES, Array, Memcpy, State, make_state, seconds
from rover_bus.flash.files import DirectoryFiles
from rover_bus.flash.lineage import digest_staged
from rover_bus.flash.manifest import Manifest, PartChain
from rover_bus.flash.parity import encode, rebuild
from rover_bus.flash.part import Content, Identity
from rover_bus.flash.persist import drain, persist_part, publish, restore
from rover_bus.flash.staged import newest_staged
from rover_bus.flash.store import FlashStore
from rover_bus.flash.verified import newest_verified

TOUCHED_SHARE = 0.01
STORAGE_ROUNDS = 10


def touch(state: State, rng: np.random.Generator) -> dict[str, Array]:
    """Change 1 % of the rows of every table, uniformly at random, as training would; return the ids by array."""
    touched = {}
    for table in range(TABLES):
        rows = len(state[f"table{table}.values"])
        ids = rng.choice(rows, max(1, int(rows * TOUCHED_SHARE)), replace=False)
        for kind in ("values", "adagrad"):
            state[f"table{table}.{kind}"][ids] += 1
            touched[f"table{table}.{kind}"] = ids
    return touched


def measure_saves(state: State, root: Path, threads: int, rounds: int) -> dict[str, float]:
    rng, cut = np.random.default_rng(1), 0
    copying = Memcpy(state, root, threads)
    copying.run()
    times: dict[str, list[float]] = {"memcpy": [], "full": [], "touched": [], "masks": [], "catch_up": []}
    with FlashStore("bench", root=root, threads=threads, background=False) as store:
        prepare = seconds(lambda: store.prepare(state))
        memcpy_before = seconds(copying.run)
        first = seconds(lambda: store.save(state, 1))
        memcpy_after = seconds(copying.run)
        store.catch_up()
        second = seconds(lambda: store.save(state, 2))
        cut = 2
        for _ in range(rounds):
            store.catch_up()  # digests: the next save would wait for them
            times["memcpy"].append(seconds(copying.run))
            times["full"].append(seconds(partial(store.save, state, cut + 1)))
            store.save(state, cut + 2)
            for kind, shape in (("touched", lambda ids, _: ids), ("masks", as_mask)):
                store.save(state, cut, touched=touch(state, rng))
                store.catch_up()
                touched = {name: shape(ids, len(state[name])) for name, ids in touch(state, rng).items()}
                copying.run()  # neither state nor slot is left in the caches
                times[kind].append(seconds(partial(store.save, state, cut + 3, touched=touched)))
                times["catch_up"].append(seconds(store.catch_up))
            cut += 10
        store.catch_up()
        mapped = seconds(lambda: newest_verified(store.directory, "state", writable=True))
    found = {f"{kind}_s": statistics.median(values) for kind, values in times.items()}
    ratios = {
        f"{kind}_ratio": statistics.median(a / b for a, b in zip(times[kind], times["memcpy"], strict=True))
        for kind in ("full", "touched", "masks")
    }
    before = (memcpy_before + memcpy_after) / 2
    return {
        **found,
        **ratios,
        "prepare_s": prepare,
        "first_s": first,
        "first_ratio": first / before,
        "second_ratio": second / memcpy_after,
        "restore_verified_s": mapped,
    }


def as_mask(ids: Array, rows: int) -> Array:
    mask = np.zeros(rows, np.bool_)
    mask[ids] = True
    return mask


def measure_storage(state: State, root: Path, storage: Path) -> dict[str, float]:
    """Staged to ready, against the same bytes written and synced by nothing but write and fsync; then read back,
    every byte checked."""
    floor, ready, digesting = [], [], []
    files = DirectoryFiles(storage)
    with FlashStore("bench", root=root) as store:
        store.prepare(state)
        store.save(state, 1)
        staged = newest_staged(store.directory, "state")
        # Pages of the cache, and blocks of the disk, that were never used cost a virtual machine seconds: both ways warm up,
        # and neither goes first every time.
        for cut in range(1, 3 + STORAGE_ROUNDS):
            for way in (0, 1) if cut % 2 else (1, 0):
                if way:
                    digesting.append(seconds(partial(digest_staged, staged)))
                    ready.append(seconds(partial(persist, files, staged.arrays, cut)))
                    for path in files.list("parts")[:-1]:
                        files.remove(path)
                else:
                    floor.append(seconds(partial(write_plainly, state, storage / "floor")))
                    (storage / "floor").unlink()
        floor, digesting, ready = floor[2:], digesting[2:], ready[2:]
        reading = seconds(lambda: restore(files))
    return {
        "disk_floor_s": statistics.median(floor),
        "staged_to_ready_s": statistics.median(a + b for a, b in zip(ready, digesting, strict=True)),
        "ready_ratio": statistics.median(
            (a + b) / c for a, b, c in zip(ready, digesting, floor, strict=True)
        ),
        "digest_s": statistics.median(digesting),
        "restore_storage_s": reading,
    }


def write_plainly(state: State, path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        for array in state.values():
            raw = array.reshape(-1).view(np.uint8)
            for start in range(0, len(raw), SPAN_BYTES):
                file.write(raw[start : start + SPAN_BYTES].data)
        os.fsync(file.fileno())


def persist(files: DirectoryFiles, arrays: State, cut: int) -> None:
    identity = Identity(job_uid="bench", part="state", timeline=1, generation=0, cut=cut)
    part = drain(
        persist_part(files, identity, [Content(name=name, array=array) for name, array in arrays.items()])
    )
    parts = (PartChain(name="state", files=(part,)),)
    publish(files, Manifest(job_uid="bench", timeline=1, generation=0, cut=cut, parts=parts))


def measure_parity(mib: int) -> dict[str, float]:
    """Three parts and two parities of `mib` each: GiB/s of part bytes."""
    rng = np.random.default_rng(2)
    parts = [rng.integers(0, 256, mib << 20, np.uint8) for _ in range(3)]
    total = 3 * mib / 1024
    blocks = dict(enumerate(encode(parts, 2)))
    return {
        "parity_xor_gib_s": total / seconds(lambda: encode(parts, 1)),
        "parity_two_gib_s": total / seconds(lambda: encode(parts, 2)),
        "rebuild_two_gib_s": 2 * total / 3 / seconds(lambda: rebuild(3, {0: parts[0]}, blocks)),
    }


def measure_peers(
    interpreter: str, gib: float, width: int, threads: int, rounds: int, places: list[Path]
) -> dict[str, float]:
    """What checkpoint_peer.py finds in another process, with torch and perhaps DLRover; raises SystemExit where it fails."""
    script = Path(__file__).with_name("checkpoint_peer.py")
    numbers = [str(number) for number in (gib, width, threads, rounds)]
    done = subprocess.run(
        [interpreter, str(script), *numbers, *map(str, places)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{interpreter} {script} failed: does it have torch? Its own words stand above")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(found: dict[str, float]) -> None:
    for name, value in found.items():
        print(f"{name:20} {value:10.4f}{'x' if name.endswith('_ratio') else ''}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gib", type=float, default=1.0, help="size of the state (needs four times this in memory)"
    )
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0, help="0: one a core")
    parser.add_argument("--storage", type=Path, help="also persist to a directory below this one")
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter with torch, and perhaps DLRover")
    parser.add_argument("--parity-mib", type=int, default=0, help="also measure parity, parts of this size")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    threads = arguments.threads or len(os.sched_getaffinity(0))
    root = Path(tempfile.mkdtemp(prefix="rover-bench-", dir="/dev/shm"))
    storage = (
        Path(tempfile.mkdtemp(prefix="rover-bench-", dir=arguments.storage)) if arguments.storage else None
    )
    try:
        state = make_state(arguments.gib, arguments.width)
        size = sum(array.nbytes for array in state.values())
        print(f"{size / 2**30:.2f} GiB, {TABLES} tables of width {arguments.width}, {threads} threads")
        found = measure_saves(state, root, threads, arguments.rounds)
        if storage:
            found |= measure_storage(state, root, storage)
        peer = arguments.peer or (sys.executable if importlib.util.find_spec("torch") else "")
        if storage and peer:
            del state  # memory for theirs
            shutil.rmtree(root)
            root.mkdir()
            rounds = min(3, arguments.rounds)
            found |= measure_peers(peer, arguments.gib, arguments.width, threads, rounds, [root, storage])
        if arguments.parity_mib:
            found |= measure_parity(arguments.parity_mib)
    finally:
        shutil.rmtree(root, ignore_errors=True)
        if storage:
            shutil.rmtree(storage, ignore_errors=True)
    show(found)
    if arguments.json:
        print(json.dumps({"gib": arguments.gib, "width": arguments.width, "threads": threads, **found}))


if __name__ == "__main__":
    main()
