"""The release that was: its wheel, unpacked once."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

WHEELS = sorted(Path(__file__).parent.glob("*/rover_bus-*.whl"))


@pytest.fixture(scope="session")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the first release whose logs, wire and files are read for ever."""
    if not WHEELS:
        pytest.skip("no release is here yet whose logs must be read for ever")
    unpacked = tmp_path_factory.mktemp("former")
    with zipfile.ZipFile(WHEELS[0]) as wheel:
        wheel.extractall(unpacked)
    return unpacked
