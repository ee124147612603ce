"""World W1 for tests: loaded from the bench by path, so that there is one truth and not two."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

Table = Callable[[int, int], tuple[NDArray[np.float64], NDArray[np.float64]]]


def _queueing() -> ModuleType:
    path = Path(__file__).parents[3] / "bench" / "queueing.py"
    spec = importlib.util.spec_from_file_location("bench_queueing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def w1() -> Table:
    """The measured table of one W1 job: (seed, rows) -> configurations (rows, 4), samples a second (rows,)."""
    table: Table = _queueing().measured_table
    return table
