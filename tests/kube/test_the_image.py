"""The image: what its Dockerfile installs is enough for every process of a stack, as uid 65532 on a read-only root."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import read_only
from kube_chart import DATA, REPOSITORY
from patience import PATIENCE_S, until

IMAGE = REPOSITORY / "deploy" / "image"
ADDRESS = "127.0.0.3"


@dataclass(frozen=True)
class Built:
    """What the build stage made. `root`: what stands for `/`."""

    root: Path
    state: Path

    def program(self, name: str) -> str:
        return f"{self.root}/opt/rover/bin/{name}"

    def run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        process = read_only.started([self.program(name), *words], self.state)
        said, wrong = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(words, process.returncode, said, wrong)


def build_lines() -> list[str]:
    text = (IMAGE / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.removeprefix("RUN ") for line in text.splitlines() if line.startswith("RUN ")]


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    """Run the RUN lines on what the build's context holds, with another root than `/`."""
    read_only.check()
    root = Path(f"/var/tmp/rover-image-{os.getpid()}")  # where another user may look
    try:
        for each in (IMAGE / "Dockerfile.dockerignore").read_text().splitlines():
            if each.startswith("!"):
                copy(REPOSITORY / each[1:], root / "src" / each[1:])
        (root / "state").mkdir()
        os.chown(root / "state", read_only.USER, read_only.USER)
        for line in build_lines():
            here = line.replace("${PIP_ARGS}", "")
            for path in ("/opt/rover", "/src", DATA):
                here = here.replace(path, f"{root}{path}")
            here = here.replace("python3 -m venv", f"{sys.executable} -m venv")
            done = subprocess.run(here, shell=True, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{here}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        yield Built(root, root / "state")
    finally:
        shutil.rmtree(root, ignore_errors=True)


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    elif source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def test_each_door_opens(built: Built) -> None:
    assert (built.root / DATA.lstrip("/") / "clicks_train.tsv").exists()
    for name in ("rover", "kubectl-rover"):
        done = built.run(name, "--version")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("rover, version ")
    members = built.run("python", "-m", "rover_bus.cli.serve", "--help")
    assert members.returncode == 0, members.stderr
    assert built.run("rover", "operator", "--help").returncode == 0
    done = built.run("rover", "kube", "prepare", "--namespace", "n")
    assert done.returncode == 2, done.stderr
    assert "leads to no API server" in done.stderr


def test_a_broker_and_a_brain_serve_and_end(built: Built) -> None:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        port = probe.getsockname()[1]
    words = ["broker", "--dir", f"{built.state}/broker", "--bind", ADDRESS, "--port", str(port)]
    broker = read_only.started([built.program("rover"), *words], built.state)
    try:
        assert broker.stdout is not None
        said = broker.stdout.readline()
        assert said.startswith(f"broker   tls://{ADDRESS}:{port}"), said or broker.communicate()[1]
        ready = built.state / "ready"
        shown = f"{built.state}/broker/auth/creds/brain.creds"
        words = [
            "brain",
            "--url",
            f"tls://{ADDRESS}:{port}",
            "--secret-file",
            shown,
            "--ready-file",
            str(ready),
        ]
        brain = read_only.started([built.program("rover"), *words], built.state)
        until(lambda: ready.exists() or brain.poll() is not None, "the Brain serves", 0.2)
        runs = built.state / "broker" / "auth" / "runs"
        until(
            lambda: runs.exists() or broker.poll() is not None, "the broker keeps which runs there are", 0.2
        )
        brain.terminate()
        _, wrong = brain.communicate(timeout=PATIENCE_S)
        assert brain.returncode == 0, wrong
    finally:
        broker.terminate()
        _, wrong = broker.communicate(timeout=PATIENCE_S)
    assert broker.returncode == 0, wrong
    assert json.loads(runs.read_text()) == []
