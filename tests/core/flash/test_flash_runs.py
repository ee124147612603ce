"""Runs below a storage directory: found by name, newest first, and never pruned from under a writer."""

from __future__ import annotations

import os

import numpy as np
import pytest

from rover_bus.events.errors import InputError
from rover_bus.flash.chain import choose_kept
from rover_bus.flash.errors import NoCheckpoint, PartHeld
from rover_bus.flash.manifest import Manifest, PartChain
from rover_bus.flash.part import Content, Identity
from rover_bus.flash.persist import drain, persist_part, prune, publish
from rover_bus.flash.storage import find_cut, find_run, hold_for_work, list_runs, run_path, survey, unfinished


def write_cut(files, uid, cut, publishing=True, generation=0):
    identity = Identity(job_uid=uid, part="ps-0", history=1, generation=generation, cut=cut)
    part = drain(persist_part(files, identity, [Content(name="emb", array=np.full((4, 2), cut))]))
    if publishing:
        chain = PartChain(name="ps-0", files=(part,))
        publish(files, Manifest(job_uid=uid, history=1, generation=generation, cut=cut, parts=(chain,)))
    return part


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
    (run.path / survey(run)[0][0].manifest.path).write_bytes(b"")
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
    assert len([path for path in gone if path.startswith("manifests")]) == 2
    assert stale.path not in left or stale.path in {path for item in ready[:1] for path in item.files}


def test_only_one_works_on_a_run_at_a_time(make_run):
    run = make_run("ads", "aa11", [1], 2000.0)
    with hold_for_work(run), pytest.raises(PartHeld, match="try again"), hold_for_work(run):
        pass
    with hold_for_work(run):
        pass
