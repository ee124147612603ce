"""Real members under real shims: a rig that starts them without a bus, and a check that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from patience import PATIENCE_S

from rover_bus.events.identity import DesiredMember, Member, Resources
from rover_bus.node.local import layout, locks, proctree
from rover_bus.node.local.capacity import read_machine
from rover_bus.node.local.layout import StartRecord, StateDirectory
from rover_bus.node.local.platform import LocalPlatform
from rover_bus.node.local.spawning import MemberSettings
from rover_bus.node.port import (
    NO_MASTERS,
    Exited,
    Incarnation,
    Observation,
    RoleCommands,
    Running,
    StartOrder,
)

DYING_S = 10.0
ALLOWED = tuple(sorted(os.sched_getaffinity(0)))


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition` holds; fail saying what never came."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never came: {what}"
        await asyncio.sleep(0.01)


def bearing(directory: Path) -> list[int]:
    """Return the processes, shims among them, that belong to members below `directory`."""
    return proctree.bearing(str(directory))


class Rig:
    """The local platform over one state directory, the lock of a daemon, and what was observed."""

    allowed = ALLOWED

    def __init__(self, directory: Path, orphan_s: float = 0.0, commands: RoleCommands = NO_MASTERS) -> None:
        self.layout = StateDirectory(directory)
        directory.mkdir(exist_ok=True)
        self.lock = self.hold()
        self.seen: list[Observation] = []
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
        settings = MemberSettings(environment, ALLOWED, orphan_s, commands=commands)
        self.platform = LocalPlatform(self.layout, read_machine(), settings, self.seen.append)

    def hold(self) -> int | None:
        """Take the lock; a shim on its way to exec may share what its dead parent held for a moment."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (lock := locks.hold(str(self.layout.daemon_lock))) is None:
            assert time.monotonic() < deadline_s, "the lock of a dead daemon is held"
            time.sleep(0.001)
        return lock

    def start(
        self,
        *command: str,
        index: int = 0,
        memory_bytes: int = 0,
        grace_s: float = 5.0,
        directory: str = "",
        environment: dict[str, str] | None = None,
        cpus: dict[int, float] | None = None,
        cores: float = 0.0,
    ) -> Incarnation:
        desired = DesiredMember(
            member=Member("worker", index, 1),
            host="h",
            command=list(command),
            environment=environment or {},
            resources=Resources(cores=cores, memory_bytes=memory_bytes),
            directory=directory,
            grace_s=grace_s,
        )
        incarnation = Incarnation("demo", "u1", desired, cpus or {})
        self.platform.start(StartOrder(incarnation))
        return incarnation

    def python(self, program: str, **options: object) -> Incarnation:
        return self.start(sys.executable, "-I", "-S", "-c", program, **options)  # type: ignore[arg-type]

    async def running(self, run: Incarnation) -> int:
        """Wait for the member's process; return its pid."""
        await until(lambda: self._pids(run) or self.ends(run), f"{run.member} runs")
        assert self._pids(run), f"{run.member} did not run: {self.ends(run)}"
        return self._pids(run)[-1]

    def _pids(self, run: Incarnation) -> list[int]:
        return [each.pid for each in self.seen if isinstance(each, Running) and each.key == run.key]

    def ends(self, run: Incarnation) -> list[Exited]:
        return [each for each in self.seen if isinstance(each, Exited) and each.member == run.member]

    async def ended(self, run: Incarnation) -> Exited:
        """Wait for the end; it is observed once, and nothing of the group lives."""
        await until(lambda: self.ends(run), f"{run.member} ended")
        (end,) = self.ends(run)
        assert self.processes_of(run) == []
        return end

    async def until(self, condition: Callable[[], object], what: str) -> None:
        await until(condition, what)

    def processes_of(self, run: Incarnation) -> list[int]:
        return bearing(self.directory(run).path)

    def directory(self, run: Incarnation) -> layout.IncarnationDirectory:
        return self.layout.incarnation(run.job, run.uid, run.member)

    def record(self, run: Incarnation) -> StartRecord:
        record = self.directory(run).read("started", StartRecord)
        assert record is not None
        return record

    def log(self, run: Incarnation) -> str:
        log = self.layout.log(run.job, run.uid, run.member)
        return log.read_text() if log.exists() else ""

    def successor(self, orphan_s: float = 0.0) -> Rig:
        """A new daemon on the same directory."""
        return Rig(self.layout.root, orphan_s)

    def die(self) -> None:
        """Vanish as a SIGKILLed daemon does: nobody watches any more, and the lock is free."""
        self.platform.release()
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


@pytest.fixture
def rig_class() -> type[Rig]:
    """For a scene that needs another directory, or another platform."""
    return Rig


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Fail when a process of this test's members outlives it; end it in any case."""
    yield
    end_s = time.monotonic() + DYING_S
    while (left := bearing(tmp_path)) and time.monotonic() < end_s:
        time.sleep(0.02)  # what was killed dies when a core has a moment for it
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.fixture
def play(tmp_path: Path, nothing_left: None) -> Callable[..., None]:
    """Run a scene with a rig on a real event loop."""

    def run(
        scene: Callable[[Rig], Awaitable[None]], orphan_s: float = 0.0, commands: RoleCommands = NO_MASTERS
    ) -> None:
        async def main() -> None:
            rig = Rig(tmp_path / "state", orphan_s, commands)
            try:
                await scene(rig)
            finally:
                rig.die()

        asyncio.run(main())

    return run
