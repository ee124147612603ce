"""What persisting costs: staged to ready against the disk's own write + fsync, training meanwhile, saves asked for meanwhile.

    python -m bench.persisting [--json] [--gib 1] [--width 64] [--rounds 5] [--storage DIR]

A persister process does what the node daemon's threads do (rover_bus/node/storage/checkpoints.py) on a state in shared memory:
26 tables with Adagrad rows, and MLPs. Training is one process a core that gathers rows and multiplies matrices, at normal
priority; its speed while a cut is stored is compared with its speed just before and after.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from bench.checkpoint import show, touch, write_plainly
from bench.checkpoint_state import State, make_state, seconds
from rover_bus.events.checkpoints import ManifestContent, StoredPart
from rover_bus.flash.copies import open_exactly
from rover_bus.flash.errors import SlotsBusy
from rover_bus.flash.files import DirectoryFiles
from rover_bus.flash.store import FlashStore
from rover_bus.node.storage import checkpoints
from rover_bus.node.storage.state import PartOfCut
from rover_bus.node.storage.throttle import give_way

JOB, PART, WINDOW_S, ASKED = "bench", "ps-0", 1.5, 20


def persist_for_ever(pipe: Connection, root: Path, storage: Path) -> None:
    """The daemon's part: store each cut that is named, say how long it took. Whole parts, as a first cut is."""
    give_way()
    (storage / "run").mkdir()
    files = DirectoryFiles(storage / "run")
    while (cut := pipe.recv()) is not None:
        for path in files.list("parts"):
            files.remove(path)
        began = time.perf_counter()
        pinned = open_exactly(root / JOB, PART, 0, cut)
        pipe.send(None)
        checkpoints.digest_cut(root / JOB, PART, 0, cut)
        digested = time.perf_counter()
        chain = checkpoints.store_part(files, root / JOB, PartOfCut(JOB, PART, (0, cut)))
        part = StoredPart(part=PART, index=0, slots=[(0, 4096)], files=checkpoints.describe_files(chain))
        content = ManifestContent(uid=JOB, timeline=0, generation=0, cut=cut, ledger=b"", parts=[part])
        checkpoints.publish_manifest(files, content)
        del pinned
        pipe.send((time.perf_counter() - began, digested - began))


def train_for_ever(steps: Any, number: int, cores: list[int]) -> None:
    """One worker: gather rows of a table, multiply, scatter; count steps."""
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    rng = np.random.default_rng(number)
    table, weights = np.ones((200_000, 64), np.float32), np.ones((64, 64), np.float32)
    while True:
        ids = rng.integers(0, len(table), 2048)
        table[ids] = np.tanh(table[ids] @ weights)
        steps[number] += 1


class Rig:
    """A state staged in shared memory, a persister process, and training processes."""

    def __init__(self, gib: float, width: int, storage: Path) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="rover-bench-", dir="/dev/shm"))
        self.storage = storage
        self.state: State = make_state(gib, width)
        self.store = FlashStore(JOB, PART, root=self.root, slots=3, background=False)
        self.store.prepare(self.state)
        self.cut = 0
        self._spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = self._spawn.Pipe()
        persister = self._spawn.Process(
            target=persist_for_ever, args=(theirs, self.root, storage), daemon=True
        )
        persister.start()
        self._processes = [persister]

    def stage(self) -> int:
        self.cut += 1
        self.store.save(self.state, self.cut)
        return self.cut

    def order(self, cut: int) -> None:
        """Have a cut stored; return when it is pinned."""
        self.pipe.send(cut)
        assert self.pipe.recv() is None

    def persist(self) -> tuple[float, float]:
        """Store the newest cut; return seconds from staged to ready, and those of them for digests."""
        self.order(self.cut)
        ready_s, digest_s = self.pipe.recv()
        return ready_s, digest_s

    def start_training(self) -> Any:
        cores = sorted(os.sched_getaffinity(0))
        os.environ["OPENBLAS_NUM_THREADS"] = (
            "1"  # as the platform sees to: threads that spin would train nothing
        )
        steps = self._spawn.Array("q", len(cores), lock=False)
        for number in range(len(cores)):
            worker = self._spawn.Process(target=train_for_ever, args=(steps, number, cores), daemon=True)
            worker.start()
            self._processes.append(worker)
        while not all(steps):
            time.sleep(0.1)
        return steps

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self.store.close()
        shutil.rmtree(self.root, ignore_errors=True)


