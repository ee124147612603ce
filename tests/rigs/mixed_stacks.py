"""A stack whose parts are of two releases, and a job in it whose processes are killed: what the mixes of tests/upgrade share.

The parts of a mix are processes of one stack; which release each runs is chosen as its interpreter starts
(tests/upgrade/mixed/sitecustomize.py), and noted by it. `MixedStack` is `rover up`; `MixedPods` has an operator in the place of
the daemon, and members in pods.
"""

from __future__ import annotations

import itertools
import os
import random
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pod_stacks
import psutil
import pytest
from kube_cluster import Cluster
from object_jobs import apply_job, claim
from outside import ROVER, living, rover
from patience import until
from small_job import SmallJob

MIXED = Path(__file__).parents[1] / "upgrade" / "mixed"
part_of = runpy.run_path(str(MIXED / "sitecustomize.py"))["part_of"]
READERS = "command"  # runs of both releases read what is stored
DISTURBED_S = 60.0
BETWEEN_S = 4.0


class MixedStack:
    """One stack, and what runs the former release in it."""

    parts = ("command", "brain", "daemon", "master", "standby", "server", "library")
    victims = ("worker", "ps", "master", "brain", "daemon")

    def __init__(self, folder: Path, former: Path, old: frozenset[str]) -> None:
        self.home, self.notes, self._log = folder / "state", folder / "notes", folder / "up.log"
        self.notes.mkdir(exist_ok=True)
        self.old = old
        self.variables = {
            "PYTHONPATH": str(MIXED),
            "MIXED_OLD": str(former),
            "MIXED_PARTS": ",".join(sorted(old)),
            "MIXED_NOTES": str(self.notes),
            "MIXED_TURNED": str(folder / "turned"),
        }

    def words(self) -> list[str]:
        """Return the command line that runs it."""
        return [*ROVER, "up", "--dir", str(self.home)]

    def makes_a_stack(self) -> None:
        """Make the stack, as the release that was did, and let it rest: nothing of that is a note of the mix."""
        with self.runs():
            pass
        for note in self.notes.iterdir():
            note.unlink()

    @contextmanager
    def runs(self) -> Iterator[None]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
        with self._log.open("w") as log:
            process = subprocess.Popen(
                self.words(),
                env=environment | self.variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            until((self.home / "stack.json").exists, "the stack", 0.2, self._log.read_text)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)

    def hand_in(self, job: SmallJob) -> None:
        """Submit a job to it."""
        job.submit()

    def turn(self, part: str) -> None:
        """Have a part run the other release from now on: upgraded, or put back."""
        file = Path(self.variables["MIXED_TURNED"])
        turned = set(file.read_text().split()) if file.exists() else set()
        file.write_text(" ".join(turned ^ {part}))
        for pid in self.pids(part):
            kill(pid)

    def ran(self, part: str) -> dict[str, int]:
        """Return how many processes of a part ran each release, by its name: old, new."""
        notes = {each: self.notes / f"{part}-{each}" for each in ("old", "new")}
        return {each: len(note.read_text().split()) for each, note in notes.items() if note.exists()}

    def assert_ran(self, *both: str) -> None:
        """Each part ran the release that it should, and no other; those that were turned ran both."""
        noted = {each.name.rpartition("-")[0] for each in self.notes.iterdir()}
        assert noted == set(self.parts), noted ^ set(self.parts)
        for part in noted - {READERS}:
            shall = {"old", "new"} if part in both else {"old" if part in self.old else "new"}
            assert set(self.ran(part)) == shall, (part, self.ran(part))
        assert ("old" if READERS in self.old else "new") in self.ran(READERS)

    def strike(self, number: int, job: str, chance: random.Random) -> None:
        """Kill a process of each part in turn: a member by the list of members, a service by its command line."""
        victim = self.victims[number % len(self.victims)]
        if victim in ("brain", "daemon"):
            kill_one(self.pids(victim), chance)
        else:
            kill_one([row["pid"] for row in living(self.home, job, victim)], chance)

    def pids(self, *parts: str) -> list[int]:
        """Return the processes of some parts, wherever they run on this machine."""
        return [each.pid for each in psutil.process_iter() if self._part_of(each) in parts]

    def _part_of(self, process: psutil.Process) -> str:
        with suppress(psutil.Error):
            environment = process.environ()
            if environment.get("MIXED_NOTES") == str(self.notes):
                return str(part_of(process.cmdline(), environment))
        return ""


