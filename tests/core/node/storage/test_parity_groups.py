"""Parity groups of staged parts, over real sockets: chosen alike everywhere, kept up by differences; what is lost comes back."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rover_bus.events.errors import NotEnoughMemory, RoverError
from rover_bus.flash import parity_slots
from rover_bus.flash.errors import NoCheckpoint, SlotsBusy
from rover_bus.flash.lineage import digest_staged
from rover_bus.flash.staged import find_staged, newest_staged
from rover_bus.flash.store import FlashStore
from rover_bus.node.storage.holders import choose_groups
from rover_bus.node.storage.parities import HeldBlock, Parities
from rover_bus.node.storage.peers import PartServer, PeerSource
from rover_bus.node.storage.rebuilding import rebuild_part
from rover_bus.node.storage.state import PartOfCut, StorageTask

SECRET = b"s" * 32
UID = "u1"


# -- who is in which group ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("parities", [1, 2])
@pytest.mark.parametrize("parts", [1, 3, 7, 20])
def test_no_host_s_loss_takes_two_of_a_group_and_its_parity(hosts, parities, parts):
    names = [f"h{number}" for number in range(hosts)]
    owners = {f"ps-{number}": names[number % hosts] for number in range(parts)}
    groups = choose_groups(owners, {name: name for name in names}, parities)
    assert sorted(part for group in groups for part in group.parts) == sorted(owners)
    for group in groups:
        places = [owners[part] for part in group.parts] + list(group.holders)
        assert len(set(places)) == len(places)
        assert len(group.holders) == min(parities, hosts - len(group.parts))


def test_hosts_of_one_domain_count_as_one():
    domains = {"a": "r1", "b": "r1", "c": "r2", "d": "r3"}
    for group in choose_groups({"ps-0": "a", "ps-1": "b", "ps-2": "c"}, domains, 1):
        taken = [domains[host] for host in group.holders]
        assert len(taken) == 1
        owners = {"ps-0": "a", "ps-1": "b", "ps-2": "c"}
        assert not {domains[owners[part]] for part in group.parts} & set(taken)


def test_alone_there_is_nobody_to_hold_parity_and_without_parity_there_are_no_groups():
    assert choose_groups({"ps-0": "a"}, {"a": "a"}, 1)[0].holders == ()
    assert choose_groups({"ps-0": "a"}, {"a": "a", "b": "b"}, 0) == []


# -- parts, parity, what comes back ------------------------------------------------------------------------------------


class Owner:
    """A host with one server's part and a daemon that serves it."""

    def __init__(self, root, number):
        self.root, self.part = root / f"host-{number}", f"ps-{number}"
        self.store = FlashStore(UID, self.part, root=self.root, threads=1, background=False, model="m")
        dice = np.random.default_rng(number)
        self.state = {
            "emb": dice.random((2000 + 100 * number, 8), np.float32),
            "step": np.array(0),
            "none": np.zeros((0, 4)),
        }
        self.store.prepare(self.state)
        self.parities = Parities()
        self.server = PartServer(self.root, SECRET, parities=self.parities)

    def stage(self, cut, ids=None):
        self.state["emb"][slice(None) if ids is None else ids] += np.float32(cut)
        self.state["step"] = np.array(cut)
        touched = None if ids is None else {"emb": np.array(ids), "none": np.array([], np.int64)}
        self.save(cut, touched)
        digest_staged(newest_staged(self.root / UID, self.part, model="m"))

    def save(self, cut, touched):
        """Save, as soon as the threads that lent the cuts before have let go of them."""
        end_s = time.monotonic() + 30.0
        while True:
            try:
                self.store.save(self.state, cut, touched=touched, extra=b"applied %d" % cut)
                self.store.write_links()
                return
            except SlotsBusy:
                assert time.monotonic() < end_s
                time.sleep(0.005)

    def close(self):
        self.server.close()
        self.store.close()


class Counting(PeerSource):
    received = 0

    def read_into(self, target):
        super().read_into(target)
        Counting.received += len(target)


