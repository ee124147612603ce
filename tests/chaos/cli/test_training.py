"""The whole path with real processes: a job file in, kills on the way, a model, predictions and a clean witness out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import outside
import psutil
import pytest
import walked_demo
from patience import PATIENCE_S

from rover_bus.cli.demo.acts import NO_TURN, STRAGGLER, TOO_LATE, TRIAL
from rover_bus.cli.demo.chaos import Strike
from rover_bus.cli.demo.unmanaged import Unmanaged
from rover_bus.client.job_file import read_job

pytestmark = pytest.mark.chaos
ROWS, EVAL_ROWS, EPOCHS = 6000, 1000, 2

JOB = f"""
name = "clicks"
program = "dlrm"
[data]
train = "train.tsv"
evaluate = "eval.tsv"
batch_size = 64
epochs = {EPOCHS}
[data.schema]
format = "criteo"
[model]
width = 4
[workers]
count = 2
[servers]
count = 2
[leases]
target = "1s"
heartbeat = "300ms"
"""


def rover(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Whatever it makes for a while, it makes below `cwd`."""
    return outside.rover(*arguments, cwd=cwd, timeout_s=580, TMPDIR=str(cwd))


def last_line(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def processes_below(directory: Path) -> list[str]:
    return [
        " ".join(process.info["cmdline"])
        for process in psutil.process_iter(["cmdline"])
        if any(str(directory) in word for word in process.info["cmdline"] or ())
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    outside.make_clicks(tmp_path, ROWS, EVAL_ROWS, seed=3)
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def test_a_job_file_becomes_a_model_predictions_and_a_clean_witness(folder: Path) -> None:
    state = ("--dir", str(folder / "state"))
    submitted = rover(
        "submit", "job.toml", "--embedded", "--json", "--predictions", "p.csv", *state, cwd=folder
    )
    report = last_line(submitted)
    assert report["state"] == "completed"
    assert report["samples_committed"] == report["samples_total"] == ROWS * EPOCHS
    assert report["samples_duplicated"] == report["samples_dead_lettered"] == 0
    scores = np.genfromtxt(folder / "p.csv", delimiter=",", names=True)
    assert scores["row"].tolist() == list(range(EVAL_ROWS))
    assert 0 <= scores["score"].min() <= scores["score"].max() <= 1
    assert processes_below(folder) == []

    up = rover("up", "--detach", *state, cwd=folder)
    assert up.returncode == 0, up.stderr
    try:
        written = rover("witness", "clicks", "--out", "w.npy", *state, cwd=folder)
        assert written.returncode == 0, written.stderr
        witness = np.load(folder / "w.npy")
        assert witness.shape == (EPOCHS, ROWS)
        assert (witness == 1).all()
        assert rover("export", "clicks", "model.npz", *state, cwd=folder).returncode == 0
        with np.load(folder / "model.npz", allow_pickle=False) as model:
            assert "witness" not in model
            arrays = (model[name] for name in model if not name.endswith((".ids", ".json")))
            assert all(np.isfinite(array).all() for array in arrays)
        predicted = rover("predict", "model.npz", "eval.tsv", "--out", "again.csv", cwd=folder)
        assert predicted.returncode == 0, predicted.stderr
        again = np.genfromtxt(folder / "again.csv", delimiter=",", names=True)
        assert np.abs(again["score"] - scores["score"]).max() <= 1e-6
    finally:
        assert rover("down", *state, cwd=folder).returncode == 0


def test_one_process_without_a_bus_reports_the_same_figures(folder: Path) -> None:
    report = last_line(rover("run", "--plain", "job.toml", "--json", "--predictions", "p.csv", cwd=folder))
    assert report["samples_committed"] == report["samples_total"] == ROWS * EPOCHS
    assert 0.5 < report["auc"] < 1
    assert len((folder / "p.csv").read_text().splitlines()) == EVAL_ROWS + 1


def test_an_embedded_stack_leaves_nothing_behind_when_it_is_interrupted(folder: Path) -> None:
    slow = (folder / "job.toml").read_text().replace("epochs = 2", 'epochs = 2\nread_latency = "1s"')
    (folder / "job.toml").write_text(slow)
    command = [sys.executable, "-m", "rover_bus.cli.entry", "submit", "job.toml", "--embedded"]
    environment = os.environ | {"TMPDIR": str(folder)}
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "epoch 0 begins" in line:
                break
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert processes_below(folder) == []
    assert list(folder.glob("rover-*")) == []


def test_the_demo_kills_what_it_says_and_every_sample_is_applied_exactly_once(tmp_path: Path) -> None:
    walked = [sys.executable, str(Path(walked_demo.__file__)), "--headless", "-o", "json", "--seed", "5"]
    done = subprocess.run(walked, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = last_line(done)
    assert report["state"] == "completed", done.stderr
    assert report["samples_committed"] + report["samples_dead_lettered"] == report["samples_total"]
    assert report["samples_dead_lettered"] == report["samples_duplicated"] == 0
    assert report["workers_lost"] >= 2
    assert report["masters_lost"] >= 1
    assert report["broker_restarts"] >= 1
    assert report["takeover_seconds"] > 0
    assert [plan["step"] for plan in report["plans"]][:2] == ["start", "probe"]
    assert "unmanaged" in report
    tried = [plan for plan in report["plans"] if plan["step"] == "asked"]
    if not [plan for plan in tried if plan["state"] in ("kept", "rolled back")]:
        assert report["left_out"][TRIAL].startswith((NO_TURN, TOO_LATE, "plan "))  # time alone leaves it out
    assert report["straggler"] or STRAGGLER in report["left_out"]
    assert processes_below(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_without_a_control_plane_a_killed_worker_trains_its_share_again(folder: Path) -> None:
    spec = read_job(folder / "job.toml")
    strikes = [Strike(0.4, "worker", 0.9), Strike(0.5, "master", 0.0), Strike(0.7, "worker", 0.1)]
    said: list[str] = []
    figures = Unmanaged(spec, strikes, folder / "off", said.append).run()
    assert (figures["workers"], figures["servers"], figures["workers_lost"]) == (2, 2, 2)
    assert figures["samples_lost"] == 0
    assert 0 < figures["samples_duplicated"] < ROWS * EPOCHS
    assert 0.5 < figures["auc"] < 1
    assert len(said) == 2
    assert processes_below(folder) == []


@pytest.mark.long
def test_somebody_else_kills_what_members_lists_and_nothing_is_lost(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rover_bus.cli.entry", "demo", "--headless", "--json", "--chaos", "none"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
    with subprocess.Popen(
        [*command, "--no-reference"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "epoch 0 begins" in line:
                break
        listed: list[dict[str, Any]] = json.loads(rover("members", "demo", "-o", "json", cwd=tmp_path).stdout)
        assert {row["role"] for row in listed} == {"master", "ps", "worker"}
        [leader] = [row for row in listed if row["leads"]]
        worker = next(row for row in listed if row["role"] == "worker")
        for row in (worker, leader):
            os.kill(row["pid"], signal.SIGKILL)
        out, err = process.communicate(timeout=580)
    assert process.returncode == 0, err
    report = json.loads(out.splitlines()[-1])
    assert report["samples_committed"] == report["samples_total"]
    assert report["samples_duplicated"] == 0
    assert (report["workers_lost"], report["masters_lost"]) == (1, 1)
    assert list(tmp_path.iterdir()) == []
