"""A pod is resized in place, its volume in memory is not: the store believes the volume, and loses nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rover_bus.events.errors import NotEnoughMemory
from rover_bus.flash.room import free_bytes
from rover_bus.flash.store import FlashStore

SMALL, LARGE = 8 << 20, 64 << 20


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs as a kubelet mounts it: of the size that its pod began with."""
    path = tmp_path / "volume"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL},mode=700", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small tmpfs can only be mounted by root, where anything can be mounted")
    yield path
    subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


def test_what_outgrows_the_volume_is_refused_with_the_way_out_and_the_cut_before_it_stays_whole(
    volume: Path,
) -> None:
    before = {"table": np.arange(1 << 18, dtype=np.float64)}  # 2 MiB, in two slots
    grown = {"table": np.arange(1 << 21, dtype=np.float64)}  # 16 MiB
    assert free_bytes() > LARGE, "the pod itself has room, as after a resize"
    with FlashStore("j", root=volume) as store:
        store.prepare(before)
        store.save(before, cut=1)
        with pytest.raises(
            NotEnoughMemory, match=r"has \d MiB left: .* a resize in place leaves the volume as it is"
        ):
            store.save(grown, cut=2)
        restored = store.restore()
        assert (restored.cut, np.array_equal(restored.arrays["table"], before["table"])) == (1, True)
        subprocess.run(["mount", "-o", f"remount,size={LARGE}", str(volume)], check=True)
        store.prepare(grown)
        store.save(grown, cut=3)
        restored = store.restore()
        assert (restored.cut, np.array_equal(restored.arrays["table"], grown["table"])) == (3, True)
