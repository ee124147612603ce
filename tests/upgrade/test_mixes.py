"""Each part alone new, then alone old, while a job trains and its processes are killed: every sample once, nothing unreadable.
Then all new, and the format raised meanwhile; afterwards the former release is refused.

The parts of a mix are processes of one stack; which release each runs is chosen as its interpreter starts (mixed/sitecustomize.py).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from outside import ROVER, living, rover
from patience import until
from small_job import SmallJob

from rover_bus.cli.connection import Address, visit
from rover_bus.cli.home import Home
from rover_bus.events.codec import type_of
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import FACTS
from rover_bus.events.subjects import job_facts

pytestmark = pytest.mark.chaos
PARTS = ("command", "brain", "daemon", "master", "standby", "server", "library")
IN_CI = (("master", "new"), ("daemon", "old"))  # and the stack that is raised
RAISED = "members.desired.v2"  # what is written in format 2 alone
DISTURBED_S = 60.0
BETWEEN_S = 4.0
VICTIMS = ("worker", "ps", "master", "brain", "daemon")


class MixedStack:
    """One stack, and who runs the former release in it."""

    def __init__(self, folder: Path, former: Path, old: frozenset[str]) -> None:
        self.home, self.notes, self._log = folder / "state", folder / "notes", folder / "up.log"
        self.notes.mkdir(exist_ok=True)
        self.variables = {
            "PYTHONPATH": str(Path(__file__).parent / "mixed"),
            "MIXED_OLD": str(former),
            "MIXED_PARTS": ",".join(sorted(old)),
            "MIXED_NOTES": str(self.notes),
        }

    def makes_a_stack(self) -> None:
        """Make the stack, as the release that was did, and let it rest: nothing of that is a note of the mix."""
        with self.runs():
            pass
        for note in self.notes.iterdir():
            note.unlink()

    @contextmanager
    def runs(self) -> Iterator[psutil.Process]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
        with self._log.open("w") as log:
            process = subprocess.Popen(
                [*ROVER, "up", "--dir", str(self.home)],
                env=environment | self.variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            until((self.home / "stack.json").exists, "the stack", 0.2, self._log.read_text)
            yield psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)

    def ran(self) -> set[str]:
        """Return which parts ran which release, as `daemon-old`."""
        return {each.name for each in self.notes.iterdir()}


class MixedJob(SmallJob):
    """A job whose commands are a mix's too."""

    mix: MixedStack

    def rover(self, *words: str) -> subprocess.CompletedProcess[str]:
        return rover(*words, home=self.home, cwd=self.folder, timeout_s=120.0, **self.mix.variables)


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


def kill_one(victim: str, home: Path, job: str, stack: psutil.Process, chance: random.Random) -> None:
    """Kill a process of a part: a member by the list of members, a service as a child of `rover up`."""
    if victim in ("brain", "daemon"):
        pids = [each.pid for each in stack.children(recursive=True) if serves(each, victim)]
    else:
        pids = [row["pid"] for row in living(home, job, victim)]
    if pids:
        os.kill(chance.choice(pids), signal.SIGKILL)


def serves(process: psutil.Process, role: str) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return "rover_bus.cli.serve" in words and words[words.index("rover_bus.cli.serve") + 1] == role


def mixes() -> list[object]:
    found = []
    for part in PARTS:
        for release in ("new", "old"):
            old = {part} if release == "old" else set(PARTS) - {part}
            marks = [] if (part, release) in IN_CI else [pytest.mark.long]
            found.append(pytest.param(frozenset(old), id=f"{part} alone {release}", marks=marks))
    return found


@pytest.mark.parametrize("old", mixes())
def test_a_job_trains_through_kills_in_a_mix_of_releases(
    old: frozenset[str], former: Path, tmp_path: Path
) -> None:
    MixedStack(tmp_path, former, frozenset(PARTS)).makes_a_stack()
    mix = MixedStack(tmp_path, former, old)
    with mix.runs() as stack:
        job = job_of(mix, tmp_path)
        job.submit()
        job.until(lambda: job.facts("checkpoint.ready"), "a first checkpoint")
        disturb(mix, job, stack, DISTURBED_S)
        for command in ("", "command"):
            assert_readable(job, mix.variables | {"MIXED_PARTS": command})
        job.complete()
    assert mix.ran() >= {f"{part}-{'old' if part in old else 'new'}" for part in PARTS}
    assert not {each for each in mix.ran() if each.endswith("-old")} - {
        f"{part}-old" for part in (*old, "command")
    }


