"""Plain machines form a stack by tokens: hosts with addresses of their own join, train, are lost with memory, and replaced."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from outside import ROVER, rover
from patience import PATIENCE_S, until
from small_job import SmallJob
from taken_away import take_away

from rover_bus.auth.host_vault import HostVault
from rover_bus.auth.roles import MEMBER_ROLES
from rover_bus.auth.secret_files import write_secret
from rover_bus.auth.vault import Vault
from rover_bus.cli.home import Home
from rover_bus.cli.stack import Here, RunningStack
from rover_bus.flash.places import host_root
from rover_bus.ps.shared_secret import OVERLAP_S

pytestmark = pytest.mark.chaos
COPIED = 'every = "1s"\ncopies = 1\npersist = false'


class JoinedHost:
    """A host that `rover join`, or `rover up` later, runs in a process of its own."""

    def __init__(self, folder: Path, name: str, address: str) -> None:
        self.home, self.name, self.address = Home(folder / name), name, address
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str) -> None:
        with self._log.open("ab") as log:
            command = [*ROVER, *words, "--dir", str(self.home.root)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until(self._serves, f"host {self.name}", more=self._log.read_text)

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        return (self.home.root / "stack.json").exists()

    def join(self, token: Path) -> None:
        self.start("join", "--token-file", str(token), "--name", self.name, "--bind", self.address)

    def stop(self) -> int:
        """End it as Ctrl-C does; return its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(PATIENCE_S)

    def end(self) -> tuple[int, str]:
        """Wait until it ends by itself; return its exit code and its last line."""
        assert self._process is not None
        code = self._process.wait(PATIENCE_S)
        return code, self._log.read_text().splitlines()[-1]

    def lose(self) -> None:
        """Take it away as a power cut does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        take_away(self.home)

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None


@contextmanager
def joined(folder: Path, name: str, address: str, token: Path) -> Iterator[JoinedHost]:
    host = JoinedHost(folder, name, address)
    try:
        host.join(token)
        yield host
    finally:
        if host.runs:
            host.lose()
        shutil.rmtree(host_root(host.home.node), ignore_errors=True)


def token(stack: RunningStack, file: Path, ttl: str = "10m") -> Path:
    done = rover("auth", "token", "--out", str(file), "--ttl", ttl, home=stack.home.root)
    assert done.returncode == 0, done.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    return file


def training_on_three(folder: Path, ends: ExitStack) -> tuple[RunningStack, dict[str, JoinedHost], SmallJob]:
    """Return a stack, the two hosts that have joined it, and a job with members and copies on all three."""
    one = ends.enter_context(
        RunningStack(folder / "one", here=Here("one", bind="127.0.0.2"), disposable=True)
    )
    hosts = {
        name: ends.enter_context(joined(folder, name, address, token(one, folder / f"{name}.token")))
        for name, address in (("two", "127.0.0.3"), ("three", "127.0.0.4"))
    }
    job = SmallJob(
        folder=folder, home=one.home.root, rows=2_000, epochs=2, workers=3, servers=3, checkpoint=COPIED
    )
    job.submit()
    job.until(lambda: job.facts("checkpoint.redundant"), "a cut whose parts other hosts hold")
    assert used(job) == {"one", "two", "three"}
    return one, hosts, job


def test_hosts_join_train_are_lost_and_replaced(tmp_path: Path) -> None:
    with ExitStack() as ends:
        one, hosts, job = training_on_three(tmp_path, ends)
        hosts["two"].lose()
        replacement = token(one, tmp_path / "four.token")
        ends.enter_context(joined(tmp_path, "four", "127.0.0.5", replacement))
        job.until(
            lambda: "two" not in used(job) and job.facts("ledger.rewound"), "a way back without the lost host"
        )
        job.complete()


def test_what_a_lost_host_signs_is_refused_and_members_of_other_hosts_train_on(tmp_path: Path) -> None:
    with ExitStack() as ends:
        one, hosts, job = training_on_three(tmp_path, ends)
        placed = job.facts("members.desired")[-1]
        of_two = {str(each["member"]) for each in placed["members"] if each["host"] == "two"}
        stolen = HostVault(hosts["two"].home.auth)

        hosts["two"].lose()
        revoked = rover("auth", "revoke", "--host", "two", home=one.home.root)
        assert (revoked.returncode, revoked.stderr) == (0, ""), revoked.stderr
        for role in MEMBER_ROLES:
            credential = stolen.member_credentials(role, job.name, placed["uid"], f"{role}-9.1", "two")
            write_secret(tmp_path / "stolen" / role, credential)
            words = ["--url", one.url, "--secret-file", str(tmp_path / "stolen" / role)]
            refused = rover("events", *words, home=tmp_path / "elsewhere")
            assert (refused.returncode, refused.stderr.count("\n")) == (5, 1), refused.stderr
            assert "refuses the secret" in refused.stderr
        assert (
            HostVault(hosts["three"].home.auth).host_secret
            == Vault(one.home.auth).host_secret
            != stolen.host_secret
        )
        job.until(
            lambda: "two" not in used(job) and job.facts("ledger.rewound"), "a way back without the lost host"
        )
        job.complete()
        assert {str(each["member"]) for each in job.facts("member.lost")} <= of_two


def test_keys_are_replaced_under_a_job_and_it_trains_on_when_the_former_secret_of_sockets_ends(
    tmp_path: Path,
) -> None:
    with RunningStack(tmp_path / "one", here=Here("one"), disposable=True) as one:
        store = f'every = "1s"\npath = "{tmp_path / "store"}"'
        job = SmallJob(
            folder=tmp_path, home=one.home.root, rows=60_000, epochs=2, workers=2, servers=2, checkpoint=store
        )
        job.submit()
        job.until(lambda: job.facts("checkpoint.ready"), "a checkpoint")
        rotated = rover("auth", "rotate", home=one.home.root)
        assert (rotated.returncode, rotated.stderr) == (0, ""), rotated.stderr
        time.sleep(OVERLAP_S + 2)
        before = len(job.facts("checkpoint.ready"))
        job.until(lambda: len(job.facts("checkpoint.ready")) > before, "training by the new keys")
        job.complete()
        assert job.facts("member.lost") == []


def test_a_host_that_is_revoked_ends_by_itself_and_comes_back_by_another_token_alone(tmp_path: Path) -> None:
    with (
        RunningStack(tmp_path / "one", here=Here("one", bind="127.0.0.2"), disposable=True) as one,
        joined(tmp_path, "two", "127.0.0.3", token(one, tmp_path / "two.token")) as two,
    ):
        done = rover("auth", "revoke", "--host", "two", home=one.home.root)
        assert done.returncode == 0, done.stderr
        code, line = two.end()
        assert code == 5, line
        assert "revoked" in line
        again = rover("join", "--dir", str(two.home.root))
        assert again.returncode == 5, again.stderr
        assert "revoked" in again.stderr.splitlines()[-1]


def test_a_joined_host_that_goes_down_has_a_checkpoint_taken_first(tmp_path: Path) -> None:
    """By a daemon's rights: it has no others."""
    with (
        RunningStack(tmp_path / "one", here=Here("one", bind="127.0.0.2"), disposable=True) as one,
        joined(tmp_path, "two", "127.0.0.3", token(one, tmp_path / "two.token")) as two,
    ):
        job = SmallJob(
            folder=tmp_path,
            home=one.home.root,
            rows=1_000,
            epochs=2,
            workers=2,
            servers=2,
            checkpoint=f'every = "1h"\npath = "{tmp_path / "store"}"',
        )
        job.submit()
        job.until(
            lambda: "two" in used(job) and job.facts("epoch.opened"), "a job with members on both hosts"
        )
        done = rover("down", home=two.home.root)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert [each["reason"] for each in job.facts("checkpoint.requested")] == ["rover down"]
        assert job.facts("checkpoint.ready")
        job.until(lambda: "two" not in used(job), "members on the host that stays")
        job.complete()


