"""Checkpoints in an object store, on a real S3 server on loopback: whole or not at all, found by people, problems in words."""

from __future__ import annotations

import json
import sys

import numpy as np
import object_store
import pytest

from rover_bus.cli.entry import main
from rover_bus.events.errors import InputError
from rover_bus.flash.errors import NoCheckpoint, StorageFailed
from rover_bus.flash.location import below, open_files, parse_location
from rover_bus.flash.manifest import Manifest, PartChain, second_path
from rover_bus.flash.objects import ObjectFiles
from rover_bus.flash.part import Content, Identity
from rover_bus.flash.persist import drain, persist_part, publish, restore, verify
from rover_bus.flash.retention import ReadBack, free_damaged, list_damaged, prune
from rover_bus.flash.storage import find_run, list_runs, run_path, survey
from rover_bus.node.storage.checkpoints import prune_run, search_run

obstore = pytest.importorskip("obstore")
from_url = pytest.importorskip("obstore.store").from_url
BUCKET = "s3://checkpoints/team/a"
ROWS = 300_000  # 9.6 MB: an upload of two pieces


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("moto")  # here: a third of a second of each process that collects
    with object_store.serving() as url:
        yield url


@pytest.fixture
def bucket(server, monkeypatch):
    for name, value in object_store.variables(server).items():
        monkeypatch.setenv(name, value)
    object_store.empty_bucket(server, "checkpoints")
    return BUCKET


def identity(cut, part="ps-0", base=""):
    return Identity(job_uid="u1", part=part, timeline=1, generation=0, cut=cut, base=base)


def contents(cut):
    return [Content(name="emb", array=np.full((ROWS, 8), cut, np.float32))]


def store(cut, files=None):
    """Write a checkpoint of one part."""
    files = files or open_files(run_path(BUCKET, "ads", "u1"))
    part = drain(persist_part(files, identity(cut), contents(cut), b"extra"))
    chain = PartChain(name="ps-0", files=(part,))
    manifest = Manifest(job_uid="u1", timeline=1, generation=0, cut=cut, parts=(chain,))
    publish(files, manifest)
    return manifest


def test_what_was_stored_is_restored_from_addresses_alone(bucket):
    for cut in (1, 2):
        store(cut)
    run = find_run(bucket, "ads")
    assert (run.job, run.uid, run.path) == ("ads", "u1", f"{BUCKET}/ads.u1")
    ready, refused = survey(run)
    assert ([item.manifest.cut for item in ready], refused) == ([2, 1], [])
    assert all(item.written_at_s > 1.6e9 for item in ready)
    manifest, parts, _ = restore(run.files)
    assert (manifest.cut, parts["ps-0"].extra) == (2, b"extra")
    np.testing.assert_array_equal(parts["ps-0"].arrays["emb"], contents(2)[0].array)
    assert [each.uid for each in list_runs(run.path)] == ["u1"]


def test_an_upload_that_was_given_up_is_never_seen_and_a_checkpoint_without_its_manifest_is_none(bucket):
    store(1)
    files = open_files(run_path(bucket, "ads", "u1"))
    half = persist_part(files, identity(2), contents(2))
    for _ in range(6):
        next(half)
    half.close()
    drain(persist_part(files, identity(3), contents(3)))
    assert restore(files)[0].cut == 1
    assert len(files.list("parts")) == 2


def test_two_writers_of_a_cut_never_meet(bucket):
    first, second = (open_files(run_path(bucket, "ads", "u1")) for _ in range(2))
    one, other = (persist_part(files, identity(1), contents(1)) for files in (first, second))
    next(one), next(other)
    assert drain(one).path != drain(other).path


def test_other_bytes_than_were_written_are_found_and_named(bucket):
    manifest = store(1)
    path = manifest.parts[0].files[0].path
    store_of_it = from_url(f"{bucket}/ads.u1")
    raw = bytearray(obstore.get(store_of_it, path).bytes())
    raw[5_000_000] ^= 1
    obstore.put(store_of_it, path, bytes(raw))
    [line] = verify(open_files(run_path(bucket, "ads", "u1")), manifest)
    assert "is damaged at bytes" in line
    assert path in line


