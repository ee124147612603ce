"""What bench.checkpoint saves, and the floor that it compares with. Apart, and numpy only, because the peers' interpreter
(checkpoint_peer.py) has nothing of ours installed.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

TABLES, SPAN_BYTES = 26, 8 << 20
MLPS = {"bottom": [(13, 512), (512, 256), (256, 64)], "top": [(415, 512), (512, 256), (256, 1)]}

Array = npt.NDArray[Any]
State = dict[str, Array]


def make_state(gib: float, width: int) -> State:
    """Return 26 tables with Adagrad rows of the same width, and MLPs: float32, every page touched."""
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
