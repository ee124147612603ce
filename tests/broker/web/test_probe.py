"""The probe of a process that serves nothing else: a Brain lives at once, and is ready once it knows its log and has its broker."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from patience import until

from rover_bus.auth.vault import Vault
from rover_bus.events.broker import EmbeddedBroker

pytestmark = pytest.mark.broker


def ask(port: int, path: str) -> int:
    """Return the status of an answer, 0 where nothing listens yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code
    except OSError:
        return 0


def test_a_brain_lives_before_it_is_ready_and_is_not_ready_while_its_broker_is_away(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "auth")
    vault.write_credentials("h1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    broker = EmbeddedBroker(tmp_path / "broker", rights=vault.server_configuration)
    with broker:
        broker.stop()
        words = ["brain", "--url", broker.url, "--secret-file", str(vault.credentials_file("brain"))]
        with (tmp_path / "log").open("wb") as log:
            brain = subprocess.Popen(
                [sys.executable, "-m", "rover_bus.cli.serve", *words, "--probe", f"127.0.0.1:{port}"],
                stderr=log,
            )
        try:
            until(lambda: ask(port, "/healthz") == 200, "life", more=lambda: (tmp_path / "log").read_text())
            assert ask(port, "/readyz") == 503
            broker.start()
            until(
                lambda: ask(port, "/readyz") == 200, "readiness", more=lambda: (tmp_path / "log").read_text()
            )
            broker.stop()
            until(lambda: ask(port, "/readyz") == 503, "no readiness without a broker")
            assert ask(port, "/healthz") == 200
            broker.start()
            until(lambda: ask(port, "/readyz") == 200, "readiness again")
        finally:
            brain.terminate()
            brain.wait(60)


@pytest.mark.parametrize("probe", ["here:1", "127.0.0.1", "127.0.0.1:99999", "192.0.2.99:1"])
def test_a_probe_that_cannot_be_listened_at_is_one_line_and_a_code(tmp_path: Path, probe: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "rover_bus.cli.serve",
            "brain",
            "--url",
            "nats://127.0.0.1:1",
            "--probe",
            probe,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "--probe" in done.stderr
