"""What each release wrote is read: its backup is restored and its job replayed, its checkpoints are whole and give a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from outside import rover

from rover_bus.cli.stack import RunningStack

pytestmark = pytest.mark.broker
RELEASES = sorted(path.parent for path in Path(__file__).parent.glob("*/backup"))
JOB = "ads"


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_a_backup_of_a_former_release_is_restored_and_replayed(release: Path, tmp_path: Path) -> None:
    home = tmp_path / "state"
    done = rover("restore", str(release / "backup"), home=home)
    assert done.returncode == 0, done.stderr
    with RunningStack(home):
        [job] = json.loads(rover("jobs", "-o", "json", home=home).stdout)
        assert (job["job"], job["state"]) == (JOB, "completed")
        told = rover("events", JOB, "--json", home=home)
        assert told.returncode == 0, told.stderr
        assert "passed_over" not in told.stdout
        assert {"job.submitted", "plan.applied", "checkpoint.ready", "job.ended"} <= {
            json.loads(line)["body"]["type"].rpartition(".v")[0] for line in told.stdout.splitlines()
        }
        for command in (("replay", JOB), ("explain", JOB), ("history",), ("quota", "list")):
            done = rover(*command, home=home)
            assert done.returncode == 0, (command, done.stderr)


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_checkpoints_of_a_former_release_are_whole_and_give_a_model(release: Path, tmp_path: Path) -> None:
    stored = shutil.copytree(release / "stored", tmp_path / "stored")
    verified = rover("checkpoint", "verify", JOB, "--storage", str(stored), cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    model = tmp_path / "model.npz"
    restored = rover("checkpoint", "restore", JOB, str(model), "--storage", str(stored), cwd=tmp_path)
    assert restored.returncode == 0, restored.stderr
    assert model.stat().st_size > 10_000
