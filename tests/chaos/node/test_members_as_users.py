"""Members as users of their own, on the local platform: what they cannot reach is named, and the daemon keeps hold of them."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from patience import until

from rover_bus.events.identity import DesiredMember, Member
from rover_bus.events.programs import ProgramReply, ProgramRequest
from rover_bus.node.local.capacity import read_machine
from rover_bus.node.local.platform import LocalPlatform
from rover_bus.node.local.proctree import bearing as bearing_below
from rover_bus.node.local.proctree import start_ticks
from rover_bus.node.local.spawning import MemberSettings
from rover_bus.node.port import Incarnation, Running, StartOrder
from rover_bus.node.users import MemberUsers

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root starts members as other users"),
]
UIDS = range(first := 1_000_000_000 + 16 * os.getpid(), first + 9)
SHELL = "/bin/sh"


def bearing(directory: Path) -> list[int]:
    return bearing_below(str(directory))


class Users:
    """A rig whose members are users of their own, unless `uids` is empty."""

    def __init__(self, rig_class: Callable[[Path], Any], top: Path, uids: range) -> None:
        self.rig = rig_class(top / "state")
        users = MemberUsers(uids, top / "state", top / "shm", top / "store") if uids else None
        allowed = tuple(sorted(os.sched_getaffinity(0)))
        settings = MemberSettings(dict(os.environ), allowed, orphan_s=0.0, users=users)
        self.rig.platform.release()
        self.rig.platform = LocalPlatform(self.rig.layout, read_machine(), settings, self.rig.seen.append)
        self.platform: LocalPlatform = self.rig.platform
        self.until = self.rig.until

    @property
    def running(self) -> list[Running]:
        return [each for each in self.rig.seen if isinstance(each, Running)]

    def start(self, uid: str, *command: str, directory: str = "") -> Incarnation:
        member = Member("worker", 0, 1)
        desired = DesiredMember(
            member=member, host="h", command=list(command), directory=directory, grace_s=5
        )
        run = Incarnation(f"job-{uid}", uid, desired)
        self.platform.start(StartOrder(run))
        return run

    def end_of(self, run: Incarnation) -> list[Any]:
        return [each for each in self.rig.ends(run) if each.job == run.job]

    async def failure(self, run: Incarnation) -> str:
        await self.until(lambda: self.end_of(run), "its end")
        (end,) = self.end_of(run)
        assert end.exit.reason == "never_started", end
        return str(end.exit.detail)


Play = Callable[..., None]


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory to which every user may pass, with one that is closed."""
    made = Path(tempfile.mkdtemp(dir="/tmp", prefix="rover-users-"))
    made.chmod(0o711)
    closed = made / "closed"
    closed.mkdir(mode=0o700)
    program = closed / "program"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    (made / "python3").symlink_to(program)
    (closed / "script.py").write_text("print(1)\n")
    yield made
    left = bearing(made)
    end(left)
    shutil.rmtree(made)
    assert left == []


