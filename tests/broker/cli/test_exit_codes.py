"""docs/cli.md's exit codes (tests/rigs/exit_codes.py) of commands that need a stack. Those that need none: tests/core/cli."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import all_rights
import pytest
from exit_codes import WITH_STACK, Row
from facts_read import records_of
from outside import ROVER, living
from patience import PATIENCE_S, until
from small_job import SmallJob

from rover_bus.cli.stack import RunningStack
from rover_bus.events import subjects
from rover_bus.events.codec import encode
from rover_bus.events.formats import FORMAT
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import LOG

Done = subprocess.CompletedProcess[str]


class Scene:
    """One stack with the job `ads` that trains, and the files that the rows name."""

    def __init__(self, stack: RunningStack, job: SmallJob) -> None:
        self.stack, self.job, self.folder = stack, job, job.folder
        self.write_files()

    def write_files(self) -> None:
        text = (self.folder / "job.toml").read_text()
        (self.folder / "huge.toml").write_text(
            text.replace('"ads"', '"huge"').replace("epochs = 1\n", f"epochs = {10**9}\n")
        )
        program = f'program = ["{sys.executable}", "-c", "raise SystemExit(7)"]'
        lines = [program if line.startswith("program") else line for line in text.splitlines()]
        (self.folder / "failing.toml").write_text("\n".join(lines).replace('"ads"', '"failing"') + "\n")
        (self.folder / "wrong").write_text("no-secret-of-ours\n")
        (self.folder / "wrong").chmod(0o600)

    def command(self, row: Row) -> list[str]:
        words = row.words.replace("{url}", self.stack.url).split()
        service = [sys.executable, "-m", "rover_bus.cli.serve"]
        return [*service, *words[1:]] if words[0] == "serve" else [*ROVER, *words]

    @property
    def environment(self) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
        return clean | {"ROVER_HOME": str(self.job.home)}

    def type(self, row: Row, **more: str) -> Done:
        """Run the row's command line to its end."""
        command, environment = self.command(row), self.environment | more
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=environment,
            timeout=PATIENCE_S,
        )

    def interrupt(self, row: Row, begun: Callable[[], object], then: Callable[[int], object]) -> Done:
        """Run the row's command line; once it has `begun`, do `then` with its process id, and see it end."""
        process = subprocess.Popen(
            self.command(row),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )
        try:
            until(begun, f"the beginning of `{row}`", 0.2)
            then(process.pid)
            said, complained = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, said, complained)

    def trains(self, name: str) -> bool:
        return bool(living(self.job.home, name, "worker"))

    def name_of(self, row: Row) -> str:
        words = row.words.split()
        return words[words.index("--name") + 1]

    def home_of(self, row: Row) -> Path:
        words = row.words.split()
        return self.folder / words[words.index("--dir") + 1]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("codes")
    with RunningStack(folder / "state", disposable=True) as stack:
        job = SmallJob(
            folder=folder,
            home=stack.home.root,
            rows=640,
            epochs=1,
            workers=1,
            servers=1,
            checkpoint=f'path = "{folder / "stored"}"\nevery = "1s"',
        )
        job.submit()
        job.until(lambda: job.facts("checkpoint.ready"), "a checkpoint of a job that trains")
        yield Scene(stack, job)


# -- what the tests do around a command line, by the row's name for it -----------------------------------------------------


