"""Part files, manifests, chains: what is written is what is read, and what is damaged is named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from rover_bus.flash import chain, codec, digests
from rover_bus.flash.errors import BrokenCheckpoint, NewerCheckpoint, NoCheckpoint, OtherModel, StorageFailed
from rover_bus.flash.files import DirectoryFiles
from rover_bus.flash.lineage import digest_staged
from rover_bus.flash.manifest import Manifest, PartChain, decode_manifest, encode_manifest, second_path
from rover_bus.flash.part import Content, Identity, PartFile, read_footer, read_part, write_part
from rover_bus.flash.persist import (
    compact,
    drain,
    list_manifests,
    persist_part,
    publish,
    read_chain,
    read_manifests,
    restore,
    verify,
)
from rover_bus.flash.recording import RecordingFiles
from rover_bus.flash.retention import list_damaged, prune
from rover_bus.flash.staged import newest_staged


class Writer:
    """Persists cuts of one part, as a daemon would."""

    def __init__(self, files, codec="raw", model=""):
        self.files, self.codec, self.model, self.chain = files, codec, model, ()

    def whole(self, cut, state, extra=b""):
        contents = [Content(name=name, array=array, codec=self.codec) for name, array in state.items()]
        self.chain = (drain(persist_part(self.files, self.identity(cut), contents, extra)),)
        return self.publish(cut)

    def delta(self, cut, state, ids, extra=b""):
        """`ids` by array; arrays not named are written whole."""
        base = self.chain[-1].digest
        contents = [
            Content(name=name, array=array, ids=ids.get(name), codec=self.codec)
            for name, array in state.items()
        ]
        self.chain += (drain(persist_part(self.files, self.identity(cut, base), contents, extra)),)
        return self.publish(cut)

    def identity(self, cut, base=""):
        return Identity(
            job_uid="job", part="ps-0", timeline=1, generation=0, cut=cut, model=self.model, base=base
        )

    def publish(self, cut):
        parts = (PartChain(name="ps-0", files=self.chain),)
        manifest = Manifest(
            job_uid="job",
            timeline=1,
            generation=0,
            cut=cut,
            parts=parts,
            model=self.model,
            ledger=b"L%d" % cut,
        )
        publish(self.files, manifest)
        return manifest


def make_state(rng, rows=300, width=8):
    return {"emb": rng.random((rows, width), np.float32), "mlp": rng.random((17, 3)), "step": np.array(1)}


def assert_restores(files, cut, state, **options):
    manifest, parts, _ = restore(files, **options)
    assert manifest.cut == cut
    assert parts["ps-0"].arrays.keys() == state.keys()
    for name, value in state.items():
        np.testing.assert_array_equal(parts["ps-0"].arrays[name], value, strict=True)


def test_a_directory_that_vanished_between_two_files_is_not_made_anew(tmp_path):
    """Else what is written lands beside the mount, on a disk that nobody meant, and is hidden when the mount comes back."""
    root = tmp_path / "mount" / "ads.u1"
    root.mkdir(parents=True)
    files = DirectoryFiles(root)
    files.create("parts/a").close()
    shutil.rmtree(tmp_path / "mount")
    with pytest.raises(StorageFailed, match="is it still mounted"):
        files.create("parts/b")
    assert not (tmp_path / "mount").exists()


def test_a_chain_of_deltas_restores_the_last_state_growth_included(rng, tmp_path):
    files = DirectoryFiles(tmp_path / "not" / "yet")
    writer, state = Writer(files), make_state(rng)
    writer.whole(1, state)
    for cut in range(2, 6):
        ids = np.unique(rng.integers(0, 300, 20))
        state["emb"] = np.concatenate([state["emb"], rng.random((7, 8), np.float32)])
        state["emb"][ids] += 1
        state["step"] = np.array(cut)
        writer.delta(
            cut,
            state,
            {"emb": np.concatenate([ids, np.arange(len(state["emb"]) - 7, len(state["emb"]))])},
            b"E%d" % cut,
        )
    assert_restores(files, 5, state)
    manifest, parts, refused = restore(files)
    assert (manifest.ledger, parts["ps-0"].extra, refused) == (b"L5", b"E5", [])


def test_compaction_keeps_the_state_and_prune_keeps_what_is_needed(rng, tmp_path):
    files, state = DirectoryFiles(tmp_path), make_state(rng)
    writer = Writer(files)
    first = writer.whole(1, state)
    state["emb"][[3, 5]] = 9
    second = writer.delta(2, state, {"emb": np.array([3, 5])})
    folded = drain(compact(files, second))
    assert [len(part.files) for part in folded.parts] == [1]
    assert_restores(files, 2, state)
    gone = prune(files, [folded])
    assert first.path in gone
    assert set(files.list("parts")) == folded.files
    assert_restores(files, 2, state)


def test_pruning_keeps_the_closure_of_kept_chains_and_leftovers_go(rng, tmp_path):
    files, state = DirectoryFiles(tmp_path), make_state(rng)
    writer = Writer(files)
    writer.whole(1, state)
    second = writer.delta(2, state, {"emb": np.array([], np.int64)})
    files.create("parts/ps-0/left.partial").close()
    prune(files, [second])
    assert set(files.list("parts")) == second.files
    assert_restores(files, 2, state)
    assert prune(files, []) == []


FOREIGN = ["x-²-³-z.manifest", "x-²-³.copy", "٣-1-2.manifest", f"a-{'9' * 100}-1.manifest"]


def test_names_that_no_release_writes_stop_no_pruning_and_are_listed_without_a_number(rng, tmp_path):
    files, state = DirectoryFiles(tmp_path), make_state(rng)
    writer = Writer(files)
    kept = writer.whole(1, state)
    for name in FOREIGN:
        (tmp_path / "manifests" / name).write_bytes(b"foreign")
    not_utf8 = os.fsencode(tmp_path / "manifests") + b"/\xff-00000001-000000000002.manifest"
    Path(os.fsdecode(not_utf8)).write_bytes(b"")
    assert [each.path for each in read_manifests(files)[0]] == [kept.path]
    prune(files, [kept])
    aside = list_damaged(files)
    assert len(aside) == len(FOREIGN)
    assert {(each.generation, each.cut) for each in aside} == {(-1, -1), (1, 2)}, "one has a name like ours"
    assert os.path.exists(not_utf8), "what no event can name is left alone"
    msgspec.json.encode([str(each) for each in aside])
    assert_restores(files, 1, state)


def test_pruning_touches_no_part_while_a_newer_release_has_a_checkpoint_here(rng, tmp_path):
    files, state = DirectoryFiles(tmp_path), make_state(rng)
    writer = Writer(files)
    old = writer.whole(1, state)
    new = writer.whole(2, state)
    path = tmp_path / old.path
    raw = bytearray(path.read_bytes())
    raw[8] = 9
    for copy in (path, tmp_path / second_path(old.path)):
        copy.write_bytes(raw)
    assert prune(files, [new]) == []
    assert old.files < set(files.list("parts"))
    with pytest.raises(NewerCheckpoint, match="format 9"):
        decode_manifest(bytes(raw), old.path)


def test_every_flipped_bit_is_found_and_the_older_checkpoint_is_used(rng):
    """Every byte of a small checkpoint, one random bit each."""
    files, state = RecordingFiles(), make_state(rng, rows=6, width=2)
    writer = Writer(files)
    old = {name: value.copy() for name, value in state.items()}
    writer.whole(1, state)
    state["emb"][2] = 7
    second = writer.whole(2, state)
    whole = files.files()
    ignored = 0
    for path in (second.path, second.parts[0].files[0].path):
        both = (path, second_path(path)) if path == second.path else (path,)
        for place in range(len(whole[path])):
            broken = bytearray(whole[path])
            broken[place] ^= 1 << int(rng.integers(8))
            damaged = RecordingFiles({**whole, **dict.fromkeys(both, bytes(broken))})
            try:
                manifest, parts, refused = restore(damaged)
            except NewerCheckpoint:
                continue  # the bit was in the version
            if manifest.cut == 2:
                ignored += 1  # padding between arrays
                np.testing.assert_array_equal(parts["ps-0"].arrays["emb"], state["emb"])
            else:
                assert refused
                np.testing.assert_array_equal(parts["ps-0"].arrays["emb"], old["emb"])
    assert ignored < 300, "only alignment is not covered"


def test_a_flipped_bit_is_named_by_file_array_and_bytes(rng, tmp_path):
    files, state = DirectoryFiles(tmp_path), {"emb": rng.random((300_000, 4)), "mlp": rng.random(3)}
    manifest = Writer(files).whole(1, state)
    (file,) = manifest.parts[0].files
    footer, _ = read_footer(files, file.path)
    with open(tmp_path / file.path, "r+b") as target:
        target.seek(footer.sections[0].data.offset_bytes + (3 << 20) + 5)
        target.write(b"\xff")
    (line,) = verify(files, manifest)
    assert f"{file.path}: array emb is damaged at bytes {3 << 20} to {4 << 20}" in line
    with pytest.raises(NoCheckpoint, match="emb is damaged"):
        restore(files)


@pytest.mark.parametrize("size", [0, 7, 500])
def test_a_file_cut_short_is_said_to_be(rng, tmp_path, size):
    files = DirectoryFiles(tmp_path)
    manifest = Writer(files).whole(1, make_state(rng))
    (file,) = manifest.parts[0].files
    with open(tmp_path / file.path, "r+b") as target:
        target.truncate(size)
    with pytest.raises(BrokenCheckpoint, match=r"no part file|cut short"):
        read_footer(files, file.path)
    for path in (manifest.path, second_path(manifest.path)):
        with open(tmp_path / path, "r+b") as target:
            target.truncate(size if size < 500 else 30)
    good, (line,) = list_manifests(files)
    assert not good
    assert ("0 bytes" in line) == (size == 0)
    with pytest.raises(NoCheckpoint):
        restore(files)


def test_another_model_another_job_and_several_histories_are_told_apart(rng, tmp_path):
    files, state = DirectoryFiles(tmp_path), make_state(rng)
    manifest = Writer(files, model="a").whole(1, state)
    with pytest.raises(OtherModel, match="'a', not 'b'"):
        restore(files, model="b")
    with pytest.raises(NoCheckpoint, match="no checkpoint is stored"):
        restore(files, model="a", job_uid="other")
    with pytest.raises(NoCheckpoint):
        restore(files, model="a", not_after=(0, 0))
    publish(files, msgspec.structs.replace(manifest, timeline=2))
    with pytest.raises(BrokenCheckpoint, match="several timelines"):
        restore(files, model="a")
    assert_restores(files, 1, state, model="a", timeline=2)


def test_a_vanished_mount_and_a_full_disk_say_so(rng, tmp_path):
    with pytest.raises(StorageFailed, match="still mounted"):
        restore(DirectoryFiles(tmp_path / "gone"))
    files, state = DirectoryFiles(tmp_path), make_state(rng)
    Writer(files).whole(1, state)
    sink = DirectoryFiles(tmp_path).create("full")
    (tmp_path / "full").unlink()
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(StorageFailed, match="No space left"):
        files.create("full").write(b"x")
    sink.close()
    (tmp_path / "full").unlink()
    assert_restores(files, 1, state)


def test_memory_that_changed_after_it_was_digested_is_not_persisted(make_store, rng):
    state, store = {"emb": rng.random((200_000, 4))}, make_store()
    store.prepare(state)
    path = store.save(state, 1).path
    staged = newest_staged(store.directory, "state")
    assert digests.read_digests(path, staged.seal) is None
    made = digest_staged(staged)
    assert digests.read_digests(path, staged.seal) == made
    digests.verify_arrays(staged.arrays, made, "memory")
    with open(path, "r+b") as file:
        file.seek(staged.seal.data_offset_bytes + (2 << 20))
        file.write(b"\x01")
    with pytest.raises(BrokenCheckpoint, match=f"memory: bytes {2 << 20} to {3 << 20} of emb"):
        digests.verify_arrays(staged.arrays, made, "memory")
    content = Content(name="emb", array=staged.arrays["emb"], expected=made.digests_of("emb"))
    with pytest.raises(BrokenCheckpoint, match=f"bytes {2 << 20} to {3 << 20} of emb changed in memory"):
        drain(
            persist_part(
                RecordingFiles(), Identity(job_uid="j", part="p", timeline=0, generation=0, cut=1), [content]
            )
        )
    del staged, content
    store.save(state, 2)
    store.save(state, 3)
    newest = newest_staged(store.directory, "state")
    assert digests.read_digests(newest.path, newest.seal) is None, "digests are of one save"


FLOATS = st.floats(-(2.0**127), 2.0**127, width=32)
BOUND_FLOOR = 2.0**-140


@settings(deadline=None)
@given(arrays_of.arrays(np.float32, st.tuples(st.integers(1, 20), st.integers(1, 20)), elements=FLOATS))
def test_int8_rows_keep_their_stated_bound(rows):
    levels, scale = codec.encode_rows(rows)
    decoded = np.empty_like(rows)
    codec.decode_rows(levels, scale, decoded)
    wide = rows.astype(np.float64)
    step = (wide.max(axis=1) - wide.min(axis=1)) / 255
    bound = step / 2 + 2.0**-22 * np.abs(wide).max(axis=1) + BOUND_FLOOR
    assert (np.abs(decoded.astype(np.float64) - wide) <= bound[:, None]).all()


@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1.0, 3e38])
def test_int8_rows_keep_their_bound_at_the_ends_of_the_range(rng, scale):
    rows = ((rng.random((500, 64)) * 2 - 1) * scale).astype(np.float32)
    rows[0], rows[1] = 0, rows[1, 0]
    test_int8_rows_keep_their_stated_bound.hypothesis.inner_test(rows)


def test_int8_files_are_a_quarter_and_raw_where_rows_are_not_finite(rng, tmp_path):
    files, state = DirectoryFiles(tmp_path), make_state(rng, rows=4000, width=64)
    writer = Writer(files, codec="int8")
    raw = Writer(files).whole(1, state).parts[0].files[0].size_bytes
    manifest = writer.whole(2, state)
    assert manifest.parts[0].files[0].size_bytes < 0.3 * raw
    ids = np.array([1, 2, 3])
    state["emb"][ids] += 0.5
    restored = read_chain(files, writer.delta(3, state, {"emb": ids}).parts[0]).arrays
    assert np.abs(restored["emb"] - state["emb"]).max() <= 1 / 255 / 2 + 1e-6
    np.testing.assert_array_equal(restored["mlp"], state["mlp"], "float64 stays as it is")
    state["emb"][1, 1] = np.nan
    assert_restores_nan = read_chain(files, writer.whole(4, state).parts[0]).arrays["emb"]
    np.testing.assert_array_equal(assert_restores_nan, state["emb"])


def part_file(cut, size, base=""):
    identity = Identity(job_uid="j", part="p", timeline=0, generation=0, cut=cut, base=base)
    return PartFile(path=f"parts/p/{cut}", identity=identity, digest=str(cut), size_bytes=size)


def test_chains_are_bounded_in_length_and_in_bytes():
    whole, delta = part_file(1, 1000), part_file(2, 10, "1")
    assert chain.should_write_whole([], 1)
    assert not chain.should_write_whole([whole], 10)
    assert chain.should_write_whole([whole], 501)
    assert not chain.should_write_whole([whole] + [delta] * 6, 10)
    assert chain.should_write_whole([whole] + [delta] * 7, 10)


@given(st.sets(st.integers(1, 60)), st.integers(0, 5), st.integers(0, 5))
def test_retention_keeps_the_newest_and_every_kth(cuts, last, every):
    manifests = [Manifest(job_uid="j", timeline=0, generation=0, cut=cut, parts=()) for cut in cuts]
    kept = {manifest.cut for manifest in chain.choose_kept(manifests, last=last, every=every)}
    assert set(sorted(cuts)[-max(1, last) :]) <= kept
    assert kept <= cuts
    assert all(cut in kept for cut in cuts if every and cut % every == 0)


@given(st.binary(max_size=300))
def test_bytes_that_are_no_manifest_or_part_are_refused(raw):
    with pytest.raises(BrokenCheckpoint):
        decode_manifest(raw, "m")
    with pytest.raises(BrokenCheckpoint):
        read_footer(RecordingFiles({"p": raw}), "p")


def test_a_manifest_without_a_whole_part_is_refused():
    parts = (PartChain(name="p", files=(part_file(2, 10, "1"),)),)
    raw = encode_manifest(Manifest(job_uid="j", timeline=0, generation=0, cut=1, parts=parts))
    with pytest.raises(BrokenCheckpoint, match="without a whole file"):
        decode_manifest(raw, "m")


def hostile_footer(files, change):
    identity = Identity(job_uid="j", part="p", timeline=0, generation=0, cut=1)
    drain(write_part(files, "p", identity, [Content(name="a", array=np.ones((4, 4), np.float32))], b""))
    footer, _ = read_footer(files, "p")
    return msgspec.structs.replace(footer, sections=(change(footer.sections[0]),))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: msgspec.structs.replace(s, shape=(1 << 40, 1 << 40)),
        lambda s: msgspec.structs.replace(s, shape=(-4, -4)),
        lambda s: msgspec.structs.replace(s, dtype="O"),
        lambda s: msgspec.structs.replace(s, codec="int8"),
        lambda s: msgspec.structs.replace(s, rows=1),
        lambda s: msgspec.structs.replace(s, data=msgspec.structs.replace(s.data, offset_bytes=-1)),
        lambda s: msgspec.structs.replace(s, data=msgspec.structs.replace(s.data, offset_bytes=1 << 60)),
        lambda s: msgspec.structs.replace(s, data=msgspec.structs.replace(s.data, chunk_bytes=0)),
        lambda s: msgspec.structs.replace(s, data=msgspec.structs.replace(s.data, digests=b"")),
    ],
)
def test_a_hostile_footer_is_refused(change):
    files = RecordingFiles()
    with pytest.raises(BrokenCheckpoint):
        read_part(files, "p", hostile_footer(files, change))
