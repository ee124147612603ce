"""Three machines on a network of their own: they join by tokens, train, one is cut off and lost, another takes its place."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import clocks
import pytest
from clocks import by_another_clock
from machines import JobOnMachines, Stacks, run_on
from namespaces import Network, network, why_not
from patience import until

from rover_bus.auth.vault import Vault
from rover_bus.cli.home import Home
from rover_bus.ps.handshake import MAGIC

LACKS = why_not()
# The handshake of servers and daemons, a subject of the bus, its first line; and the first bytes of a frame with their zeros.
IN_THE_CLEAR = (MAGIC, b"rover.job.", b'INFO {"server_id"')
FRAME = re.compile(rb"RPS1...\0.....\0\0\0", re.DOTALL)
pytestmark = [pytest.mark.chaos, pytest.mark.skipif(bool(LACKS), reason=LACKS or "all is there")]


class Scene:
    """Machines, of which the first has the stack, and a job of three workers and three servers."""

    def __init__(self, net: Network, folder: Path, ends: ExitStack, checkpoint: str) -> None:
        self.on, self.stacks, self._folder = net.machines, Stacks(folder, ends), folder
        self.stacks.start(self.on["one"], "one", "up", "--host", "one", "--bind", self.on["one"].address)
        self.home = self.stacks.home("one").root
        self.job = JobOnMachines(
            machine=self.on["one"],
            folder=folder,
            home=self.home,
            rows=2_000,
            epochs=2,
            workers=3,
            servers=3,
            checkpoint=checkpoint,
        )

    def join(self, name: str, around: Sequence[str] = ()) -> None:
        file = self._folder / f"{name}.token"
        done = run_on(self.on["one"], self.home, "auth", "token", "--out", str(file), cwd=self._folder)
        assert done.returncode == 0, done.stderr
        words = ["join", "--token-file", str(file), "--name", name]
        self.stacks.start(self.on[name], name, *words, around=around)

    def used(self) -> set[str]:
        """Return the machines that members are desired on."""
        desired = self.job.facts("members.desired")
        return {each["host"] for each in desired[-1]["members"]} if desired else set()


def test_machines_join_train_are_lost_and_replaced(tmp_path: Path) -> None:
    packets = tmp_path / "packets"
    with network("one", "two", "three", "four") as net, net.captured(packets), ExitStack() as ends:
        scene = Scene(net, tmp_path, ends, 'every = "1s"\ncopies = 1\npersist = false')
        job, used, on, home = scene.job, scene.used, scene.on, scene.home
        scene.join("two")
        scene.join("three")
        job.submit()
        job.until(lambda: job.facts("checkpoint.redundant"), "a cut whose parts went from machine to machine")
        assert used() == {"one", "two", "three"}
        known = run_on(on["one"], home, "events", "-k", "host.registered", "--json", cwd=tmp_path).stdout
        assert {json.loads(line)["body"]["host"] for line in known.splitlines()} == {"one", "two", "three"}
        net.cut("two")  # as the others see it; it goes on for itself
        scene.join("four")
        job.until(lambda: "two" not in used(), "members that leave the lost machine")
        scene.stacks.lose("two")
        job.complete()
        (submitted,) = job.facts("job.submitted")
        secrets = secrets_of(home, job.name, submitted["uid"])
    seen = packets.read_bytes()
    assert len(seen) > 1 << 20, "the capture saw what passed"
    for clear in (*secrets, *IN_THE_CLEAR):
        assert clear not in seen, clear
    assert FRAME.search(seen) is None


@pytest.mark.skipif(bool(clocks.why_not()), reason=clocks.why_not() or "all is there")
def test_machines_whose_clocks_are_minutes_apart_train_and_one_that_lacks_the_data_is_named(
    tmp_path: Path,
) -> None:
    """Ten minutes between two of them: deadlines, times to live, certificates and ends of rights are not theirs to judge."""
    told = subprocess.check_output([*by_another_clock(tmp_path, 300), "date", "+%s"])
    assert int(told) - time.time() > 290, "the other clock is none"
    data = tmp_path / "data"
    data.mkdir()
    with network("one", "two", "three", "four") as net, ExitStack() as ends:
        scene = Scene(net, tmp_path, ends, f'every = "1s"\npath = "{tmp_path / "store"}"')
        job, used = scene.job, scene.used
        job.write()
        (tmp_path / "t.csv").rename(data / "t.csv")
        file = tmp_path / "job.toml"
        file.write_text(file.read_text().replace('"t.csv"', '"data/t.csv"'))
        scene.join("two", by_another_clock(tmp_path, 300))
        hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(data)]
        scene.join("three", hidden)
        refused = job.rover("submit", "job.toml")
        assert refused.returncode == 2
        assert f"host three: {data / 't.csv'}: no such file" in refused.stderr
        assert "host two" not in refused.stderr
        scene.stacks.lose("three")
        scene.join("four", by_another_clock(tmp_path, -300))
        until(
            lambda: job.rover("submit", "job.toml").returncode == 0, "a submission without the lost machine"
        )
        job.until(lambda: used() == {"one", "two", "four"} and job.facts("epoch.opened"), "members on all")
        job.until(lambda: job.facts("checkpoint.ready"), "a checkpoint on storage")
        scene.stacks.lose("two")
        job.until(lambda: "two" not in used() and job.facts("ledger.rewound"), "a way back without a machine")
        job.complete()


def secrets_of(home: Path, job: str, uid: str) -> list[bytes]:
    """Return what a stack keeps: its keys, and the secret of the run."""
    vault = Vault(Home(home).auth)
    keys = [
        path.read_text().strip().encode() for path in (vault.root / "keys").iterdir() if path.suffix != ".pub"
    ]
    return [*keys, vault.job_secret(job, uid).encode()]