class Cluster:
    """Three owners, and `holders` further hosts with one parity block each."""

    def __init__(self, root, holders=1):
        self.root = root
        self.owners = [Owner(root, number) for number in range(3)]
        self.names = [owner.part for owner in self.owners]
        self.roots = [root / f"holder-{number}" for number in range(holders)]
        self.blocks = [Parities(each) for each in self.roots]
        self.lenders = [PartServer(root / "none", SECRET, parities=block) for block in self.blocks]

    def restart_holders(self):
        """Their daemons end, and others begin; return how many blocks those find."""
        for each in (*self.lenders, *self.blocks):
            each.close()
        self.blocks = [Parities(each) for each in self.roots]
        self.lenders = [PartServer(self.root / "none", SECRET, parities=block) for block in self.blocks]
        return [block.find(UID) for block in self.blocks]

    def slots(self):
        """The files of the first holder's block, the newest version first."""
        found = find_staged(self.roots[0] / f"{UID}-parity", "ps-0")
        return [item.path for item in found]

    def keep_up(self, cut):
        Counting.received = 0
        opened = []

        def connect(part, differences):
            owner = self.owners[self.names.index(part)]
            source = Counting(
                owner.server.address, SECRET, PartOfCut(UID, part, (0, cut)), differences=differences
            )
            opened.append(source)
            return source

        try:
            for parity, block in enumerate(self.blocks):
                block.keep_up(UID, self.names, parity, (0, cut), connect)
        finally:
            for source in opened:
                source.close()
        return Counting.received

    def rebuild(self, lost, cut, gone=()):
        """Rebuild a part while the hosts of `gone` do not answer."""
        alive = [owner for owner in self.owners if owner.part not in (lost, *gone)]
        addresses = {owner.part: [owner.server.address] for owner in alive}
        addresses[lost] = [lender.address for lender in self.lenders]
        shutil.rmtree(self.root / "fresh", ignore_errors=True)
        task = StorageTask("ads", UID, "fetch", cut, 0, lost)
        rebuild_part(self.root / "fresh", SECRET, Parities(), task, addresses)
        return newest_staged(self.root / "fresh" / f"{UID}-copies", lost, model="m")

    def assert_rebuilt(self, lost, cut, gone=()):
        staged = self.rebuild(lost, cut, gone)
        owner = self.owners[self.names.index(lost)]
        assert (staged.cut, staged.extra) == (cut, b"applied %d" % cut)
        for name, array in owner.state.items():
            np.testing.assert_array_equal(staged.arrays[name], array)

    def close(self):
        for each in (*self.owners, *self.lenders, *self.blocks):
            each.close()


@pytest.fixture
def cluster(request):
    root = Path(tempfile.mkdtemp(prefix="rover-test-", dir="/dev/shm"))
    made = Cluster(root, getattr(request, "param", 1))
    yield made
    made.close()
    shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("lost", ["ps-0", "ps-1", "ps-2"])
def test_a_lost_part_is_rebuilt_from_the_others_to_the_byte(cluster, lost):
    for owner in cluster.owners:
        owner.stage(1)
    cluster.keep_up(1)
    cluster.assert_rebuilt(lost, 1)


def test_parity_is_kept_up_by_the_rows_touched_since(cluster):
    sizes = []
    for cut in range(1, 6):
        for number, owner in enumerate(cluster.owners):
            owner.stage(cut, None if cut == 1 else [cut + number, 1500 - cut])
        sizes.append(cluster.keep_up(cut))
        cluster.assert_rebuilt(f"ps-{cut % 3}", cut)
    assert max(sizes[1:]) < sizes[0] / 50


def test_a_part_that_grew_or_a_missed_cut_costs_whole_images_and_nothing_else(cluster):
    for cut in (1, 2, 3, 4):
        for owner in cluster.owners:
            if cut == 2:
                owner.state["emb"] = np.concatenate([owner.state["emb"], np.ones((500, 8), np.float32)])
            owner.stage(cut, None if cut == 2 else [cut])
        if cut != 3:
            cluster.keep_up(cut)
            cluster.assert_rebuilt("ps-1", cut)


def test_the_version_before_rebuilds_while_the_next_one_is_not_complete(cluster):
    for owner in cluster.owners:
        owner.stage(1)
    cluster.keep_up(1)
    before = {name: array.copy() for name, array in cluster.owners[2].state.items()}
    for owner in cluster.owners[:2]:
        owner.stage(2, [3])
    with pytest.raises(RoverError):
        cluster.keep_up(2)  # ps-2 has not staged it
    staged = cluster.rebuild("ps-2", 1)
    np.testing.assert_array_equal(staged.arrays["emb"], before["emb"])
    cluster.owners[2].stage(2, [4])
    cluster.keep_up(2)
    cluster.assert_rebuilt("ps-2", 2)


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_two_blocks_make_up_for_two_lost_parts(cluster):
    for cut in (1, 2):
        for owner in cluster.owners:
            owner.stage(cut, None if cut == 1 else [7])
        cluster.keep_up(cut)
    cluster.assert_rebuilt("ps-0", 2, gone=("ps-2",))
    cluster.assert_rebuilt("ps-2", 2, gone=("ps-0",))