def end(pids: list[int]) -> None:
    """Kill these, and wait until each is dead."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    until(lambda: not any(start_ticks(pid) for pid in pids), "the end of what was left")


@pytest.fixture
def play(top: Path, rig_class: Any) -> Play:
    """Run a scene with such a rig on a real event loop."""

    def run(scene: Callable[[Users], Awaitable[None]], uids: range = UIDS) -> None:
        async def main() -> None:
            users = Users(rig_class, top, uids)
            try:
                await scene(users)
            finally:
                users.rig.die()

        asyncio.run(main())

    return run


def python() -> str:
    return shutil.which(f"python3.{sys.version_info[1]}", path="/usr/bin:/usr/local/bin") or pytest.skip(
        "no interpreter that every user may run"
    )


def closed_words(top: Path, what: str) -> tuple[list[str], str]:
    closed = top / "closed"
    return {
        "a program": ([str(closed / "program")], ""),
        "a script": ([python(), str(closed / "script.py")], ""),
        "a linked interpreter": ([str(top / "python3"), "-c", ""], ""),
        "a directory": ([SHELL, "-c", "exit 0"], str(closed)),
    }[what]


@pytest.mark.parametrize("what", ["a program", "a script", "a linked interpreter", "a directory"])
def test_what_its_user_cannot_reach_is_named_with_what_to_do(play: Play, top: Path, what: str) -> None:
    command, directory = closed_words(top, what)

    async def scene(users: Users) -> None:
        said = await users.failure(users.start("a1", *command, directory=directory))
        assert f"chmod o+rx {top}/closed`" in said, said
        assert "(hosts.first_member_uid)" in said

    play(scene)

    async def as_the_daemon(users: Users) -> None:
        run = users.start("a2", *command, directory=directory)
        await users.until(lambda: users.end_of(run), "its end")
        assert users.end_of(run)[0].exit.reason == "completed"

    play(as_the_daemon, range(0))


def test_a_run_for_which_no_user_is_free_says_which_setting_to_raise(play: Play) -> None:
    async def scene(users: Users) -> None:
        first = users.start("a1", SHELL, "-c", "exec sleep 600")
        await users.until(lambda: users.running, "the first")
        said = await users.failure(users.start("a2", SHELL, "-c", "exit 0"))
        assert "each of the 1 users of hosts.member_uids" in said, said
        users.platform.stop(first)
        await users.until(lambda: users.end_of(first), "its end")

    play(scene, UIDS[:2])


def test_the_daemon_adopts_drains_and_kills_members_of_other_users(
    play: Play, top: Path, rig_class: Any
) -> None:
    stubborn = "trap '' TERM; (setsid sleep 600 &) ; while :; do sleep 0.1; done"

    async def scene(users: Users) -> None:
        drained = users.start("a1", SHELL, "-c", "exec sleep 600")
        killed = users.start("a2", SHELL, "-c", stubborn)
        await users.until(lambda: len(users.running) == 2, "both")
        owners = [os.stat(f"/proc/{e.pid}").st_uid for e in users.running]
        assert len({*owners}) == 2
        assert {owner in UIDS for owner in owners} == {True}
        users.rig.die()
        heir = Users(rig_class, top, UIDS)
        try:
            await heir.platform.adopt()
            again = heir.running
            assert [each.adopted for each in again] == [True, True]
            for run in (drained, killed):
                heir.platform.stop(run, hurried=True)
            await heir.until(lambda: heir.end_of(drained) and heir.end_of(killed), "both ends")
            assert heir.end_of(drained)[0].exit.reason == "drained"
            assert heir.end_of(killed)[0].exit.reason == "killed"
            assert bearing(top) == []
        finally:
            heir.rig.die()

    play(scene)


@pytest.mark.parametrize("uids", [UIDS, range(0)], ids=["users", "off"])
def test_a_trial_runs_an_interpreter_that_a_user_named_as_no_job_and_not_as_root(
    play: Play, top: Path, uids: range
) -> None:
    said = top / "said"
    said.mkdir(mode=0o777)
    said.chmod(0o777)
    interpreter = top / "python3.11"
    leaves = f"setsid {SHELL} -c 'touch {said}/left; exec sleep 600' & while [ ! -e {said}/left ]; do sleep 0.01; done"
    interpreter.write_text(f"#!{SHELL}\nid -u > {said}/who\n{leaves}\n")
    interpreter.chmod(0o755)
    answers: list[ProgramReply] = []

    async def scene(users: Users) -> None:
        users.platform.try_program(ProgramRequest(program=[str(interpreter), "-c", ""]), answers.append)
        await users.until(lambda: answers, "an answer")
        closed = ProgramRequest(program=[str(top / "closed" / "program")])
        users.platform.try_program(closed, answers.append)
        await users.until(lambda: len(answers) == 2, "another")

    play(scene, uids)
    assert answers[0].state == "starts"
    assert int((said / "who").read_text()) == (UIDS[-1] if uids else 0)
    if uids:
        until(lambda: bearing(top) == [], "the end of all that the trial left")
    else:
        left = bearing(top)
        end(left)
        assert left
    assert ("cannot reach" in answers[1].problem) is bool(uids), answers[1]
