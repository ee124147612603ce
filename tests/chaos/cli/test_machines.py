"""Three machines on a network of their own: they join by tokens, train, one is cut off and lost, another takes its place."""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from namespaces import Machine, network, why_not
from outside import ROVER
from patience import PATIENCE_S, until
from small_job import SmallJob
from taken_away import take_away

from rover_bus.auth.vault import Vault
from rover_bus.cli.home import Home
from rover_bus.ps.handshake import MAGIC

LACKS = why_not()
# The handshake of servers and daemons, a subject of the bus, its first line; and the first bytes of a frame with their zeros.
IN_THE_CLEAR = (MAGIC, b"rover.job.", b'INFO {"server_id"')
FRAME = re.compile(rb"RPS1...\0.....\0\0\0", re.DOTALL)
pytestmark = [pytest.mark.chaos, pytest.mark.skipif(bool(LACKS), reason=LACKS or "all is there")]


@dataclass(kw_only=True)
class JobOnMachines(SmallJob):
    """A small job that is submitted and followed from one of the machines."""

    machine: Machine = field(default_factory=lambda: Machine("", ""))

    def rover(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_on(self.machine, self.home, *words, cwd=self.folder)


def run_on(machine: Machine, home: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*machine.within, *ROVER, *words, "--dir", str(home)],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
        timeout=PATIENCE_S,
    )


class Stacks:
    """What runs on the machines, each in a directory of its own; ended with the test, however it ends."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self._folder, self._ends = folder, ends
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def home(self, name: str) -> Home:
        return Home(self._folder / name)

    def start(self, machine: Machine, name: str, *words: str) -> None:
        log = (self._folder / f"{name}.log").open("wb")
        self._ends.callback(log.close)
        command = [*machine.within, *ROVER, *words, "--dir", str(self.home(name).root)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        self.processes[name] = process
        self._ends.callback(self._end, name)
        until(lambda: self._serves(name), f"host {name}", more=(self._folder / f"{name}.log").read_text)

    def lose(self, name: str) -> None:
        """Take it away as a power cut does."""
        process = self.processes[name]
        process.kill()
        process.wait()
        take_away(self.home(name))

    def _serves(self, name: str) -> bool:
        assert self.processes[name].poll() is None, (self._folder / f"{name}.log").read_text()
        return (self.home(name).root / "stack.json").exists()

    def _end(self, name: str) -> None:
        process = self.processes[name]
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        finally:
            self.lose(name)


def test_machines_join_train_are_lost_and_replaced(tmp_path: Path) -> None:
    packets = tmp_path / "packets"
    with network("one", "two", "three", "four") as net, net.captured(packets), ExitStack() as ends:
        on, stacks = net.machines, Stacks(tmp_path, ends)
        stacks.start(on["one"], "one", "up", "--host", "one", "--bind", on["one"].address)
        home = stacks.home("one").root

        def join(name: str) -> None:
            file = tmp_path / f"{name}.token"
            done = run_on(on["one"], home, "auth", "token", "--out", str(file), cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            stacks.start(on[name], name, "join", "--token-file", str(file), "--name", name)

        join("two")
        join("three")
        job = JobOnMachines(
            machine=on["one"],
            folder=tmp_path,
            home=home,
            rows=2_000,
            epochs=2,
            workers=3,
            servers=3,
            checkpoint='every = "1s"\ncopies = 1\npersist = false',
        )
        job.submit()

        def used() -> set[str]:
            desired = job.facts("members.desired")
            return {each["host"] for each in desired[-1]["members"]} if desired else set()

        job.until(lambda: job.facts("checkpoint.redundant"), "a cut whose parts went from machine to machine")
        assert used() == {"one", "two", "three"}
        known = run_on(on["one"], home, "events", "-k", "host.registered", "--json", cwd=tmp_path).stdout
        assert {json.loads(line)["body"]["host"] for line in known.splitlines()} == {"one", "two", "three"}
        net.cut("two")  # as the others see it; it goes on for itself
        join("four")
        job.until(lambda: "two" not in used(), "members that leave the lost machine")
        stacks.lose("two")
        job.complete()
        (submitted,) = job.facts("job.submitted")
        secrets = secrets_of(home, job.name, submitted["uid"])
    seen = packets.read_bytes()
    assert len(seen) > 1 << 20, "the capture saw what passed"
    for clear in (*secrets, *IN_THE_CLEAR):
        assert clear not in seen, clear
    assert FRAME.search(seen) is None


def secrets_of(home: Path, job: str, uid: str) -> list[bytes]:
    """Return what a stack keeps: its keys, and the secret of the run."""
    vault = Vault(Home(home).auth)
    keys = [
        path.read_text().strip().encode() for path in (vault.root / "keys").iterdir() if path.suffix != ".pub"
    ]
    return [*keys, vault.job_secret(job, uid).encode()]
