"""A real writer, killed by SIGKILL at random moments, and its readers: what it had announced is there, whole.

What is staged survives at once; the next process goes on from it once it has digests, and from the cut before until then (P12).
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from rover_bus.flash.errors import NoCheckpoint, PartHeld, SlotsBusy
from rover_bus.flash.staged import newest_staged
from rover_bus.flash.store import FlashStore
from rover_bus.flash.sweep import sweep
from rover_bus.flash.verified import newest_verified

pytestmark = pytest.mark.chaos

# Every array of cut c is filled with c, but for the row c of the table: a mixture of two cuts cannot go unseen.
WRITER = """
import sys
from pathlib import Path
import numpy as np
from rover_bus.flash.errors import NoCheckpoint
from rover_bus.flash.store import FlashStore

store = FlashStore("job", root=Path(sys.argv[1]), slots=int(sys.argv[2]))
try:
    restored = store.restore()
    cut, state = restored.cut, restored.arrays
except NoCheckpoint:
    cut, state = 0, {"table": np.zeros((200_000, 16)), "step": np.zeros(100_000)}
store.prepare(state)
while True:
    cut += 1
    state["step"][:] = cut
    state["table"][cut] = cut
    store.save(state, cut, touched={"table": [cut]} if cut % 5 else None)
    print(cut, flush=True)
"""


@pytest.fixture
def root():
    directory = Path(tempfile.mkdtemp(prefix="rover-test-", dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def assert_whole(found):
    assert (found.arrays["step"] == found.cut).all()
    rows = np.arange(200_000) * (np.arange(200_000) <= found.cut)
    assert (found.arrays["table"] == rows[:, None]).all()


def source_in(root):
    """The cut that the next process goes on from, checked; 0 where there is none."""
    try:
        found = newest_verified(root / "job", "state").staged
    except NoCheckpoint:
        return 0
    assert_whole(found)
    return found.cut


@pytest.mark.parametrize("slots", [2, 3])
def test_a_killed_writer_loses_nothing_that_it_had_announced_and_goes_on_from_what_has_digests(root, slots):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng, announced = random.Random(seed), 0
    for _ in range(12):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root), str(slots)], stdout=subprocess.PIPE, text=True
        )
        try:
            first = int(writer.stdout.readline())
            assert first == announced + 1
            time.sleep(rng.random() * 0.3)
            with pytest.raises(PartHeld):
                FlashStore("job", root=root)
        finally:
            writer.send_signal(signal.SIGKILL)
            said = writer.communicate()[0].split()
        announced = max([first, *map(int, said)])
        found = newest_staged(root / "job", "state")
        assert announced <= found.cut <= announced + 1
        assert_whole(found)
        newest = found.cut
        del found
        announced = source_in(root)
        assert newest - 1 <= announced <= newest
    assert sweep(root, keep=()) == ["job"]
    assert not root.exists(), "nothing is left behind, the empty root included"


def test_a_reader_that_is_killed_gives_up_its_slot(root):
    reading = """
import sys, time
from pathlib import Path
from rover_bus.flash.staged import newest_staged
held = newest_staged(Path(sys.argv[1]) / "job", "state")
print("held", flush=True)
time.sleep(600)
"""
    with FlashStore("job", root=root, background=False) as store:
        state = {"a": np.ones(1000)}
        store.prepare(state)
        store.save(state, 1)
        reader = subprocess.Popen(
            [sys.executable, "-c", reading, str(root)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert reader.stdout.readline() == "held\n"
            store.save(state, 2)
            with pytest.raises(SlotsBusy, match="a reader holds cut 1"):
                store.save(state, 3)
        finally:
            reader.kill()
            reader.communicate()
        store.save(state, 3)
        store.restore(cut=2)
        with pytest.raises(NoCheckpoint):
            store.restore(cut=1)
