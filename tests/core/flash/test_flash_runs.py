"""Runs below a storage directory: found by name, newest first, and never pruned from under a writer."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from rover_bus.events.errors import InputError
from rover_bus.flash.chain import choose_kept
from rover_bus.flash.errors import NoCheckpoint, PartHeld
from rover_bus.flash.manifest import FIRST, SECOND, Manifest, PartChain, second_path
from rover_bus.flash.part import Content, Identity
from rover_bus.flash.persist import drain, list_manifests, persist_part, publish
from rover_bus.flash.recording import RecordingFiles
from rover_bus.flash.retention import ReadBack, free_damaged, list_damaged, prune, set_aside
from rover_bus.flash.storage import find_cut, find_run, hold_for_work, list_runs, run_path, survey, unfinished
from rover_bus.node.storage.checkpoints import prune_run, search_run


def write_cut(files, uid, cut, publishing=True, generation=0):
    identity = Identity(job_uid=uid, part="ps-0", timeline=1, generation=generation, cut=cut)
    part = drain(persist_part(files, identity, [Content(name="emb", array=np.full((4, 2), cut))]))
    if publishing:
        chain = PartChain(name="ps-0", files=(part,))
        publish(files, Manifest(job_uid=uid, timeline=1, generation=generation, cut=cut, parts=(chain,)))
    return part


def write_delta(run, cut, chain):
    """A checkpoint whose part builds on the files of `chain`."""
    identity = Identity(job_uid="aa11", part="ps-0", timeline=1, generation=0, cut=cut, base=chain[-1].digest)
    ids = np.array([cut % 4], np.uint64)
    part = drain(
        persist_part(run.files, identity, [Content(name="emb", array=np.full((4, 2), cut), ids=ids)])
    )
    named = PartChain(name="ps-0", files=(*chain, part))
    publish(run.files, Manifest(job_uid="aa11", timeline=1, generation=0, cut=cut, parts=(named,)))
    return part


def flip(raw):
    """One bit in the middle."""
    return raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 4]) + raw[len(raw) // 2 + 1 :]


def damage_manifest(run, cut, how, suffixes=(FIRST, SECOND)):
    for suffix in suffixes:
        (path,) = run.path.glob(f"manifests/*{cut:012d}{suffix}")
        path.write_bytes(how(path.read_bytes()))


def damage_part(run, cut):
    (path,) = run.path.glob(f"parts/ps-0/*{cut:012d}-*.part")
    raw = bytearray(path.read_bytes())
    raw[64] ^= 1  # the first byte of the array
    path.write_bytes(raw)


def cuts_of(run):
    return [item.manifest.cut for item in survey(run)[0]]


@pytest.fixture
def make_run(tmp_path):
    def make(job, uid, cuts, written_at_s):
        run = find_or_make(job, uid)
        for cut in cuts:
            write_cut(run.files, uid, cut)
        for path in run.path.glob("manifests/*"):
            os.utime(path, (written_at_s, written_at_s))
        return run

    def find_or_make(job, uid):
        (run_path(tmp_path, job, uid) / "manifests").mkdir(parents=True, exist_ok=True)
        return find_run(tmp_path, job, uid)

    return make


def test_the_run_of_a_name_is_the_one_that_was_written_last(tmp_path, make_run):
    make_run("ads", "aa11", [1, 2], 2000.0)
    make_run("ads", "bb22", [1], 1000.0)
    make_run("news", "cc33", [4], 3000.0)
    assert [(run.job, run.uid) for run in list_runs(tmp_path)] == [
        ("news", "cc33"),
        ("ads", "aa11"),
        ("ads", "bb22"),
    ]
    assert find_run(tmp_path, "ads").uid == "aa11"
    assert find_run(tmp_path, "ads", "bb").uid == "bb22"
    assert [run.uid for run in list_runs(tmp_path / "ads.bb22")] == ["bb22"]


def test_what_is_not_there_is_said_with_what_is(tmp_path, make_run):
    with pytest.raises(NoCheckpoint, match="name the directory with --storage"):
        list_runs(tmp_path / "absent")
    make_run("ads", "aa11", [1, 2], 2000.0)
    with pytest.raises(NoCheckpoint, match=r"no checkpoint of 'add'.*there are: ads"):
        find_run(tmp_path, "add")
    with pytest.raises(NoCheckpoint, match="no run zz of 'ads'"):
        find_run(tmp_path, "ads", "zz")
    with pytest.raises(NoCheckpoint, match=r"no cut 7 is ready \(there are: 2, 1\)"):
        find_cut(survey(find_run(tmp_path, "ads"))[0], 7)
    with pytest.raises(InputError, match="cannot name a job"):
        run_path(tmp_path, "../ads", "aa11")


def test_a_survey_names_what_cannot_be_read_and_lists_the_rest(make_run):
    run = make_run("ads", "aa11", [1, 2], 2000.0)
    damage_manifest(run, 2, lambda raw: b"")
    ready, refused = survey(run)
    assert [(item.manifest.cut, item.chain_length, item.written_at_s) for item in ready] == [(1, 1, 2000.0)]
    assert ready[0].size_bytes == sum(path.stat().st_size for path in run.path.glob("parts/ps-0/*1-whole-*"))
    assert "has 0 bytes" in refused[0]


def test_pruning_leaves_what_somebody_is_about_to_publish(make_run):
    run = make_run("ads", "aa11", [1, 2, 3], 2000.0)
    stale, coming = write_cut(run.files, "aa11", 2, False, 0), write_cut(run.files, "aa11", 1, False, 1)
    run.files.create("parts/ps-0/" + "0" * 16 + "-00000001-000000000002-whole.partial").close()
    ready = [item.manifest for item in survey(run)[0]]
    gone = prune(run.files, choose_kept(ready, last=1), unfinished(run.files, ready))
    left = run.files.list("parts")
    assert coming.path in left
    assert any(path.endswith(".partial") for path in left)
    assert len([path for path in gone if path.startswith("manifests")]) == 4, "two, each stored twice"
    assert stale.path not in left or stale.path in {path for item in ready[:1] for path in item.files}


def test_only_one_works_on_a_run_at_a_time(make_run):
    run = make_run("ads", "aa11", [1], 2000.0)
    with hold_for_work(run), pytest.raises(PartHeld, match="try again"), hold_for_work(run):
        pass
    with hold_for_work(run):
        pass


# -- what is damaged ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [FIRST, SECOND])
@pytest.mark.parametrize(
    "how", [flip, lambda raw: b"", lambda raw: raw[:20], None], ids=["flip", "empty", "short", "gone"]
)
def test_one_damaged_copy_of_a_manifest_costs_no_checkpoint_and_is_mended(make_run, suffix, how):
    run = make_run("ads", "aa11", [1, 2, 3], 2000.0)
    (path,) = run.path.glob(f"manifests/*3{suffix}")
    whole = path.read_bytes()
    path.write_bytes(how(whole)) if how else path.unlink()
    assert (cuts_of(run), survey(run)[1]) == ([3, 2, 1], [])
    assert prune_run(run, 2, 0, ReadBack()) == []
    assert (cuts_of(run), path.read_bytes()) == ([3, 2], whole)


def test_every_bit_of_a_manifest_may_flip_and_no_checkpoint_is_lost():
    files = RecordingFiles()
    write_cut(files, "aa11", 1)
    before = files.files()
    (path,) = [path for path in before if path.endswith(FIRST)]
    for bit in range(8 * len(before[path])):
        raw = bytearray(before[path])
        raw[bit // 8] ^= 1 << bit % 8
        for copy in (path, second_path(path)):
            assert [item.cut for item in list_manifests(RecordingFiles({**before, copy: bytes(raw)}))[0]] == [
                1
            ], bit


def test_a_manifest_that_cannot_be_read_is_set_aside_with_its_parts_and_not_counted(make_run):
    run = make_run("ads", "aa11", [1, 2, 3, 4], 2000.0)
    parts = {cut: next(run.path.glob(f"parts/ps-0/*{cut:012d}-whole-*")).name for cut in (1, 2, 3, 4)}
    damage_manifest(run, 3, flip)
    (aside,) = prune_run(run, 2, 0, ReadBack())
    assert (aside.cut, aside.generation, "is not what was written" in aside.reason) == (3, 0, True)
    assert cuts_of(run) == [4, 2], "the damaged one is not one of the two that are kept"
    assert (run.path / "damaged/parts/ps-0" / parts[3]).is_file()
    assert (run.path / aside.path).is_file()
    assert [each.cut for each in list_damaged(run.files)] == [3]
    assert {path.name for path in (run.path / "parts/ps-0").iterdir()} == {parts[2], parts[4]}
    for cut in (5, 6):
        write_cut(run.files, "aa11", cut)
        assert prune_run(run, 1, 0, ReadBack()) == []
    assert (run.path / "damaged/parts/ps-0" / parts[3]).is_file(), "no later pruning takes it"
    free_damaged(run.files)
    assert (list_damaged(run.files), [*run.path.glob("damaged/**/*.part")], cuts_of(run)) == ([], [], [6])


def test_the_chain_that_only_a_damaged_manifest_names_is_kept_link_by_link(make_run):
    run = make_run("ads", "aa11", [], 2000.0)
    first = write_cut(run.files, "aa11", 1)
    second = write_delta(run, 2, (first,))
    third = write_delta(run, 3, (first, second))
    write_cut(run.files, "aa11", 4)
    damage_manifest(run, 3, flip)
    prune_run(run, 1, 0, ReadBack())
    names = {path.name for path in run.path.glob("damaged/parts/ps-0/*")}
    assert names == {each.path.rpartition("/")[2] for each in (first, second, third)}
    assert len([*run.path.glob("parts/ps-0/*")]) == 1


def test_parts_that_a_kept_checkpoint_needs_too_stay_and_are_set_aside_when_it_goes(make_run):
    run = make_run("ads", "aa11", [], 2000.0)
    first = write_cut(run.files, "aa11", 1)
    second = write_delta(run, 2, (first,))
    write_delta(run, 3, (first, second))
    damage_manifest(run, 2, flip)
    prune_run(run, 2, 0, ReadBack())
    assert cuts_of(run) == [3, 1]
    assert (run.path / first.path).is_file()
    write_cut(run.files, "aa11", 4)
    prune_run(run, 1, 0, ReadBack())
    assert not (run.path / first.path).exists()
    assert (run.path / "damaged" / first.path).is_file()
    assert (run.path / "damaged" / second.path).is_file()


def test_nothing_goes_before_a_newer_checkpoint_has_been_read_back_whole(make_run):
    run = make_run("ads", "aa11", [1, 2, 3, 4, 5], 2000.0)
    damage_part(run, 5), damage_part(run, 4)
    aside = prune_run(run, 1, 0, ReadBack())
    assert [(each.cut, "is damaged at bytes" in each.reason) for each in aside] == [(5, True), (4, True)]
    assert cuts_of(run) == [3], "the newest that is whole is what retention keeps"
    assert [each.cut for each in list_damaged(run.files)] == [5, 4]
    damage_part(run, 3)
    write_cut(run.files, "aa11", 6)
    damage_part(run, 6)
    assert [each.cut for each in prune_run(run, 1, 0, ReadBack())] == [6, 3]
    assert cuts_of(run) == [6, 3], "none is whole: all stay where they are"


def test_what_a_server_could_not_restore_is_looked_at_behind_a_newer_one(make_run):
    run = make_run("ads", "aa11", [1, 2, 3], 2000.0)
    read = ReadBack()
    prune_run(run, 3, 0, read)
    damage_part(run, 2)
    write_cut(run.files, "aa11", 4)
    assert [each.cut for each in prune_run(run, 3, 0, read, suspects={(0, 2), (0, 3)})] == [2]
    assert cuts_of(run) == [4, 3, 1]


def test_a_search_names_the_newest_that_is_asked_for_and_what_is_of_no_use(make_run):
    run = make_run("ads", "aa11", [1, 2, 3, 4, 5], 2000.0)
    damage_manifest(run, 5, flip), damage_manifest(run, 4, lambda raw: b"")
    found, there, refused = search_run(run, {1}, set(), 0, 0)
    assert (found.cut, there, len(refused)) == (3, 5, 2)
    assert search_run(run, {1}, {(0, 3)}, 0, 0)[0].cut == 2
    assert search_run(run, {1}, {(0, 1), (0, 2), (0, 3)}, 0, 0)[:2] == (None, 5)
    assert search_run(run, {1}, {(0, 1)}, 0, 1)[0].cut == 1, "a person named it"
    assert search_run(run, {1}, set(), 1, 0)[:2] == (None, 5), (
        "all are from before the job began from nothing"
    )
    found, there, refused = search_run(run, {2}, set(), 0, 0)
    assert (found, there) == (None, 5)
    assert any("another timeline" in line for line in refused)
    set_aside(run.files)
    assert search_run(run, {1}, set(), 0, 0)[1] == 5, "what was set aside counts too"


def test_a_power_cut_while_damaged_ones_are_set_aside_loses_nothing():
    files = RecordingFiles()
    for cut in (1, 2, 3):
        write_cut(files, "aa11", cut)
    names = [path for path in files.files() if "-000000000002." in path]
    broken = {path: flip(raw) if path in names else raw for path, raw in files.files().items()}
    assert len(names) == 2
    for after in range(40):
        disk = RecordingFiles(broken)
        prune(disk, [list_manifests(disk)[0][0]])
        if after > len(disk.operations):
            break
        for seed in range(4):
            left = disk.cut_power(after, random.Random(f"{after}/{seed}").randrange)
            prune(left, [list_manifests(left)[0][0]])
            parts = [path for path in left.files() if path.endswith(".part")]
            assert any("000000000002-whole" in path for path in parts), f"after {after}, seed {seed}"
            assert list_manifests(left)[0][0].cut == 3
    assert after > 5