def the_reader_has_gone(scene: Scene, row: Row) -> Done:
    """As in `rover events | head`: the reading end is closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = scene.command(row)
        return subprocess.run(
            command,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=scene.environment,
            timeout=PATIENCE_S,
        )
    finally:
        os.close(writing)


def a_stored_part_is_damaged(scene: Scene, row: Row) -> Done:
    copied = shutil.copytree(scene.folder / "stored", scene.folder / "damaged", dirs_exist_ok=True)
    part = max((file for file in copied.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    with part.open("r+b") as file:
        file.seek(part.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    return scene.type(row)


def the_job_is_stopped(scene: Scene, row: Row) -> Done:
    name = scene.name_of(row)
    return scene.interrupt(row, lambda: scene.trains(name), lambda _: scene.job.rover("stop", name))


def the_job_is_cancelled(scene: Scene, row: Row) -> Done:
    name = scene.name_of(row)
    return scene.interrupt(row, lambda: scene.trains(name), lambda _: scene.job.rover("cancel", name))


def ctrl_c_once_a_job_trains(scene: Scene, row: Row) -> Done:
    name = scene.name_of(row)
    done = scene.interrupt(row, lambda: scene.trains(name), lambda pid: os.kill(pid, signal.SIGINT))
    assert scene.job.rover("cancel", name).returncode == 0  # it went on
    return done


def ctrl_c_once_it_serves(scene: Scene, row: Row) -> Done:
    record = scene.home_of(row) / "stack.json"
    return scene.interrupt(row, record.exists, lambda pid: os.kill(pid, signal.SIGINT))


def rover_down_once_it_serves(scene: Scene, row: Row) -> Done:
    home = scene.home_of(row)
    return scene.interrupt(
        row, (home / "stack.json").exists, lambda _: scene.job.rover("down", "--dir", str(home))
    )


def the_job_is_paused(scene: Scene, row: Row) -> Done:
    assert scene.job.rover("pause", scene.job.name).returncode == 0
    done = scene.type(row)
    assert scene.job.rover("resume", scene.job.name).returncode == 0
    return done


def all_masters_are_stopped(scene: Scene, row: Row) -> Done:
    """Nobody is there to end the job that is to be cancelled; when they run again it ends."""
    submitted = scene.job.rover("submit", "job.toml", "--name", "held")
    assert submitted.returncode == 0, submitted.stderr
    until(lambda: scene.trains("held"), "a job that trains", 0.2)
    masters = [row["pid"] for row in living(scene.job.home, "held", "master")]
    with stopped(masters):
        done = scene.type(row)
    until(lambda: records_of(scene.job.home, "held", "job.ended"), "its end")
    assert "cancelled" in scene.job.rover("events", "held", "-k", "job.ended").stdout
    return done


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def the_jobs_log_is_damaged(scene: Scene, row: Row) -> Done:
    return lead_from(scene, row, "broken", b"\xc1 no batch")


def the_jobs_log_is_of_a_later_release(scene: Scene, row: Row) -> Done:
    return lead_from(
        scene, row, "later", encode({"format": FORMAT + 1, "records": [{"type": "of.tomorrow.v1"}]})
    )


def lead_from(scene: Scene, row: Row, job: str, batch: bytes) -> Done:
    credential = all_rights.credential(scene.stack.home)

    async def store() -> None:
        bus = await NatsBus.connect(scene.stack.url, secret=credential)
        await bus.append(LOG, subjects.job_log(job), batch)
        await bus.close()

    asyncio.run(store())
    return scene.type(row, ROVER_URL=scene.stack.url, ROVER_CREDENTIAL=credential)


AROUND: dict[str, Callable[[Scene, Row], Done]] = {
    "": Scene.type,
    "the reader has gone": the_reader_has_gone,
    "a stored part is damaged": a_stored_part_is_damaged,
    "the job is stopped": the_job_is_stopped,
    "the job is cancelled": the_job_is_cancelled,
    "Ctrl-C once a job trains": ctrl_c_once_a_job_trains,
    "Ctrl-C once it serves": ctrl_c_once_it_serves,
    "rover down once it serves": rover_down_once_it_serves,
    "the job is paused": the_job_is_paused,
    "all masters are stopped": all_masters_are_stopped,
    "the job's log is damaged": the_jobs_log_is_damaged,
    "the job's log is of a later release": the_jobs_log_is_of_a_later_release,
}


@pytest.mark.parametrize("row", WITH_STACK, ids=str)
def test_a_command_ends_with_its_code_and_one_line(scene: Scene, row: Row) -> None:
    done = AROUND[row.meanwhile](scene, row)
    assert done.returncode == row.code, (done.stdout, done.stderr)
    assert row.says in done.stderr + (done.stdout or "" if row.code == 1 else "")
    assert "Traceback" not in done.stderr
    if 1 < row.code < 8 or row.code == 141:
        assert len(done.stderr.splitlines()) == (row.code != 141), done.stderr
