"""What every platform must do for a daemon (node/port.py), asked of the two that need no cluster: tests/rigs/platform_contract.py.

The simulated one runs on a virtual clock, the local one on real processes. Pods are asked in tests/kube.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from patience import PATIENCE_S
from platform_contract import *  # noqa: F403
from platform_contract import SECRET, WARM, Adapter, script_of

from rover_bus.events import virtual_time
from rover_bus.events.programs import ProgramRequest
from rover_bus.node.local import locks, proctree
from rover_bus.node.local.capacity import read_machine
from rover_bus.node.local.layout import create
from rover_bus.node.local.platform import LocalPlatform
from rover_bus.node.local.spawning import MemberSettings
from rover_bus.node.port import Incarnation, Observation, Platform, Spare, StartOrder
from rover_bus.node.simulated import SimulatedHost


class Simulated:
    host, makes_spares, measures, remembers_loaded = "h1", True, True, True

    def __init__(self, directory: Path) -> None:
        self.machine = SimulatedHost(self._member)
        self.known: dict[str, str] = {}

    async def _member(self, order: StartOrder, leave: asyncio.Event) -> int:
        match order.incarnation.desired.command:
            case ["polite"]:
                await leave.wait()
                return 0
            case ["warm"]:
                run = order.incarnation
                trust = "trusted" if order.credential == SECRET else ""
                self.known[str(run.member)] = f"worker {run.member.index}.{run.member.incarnation}, {trust}"
                if not order.spare:
                    self.machine.tell_loaded(run.key, 2.0)
                await leave.wait()
                return 0
            case ["deaf"]:
                await asyncio.Event().wait()
            case ["trusted"]:
                return int(order.credential != SECRET)
        return 3

    def attach(self, observe: Callable[[Observation], None]) -> Platform:
        return self.machine.attach(observe)

    def kill_daemon(self, platform: Platform) -> None:
        self.machine.detach()

    async def until_deaf(self, run: Incarnation) -> None:
        return

    async def knows(self, run: Incarnation) -> str:
        await asyncio.sleep(0.01)
        return self.known[str(run.member)]

    async def settle(self, platform: Platform) -> None:
        return

    def kill_spare(self, spare: Spare) -> None:
        self.machine.kill_spare(spare.key)

    def close(self) -> None:
        return

    def run(self, main: Awaitable[None]) -> None:
        async def scene() -> None:
            await main
            self.machine.lose_power()
            await asyncio.sleep(0.01)

        virtual_time.run(scene())

    def command(self, program: str) -> list[str]:
        return [program]

    def question(self, starts: bool) -> ProgramRequest:
        self.machine.refuses = "" if starts else "no such file"
        return ProgramRequest(program=["python", "train.py"])


class Local:
    host, makes_spares, measures, remembers_loaded = "h1", True, True, True

    def __init__(self, directory: Path) -> None:
        self.home = create(directory / "state")
        self.lock = locks.hold(str(self.home.daemon_lock))
        self.machine = read_machine()
        self.warm = directory / "warm.py"
        self.warm.write_text(WARM.replace("SECRET", repr(SECRET)))

    def attach(self, observe: Callable[[Observation], None]) -> Platform:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
        settings = MemberSettings(environment, self.machine.cpus, orphan_s=0.0)
        return LocalPlatform(self.home, self.machine, settings, observe)

    def kill_daemon(self, platform: Platform) -> None:
        platform.release()  # what is left of a killed process: its descriptors are closed, its timers are gone

    async def until_deaf(self, run: Incarnation) -> None:
        log = self.home.log(run.job, run.uid, run.member)
        async with asyncio.timeout(PATIENCE_S):
            while "deaf" not in log.read_text():  # noqa: ASYNC110 - it is a file that is waited for
                await asyncio.sleep(0.01)

    async def knows(self, run: Incarnation) -> str:
        log = self.home.log(run.job, run.uid, run.member)
        async with asyncio.timeout(PATIENCE_S):
            while not (log.is_file() and "I am " in log.read_text()):  # noqa: ASYNC110 - it is a file that is waited for
                await asyncio.sleep(0.01)
        return log.read_text().partition("I am ")[2].strip()

    async def settle(self, platform: Platform) -> None:
        return

    def kill_spare(self, spare: Spare) -> None:
        (path,) = self.home.spare("").glob(f"*-{spare.number}")
        for pid in proctree.bearing(str(path), only=True):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
        for pid in proctree.bearing(str(self.home.root)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def run(self, main: Awaitable[None]) -> None:
        async def scene() -> None:
            await main

        asyncio.run(scene())

    def command(self, program: str) -> list[str]:
        if program == "warm":
            return ["python", str(self.warm)]
        return script_of(program)

    def question(self, starts: bool) -> ProgramRequest:
        return ProgramRequest(program=["sh" if starts else "/no/such/program"])


ADAPTERS: dict[str, Callable[[Path], Adapter]] = {"simulated": Simulated, "local": Local}


@pytest.fixture(params=sorted(ADAPTERS))
def adapter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Adapter]:
    """Each adapter in turn; no process of a member outlives its test."""
    made = ADAPTERS[request.param](tmp_path)
    yield made
    made.close()