def disturb(mix: MixedStack, job: MixedJob, stack: psutil.Process, seconds: float) -> None:
    """Kill one process after the other, of each part in turn."""
    chance, ends_s = random.Random(1), time.monotonic() + seconds
    for number in range(10**9):
        if time.monotonic() > ends_s:
            return
        kill_one(VICTIMS[number % len(VICTIMS)], mix.home, job.name, stack, chance)
        time.sleep(BETWEEN_S)


def test_a_stack_is_raised_while_a_job_trains_through_kills_and_nothing_older_starts_in_it(
    former: Path, tmp_path: Path
) -> None:
    old = MixedStack(tmp_path, former, frozenset(PARTS))
    old.makes_a_stack()
    mix = MixedStack(tmp_path, former, frozenset())
    with mix.runs() as stack:
        job = job_of(mix, tmp_path)
        job.submit()
        job.until(lambda: job.facts("checkpoint.ready"), "a first checkpoint")
        assert RAISED not in written(job)
        raising = subprocess.Popen(
            [*ROVER, "upgrade", "--dir", str(mix.home)], env=os.environ | mix.variables, cwd=tmp_path
        )
        disturb(mix, job, stack, DISTURBED_S / 2)
        assert raising.wait(120) == 0
        again = job.rover("upgrade")
        assert (again.returncode, "already" in again.stdout) == (0, True), again.stderr
        disturb(mix, job, stack, DISTURBED_S / 2)
        job.until(lambda: RAISED in written(job), "what format 2 allows")
        assert_readable(job, mix.variables)
        admitted = [fact.get("format") for fact in job.facts("member.admitted")]
        assert set(admitted) == {2}
        job.complete()
    for parts in (PARTS, ("daemon",)):
        refused = rover("up", "--detach", home=mix.home, **mix.variables | {"MIXED_PARTS": ",".join(parts)})
        assert refused.returncode == 9, refused.stderr
        assert "go on with release 0.4.0 or a later one, or restore a backup" in refused.stderr


def test_a_new_stack_of_this_release_is_refused_to_the_former_one(former: Path, tmp_path: Path) -> None:
    new = MixedStack(tmp_path, former, frozenset())
    new.makes_a_stack()
    refused = rover("up", "--detach", home=new.home, **new.variables | {"MIXED_PARTS": ",".join(PARTS)})
    assert refused.returncode == 9, refused.stderr
    assert "restore a backup from before the format was raised" in refused.stderr


def written(job: SmallJob) -> set[str]:
    """Return the types of what is stored of the members that shall be."""

    async def read(bus: NatsBus) -> set[str]:
        subject = job_facts(job.name, "members.desired")
        return {type_of(each.body) async for each in bus.read(FACTS, subject)}

    home = Home(job.home)
    return visit(Address(home.read_record().url, home.secret_file, home), read)


def assert_readable(job: SmallJob, variables: dict[str, str]) -> None:
    """A release passes over no fact of the job, and replays its log."""
    told = rover("events", job.name, "--json", home=job.home, **variables)
    assert told.returncode == 0, told.stderr
    assert "passed_over" not in told.stdout
    found = rover("doctor", home=job.home, **variables).stdout.splitlines()
    assert "ok" in {line.split()[0] for line in found}
    assert not [line for line in found if line.startswith("bad") and f"job {job.name}" in line]


def test_the_interpreter_of_each_part_is_known() -> None:
    """A part that no process is taken for would make every mix of it a run of one release."""
    sys.path.insert(0, str(Path(__file__).parent / "mixed"))
    try:
        from sitecustomize import part_of
    finally:
        del sys.path[0]
    serve = ["python", "-m", "rover_bus.cli.serve"]
    assert part_of([*serve, "master", "--job", "j", "--index", "0"], {}) == "master"
    assert part_of([*serve, "master", "--job", "j", "--index", "1"], {}) == "standby"
    assert [part_of([*serve, role], {}) for role in ("ps", "brain", "daemon")] == [
        "server",
        "brain",
        "daemon",
    ]
    assert part_of(["python", "-m", "rover_bus.cli.entry", "up"], {}) == "command"
    assert part_of(["python", "train.py"], {"ROVER_ROLE": "worker"}) == "library"
    assert part_of(["python", "-I", "-S", "-c", "shim"], {}) == ""
