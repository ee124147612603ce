"""`rover checkpoint` on a storage alone, as somebody without a stack uses it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from rover_bus.cli.commands.doctor import look_at_checkpoints
from rover_bus.cli.entry import main
from rover_bus.cli.group import rover
from rover_bus.flash.manifest import Manifest, PartChain
from rover_bus.flash.part import Content, Identity
from rover_bus.flash.persist import drain, persist_part, publish
from rover_bus.flash.storage import find_run, hold_for_work, run_path


@pytest.fixture
def storage(tmp_path):
    """Three cuts of a job with two parts; the array `emb` of cut c is full of c."""
    path = tmp_path / "checkpoints"
    (run_path(path, "ads", "u1") / "manifests").mkdir(parents=True)
    files = find_run(path, "ads").files
    for cut in (1, 2, 3):
        chains = []
        for part in ("ps-0", "ps-1"):
            identity = Identity(job_uid="u1", part=part, timeline=1, generation=0, cut=cut)
            contents = [Content(name="emb", array=np.full((500, 4), cut, np.float32))]
            chains.append(PartChain(name=part, files=(drain(persist_part(files, identity, contents)),)))
        publish(files, Manifest(job_uid="u1", timeline=1, generation=0, cut=cut, parts=tuple(chains)))
    return path


@pytest.fixture
def rover_checkpoint(storage, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["rover", "checkpoint", *arguments, "--storage", str(storage)])
        code = main()
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def damage(storage, cut, part="ps-1"):
    """Flip one bit in the middle of a part file."""
    (path,) = storage.glob(f"ads.u1/parts/{part}/*{cut:012d}-whole-*.part")
    raw = bytearray(path.read_bytes())
    raw[2000] ^= 4
    path.write_bytes(raw)
    return path


def test_list_shows_what_is_ready_newest_first(rover_checkpoint):
    code, said, _ = rover_checkpoint("list", "-o", "json")
    rows = json.loads(said)
    assert code == 0
    assert [(row["job"], row["uid"], row["cut"], row["parts"]) for row in rows] == [
        ("ads", "u1", cut, 2) for cut in (3, 2, 1)
    ]
    assert "READY AT" in rover_checkpoint("list", "ads")[1]


def test_a_storage_that_holds_nothing_is_no_error_and_a_job_that_is_not_there_is_one(
    rover_checkpoint, tmp_path
):
    (tmp_path / "empty").mkdir()
    said = CliRunner().invoke(rover, ["checkpoint", "list", "--storage", str(tmp_path / "empty")])
    assert (said.exit_code, said.stdout) == (0, "")
    assert "name the directory with --storage" in said.stderr
    code, _, complaint = rover_checkpoint("list", "adz")
    assert code == 1
    assert complaint.startswith("rover: no checkpoint of 'adz'")
    assert "ads" in complaint


def test_verify_says_which_bytes_are_not_what_was_written(rover_checkpoint, storage):
    assert rover_checkpoint("verify", "ads")[0] == 0
    path = damage(storage, 2)
    code, said, complaint = rover_checkpoint("verify", "ads")
    assert code == 1
    assert [line.split()[-1] for line in said.splitlines()[1:]] == ["whole", "damaged", "whole"]
    assert path.name in complaint
    assert "emb is damaged at bytes 0 to 8000" in complaint
    assert rover_checkpoint("verify", "ads", "--cut", "3")[0] == 0


def test_restore_takes_the_newest_that_is_whole_and_says_what_it_passed_over(
    rover_checkpoint, storage, tmp_path
):
    out = tmp_path / "model.npz"
    damage(storage, 3)
    code, _, complaint = rover_checkpoint("restore", "ads", str(out))
    assert code == 0
    assert "is damaged" in complaint
    assert "cut 2" in complaint
    with np.load(out) as arrays:
        assert sorted(arrays) == ["ps-0/emb", "ps-1/emb"]
        assert np.unique(arrays["ps-1/emb"]) == [2]


def test_restore_of_a_named_cut_is_that_cut_or_nothing(rover_checkpoint, storage, tmp_path):
    out = tmp_path / "model.npz"
    damage(storage, 3)
    code, _, complaint = rover_checkpoint("restore", "ads", str(out), "--cut", "3")
    assert code == 1
    assert "is damaged" in complaint
    assert not out.exists()
    assert rover_checkpoint("restore", "ads", str(out), "--cut", "1")[0] == 0


def test_a_checkpoint_of_a_newer_release_is_never_passed_over_in_silence(rover_checkpoint, storage, tmp_path):
    (path,) = storage.glob("ads.u1/parts/ps-0/*3-whole-*.part")
    raw = bytearray(path.read_bytes())
    raw[-16:-12] = (2).to_bytes(4, "little")
    path.write_bytes(raw)
    code, _, complaint = rover_checkpoint("restore", "ads", str(tmp_path / "model.npz"))
    assert code == 1
    assert "restore with the newer one" in complaint


def test_prune_keeps_the_newest_and_every_kth_and_a_dry_run_removes_nothing(rover_checkpoint, storage):
    before = sorted(storage.rglob("*.part"))
    code, said, _ = rover_checkpoint("prune", "ads", "--last", "1", "--every", "2", "--dry-run")
    assert (code, said.splitlines()) == (0, ["would remove cut 1 of generation 0", "kept: 3, 2"])
    assert sorted(storage.rglob("*.part")) == before
    code, said, _ = rover_checkpoint("prune", "ads", "--last", "1")
    assert said.splitlines()[-1] == "kept: 3 (4 part files removed)"
    assert rover_checkpoint("verify", "ads")[1].split()[-1] == "whole"


def test_prune_waits_for_a_daemon_that_is_at_work(rover_checkpoint, storage):
    with hold_for_work(find_run(storage, "ads")):
        code, _, complaint = rover_checkpoint("prune", "ads")
    assert code == 1
    assert "try again in a moment" in complaint


def test_what_is_damaged_is_set_aside_listed_and_freed_on_request_only(rover_checkpoint, storage):
    damage(storage, 3)
    for path in storage.glob("ads.u1/manifests/*2.*"):
        path.write_bytes(b"")
    code, said, complaint = rover_checkpoint("prune", "ads", "--last", "1")
    assert (code, said.splitlines()) == (0, ["kept: 1 (4 part files removed)"])
    assert "cut 3 of generation 0 is damaged" in complaint
    assert "cut 2 of generation 0 is damaged" in complaint
    rows = json.loads(rover_checkpoint("list", "ads", "-o", "json")[1])
    assert [(row["cut"], row["state"]) for row in rows] == [(1, "ready"), (3, "damaged"), (2, "damaged")]
    (finding,) = look_at_checkpoints(storage)
    assert (finding.verdict, "2 damaged checkpoints of ads" in finding.what) == ("bad", True)
    assert "rover checkpoint prune ads --damaged" in finding.what
    rover_checkpoint("prune", "ads", "--last", "1")
    assert len([*storage.glob("ads.u1/damaged/**/*.part")]) == 4, "no other pruning takes them"
    said = rover_checkpoint("prune", "ads", "--damaged", "--dry-run")[1]
    assert said.splitlines() == [
        "would delete cut 3 of generation 0, damaged",
        "would delete cut 2 of generation 0, damaged",
    ]
    assert rover_checkpoint("prune", "ads", "--damaged")[0] == 0
    assert [row["cut"] for row in json.loads(rover_checkpoint("list", "-o", "json")[1])] == [1]
    assert ([*storage.glob("ads.u1/damaged/**/*.part")], [*look_at_checkpoints(storage)]) == ([], [])
    assert rover_checkpoint("verify", "ads")[0] == 0
