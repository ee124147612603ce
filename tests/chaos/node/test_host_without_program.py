"""A host on which a job's program does not start is named and left out, costs no failure, and is used again when it is mended."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from outside import living
from small_job import NAME, SmallJob

from rover_bus.auth.vault import Vault
from rover_bus.cli.own_broker import OwnBroker
from rover_bus.cli.stack import Here, OtherBroker, RunningStack
from rover_bus.cli.supervisor import service_command

pytestmark = [pytest.mark.chaos, pytest.mark.broker]
TRAINER = "trainer"


class Hosts:
    """Hosts of one machine that differ in what their PATH finds: each has a directory of its own there."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self._folder, self._ends = folder, ends
        self.stacks: dict[str, RunningStack] = {}
        self.job = SmallJob(
            folder=folder,
            home=folder / "h1",
            rows=640,
            epochs=100,
            pace_s=0.2,
            workers=2,
            servers=1,
            checkpoint='every = "60s"\npath = "store"',
        )

    def bin(self, host: str) -> Path:
        found = self._folder / f"bin-{host}"
        found.mkdir(exist_ok=True)
        return found

    def install(self, host: str) -> None:
        """Put the program where only this host's PATH finds it."""
        program = self.bin(host) / TRAINER
        command = shlex.join(json.loads(self.job.gate.program()))
        program.write_text(f"#!/bin/sh\nexec {command}\n")
        program.chmod(0o700)

    def remove(self, host: str) -> None:
        (self.bin(host) / TRAINER).unlink()

    def up(self, host: str) -> None:
        """Start a host. No Brain comes with it, so that nothing is planned before the test says so."""
        first = next(iter(self.stacks.values()), None)
        before = os.environ["PATH"]
        os.environ["PATH"] = f"{self.bin(host)}:{before}"
        try:
            stack = RunningStack(
                self._folder / host,
                broker=OtherBroker(first.url, first.secret_file) if first else OwnBroker(),
                brain=None,
                here=Here(host),
                disposable=True,
            )
            self.stacks[host] = self._ends.enter_context(stack)
        finally:
            os.environ["PATH"] = before

    def down(self, host: str) -> None:
        self.stacks[host].stop()

    def scale(self, workers: int) -> None:
        done = self.job.rover("scale", NAME, "--workers", str(workers))
        assert done.returncode == 0, done.stderr

    def plan(self) -> None:
        """Start a Brain: from here on jobs are planned."""
        first = self.stacks["h1"]
        shown = Vault(first.home.auth).credentials_file("brain")
        words = ["--url", first.url, "--secret-file", str(shown), "--with-parent"]
        log = self._ends.enter_context((self._folder / "brain.log").open("wb"))
        brain = subprocess.Popen(
            service_command("brain", *words), stdin=subprocess.PIPE, stdout=log, stderr=log
        )
        self._ends.enter_context(brain)
        self._ends.callback(brain.terminate)

    def write(self) -> None:
        self.job.write()
        file = self.job.folder / "job.toml"
        program, own = f"program = {self.job.gate.program()}", f'program = ["{TRAINER}"]'
        assert program in file.read_text()
        file.write_text(file.read_text().replace(program, own))

    def submit(self) -> subprocess.CompletedProcess[str]:
        self.write()
        return self.job.rover("submit", "job.toml")

    def workers(self, host: str = "") -> list[dict[str, Any]]:
        """Return the workers that run, of all hosts or of one."""
        rows = [row for each in self.stacks.values() for row in living(each.home.root, NAME, "worker")]
        mine = {(row["host"], row["pid"]): row for row in rows}
        return [row for row in mine.values() if host in ("", row["host"])]

    def reason(self) -> str:
        """Return what `rover jobs` says of the job."""
        (row,) = json.loads(self.job.rover("jobs", "-o", "json").stdout)
        return str(row["reason"])


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with ExitStack() as ends:
        yield Hosts(tmp_path, ends)


def refusals(hosts: Hosts) -> list[tuple[str, str, str]]:
    return [(each["host"], each["path"], each["problem"]) for each in hosts.job.facts("host.program_refused")]


MISSING = (TRAINER, "no such program on the PATH of this host")


