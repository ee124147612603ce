"""Other people's checkpoints of the same state: what `python -m bench.checkpoint --storage DIR [--peer PYTHON]` runs beside ours.

    PYTHON bench/checkpoint_peer.py GIB WIDTH THREADS ROUNDS MEMORY_DIR STORAGE_DIR

PYTHON has torch, and DLRover where its flash checkpoint is to be measured too (`pip install dlrover==0.6.1 grpcio kubernetes
protobuf==4.25.3 torch==2.13.0`, in an environment of its own); nothing of ours is imported but checkpoint_state.py. Every save is
set against a memcpy of the same state into warm shared memory in the same round. Prints one JSON line.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.checkpoint_state import Memcpy, make_state, seconds

SAVES_MEANWHILE, BETWEEN_S = 20, 0.02
Figures = dict[str, float]


def compare(name: str, saves: list[float], copies: list[float]) -> Figures:
    """Return the first and the median ratio of saves to the memcpy of their round."""
    ratios = [save / copy for save, copy in zip(saves, copies, strict=True)]
    return {f"{name}_first_ratio": ratios[0], f"{name}_ratio": statistics.median(ratios[1:])}


def measure_torch(tensors: Any, copying: Memcpy, rounds: int, memory: Path, storage: Path) -> Figures:
    """How long training waits for torch.save into shared memory, and for torch's DCP async.

    DCP with its default stager, one process; `_total_s` is until its files are written (not synced).
    """
    torch = importlib.import_module("torch")
    dcp = importlib.import_module("torch.distributed.checkpoint")
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    copies, saves, waits, totals = [], [], [], []
    for number in range(rounds + 1):
        copies.append(seconds(copying.run))
        saves.append(seconds(lambda: torch.save(tensors, memory / "torch")))
        began = time.perf_counter()
        written = dcp.async_save(tensors, checkpoint_id=str(storage / f"dcp{number}"))
        waits.append(time.perf_counter() - began)
        written.result()
        totals.append(time.perf_counter() - began)
        shutil.rmtree(storage / f"dcp{number}")
    (memory / "torch").unlink()
    return {
        **compare("torch_save", saves, copies),
        **compare("torch_dcp", waits, copies),
        "torch_dcp_total_s": statistics.median(totals[1:]),
    }


def measure_dlrover(tensors: Any, copying: Memcpy, rounds: int, storage: Path) -> Figures:
    """DLRover's flash checkpoint: saves to memory, saves to disk (blocking, and until its tracker file names the step; not
    synced), and how many of twenty saves asked for while one persists are skipped.
    """
    os.environ.setdefault("DLROVER_LOG_LEVEL", "ERROR")
    ddp = importlib.import_module("dlrover.trainer.torch.flash_checkpoint.ddp")
    logging.disable(logging.WARNING)
    target = storage / "dlrover"
    checkpointer = ddp.DdpCheckpointer(str(target))
    engine = checkpointer._engine  # whether a save was skipped is said here only
    step = iter(range(1, 1_000))

    def save(kind: Any, number: int) -> bool:
        checkpointer.save_checkpoint(number, dict(tensors), storage_type=kind)
        return bool(engine._cached_step == number)

    try:
        copies, saves, waits, totals = [], [], [], []
        for _ in range(rounds + 1):
            copies.append(seconds(copying.run))
            saves.append(seconds(lambda: save(ddp.StorageType.MEMORY, next(step))))
        for _ in range(rounds):
            number, began = next(step), time.perf_counter()
            save(ddp.StorageType.DISK, number)
            waits.append((time.perf_counter() - began) / seconds(copying.run))
            wait_for_step(target, number)
            totals.append(time.perf_counter() - began)
        save(ddp.StorageType.DISK, next(step))
        taken = 0
        for _ in range(SAVES_MEANWHILE):
            time.sleep(
                BETWEEN_S
            )  # one at once would be taken, and the one that is to be stored would be lost
            taken += save(ddp.StorageType.MEMORY, next(step))
    finally:
        engine._shm_handler.unlink()  # it leaves its memory behind otherwise
        engine.saver_proc.terminate()
    return {
        **compare("dlrover", saves, copies),
        "dlrover_disk_ratio": statistics.median(waits),
        "dlrover_disk_total_s": statistics.median(totals),
        "dlrover_saves_skipped": SAVES_MEANWHILE - taken,
    }


def wait_for_step(target: Path, step: int) -> None:
    """Return when DLRover's tracker file names a step."""
    deadline_s = time.monotonic() + 120
    tracker = target / "dlrover_latest.txt"
    while not tracker.exists() or tracker.read_text().strip() != str(step):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"DLRover did not persist step {step} within two minutes")
        time.sleep(0.01)


def main() -> None:
    gib, width, threads, rounds = float(sys.argv[1]), *map(int, sys.argv[2:5])
    memory, storage = Path(sys.argv[5]), Path(sys.argv[6])
    torch = importlib.import_module("torch")
    state = make_state(gib, width)
    tensors = {name: torch.from_numpy(array) for name, array in state.items()}
    copying = Memcpy(state, memory, threads)
    copying.run()
    found = measure_torch(tensors, copying, rounds, memory, storage)
    if importlib.util.find_spec("dlrover") is not None:
        found |= measure_dlrover(tensors, copying, rounds, storage)
    (memory / "memcpy").unlink()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
