"""A tmpfs directory of the test's own, gone afterwards whatever happened."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from rover_bus.flash.store import FlashStore


@pytest.fixture
def root():
    directory = Path(tempfile.mkdtemp(prefix="rover-test-", dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def make_store(root):
    stores = []

    def make(job="job", part="state", **options):
        store = FlashStore(job, part, root=root, **{"threads": 2, "background": False, **options})
        stores.append(store)
        return store

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def rng():
    print("seed 7")
    return np.random.default_rng(7)