def test_a_host_that_joins_without_the_program_is_named_until_it_is_mended(hosts: Hosts) -> None:
    hosts.install("h1")
    hosts.up("h1")
    hosts.plan()
    submitted = hosts.submit()
    assert submitted.returncode == 0, submitted.stderr
    hosts.job.until(lambda: hosts.workers("h1"), "a job that trains on h1")
    hosts.up("h2")
    hosts.job.until(lambda: refusals(hosts), "what h2 lacks")
    assert refusals(hosts) == [("h2", *MISSING)]
    hosts.job.until(lambda: f"host h2: {': '.join(MISSING)}" in hosts.reason(), "h2 in `rover jobs`")
    assert f"host h2: {': '.join(MISSING)}" in hosts.job.rover("doctor").stdout
    hosts.install("h2")
    hosts.job.until(lambda: hosts.job.facts("host.program_mended"), "that it starts on h2 now")
    hosts.job.until(lambda: "h2" not in hosts.reason(), "that h2 is named no more")
    hosts.job.complete()
    assert hosts.job.facts("worker.failed") == hosts.job.facts("member.lost") == []


def test_a_host_that_comes_back_without_the_program_gets_no_worker_until_it_is_mended(hosts: Hosts) -> None:
    for host in ("h1", "h2"):
        hosts.install(host)
        hosts.up(host)
    hosts.plan()
    submitted = hosts.submit()
    assert submitted.returncode == 0, submitted.stderr
    hosts.job.until(lambda: hosts.workers("h2"), "a worker on h2")
    hosts.down("h2")
    hosts.remove("h2")
    hosts.job.until(lambda: len(hosts.workers("h1")) == 2, "both workers on h1")
    hosts.up("h2")
    hosts.job.until(lambda: refusals(hosts), "what h2 lacks")
    hosts.scale(4)
    hosts.job.until(lambda: len(hosts.workers("h1")) == 4, "all workers on h1")
    assert hosts.workers("h2") == []
    hosts.install("h2")
    hosts.job.until(lambda: hosts.job.facts("host.program_mended"), "that it starts on h2 now")
    hosts.scale(6)
    hosts.job.until(lambda: hosts.workers("h2"), "a worker on h2")
    hosts.job.complete()
    assert hosts.job.facts("worker.failed") == []


def test_a_program_that_is_deleted_on_one_host_costs_no_failure(hosts: Hosts) -> None:
    for host in ("h1", "h2"):
        hosts.install(host)
        hosts.up(host)
    hosts.plan()
    submitted = hosts.submit()
    assert submitted.returncode == 0, submitted.stderr
    hosts.job.until(lambda: hosts.workers("h2"), "a worker on h2")
    hosts.remove("h2")
    (victim,) = hosts.workers("h2")
    os.kill(victim["pid"], signal.SIGKILL)
    hosts.job.until(lambda: refusals(hosts) and len(hosts.workers("h1")) == 2, "its successor on h1")
    hosts.job.complete()
    assert hosts.job.facts("worker.failed") == []
    (lost,) = hosts.job.facts("member.lost")
    assert lost["reason"] == "killed"


def test_where_no_host_has_the_program_any_more_the_job_says_so_and_waits(hosts: Hosts) -> None:
    hosts.install("h1")
    hosts.up("h1")
    assert hosts.submit().returncode == 0
    hosts.remove("h1")
    hosts.plan()
    hosts.job.until(lambda: "cannot start, the program does not" in hosts.reason(), "why nothing runs")
    tried = refusals(hosts)
    hosts.install("h1")
    hosts.job.complete()
    assert tried == refusals(hosts) == [("h1", *MISSING)]  # however often it was tried
    assert hosts.job.facts("worker.failed") == hosts.job.facts("member.lost") == []


def test_a_submission_names_the_host_that_lacks_the_program(hosts: Hosts) -> None:
    hosts.install("h1")
    for host in ("h1", "h2"):
        hosts.up(host)
    refused = hosts.submit()
    assert refused.returncode == 2
    assert f"host h2: {': '.join(MISSING)}" in refused.stderr
    assert "host h1" not in refused.stderr
    assert json.loads(hosts.job.rover("jobs", "-o", "json").stdout or "[]") == []
    assert sys.executable not in refused.stderr
