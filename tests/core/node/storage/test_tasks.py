"""What the persister's threads do, on real files. Staged parts become checkpoints, deltas where they can, and wrongs are named."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rover_bus.events import checkpoint_facts as cuts
from rover_bus.events.checkpoints import ManifestContent, StoredPart
from rover_bus.events.job import CheckpointSpec
from rover_bus.flash.copies import open_exactly
from rover_bus.flash.errors import BrokenCheckpoint, NoCheckpoint, NotDigested, SlotsBusy, StorageFailed
from rover_bus.flash.persist import list_manifests, restore
from rover_bus.flash.storage import find_run
from rover_bus.flash.store import FlashStore
from rover_bus.node.storage.state import JobCheckpoints, StorageTask
from rover_bus.node.storage.tasks import TaskCalledOff, Tasks
from rover_bus.ps.snapshots import Description, Family
from rover_bus.ps.spec import Adagrad, Hashed

ROWS = Hashed(name="ads", rows=4000, width=16, optimizer=Adagrad())
EXTRA = msgspec.msgpack.encode(
    Description(
        seed=0,
        version=1,
        owned=[0],
        tables=[(ROWS, 0)],
        families=[Family(number=0, columns=2, layout={"ads": [0, 4000]})],
        groups=[],
    )
)


class Host:
    """One host's memory and storage, a server's store, and the tasks of a daemon."""

    def __init__(self, root: Path, storage: Path, **spec):
        self.root, self.storage = root, storage
        self.store = FlashStore("u1", "ps-0", root=root, threads=1, background=False)
        self.state = {"emb": np.zeros((4000, 4), np.float32), "bias": np.zeros(7)}
        self.store.prepare(self.state)
        self.spec = CheckpointSpec(**spec)
        self.tasks = Tasks("h", "d1", root, storage)
        self.called_off = threading.Event()

    def stage(self, cut, ids=None):
        """Add 1 to some rows (all, if None) and stage the state."""
        self.state["emb"][slice(None) if ids is None else ids] += 1
        self.state["bias"] += 1
        self.store.save(self.state, cut, touched=None if ids is None else {"emb": np.array(ids)})
        self.store.write_links()

    def do(self, step, cut, **order):
        task = StorageTask("ads", "u1", step, cut, 0, "ps-0" if step in ("pin", "digest", "persist") else "")
        about = JobCheckpoints("u1", self.spec, **order)
        facts = self.tasks.carry_out(task, about, self.called_off, {})
        return facts[0] if facts else None

    def persist(self, cut):
        self.do("digest", cut)
        return self.do("persist", cut)

    def publish(self, cut, persisted):
        parts = [StoredPart(part="ps-0", index=0, slots=[(0, 4096)], files=persisted.files)]
        content = ManifestContent(
            uid="u1", timeline=0, generation=0, cut=cut, ledger=b"L", parts=parts, about={"seed": "7"}
        )
        order = cuts.CheckpointManifestOrdered(
            job="ads", uid="u1", cut=cut, generation=0, term=1, host="h", path="", manifest=content
        )
        return self.do("manifest", cut, manifest=order)

    @property
    def files(self):
        return find_run(self.storage, "ads").files


@pytest.fixture
def host(tmp_path):
    root, hosts = Path(tempfile.mkdtemp(prefix="rover-test-", dir="/dev/shm")), []

    def make(**spec):
        hosts.append(Host(root, tmp_path / "storage", **spec))
        return hosts[-1]

    yield make
    for each in hosts:
        each.store.close()
    shutil.rmtree(root, ignore_errors=True)


def test_a_staged_part_becomes_a_checkpoint_that_says_its_slots_and_its_ledger(host):
    here = host()
    here.stage(1)
    persisted = here.persist(1)
    assert (persisted.part, persisted.cut, len(persisted.files), persisted.daemon) == ("ps-0", 1, 1, "d1")
    written = here.publish(1, persisted)
    manifest, parts, refused = restore(here.files)
    assert (manifest.cut, manifest.ledger, manifest.about, refused) == (1, b"L", {"seed": "7"}, [])
    assert msgspec.msgpack.decode(manifest.parts[0].owner, type=list[tuple[int, int]]) == [(0, 4096)]
    np.testing.assert_array_equal(parts["ps-0"].arrays["emb"], here.state["emb"])
    assert written.path == str(here.storage / "ads.u1")
    assert written.size_bytes == persisted.files[0].size_bytes


def test_the_next_cut_is_a_delta_and_skipped_cuts_are_folded_into_it(host):
    here = host()
    here.stage(1)
    here.persist(1)
    here.stage(2, [1, 2])
    here.stage(3, [2, 3999])
    persisted = here.persist(3)
    assert [bool(file.base) for file in persisted.files] == [False, True]
    assert persisted.files[1].size_bytes < persisted.files[0].size_bytes / 4
    here.publish(3, persisted)
    _, parts, _ = restore(here.files)
    np.testing.assert_array_equal(parts["ps-0"].arrays["emb"], here.state["emb"])
    np.testing.assert_array_equal(parts["ps-0"].arrays["bias"], here.state["bias"])


def test_rows_that_grew_travel_in_a_delta_only_if_all_of_them_were_touched(host):
    here = host()
    here.stage(1)
    here.persist(1)
    for cut, touched in ((2, [5, 4000, 4001]), (3, [5, 4003])):  # at cut 3 row 4002 is new and not named
        grown = np.full((2, 4), cut, np.float32)
        here.state["emb"] = np.concatenate([here.state["emb"], grown])
        here.store.save(here.state, cut, touched={"emb": np.array(touched)})
        here.store.write_links()
        here.publish(cut, here.persist(cut))
        np.testing.assert_array_equal(restore(here.files)[1]["ps-0"].arrays["emb"], here.state["emb"])


def test_a_daemon_that_starts_anew_uses_what_its_former_life_finished_and_writes_no_delta(host):
    here = host()
    here.stage(1)
    first = here.persist(1)
    here.tasks = Tasks("h", "d2", here.root, here.storage)
    assert here.persist(1).files == first.files
    here.tasks = Tasks("h", "d3", here.root, here.storage)
    here.stage(2, [1])
    assert len(here.persist(2).files) == 1


def test_nothing_is_stored_without_digests_or_when_memory_has_changed_since(host):
    here = host()
    here.stage(1)
    with pytest.raises(NotDigested, match="no digests yet"):
        here.do("persist", 1)
    here.do("digest", 1)
    staged = open_exactly(here.root / "u1", "ps-0", 0, 1)
    raw = bytearray(staged.path.read_bytes())
    raw[staged.seal.data_offset_bytes + 100] ^= 1
    staged.path.write_bytes(raw)
    with pytest.raises(BrokenCheckpoint, match="changed in memory after they were digested"):
        here.do("persist", 1)
    assert not list(here.storage.rglob("*.part"))


def test_a_cut_that_is_not_in_memory_any_more_is_said_so(host):
    with pytest.raises(NoCheckpoint, match="not in the shared memory of this host any more"):
        host().do("digest", 4)


def test_no_manifest_names_a_file_that_is_gone_or_another(host):
    here = host()
    here.stage(1)
    persisted = here.persist(1)
    (path,) = here.storage.rglob("*.part")
    path.rename(path.with_suffix(".away"))
    with pytest.raises(NoCheckpoint, match=r"to one directory that every host sees"):
        here.publish(1, persisted)
    path.with_suffix(".away").rename(path)
    other = msgspec.structs.replace(
        persisted, files=[msgspec.structs.replace(persisted.files[0], digest="0" * 32)]
    )
    with pytest.raises(BrokenCheckpoint, match="nothing was published"):
        here.publish(1, other)
    assert not list(here.storage.rglob("*.manifest"))


def test_retention_compaction_and_deltas_live_together_for_a_long_time(host):
    here = host(keep=2, keep_every=10)
    rng = np.random.default_rng(11)
    here.stage(1)
    for cut in range(2, 32):
        here.stage(cut, rng.integers(0, 4000, 40))
        here.publish(cut, here.persist(cut))
        here.do("prune", cut)
        manifest, parts, refused = restore(here.files)
        assert (manifest.cut, refused) == (cut, [])
        np.testing.assert_array_equal(parts["ps-0"].arrays["emb"], here.state["emb"])
        assert len(manifest.parts[0].files) <= 8
    kept = [manifest.cut for manifest in list_manifests(here.files)[0]]
    assert kept == [31, 30, 20, 10]


def test_what_is_ordered_waits_for_the_disk_however_many_cuts_come(host):
    here = host()
    here.stage(1)
    expected = here.state["emb"].copy()
    here.do("pin", 1)
    here.stage(2)
    with pytest.raises(SlotsBusy, match="a reader holds cut 1"):
        here.stage(3)
    here.publish(1, here.persist(1))
    np.testing.assert_array_equal(restore(here.files)[1]["ps-0"].arrays["emb"], expected)
    here.stage(3)


def test_a_task_that_is_called_off_ends_at_the_next_chunk(host):
    here = host()
    here.stage(1)
    here.do("digest", 1)
    here.called_off.set()
    with pytest.raises(TaskCalledOff):
        here.do("persist", 1)


def test_a_task_that_failed_keeps_no_slot_however_long_its_exception_lives(host):
    """The frames in a traceback hold what was read; whoever keeps the exception must not keep the server's slots."""
    here = host()
    here.stage(1)
    for step in ("pin", "digest"):
        here.do(step, 1)
    here.called_off.set()
    with pytest.raises(TaskCalledOff) as kept:
        here.do("persist", 1)
    here.tasks.unpin("u1", cut=(0, 1))
    for cut in (2, 3, 4):
        here.stage(cut)
    assert kept.traceback, "the exception is still there"