class MixedPods(MixedStack):
    """A mix whose members are pods of a cluster; an agent in each server's pod stores what is staged there."""

    parts = (
        "command",
        "brain",
        "operator",
        "node-agent",
        "trial",
        "master",
        "standby",
        "server",
        "library",
    )
    _of_members = {"worker": ("library",), "ps": ("server",), "master": ("master", "standby")}
    victims = (
        "operator",
        "worker",
        "ps deleted",
        "master",
        "brain",
        "worker deleted",
        "ps",
        "operator",
        "master deleted",
        "node-agent",
    )

    def __init__(self, folder: Path, former: Path, old: frozenset[str], pods: tuple[Cluster, str]) -> None:
        """`pods`: the cluster and the namespace of its members."""
        super().__init__(folder, former, old)
        self._folder, (self._cluster, self._namespace) = folder, pods

    def words(self) -> list[str]:
        words = pod_stacks.operator_words(
            self._cluster, self._namespace, self._folder, variables=self.variables
        )
        program = [sys.executable, str(pod_stacks.__file__), str(self.home)]
        return [*program, *words, "--sidecars", "256Mi"]

    def hand_in(self, job: SmallJob) -> None:
        """Have the RoverJob of a job there, and the claim that its checkpoints are stored on."""
        wanted = claim(self._namespace, f"{job.name}-checkpoints", self._folder / "store")
        made = self._cluster.kubectl("apply", "-f", "-", given=wanted)
        assert made.returncode == 0, made.stderr
        apply_job(self._cluster, self._namespace, job)

    def strike(self, number: int, job: str, chance: random.Random) -> None:
        """Kill a process of each part in turn, or have the API server delete a member's pod."""
        victim, _, deleted = self.victims[number % len(self.victims)].partition(" ")
        if deleted:
            self._delete_one(victim, chance)
        else:
            kill_one(self.pids(*self._of_members.get(victim, (victim,))), chance)

    def _delete_one(self, role: str, chance: random.Random) -> None:
        words = ("get", "pods", "-l", f"rover-bus.io/role={role}", "-o", "jsonpath={.items[*].metadata.name}")
        there = self._cluster.kubectl("-n", self._namespace, *words).stdout.split()
        if there:
            self._cluster.kubectl(
                "-n", self._namespace, "delete", "pod", chance.choice(there), "--wait=false"
            )


class MixedJob(SmallJob):
    """A job whose commands are a mix's too."""

    mix: MixedStack

    def rover(self, *words: str) -> subprocess.CompletedProcess[str]:
        return rover(*words, home=self.home, cwd=self.folder, timeout_s=120.0, **self.mix.variables)

    def trains_through_kills(self) -> None:
        """Hand it in, disturb it, and see its end."""
        self.begin()
        disturb(self.mix, self, DISTURBED_S)
        self.end()

    def begin(self) -> None:
        """Hand it in, and see it train."""
        self.mix.hand_in(self)
        self.until(lambda: self.facts("checkpoint.ready"), "a first checkpoint")

    def end(self) -> None:
        """Have both releases read what is stored of it, and see its end."""
        for command in ("", READERS):
            assert_readable(self, self.mix.variables | {"MIXED_PARTS": command})
        self.complete()


def job_of(mix: MixedStack, folder: Path) -> MixedJob:
    job = MixedJob(
        folder=folder,
        home=mix.home,
        rows=20_000,
        epochs=2,
        workers=2,
        servers=2,
        by_command=True,
        checkpoint=f'every = "1s"\npath = "{folder / "store"}"',
    )
    job.mix = mix
    return job


def kill_one(pids: list[int], chance: random.Random) -> None:
    if pids:
        kill(chance.choice(pids))


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it ended by itself
        os.kill(pid, signal.SIGKILL)


def disturb(mix: MixedStack, job: SmallJob, seconds: float) -> None:
    """Strike one process after the other, of each part in turn."""
    chance, ends_s = random.Random(1), time.monotonic() + seconds
    for number in itertools.count():
        if time.monotonic() > ends_s:
            return
        mix.strike(number, job.name, chance)
        time.sleep(BETWEEN_S)


def mixes(parts: Iterable[str], among: Iterable[str], in_ci: Iterable[tuple[str, str]]) -> list[object]:
    """Return parameters: each of `parts` alone new, then alone old, `among` all of a stack; long but for those `in_ci`."""
    found = []
    for part in parts:
        for release in ("new", "old"):
            old = {part} if release == "old" else set(among) - {part}
            marks = [] if (part, release) in in_ci else [pytest.mark.long]
            found.append(pytest.param(frozenset(old), id=f"{part} alone {release}", marks=marks))
    return found


def assert_readable(job: SmallJob, variables: dict[str, str]) -> None:
    """A release passes over no fact of the job, and replays its log."""
    told = rover("events", job.name, "--json", home=job.home, **variables)
    assert told.returncode == 0, told.stderr
    assert "passed_over" not in told.stdout
    found = rover("doctor", home=job.home, **variables).stdout.splitlines()
    assert "ok" in {line.split()[0] for line in found}
    assert not [line for line in found if line.startswith("bad") and f"job {job.name}" in line]
