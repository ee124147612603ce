"""Programs are tried by real interpreters: what would start is told from what would not, and no program is run for it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rover_bus.events.programs import STARTS, ProgramReply, ProgramRequest
from rover_bus.node.local import proctree, trials

pytestmark = pytest.mark.chaos
Play = Callable[[Callable[[Any], Awaitable[None]]], None]


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A job's directory; its program says when it was run, and each interpreter that starts there says so."""
    made = tmp_path / "jobs"
    (made / "site").mkdir(parents=True)
    (made / "train.py").write_text(f"open({str(made / 'was-run')!r}, 'w')\n")
    (made / "site" / "sitecustomize.py").write_text(
        f"open({str(made / 'interpreters')!r}, 'a').write('started\\n')\n"
    )
    return made


def starts_of(jobs: Path) -> int:
    log = jobs / "interpreters"
    return len(log.read_text().splitlines()) if log.exists() else 0


def question(*program: str, jobs: Path, **environment: str) -> ProgramRequest:
    return ProgramRequest(
        program=list(program),
        directory=str(jobs),
        environment={"PYTHONPATH": str(jobs / "site"), **environment},
    )


async def ask(rig: Any, request: ProgramRequest, anew: bool = False) -> ProgramReply:
    answered: asyncio.Future[ProgramReply] = asyncio.get_running_loop().create_future()
    rig.platform.try_program(request, answered.set_result, anew)
    return await answered


def test_a_program_that_would_start_is_not_run_for_it(play: Play, jobs: Path) -> None:
    async def scene(rig: Any) -> None:
        assert await ask(rig, question("python", "train.py", jobs=jobs)) == STARTS
        assert await ask(rig, question(sys.executable, "-u", "train.py", jobs=jobs)) == STARTS
        assert not (jobs / "was-run").exists()

    play(scene)


def test_an_interpreter_without_our_client_is_refused_with_its_last_line(play: Play, jobs: Path) -> None:
    async def scene(rig: Any) -> None:
        reply = await ask(rig, question("python", "-S", "train.py", jobs=jobs))
        assert (reply.state, reply.path) == ("refused", sys.executable)
        assert reply.problem == "ModuleNotFoundError: No module named 'rover_bus'"

    play(scene)


def test_what_lies_beside_the_program_is_in_its_way_as_it_would_be(play: Play, jobs: Path) -> None:
    async def scene(rig: Any) -> None:
        (jobs / "rover_bus.py").write_text("raise RuntimeError('not ours')\n")
        reply = await ask(rig, question("python", "train.py", jobs=jobs))
        assert (reply.state, reply.problem) == ("refused", "RuntimeError: not ours")

    play(scene)


def test_a_module_that_is_not_there_is_refused_one_that_is_there_is_not_run(play: Play, jobs: Path) -> None:
    async def scene(rig: Any) -> None:
        reply = await ask(rig, question("python", "-m", "ads.train", jobs=jobs))
        assert (reply.state, reply.problem) == ("refused", "No module named 'ads'")
        (jobs / "ads").mkdir()
        (jobs / "ads" / "__init__.py").write_text(f"open({str(jobs / 'was-run')!r}, 'w')\n")
        assert await ask(rig, question("python", "-m", "ads.train", jobs=jobs)) == STARTS
        assert not (jobs / "was-run").exists()

    play(scene)


def test_an_import_that_hangs_or_writes_without_end_is_ended_and_refuses_nothing(
    play: Play, jobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nothing_left` sees whether a process outlives it."""
    monkeypatch.setattr(trials, "TRY_S", 1.0)
    (jobs / "site" / "sitecustomize.py").write_text("import sys\nwhile True: sys.stderr.write('x' * 65536)\n")

    async def scene(rig: Any) -> None:
        reply = await ask(rig, question("python", "train.py", jobs=jobs))
        assert (reply.state, reply.path) == ("unknown", sys.executable)

    play(scene)


def test_of_much_that_is_written_the_last_line_is_told(play: Play, jobs: Path) -> None:
    (jobs / "rover_bus.py").write_text(
        "import sys\nsys.stderr.write('noise\\n' * 200_000)\nsys.exit('the last line')\n"
    )

    async def scene(rig: Any) -> None:
        reply = await ask(rig, question("python", "train.py", jobs=jobs))
        assert (reply.state, reply.problem) == ("refused", "the last line")

    play(scene)


def test_a_process_that_an_import_leaves_behind_is_ended_with_it(play: Play, jobs: Path) -> None:
    (jobs / "site" / "sitecustomize.py").write_text(
        "import subprocess\nsubprocess.Popen(['sleep', '1000'])\n"  # it holds stderr open
    )

    async def scene(rig: Any) -> None:
        assert await ask(rig, question("python", "train.py", jobs=jobs)) == STARTS

    play(scene)


def test_an_interpreter_is_started_once_for_all_who_ask_and_remembered(play: Play, jobs: Path) -> None:
    request = question("python", "train.py", jobs=jobs)

    async def scene(rig: Any) -> None:
        replies = await asyncio.gather(*(ask(rig, request) for _ in range(5)))
        assert (replies, starts_of(jobs)) == ([STARTS] * 5, 1)
        assert (await ask(rig, request), starts_of(jobs)) == (STARTS, 1)
        assert (await ask(rig, request, anew=True), starts_of(jobs)) == (STARTS, 2)
        (jobs / "train.py").unlink()  # files are looked at each time
        assert (await ask(rig, request)).path == str(jobs / "train.py")
        assert starts_of(jobs) == 2

    play(scene)


def test_the_daemon_ends_what_it_tries_when_it_ends(play: Play, jobs: Path, tmp_path: Path) -> None:
    (jobs / "site" / "sitecustomize.py").write_text(
        f"import time\nopen({str(jobs / 'interpreters')!r}, 'a').write('started\\n')\ntime.sleep(1000)\n"
    )
    answers: list[ProgramReply] = []

    async def scene(rig: Any) -> None:
        rig.platform.try_program(question("python", "train.py", jobs=jobs), answers.append)
        await rig.until(lambda: starts_of(jobs), "the trial runs")
        rig.platform.release()
        below = str(tmp_path)
        await rig.until(lambda: not proctree.bearing(below), "the end of the trial")

    play(scene)
    assert answers == []