def used(job: SmallJob) -> set[str]:
    """Return the hosts that members are desired on."""
    desired = job.facts("members.desired")
    return {each["host"] for each in desired[-1]["members"]} if desired else set()


def test_a_token_is_for_one_host_of_one_stack_and_later_starts_need_none(tmp_path: Path) -> None:
    with RunningStack(tmp_path / "one", here=Here("one", bind="127.0.0.2"), disposable=True) as one:
        used = token(one, tmp_path / "used")
        host = JoinedHost(tmp_path, "two", "127.0.0.3")
        host.join(used)
        assert host.stop() == 130
        host.start("up")
        said = rover("events", "-k", "host.registered", home=host.home.root)
        assert said.returncode == 0, said.stderr
        assert host.stop() == 130
        host.start("join", "--token-file", str(used))
        assert host.stop() == 130
        expired = token(one, tmp_path / "expired", "1s")
        until(lambda: time.time() > expired.stat().st_mtime + 2.5, "its end")
        with RunningStack(tmp_path / "other", here=Here("x", bind="127.0.0.9"), disposable=True) as other:
            foreign = token(other, tmp_path / "foreign")
        moved = foreign.read_text().replace(other.url, one.url)
        foreign.write_text(moved)
        for file, says in ((used, "used already"), (expired, "has expired"), (foreign, "not of the stack")):
            done = rover(
                "join", "--token-file", str(file), "--dir", str(tmp_path / "three"), "--name", "three"
            )
            assert (done.returncode, says in done.stderr) == (5, True), done.stderr
            assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert not (tmp_path / "three" / "auth").exists()
