"""`rover broker`: the broker of a stack as a process of its own; the rest of the stack is elsewhere, with its credentials."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from asked_page import page_of
from outside import ROVER, rover
from patience import PATIENCE_S, until
from small_job import SmallJob

from rover_bus.auth.vault import Vault
from rover_bus.cli.home import Home
from rover_bus.cli.own_broker import LOOPBACK
from rover_bus.cli.stack import Here, OtherBroker, RunningStack

pytestmark = pytest.mark.broker

ADDRESS = "127.0.0.2"  # not the loopback address that nothing is encrypted at
NAME = "rover-nats.example"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])


@contextmanager
def broker_alone(home: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    words = ["broker", "--dir", str(home), "--bind", ADDRESS, "--port", str(port), "--name", NAME]
    with (home.parent / "said").open("wb") as file:
        process = subprocess.Popen([*ROVER, *words], stdout=subprocess.PIPE, stderr=file)
    assert process.stdout is not None
    try:
        said = process.stdout.readline().decode()
        assert said.startswith(f"broker   tls://{ADDRESS}:{port} "), (
            said,
            (home.parent / "said").read_text(),
        )
        yield process
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        process.stdout.close()


def server_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    [server] = psutil.Process(process.pid).children()
    return server


def test_a_stack_runs_on_a_broker_alone_which_is_started_again_and_leaves_nothing(tmp_path: Path) -> None:
    home, port = tmp_path / "broker", free_port()
    with broker_alone(home, port) as process:
        server = server_of(process)
        context = ssl.create_default_context(cafile=str(Vault(Home(home).auth).authority_file))
        for name in (ADDRESS, NAME):
            with (
                socket.create_connection((ADDRESS, port)) as raw,
                context.wrap_socket(raw, server_hostname=name),
            ):
                pass
        other = OtherBroker(f"tls://{ADDRESS}:{port}", Home(home).secret_file)
        with RunningStack(tmp_path / "stack", broker=other, here=Here("h2", page=LOOPBACK)) as stack:
            page = page_of(stack)
            until(lambda: page.ready, "the page of a stack on another's broker")
            assert page.ask("/api/v1/jobs").json == []
            asked = rover("jobs", "-o", "json", home=stack.home.root)
            assert (asked.returncode, asked.stdout.strip()) == (0, "[]"), asked.stderr
            os.kill(server.pid, signal.SIGKILL)
            until(
                lambda: [each for each in psutil.Process(process.pid).children() if each.pid != server.pid],
                "a broker that was killed is started again",
            )
            asked = rover("jobs", "-o", "json", home=stack.home.root)
            assert (asked.returncode, asked.stdout.strip()) == (0, "[]"), asked.stderr
            second = server_of(process)
    assert not second.is_running()
    assert "broker" in (tmp_path / "said").read_text(), "the end of the first one is said"


def test_members_keep_their_rights_when_the_broker_is_started_again_with_keys_that_know_no_runs(
    tmp_path: Path,
) -> None:
    """The Brain notes in its own vault which runs there are; the broker's knows none, as in a pod that is made again."""
    home, port = tmp_path / "broker", free_port()
    with ExitStack() as ends:
        first = ends.enter_context(broker_alone(home, port))
        shutil.copytree(Home(home).auth, tmp_path / "auth")
        other = OtherBroker(f"tls://{ADDRESS}:{port}", tmp_path / "auth" / "creds" / "operator.creds")
        stack = RunningStack(tmp_path / "stack", broker=other, here=Here("h2"), disposable=True)
        ends.enter_context(stack)
        job = SmallJob(
            folder=tmp_path,
            home=stack.home.root,
            rows=2_000,
            epochs=1,
            workers=2,
            servers=1,
            checkpoint='every = "1h"',
        )
        job.submit()
        job.until(lambda: job.facts("epoch.opened"), "training")
        assert not Vault(Home(home).auth).runs
        first.terminate()
        assert first.wait(PATIENCE_S) == 0
        ends.enter_context(broker_alone(home, port))
        job.complete()
        ended = [each["exit"]["reason"] for each in job.facts("member.ended")]
        assert set(ended) <= {"drained", "finished"}, ended
        assert not job.facts("member.lost")


def test_two_brokers_of_one_directory_and_an_address_of_another_machine_are_refused(tmp_path: Path) -> None:
    home, port = tmp_path / "broker", free_port()
    with broker_alone(home, port):
        again = rover("broker", "--dir", str(home), "--bind", ADDRESS, "--port", str(free_port()))
        assert again.returncode == 3, again.stderr
        assert again.stderr.count("\n") == 1
    spoilt = tmp_path / "spoilt"
    spoilt.mkdir()
    (spoilt / "auth").write_text("no directory")
    refused = rover("broker", "--dir", str(spoilt), "--port", str(free_port()))
    assert (refused.returncode, refused.stderr.count("\n")) == (4, 1), refused.stderr
    assert "cannot be written, nothing was started" in refused.stderr
    elsewhere = rover("broker", "--dir", str(home), "--bind", "203.0.113.9")
    assert elsewhere.returncode == 2
    assert "no address of this machine" in elsewhere.stderr