def test_what_retention_gives_up_goes_with_what_is_left_of_uploads(bucket):
    manifests = [store(cut) for cut in (1, 2, 3)]
    files = open_files(run_path(bucket, "ads", "u1"))
    prune(files, manifests[2:])
    assert [item.cut for item in [restore(files)[0]]] == [3]
    assert files.list("manifests") == sorted([manifests[2].path, second_path(manifests[2].path)])
    assert files.list("parts") == [manifests[2].parts[0].files[0].path]


def test_damaged_checkpoints_are_set_aside_searched_past_and_freed_on_request_only(bucket):
    manifests = [store(cut) for cut in (1, 2, 3, 4)]
    objects = from_url(f"{bucket}/ads.u1")
    for copy in (manifests[3].path, second_path(manifests[3].path)):
        obstore.put(objects, copy, b"")
    obstore.put(objects, manifests[0].path, b"")  # one copy of two costs nothing
    part = manifests[2].parts[0].files[0].path
    raw = bytearray(obstore.get(objects, part).bytes())
    raw[5_000_000] ^= 1
    obstore.put(objects, part, bytes(raw))
    run = find_run(bucket, "ads")
    found, there, refused = search_run(run, {1}, {(0, 3)}, 0, 0)
    assert (found.cut, found.path, there, len(refused)) == (2, f"{BUCKET}/ads.u1", 4, 1)
    aside = prune_run(find_run(bucket, "ads"), 2, 0, ReadBack())
    assert sorted(item.cut for item in aside) == [3, 4]
    run = find_run(bucket, "ads")
    assert ([item.manifest.cut for item in survey(run)[0]], survey(run)[1]) == ([2, 1], [])
    assert [item.cut for item in list_damaged(run.files)] == [4, 3]
    assert len(run.files.list("damaged/parts")) == 2
    prune_run(run, 1, 0, ReadBack())
    assert len(find_run(bucket, "ads").files.list("damaged/parts")) == 2
    free_damaged(find_run(bucket, "ads").files)
    assert find_run(bucket, "ads").files.list("damaged") == []


def test_people_list_verify_restore_and_prune_by_address(bucket, monkeypatch, capsys, tmp_path):
    def rover(*arguments):
        monkeypatch.setattr("sys.argv", ["rover", "checkpoint", *arguments, "--storage", bucket])
        code = main()
        return code, capsys.readouterr()

    for cut in (1, 2):
        store(cut)
    code, said = rover("list", "-o", "json")
    rows = json.loads(said.out)
    assert (code, [(row["job"], row["cut"]) for row in rows]) == (0, [("ads", 2), ("ads", 1)])
    assert rows[0]["path"].startswith(f"{BUCKET}/ads.u1/manifests/")
    assert rover("verify", "ads")[0] == 0
    out = str(tmp_path / "m.npz")
    assert rover("restore", "ads", out)[0] == 0
    with np.load(out) as model:
        assert all((model[name] == 2).all() for name in model)
    assert rover("prune", "ads", "--last", "1")[0] == 0
    assert len(json.loads(rover("list", "-o", "json")[1].out)) == 1
    code, said = rover("verify", "nobody")
    assert code != 0
    assert "no checkpoint of 'nobody' lies below s3://checkpoints/team/a" in said.err


def test_every_problem_is_one_line_that_says_what_to_look_at(bucket, monkeypatch):
    with pytest.raises(StorageFailed, match="are bucket, address and credentials right") as refused:
        store(1, ObjectFiles("s3://no-such-bucket/x"))
    assert "\n" not in str(refused.value)
    assert refused.value.retry
    with pytest.raises(NoCheckpoint, match="parts/nothing does not exist"):
        ObjectFiles(bucket).size_of("parts/nothing")
    with pytest.raises(InputError, match="is no storage"):
        parse_location("ftp://somewhere/x")
    with pytest.raises(InputError, match="is no storage"):
        parse_location("s3://")
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(InputError, match=r"pip install 'rover-bus\[objects\]'"):
        ObjectFiles(bucket)


def test_a_directory_stays_a_directory(tmp_path):
    assert below(parse_location(str(tmp_path)), "x") == tmp_path / "x"
    assert below(parse_location("s3://bucket/a/"), "x") == "s3://bucket/a/x"
