"""What a checkpoint costs: blocking time of saves against memcpy into warm shared memory, restore, digests,
storage, parity.

    python bench/checkpoint.py [--json] [--gib 1] [--width 64] [--rounds 7] [--threads 0] [--storage DIR]

State: 26 tables with Adagrad rows of the same width, and MLPs, float32. Memcpy and saves run in turn, with the same
number of threads; ratios are of the same round. With --storage, torch.save and torch's DCP async run after them where
torch is installed. What a persister costs beside training is measured by bench/persisting.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import mmap
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.flash.digests import digest_staged
from rover_bus.flash.files import DirectoryFiles
from rover_bus.flash.manifest import Manifest, PartChain
from rover_bus.flash.parity import encode, rebuild
from rover_bus.flash.part import Content, Identity
from rover_bus.flash.persist import drain, persist_part, publish, restore
from rover_bus.flash.staged import newest_staged
from rover_bus.flash.store import FlashStore

TABLES, TOUCHED_SHARE, SPAN_BYTES = 26, 0.01, 8 << 20
MLPS = {"bottom": [(13, 512), (512, 256), (256, 64)], "top": [(415, 512), (512, 256), (256, 1)]}

Array = npt.NDArray[Any]
State = dict[str, Array]


def make_state(gib: float, width: int) -> State:
    rows = int(gib * 2**30) // (TABLES * 2 * width * 4)
    state: State = {}
    for table in range(TABLES):
        for kind in ("values", "adagrad"):
            state[f"table{table}.{kind}"] = np.full((rows, width), table + 1, np.float32)
    for name, layers in MLPS.items():
        for number, shape in enumerate(layers):
            for kind in ("values", "adagrad"):
                state[f"{name}{number}.{kind}"] = np.ones(shape, np.float32)
    return state


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


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


class Memcpy:
    """The floor: the same bytes into warm shared memory, in spans, over the same number of threads."""

    def __init__(self, state: State, root: Path, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads)
        sources = [array.reshape(-1).view(np.uint8) for array in state.values()]
        with open(root / "memcpy", "w+b") as file:
            os.posix_fallocate(file.fileno(), 0, sum(map(len, sources)))
            flat: Array = np.frombuffer(
                mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE), np.uint8
            )
        self._spans, offset = [], 0
        for source in sources:
            for start in range(0, len(source), SPAN_BYTES):
                part = source[start : start + SPAN_BYTES]
                self._spans.append((flat[offset : offset + len(part)], part))
                offset += len(part)
        self._threads = threads

    def run(self) -> None:
        if self._threads == 1:
            for target, source in self._spans:
                np.copyto(target, source)
        else:
            list(self._pool.map(lambda span: np.copyto(*span), self._spans))


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
        second = seconds(lambda: store.save(state, 2))
        cut = 2
        for _ in range(rounds):
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
        mapped = seconds(lambda: newest_staged(store.directory, "state", writable=True))
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
        "restore_mapped_s": mapped,
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
        write_plainly(
            state, storage / "floor"
        )  # pages of the cache that were never used cost a virtual machine seconds
        for cut in range(1, 4):
            for path in files.list("parts"):
                files.remove(path)
            (storage / "floor").unlink(missing_ok=True)
            floor.append(seconds(partial(write_plainly, state, storage / "floor")))
            (storage / "floor").unlink()
            digesting.append(seconds(partial(digest_staged, staged)))
            ready.append(seconds(partial(persist, files, staged.arrays, cut)))
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
    identity = Identity(job_uid="bench", part="state", history=1, generation=0, cut=cut)
    part = drain(
        persist_part(files, identity, [Content(name=name, array=array) for name, array in arrays.items()])
    )
    parts = (PartChain(name="state", files=(part,)),)
    publish(files, Manifest(job_uid="bench", history=1, generation=0, cut=cut, parts=parts))


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


def measure_torch(state: State, root: Path, storage: Path, memcpy_s: float, rounds: int) -> dict[str, float]:
    """How long training waits for torch.save into shared memory, and for torch's DCP async; nothing where torch is missing.

    DCP with its default stager, one process; `_total_s` is until its files are written (not synced).
    """
    if importlib.util.find_spec("torch") is None:
        return {}
    torch = importlib.import_module("torch")
    dcp = importlib.import_module("torch.distributed.checkpoint")
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    tensors = {name: torch.from_numpy(array) for name, array in state.items()}
    saves, waits, totals = [], [], []
    for number in range(rounds + 1):
        saves.append(seconds(lambda: torch.save(tensors, root / "torch")))
        began = time.perf_counter()
        written = dcp.async_save(tensors, checkpoint_id=str(storage / f"dcp{number}"))
        waits.append(time.perf_counter() - began)
        written.result()
        totals.append(time.perf_counter() - began)
        shutil.rmtree(storage / f"dcp{number}")
    (root / "torch").unlink()
    return {
        "torch_save_first_ratio": saves[0] / memcpy_s,
        "torch_save_ratio": statistics.median(saves[1:]) / memcpy_s,
        "torch_dcp_first_ratio": waits[0] / memcpy_s,
        "torch_dcp_ratio": statistics.median(waits[1:]) / memcpy_s,
        "torch_dcp_total_s": statistics.median(totals[1:]),
    }


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
            found |= measure_torch(state, root, storage, found["memcpy_s"], min(3, arguments.rounds))
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