def test_a_storage_that_vanished_is_not_written_beside(host):
    here = host()
    here.stage(1)
    here.persist(1)
    here.storage.rename(here.storage.with_name("elsewhere"))
    here.stage(2)
    here.do("digest", 2)
    with pytest.raises(StorageFailed, match="is it still mounted"):
        here.do("persist", 2)
    assert not here.storage.exists()
    here.storage.with_name("elsewhere").rename(here.storage)
    assert here.persist(2).files


def test_a_job_that_is_over_leaves_no_memory_behind(host):
    here = host()
    here.stage(1)
    with pytest.raises(StorageFailed, match="still held"):
        here.do("sweep", 0)
    here.store.close()
    here.do("sweep", 0)
    assert not (here.root / "u1").exists()


def test_eight_bits_are_for_rows_and_optimizer_state_stays_exact(host):
    here, rng = host(codec="int8"), np.random.default_rng(7)
    values, sums = (rng.random((4000, 16)).astype(np.float32) for _ in range(2))
    here.state = {"0.0": values, "0.1": sums * 1e-9}
    here.store.save(here.state, 1, extra=EXTRA)
    here.publish(1, here.persist(1))
    _, parts, _ = restore(here.files, job_uid="u1")
    arrays = parts["ps-0"].arrays
    assert parts["ps-0"].codecs == {"0.0": "int8", "0.1": "raw"}
    np.testing.assert_array_equal(arrays["0.1"], here.state["0.1"])
    assert 0 < np.abs(arrays["0.0"] - values).max() <= 0.5 / 255 + 1e-6