def test_more_lost_parts_than_parity_is_said_in_words(cluster):
    for owner in cluster.owners:
        owner.stage(1)
    cluster.keep_up(1)
    with pytest.raises(NoCheckpoint, match="restore from storage"):
        cluster.rebuild("ps-0", 1, gone=("ps-1",))
    with pytest.raises(NoCheckpoint, match="nor parity of it"):
        cluster.rebuild("ps-0", 9)


# -- a holder that starts anew -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_a_holder_that_starts_anew_rebuilds_and_goes_on_by_differences(cluster):
    received = []
    for cut in (1, 2, 3):
        for owner in cluster.owners:
            owner.stage(cut, None if cut == 1 else [cut, 1500 - cut])
        received.append(cluster.keep_up(cut))
        assert cluster.restart_holders() == [1, 1]
        cluster.assert_rebuilt("ps-0", cut, gone=("ps-2",))
        assert cluster.keep_up(cut) == 0, "what is there is not fetched again"
    assert max(received[1:]) < received[0] / 50


def test_a_holder_that_died_while_it_built_has_the_version_before(cluster):
    for owner in cluster.owners:
        owner.stage(1)
    cluster.keep_up(1)
    before = cluster.owners[2].state["emb"].copy()
    for owner in cluster.owners[:2]:
        owner.stage(2, [3])
    with pytest.raises(RoverError):
        cluster.keep_up(2)
    assert cluster.restart_holders() == [1]
    np.testing.assert_array_equal(cluster.rebuild("ps-2", 1).arrays["emb"], before)
    cluster.owners[2].stage(2, [4])
    cluster.keep_up(2)
    cluster.assert_rebuilt("ps-2", 2)
    assert len(cluster.slots()) == 1, "the version before is void before it changes"


def test_a_flipped_bit_in_a_parity_block_is_found_and_the_block_made_anew(cluster):
    for owner in cluster.owners:
        owner.stage(1)
    cluster.keep_up(1)
    (path,) = cluster.slots()
    with open(path, "r+b") as file:
        file.seek(-8192, 2)
        byte = file.read(1)[0]
        file.seek(-8192, 2)
        file.write(bytes([byte ^ 1]))
    assert cluster.restart_holders() == [0]
    cluster.keep_up(1)
    cluster.assert_rebuilt("ps-1", 1)


@pytest.mark.parametrize(
    "description",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(["another", "release"]),
        msgspec.msgpack.encode({"parts": ["ps-0"], "parity": 0, "generation": 0, "offers": {}}),
        msgspec.msgpack.encode({"parts": "ps-0", "parity": -1, "generation": 0, "offers": 7}),
    ],
)
def test_a_block_whose_description_cannot_be_read_is_passed_over_and_made_anew(
    cluster, monkeypatch, description
):
    for owner in cluster.owners:
        owner.stage(1)
    with monkeypatch.context() as patch:
        patch.setattr(HeldBlock, "_describe", lambda held: description)
        cluster.keep_up(1)
    assert cluster.restart_holders() == [0]
    with pytest.raises(NoCheckpoint, match="nor parity of it"):
        cluster.rebuild("ps-1", 1)
    cluster.keep_up(1)
    cluster.assert_rebuilt("ps-1", 1)
    assert cluster.restart_holders() == [1]
    cluster.assert_rebuilt("ps-2", 1)
    assert len(cluster.slots()) == 1, "nothing is left of the one that nobody could read"


def test_parity_of_a_job_that_is_over_leaves_no_file(cluster):
    for owner in cluster.owners:
        owner.stage(1)
    cluster.keep_up(1)
    cluster.blocks[0].forget(UID)
    assert cluster.slots() == []
    assert cluster.restart_holders() == [0]


def test_without_room_in_shared_memory_parity_is_kept_in_the_process(cluster, monkeypatch):
    def refuse(*_):
        raise NotEnoughMemory("no room: enlarge it")

    monkeypatch.setattr(parity_slots.Slot, "create", refuse)
    for cut in (1, 2):
        for owner in cluster.owners:
            owner.stage(cut, None if cut == 1 else [cut])
        cluster.keep_up(cut)
    monkeypatch.undo()
    cluster.assert_rebuilt("ps-1", 2)
    assert cluster.slots() == []
