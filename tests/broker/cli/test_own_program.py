"""docs/api.md, "A program of your own": each step as printed, with the program that the page shows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gated import Gate
from patience import PATIENCE_S, until
from schemas_of_events import Judge

from rover_bus.cli.connection import find_stack, visit
from rover_bus.events.bus import Bus
from rover_bus.events.streams import FACTS, LOG, PROFILES

OWN = Path(__file__).parents[3] / "examples" / "own"
ROWS = 2000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train.py", "job.toml"):
        shutil.copy(OWN / name, tmp_path)
    rng = np.random.default_rng(5)
    lines = ["clicked,user,item,hour"]
    for _ in range(ROWS):
        user, item = int(rng.integers(50)), int(rng.integers(20))
        lines.append(f"{int(rng.random() < 0.2 + 0.6 * (user % 2))},u{user},i{item},{rng.integers(24)}")
    (tmp_path / "clicks.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def run(*command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "ROVER_HOME": str(folder / "state"), **variables}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )


def rover(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "rover_bus.cli.entry", *words, folder=folder)


def facts(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = rover("events", "job", "-k", kind, "--json", folder=folder).stdout.splitlines()
    return [json.loads(line)["body"] for line in lines]


async def read_bodies(bus: Bus, stream: str) -> list[bytes]:
    return [stored.body async for stored in bus.read(stream, "rover.>")]


def test_a_lone_program_without_a_job_file_ends_with_2_and_names_both_ways(folder: Path) -> None:
    ended = run(sys.executable, "train.py", folder=folder)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "ROVER_JOB_FILE" in ended.stderr
    assert "rover.join(job=" in ended.stderr


def test_a_lone_program_trains_by_the_job_file_that_it_is_given(folder: Path) -> None:
    assert run(sys.executable, "train.py", folder=folder, ROVER_JOB_FILE="job.toml").returncode == 0
    source = (folder / "train.py").read_text()
    (folder / "train.py").write_text(source.replace("rover.join()", 'rover.join(job="job.toml")'))
    assert run(sys.executable, "train.py", folder=folder).returncode == 0
    wrapped = rover("run", "--", sys.executable, "train.py", folder=folder)
    assert wrapped.returncode == 0, wrapped.stderr


def test_the_same_program_as_a_job_leaves_a_model_that_predicts(folder: Path) -> None:
    plain = rover("run", "--plain", "job.toml", "--json", folder=folder)
    assert json.loads(plain.stdout.splitlines()[-1])["samples_committed"] == 2 * ROWS, plain.stderr
    assert rover("up", "--detach", folder=folder).returncode == 0
    try:
        gate = Gate(folder / "gate", pace_s=0.1)
        held = (
            (folder / "job.toml")
            .read_text()
            .replace('["python", "train.py"]', gate.program(folder / "train.py"))
        )
        (folder / "job.toml").write_text(held + 'every = "0.3s"\n')
        assert rover("submit", "job.toml", folder=folder).returncode == 0
        until(lambda: facts(folder, "checkpoint.ready"), "a checkpoint")
        gate.open()
        until(lambda: facts(folder, "job.ended"), "the end of the job")
        (ended,) = facts(folder, "job.ended")
        assert (ended["state"], ended["summary"]["samples_committed"]) == ("completed", 2 * ROWS), ended
        judge = Judge()
        for stream in (LOG, FACTS, PROFILES):
            judge.take_all(
                visit(find_stack(str(folder / "state"), "", ""), partial(read_bodies, stream=stream))
            )
        assert judge.complaints == []
        assert judge.seen["checkpoint.manifest_ordered.v1"]
        assert rover("export", "job", "model.npz", folder=folder).returncode == 0
        predicted = rover("predict", "model.npz", "clicks.csv", "--out", "scores.csv", folder=folder)
        assert predicted.returncode == 0, predicted.stderr
    finally:
        assert rover("down", folder=folder).returncode == 0
    scores = np.genfromtxt(folder / "scores.csv", delimiter=",", names=True)["score"]
    users = [int(line.split(",")[1][1:]) % 2 for line in (folder / "clicks.csv").read_text().splitlines()[1:]]
    odd = np.array(users, bool)
    assert scores[odd].mean() > scores[~odd].mean() + 0.2, "the model learned who clicks"