def measure_disk(rig: Rig, rounds: int) -> dict[str, float]:
    """Staged to ready beside the same bytes by write and fsync alone, in turn, the order changing."""
    floor: list[float] = []
    ready: list[tuple[float, float]] = []

    def write_floor() -> None:
        path = rig.storage / "floor"
        floor.append(seconds(partial(write_plainly, rig.state, path)))
        path.unlink()

    def store() -> None:
        rig.stage()
        ready.append(rig.persist())

    steps: list[Callable[[], None]] = [write_floor, store]
    for number in range(rounds + 1):
        for step in steps if number % 2 else reversed(steps):
            step()
    floor, ready = floor[1:], ready[1:]  # the first round makes the page cache's pages
    return {
        "disk_floor_s": statistics.median(floor),
        "staged_to_ready_s": statistics.median(each for each, _ in ready),
        "digest_s": statistics.median(each for _, each in ready),
        "ready_ratio": statistics.median(a / b for (a, _), b in zip(ready, floor, strict=True)),
        "ready_ratio_of_medians": statistics.median(a for a, _ in ready) / statistics.median(floor),
    }


def measure_training(rig: Rig, rounds: int) -> dict[str, float]:
    """Steps a second while a cut is stored, over those in the windows before and after."""
    steps = rig.start_training()

    def speed(action: Callable[[], object]) -> float:
        before = sum(steps)
        took = seconds(action)
        return float((sum(steps) - before) / took)

    shares, stored = [], []
    for _ in range(rounds):
        rig.stage()
        before = speed(lambda: time.sleep(WINDOW_S))
        while_storing = speed(lambda: stored.append(rig.persist()[0]))
        after = speed(lambda: time.sleep(WINDOW_S))
        shares.append(2 * while_storing / (before + after))
    return {
        "training_share": statistics.median(shares),
        "training_share_least": min(shares),
        "staged_to_ready_beside_training_s": statistics.median(stored),
    }


def measure_asked(rig: Rig) -> dict[str, float]:
    """Twenty saves of 1 % of the rows, asked for while one cut is stored: what became of each."""
    rng, first = np.random.default_rng(3), rig.stage()
    rig.order(first)
    staged: list[int] = []
    named: list[int] = []
    refused, during = 0, 0
    for _ in range(ASKED):
        rig.cut += 1
        try:
            done = rig.store.save(rig.state, rig.cut, touched=touch(rig.state, rng))
        except SlotsBusy:
            refused += 1
            continue
        staged.append(rig.cut)
        during += not rig.pipe.poll()
        if done.overwritten_cut is not None:
            named.append(done.overwritten_cut)
    rig.pipe.recv()
    rig.cut = staged[-1]
    rig.persist()
    superseded = [
        cut for cut in staged[:-1] if cut in named or cut == staged[-2]
    ]  # the last but one is still there
    return {
        "asked": ASKED,
        "asked_while_storing": during,
        "superseded_by_name": len(superseded),
        "refused_by_name": refused,
        "became_ready": 1,
        "skipped_without_a_word": ASKED - len(superseded) - refused - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gib", type=float, default=1.0, help="size of the state (needs four times this in memory)"
    )
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--storage", type=Path, help="a directory on the disk to measure [the temporary one]")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    storage = Path(tempfile.mkdtemp(prefix="rover-bench-", dir=arguments.storage))
    rig = Rig(arguments.gib, arguments.width, storage)
    try:
        found: dict[str, float] = measure_disk(rig, arguments.rounds)
        found |= measure_asked(rig)
        found |= measure_training(rig, arguments.rounds)
    finally:
        rig.close()
        shutil.rmtree(storage, ignore_errors=True)
    show(found)
    if arguments.json:
        print(json.dumps({"gib": arguments.gib, "width": arguments.width, **found}))


if __name__ == "__main__":
    main()
