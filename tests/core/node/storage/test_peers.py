"""Copies of parts from daemon to daemon, over a real socket: equal to the byte, by deltas, never half, guarded by the secret."""

from __future__ import annotations

import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from patience import until

from rover_bus.events.errors import AccessDenied
from rover_bus.flash import copies
from rover_bus.flash.errors import BrokenCheckpoint, NoCheckpoint, SlotsBusy, StorageFailed
from rover_bus.flash.lineage import digest_staged
from rover_bus.flash.staged import find_staged, newest_staged
from rover_bus.flash.store import FlashStore
from rover_bus.node.storage.peers import PartServer, PeerSource
from rover_bus.node.storage.state import PartOfCut
from rover_bus.ps.stream import parse_address

SECRET = b"s" * 32


class Counting(PeerSource):
    """A source that knows how many bytes came."""

    received = 0

    def read_into(self, target):
        super().read_into(target)
        self.received += len(target)


class Pair:
    """An owner with a server's store and a daemon that serves it, and a holder."""

    def __init__(self, root, bind):
        self.own, self.held = root / "own", root / "held"
        self.store = FlashStore("u1", "ps-0", root=self.own, threads=1, background=False, model="m")
        self.state = {"emb": np.zeros((3000, 8), np.float32), "step": np.array(0), "none": np.zeros((0, 4))}
        self.store.prepare(self.state)
        self.server = PartServer(self.own, SECRET, bind)

    def stage(self, cut, ids=None, digesting=True):
        self.state["emb"][slice(None) if ids is None else ids] += cut
        self.state["step"] = np.array(cut)
        touched = None if ids is None else {"emb": np.array(ids), "none": np.array([], np.int64)}
        until(lambda: self._saved(cut, touched), "the thread that served a copy lets go of its slot")
        self.store.write_links()
        if digesting:
            digest_staged(newest_staged(self.own / "u1", "ps-0", model="m"))

    def _saved(self, cut, touched):
        try:
            self.store.save(self.state, cut, touched=touched, extra=b"applied %d" % cut)
        except SlotsBusy:
            return False
        return True

    def copy(self, cut, source=Counting, secret=SECRET):
        peer = source(self.server.address, secret, PartOfCut("u1", "ps-0", (0, cut)))
        try:
            copies.hold_copy(self.held, "u1", "ps-0", peer)
        finally:
            peer.close()
        return peer

    def assert_held(self, cut):
        staged = newest_staged(self.held / "u1-copies", "ps-0", model="m")
        assert (staged.cut, staged.extra) == (cut, b"applied %d" % cut)
        for name, array in self.state.items():
            np.testing.assert_array_equal(staged.arrays[name], array)


@pytest.fixture(params=["127.0.0.1", "127.0.0.2"], ids=["loopback", "encrypted"])
def pair(request):
    root = Path(tempfile.mkdtemp(prefix="rover-test-", dir="/dev/shm"))
    made = Pair(root, request.param)
    yield made
    made.server.close()
    made.store.close()
    shutil.rmtree(root, ignore_errors=True)


def test_a_copy_is_equal_to_the_byte_and_brings_the_owner_s_own_bytes(pair):
    pair.stage(1)
    pair.copy(1)
    pair.assert_held(1)


def test_the_next_cuts_travel_as_the_rows_touched_since_the_holder_s_own(pair):
    sizes = []
    for cut in range(1, 7):
        pair.stage(cut, None if cut == 1 else [cut, 2999 - cut])
        sizes.append(pair.copy(cut).received)
        pair.assert_held(cut)
    whole = pair.state["emb"].nbytes
    assert sizes[1] > whole  # the second slot of the holder is empty
    assert max(sizes[2:]) < whole / 20
    assert len(find_staged(pair.held / "u1-copies", "ps-0")) == 2


def test_a_part_that_outgrew_its_copy_is_made_anew(pair):
    pair.stage(1)
    pair.copy(1)
    pair.copy(1)
    pair.state["emb"] = np.concatenate([pair.state["emb"], np.ones((500, 8), np.float32)])
    pair.stage(2)
    with pytest.raises(Exception, match="made again"):
        pair.copy(2)
    pair.copy(2)
    pair.assert_held(2)


def test_nothing_is_lent_before_its_digests_exist_and_nothing_that_is_not_there(pair):
    pair.stage(1, digesting=False)
    with pytest.raises(NoCheckpoint, match="no digests yet"):
        pair.copy(1)
    with pytest.raises(NoCheckpoint, match="cut 9 of ps-0 is not in the shared memory"):
        pair.copy(9)


def test_a_flipped_bit_on_the_way_is_found_and_the_cut_before_stays(pair):
    class Flipping(PeerSource):
        def read_into(self, target):
            super().read_into(target)
            if len(target) > 1000:
                target[500] ^= 1

    pair.stage(1)
    pair.copy(1)
    pair.stage(2)
    with pytest.raises(BrokenCheckpoint, match="of emb are not what was written"):
        pair.copy(2, Flipping)
    assert [found.seal.cut for found in find_staged(pair.held / "u1-copies", "ps-0")] == [1]
    pair.copy(2)
    pair.assert_held(2)


def test_a_copy_whose_head_was_damaged_is_made_anew(pair):
    for cut in (1, 2):
        pair.stage(cut)
        pair.copy(cut)
    older = find_staged(pair.held / "u1-copies", "ps-0")[1].path
    raw = bytearray(older.read_bytes())
    raw[4100] ^= 1
    older.write_bytes(raw)
    pair.stage(3)
    pair.copy(3)
    pair.assert_held(3)


def test_an_owner_that_dies_while_it_sends_leaves_the_cut_before(pair):
    class Dying(PeerSource):
        def read_into(self, target):
            super().read_into(target[:10])
            self._socket.close()
            self._socket, other = socket.socketpair()
            other.close()
            super().read_into(target[10:])

    pair.stage(1)
    pair.copy(1)
    pair.stage(2)
    with pytest.raises(StorageFailed, match="closed the connection"):
        pair.copy(2, Dying)
    assert [found.seal.cut for found in find_staged(pair.held / "u1-copies", "ps-0")] == [1]


def test_whoever_does_not_know_the_secret_gets_nothing(pair):
    pair.stage(1)
    with pytest.raises(AccessDenied, match="refused the secret"):
        pair.copy(1, secret=b"x" * 32)
    with socket.create_connection(parse_address(pair.server.address)[1]) as stranger:
        stranger.settimeout(10)
        with suppress(OSError):
            stranger.sendall(b"GET / HTTP/1.1\r\n" * 10)
            assert len(stranger.recv(1 << 16)) <= 40
    with pytest.raises(StorageFailed, match="cannot be reached"):
        PeerSource("tcp:127.0.0.1:1", SECRET, PartOfCut("u1", "ps-0", (0, 1)))


def test_a_holder_lends_its_copy_on(pair):
    pair.stage(1)
    pair.copy(1)
    second = PartServer(pair.held, SECRET)
    try:
        peer = PeerSource(second.address, SECRET, PartOfCut("u1", "ps-0", (0, 1)))
        copies.hold_copy(pair.held.parent / "third", "u1", "ps-0", peer)
        peer.close()
    finally:
        second.close()
    np.testing.assert_array_equal(
        newest_staged(pair.held.parent / "third" / "u1-copies", "ps-0", model="m").arrays["emb"],
        pair.state["emb"],
    )
