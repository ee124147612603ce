"""A bit that flips in shared memory while its part is stored: what is stored is what was digested, or nothing is (P12, P14)."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rover_bus.flash.copies import open_exactly
from rover_bus.flash.errors import BrokenCheckpoint
from rover_bus.flash.files import DirectoryFiles, Sink
from rover_bus.flash.layout import Array
from rover_bus.flash.manifest import PartChain
from rover_bus.flash.part import Codec
from rover_bus.flash.persist import read_chain
from rover_bus.flash.store import FlashStore
from rover_bus.node.storage.checkpoints import Chain, digest_cut, store_part
from rover_bus.node.storage.state import PartOfCut
from rover_bus.ps.snapshots import Description, Family
from rover_bus.ps.spec import Adagrad, Hashed

ROWS = 50_000
TABLE = Hashed(name="ads", rows=ROWS, width=16, optimizer=Adagrad())
EXTRA = msgspec.msgpack.encode(
    Description(
        seed=0,
        version=1,
        owned=[0],
        tables=[(TABLE, 0)],
        families=[Family(number=0, columns=2, layout={"ads": [0, ROWS]})],
        groups=[],
    )
)


class Server:
    """What a server has staged: cut 1, which is stored whole, and cut 2, which touched every eighth row."""

    def __init__(self, root: Path) -> None:
        self._directory = root / "u1"
        self.memory = FlashStore("u1", "ps-0", root=root, threads=1, background=False)
        state = {name: np.ones((ROWS, 16), np.float32) for name in ("0.0", "0.1")}
        self.memory.prepare(state, extra_bytes=len(EXTRA))
        rows = np.arange(ROWS - 2, 0, -8)[::-1]
        for cut, touched in ((1, None), (2, {"0.0": rows, "0.1": rows})):
            for array in state.values():
                array[rows] += 1
            self.memory.save(state, cut, touched=touched, extra=EXTRA)
            self.memory.write_links()
            digest_cut(self._directory, "ps-0", 0, cut)

    def store(self, files: DirectoryFiles, cut: int, codec: Codec, base: Chain | None) -> Chain:
        return store_part(files, self._directory, PartOfCut("u1", "ps-0", (0, cut)), codec=codec, base=base)

    def flip(self, cut: int, name: str) -> None:
        """The lowest bit of the last row that cut 2 touched, in the file itself. Twice is never."""
        with open_exactly(self._directory, "ps-0", 0, cut) as staged, staged.path.open("r+b") as file:
            entry = next(each for each in staged.head.layout.entries if each.name == name)
            place = staged.seal.data_offset_bytes + entry.offset_bytes + (ROWS - 2) * 16 * 4
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))


class Struck(DirectoryFiles):
    """Storage during whose writes something happens once: just before one of them, or just after it."""

    def __init__(self, root: Path, when: int, strike: Callable[[], None]) -> None:
        root.mkdir()
        super().__init__(root)
        self._moments, self._when, self._strike = itertools.count(), when, strike
        self.struck = False

    def create(self, path: str) -> Sink:
        sink, write = super().create(path), None

        def write_struck(data: Array | bytes) -> None:
            self._pass()
            write(data)
            self._pass()

        write, sink.write = sink.write, write_struck
        return sink

    def _pass(self) -> None:
        if next(self._moments) == self._when:
            self._strike()
            self.struck = True


@pytest.fixture
def server():
    root = Path(tempfile.mkdtemp(prefix="rover-test-", dir="/dev/shm"))
    made = Server(root)
    yield made
    made.memory.close()
    shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("name", ["0.0", "0.1"])
@pytest.mark.parametrize("codec", ["raw", "int8"])
@pytest.mark.parametrize("cut", [1, 2], ids=["whole", "delta"])
def test_what_is_stored_is_what_was_digested_whenever_memory_is_damaged(server, tmp_path, cut, codec, name):
    """A bit flips before and after each write, in turn: a file that was begun with the damage is never finished."""
    folders = map(str, itertools.count())

    changed = f"of {name} changed in memory after they were digested"

    def store(when: int) -> tuple[str, bool]:
        folder = tmp_path / next(folders)
        files = Struck(folder, when, lambda: server.flip(cut, name))
        before = DirectoryFiles(folder)
        base = server.store(before, 1, codec, None) if cut == 2 else None
        try:
            chain = server.store(files, cut, codec, base)
            assert len(chain.files) == cut
            read_chain(before, PartChain(name="ps-0", files=chain.files))
            return chain.files[-1].digest, files.struck
        except BrokenCheckpoint as error:
            return "refused" if changed in str(error) else str(error), files.struck
        finally:
            if files.struck:
                server.flip(cut, name)

    undamaged, _ = store(-1)
    outcomes = []
    for when in itertools.count():
        outcome, struck = store(when)
        if not struck:
            break
        outcomes.append(outcome)
    assert outcomes[0] == "refused", (
        "nothing of the array is read before the first write, the head of the file"
    )
    assert outcomes[-1] == undamaged, "all was read and compared before the last write, the footer"
    assert set(outcomes) == {"refused", undamaged}
