"""A training loop of your own that goes on where it was killed: the flash store as a plain library.

    python examples/checkpoint.py [--steps 2000] [--storage checkpoints]      (then kill -9 it, and start it again)

Every tenth step is staged in shared memory, the rows that it touched alone; every 200th is written to storage too, on a thread of
its own. A start goes on from shared memory; where that is gone (another host, a reboot), from storage; else from nothing.
"""

from __future__ import annotations

import argparse
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

from rover_bus.flash.alone import load_cut, store_cut
from rover_bus.flash.errors import BrokenCheckpoint, NoCheckpoint, SlotsBusy
from rover_bus.flash.layout import Array
from rover_bus.flash.staged import newest_staged
from rover_bus.flash.store import FlashStore

ROWS, WIDTH = 100_000, 16
STAGE_EVERY, STORE_EVERY = 10, 200


def resume(store: FlashStore, storage: Path) -> tuple[int, dict[str, Array], str]:
    """Return the step to go on from, the state there, and where it was found."""
    try:
        staged = store.restore()
        return staged.cut, staged.arrays, "shared memory"
    except NoCheckpoint:
        pass
    except BrokenCheckpoint as error:  # bits flipped in shared memory: file, array and bytes are named
        print(error, flush=True)
    try:
        cut, part = load_cut(storage)
        return cut, part.arrays, "storage"
    except NoCheckpoint:
        return (
            0,
            {"table": np.zeros((ROWS, WIDTH), np.float32), "bias": np.zeros(WIDTH, np.float32)},
            "nothing",
        )


def train(step: int, state: dict[str, Array]) -> Array:
    """One step on made-up data that the step's number alone decides; return the rows that it touched."""
    rng = np.random.default_rng(step)
    ids = rng.integers(0, ROWS, 512)
    np.add.at(state["table"], ids, rng.integers(0, 2, (512, WIDTH)).astype(np.float32))
    state["bias"] += 1
    return ids


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--job", default="example", help="its name in shared memory")
    parser.add_argument("--storage", type=Path, default=Path("checkpoints"))
    parser.add_argument("--out", type=Path, help="write the final state there (.npz)")
    arguments = parser.parse_args()
    arguments.storage.mkdir(parents=True, exist_ok=True)
    with (
        FlashStore(arguments.job, slots=3) as store,
        ThreadPoolExecutor(1) as writer,
    ):  # the third is for the writer
        begun, state, source = resume(store, arguments.storage)
        print(f"from step {begun}, found in {source}", flush=True)
        store.prepare(state)
        touched: list[Array] = []
        stored: Future[object] | None = None
        for step in range(begun + 1, arguments.steps + 1):
            touched.append(train(step, state))
            if step % STAGE_EVERY == 0:
                with suppress(SlotsBusy):  # the writer still reads: the next one takes these rows along
                    store.save(state, step, touched={"table": np.concatenate(touched)})
                    touched.clear()
            if step % STORE_EVERY == 0 and (stored is None or stored.done()):
                staged = newest_staged(store.directory, store.part)
                stored = writer.submit(store_cut, staged, arguments.storage, job=arguments.job)
                print(f"storing step {staged.cut}", flush=True)
        if stored is not None:
            stored.result()
        if arguments.out:
            np.savez(arguments.out, table=state["table"], bias=state["bias"])


if __name__ == "__main__":
    main()
