"""The daemon as a process of its own, on a real broker: killed, restarted, cut off; its members live on or end as they should."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S
from told import told

from rover_bus.events import facts
from rover_bus.events import host_facts as about_hosts
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import MESSAGE_ID, Stored
from rover_bus.events.codec import decode
from rover_bus.events.errors import BusError
from rover_bus.events.identity import DesiredMember, Member
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, FACTS, PRESENCE, STREAMS
from rover_bus.events.subjects import host_facts, job_fact
from rover_bus.node.local import proctree
from rover_bus.node.local.layout import StartRecord, StateDirectory, list_members, read_logs

pytestmark = [pytest.mark.chaos, pytest.mark.broker]
HOST = "host-a"
ORPHAN_S = 30.0  # a daemon starts again far sooner, on any machine
KINDS: dict[str, type[about_hosts.HostFact]] = {
    cls.kind(): cls
    for cls in (
        about_hosts.HostRegistered,
        about_hosts.HostStarted,
        about_hosts.HostExited,
        about_hosts.HostLeaving,
        about_hosts.HostLeft,
    )
}
SERVE = """
import asyncio, signal, sys
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, STREAMS
from rover_bus.node.port import RoleCommands
from rover_bus.events.settings import HostSettings, Settings
from rover_bus.node.service import Options, run_daemon

async def main(url, secret, state_dir, orphan_s):
    async def connect():
        bus = await NatsBus.connect(url, secret=secret, name="daemon")
        await bus.ensure(STREAMS, BUCKETS)
        return bus

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    masters = RoleCommands(lambda job, index: ["sleep", "600"])
    settings = Settings(hosts=HostSettings(orphan_after_s=float(orphan_s), sample_every_s=0.5))
    options = Options(commands=masters, url=url, settings=settings, former_s=2.0)
    await run_daemon(connect, "host-a", state_dir, options, stop=stop)

asyncio.run(main(*sys.argv[1:]))
"""


class Stage:
    """A broker, a daemon process at a time, and everything that the host said."""

    def __init__(self, directory: Path, orphan_s: float) -> None:
        self.orphan_s = orphan_s
        self.state_dir = directory / "state"
        self.broker = EmbeddedBroker(directory / "broker")
        self.daemon: subprocess.Popen[bytes] | None = None
        self.said: list[about_hosts.HostFact] = []
        self.profiles = 0
        self.facts = 0
        self.bus: NatsBus

    async def open(self) -> None:
        self.broker.start()
        self.bus = await NatsBus.connect(self.broker.url, secret=self.broker.secret)
        await self.bus.ensure(STREAMS, BUCKETS)
        await self.bus.follow(FACTS, [host_facts()], self.observe, start="first")

    async def close(self) -> None:
        if self.daemon and self.daemon.poll() is None:
            self.daemon.kill()
        if self.daemon:
            self.daemon.wait()
        await self.bus.close()
        self.broker.stop()

    def observe(self, stored: Stored) -> None:
        self.said.append(decode(stored.body, KINDS[stored.subject.rsplit(".", 1)[1]]))

    def start_daemon(self) -> None:
        command = [sys.executable, "-c", SERVE, self.broker.url, self.broker.secret]
        self.daemon = subprocess.Popen([*command, str(self.state_dir), str(self.orphan_s)], cwd=Path.cwd())

    def end_daemon(self, number: signal.Signals) -> int:
        assert self.daemon is not None
        self.daemon.send_signal(number)
        return self.daemon.wait()

    async def say(self, fact: facts.JobFact) -> None:
        self.facts += 1
        while True:
            try:
                subject, name = job_fact(fact.job, fact.kind()), f"test.{self.facts}"
                body, headers = told(fact, self.facts)
                await self.bus.append(FACTS, subject, body, headers={**headers, MESSAGE_ID: name})
                return
            except BusError:
                await asyncio.sleep(0.1)

    async def submit(self, *hosts: str) -> None:
        spec = JobSpec(name="demo", program=["sh"], data=DataSpec(train="x"))
        await self.say(facts.JobSubmitted(job="demo", uid="0000000000a1", spec=spec))
        if hosts:
            await self.say(facts.PlanProposed(job="demo", plan=1, workers=1, servers=0, masters=list(hosts)))

    async def desire(self, *members: Member, plan: int = 1, command: str = "exec sleep 600") -> None:
        lines = [
            DesiredMember(member=each, host=HOST, command=["sh", "-c", command], grace_s=2.0)
            for each in members
        ]
        await self.say(facts.MembersDesired(job="demo", uid="0000000000a1", term=1, plan=plan, members=lines))

    async def until(self, condition: Callable[[], object], what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"never came: {what}; said: {self.said}"
            await asyncio.sleep(0.01)

    async def running(self, *members: str) -> dict[str, int]:
        """Wait until exactly these run; return their pids."""
        await self.until(lambda: sorted(self.pids()) == sorted(members), f"{members} run")
        return self.pids()

    def pids(self) -> dict[str, int]:
        return {
            str(each.member): each.pid for each in list_members(self.state_dir) if each.state == "running"
        }

    def exits(self) -> Counter[tuple[str, str]]:
        return Counter(
            (str(each.member), each.exit.reason)
            for each in self.said
            if isinstance(each, about_hosts.HostExited)
        )

    def adopted(self) -> list[tuple[str, int]]:
        return [
            (str(each.process.member), each.process.pid)
            for each in self.said
            if isinstance(each, about_hosts.HostStarted) and each.adopted
        ]

    def logs(self) -> list[str]:
        return [log.read_text() for log in read_logs(self.state_dir, "demo")]

    def processes(self) -> list[int]:
        return proctree.bearing(str(self.state_dir))

    def shim_of(self, member: Member) -> int:
        started = (
            StateDirectory(self.state_dir)
            .incarnation("demo", "0000000000a1", member)
            .read("started", StartRecord)
        )
        return started.shim if started else 0


Scene = Callable[[Stage], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path, nothing_left: None) -> Callable[..., None]:
    def run(scene: Scene, orphan_s: float = ORPHAN_S) -> None:
        async def main() -> None:
            stage = Stage(tmp_path, orphan_s)
            await stage.open()
            try:
                stage.start_daemon()
                await scene(stage)
            finally:
                await stage.close()

        asyncio.run(main())

    return run


ONE, TWO = Member("worker", 0, 1), Member("worker", 1, 1)


def test_a_killed_member_is_reported_and_a_killed_master_is_back(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        await stage.submit(HOST, HOST)
        await stage.desire(ONE)
        pids = await stage.running("master-0.1", "master-1.1", "worker-0.1")
        for name in ("master-0.1", "worker-0.1"):
            os.kill(pids[name], signal.SIGKILL)
        await stage.running("master-0.2", "master-1.1")
        await stage.until(lambda: len(stage.exits()) == 2, "two exits")
        assert stage.exits() == Counter({("master-0.1", "killed"): 1, ("worker-0.1", "killed"): 1})
        await stage.say(facts.JobEnded(job="demo", state="completed"))
        await stage.until(lambda: not stage.processes(), "the end of everything")
        assert stage.end_daemon(signal.SIGTERM) == 0

    play(scene)


def test_a_daemon_that_is_told_to_stop_drains_everything_and_leaves_the_bus_clean(
    play: Callable[..., None],
) -> None:
    async def scene(stage: Stage) -> None:
        await stage.submit()
        await stage.desire(ONE, command="echo hello; exec sleep 600")
        await stage.until(lambda: "".join(stage.logs()) == "hello\n", "its output")
        assert stage.end_daemon(signal.SIGTERM) == 0
        assert stage.processes() == []
        await stage.until(lambda: isinstance(stage.said[-1], about_hosts.HostLeft), "goodbye")
        assert stage.exits() == Counter({("worker-0.1", "drained"): 1})
        assert await stage.bus.get(PRESENCE, HOST) is None
        assert stage.logs() == ["hello\n"]

    play(scene)


def test_members_survive_the_daemon_and_its_successor_adopts_them_and_reports_who_died_meanwhile_once(
    play: Callable[..., None],
) -> None:
    async def scene(stage: Stage) -> None:
        await stage.submit(HOST)
        await stage.desire(ONE, TWO)
        pids = await stage.running("master-0.1", "worker-0.1", "worker-1.1")
        stage.end_daemon(signal.SIGKILL)
        os.kill(pids["worker-1.1"], signal.SIGKILL)
        await stage.running("master-0.1", "worker-0.1")
        stage.start_daemon()
        await stage.until(lambda: len(stage.adopted()) == 2, "two adopted")
        assert sorted(stage.adopted()) == sorted((name, pids[name]) for name in ("master-0.1", "worker-0.1"))
        await stage.until(stage.exits, "the exit")
        stage.end_daemon(signal.SIGKILL)
        stage.start_daemon()
        await stage.until(lambda: len(stage.adopted()) == 4, "adopted again")
        os.kill(pids["worker-0.1"], signal.SIGKILL)
        await stage.until(lambda: len(stage.exits()) == 2, "the second exit")
        assert stage.exits() == Counter({("worker-1.1", "killed"): 1, ("worker-0.1", "killed"): 1})
        assert stage.end_daemon(signal.SIGTERM) == 0

    play(scene)


def test_a_second_daemon_on_the_same_directory_is_refused_and_harms_nobody(
    play: Callable[..., None],
) -> None:
    async def scene(stage: Stage) -> None:
        await stage.submit()
        await stage.desire(ONE)
        pids = await stage.running("worker-0.1")
        first = stage.daemon
        stage.start_daemon()
        assert stage.daemon is not None
        assert stage.daemon.wait() != 0
        stage.daemon = first
        assert stage.pids() == pids
        assert stage.end_daemon(signal.SIGTERM) == 0

    play(scene)


def test_groups_end_when_their_daemon_is_gone_for_good(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        await stage.submit(HOST)
        await stage.desire(ONE, command="setsid sleep 600 & exec sleep 600")
        await stage.running("master-0.1", "worker-0.1")
        stage.end_daemon(signal.SIGKILL)
        await stage.until(lambda: not stage.processes(), "the end of all groups")

    play(scene, orphan_s=2.0)


def test_an_exit_during_an_outage_of_the_broker_is_reported_when_it_is_back(
    play: Callable[..., None],
) -> None:
    async def scene(stage: Stage) -> None:
        await stage.submit(HOST)
        await stage.desire(ONE)
        pids = await stage.running("master-0.1", "worker-0.1")
        stage.broker.kill()
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        await stage.running("master-0.2")
        stage.broker.start()
        await stage.until(lambda: len(stage.exits()) == 2, "both exits")
        assert set(stage.exits().values()) == {1}
        registered = [each for each in stage.said if isinstance(each, about_hosts.HostRegistered)]
        assert len({each.daemon for each in registered}) == 1
        assert stage.end_daemon(signal.SIGTERM) == 0

    play(scene)


def test_a_daemon_that_comes_back_before_its_broker_keeps_its_members_meanwhile(
    play: Callable[..., None],
) -> None:
    async def scene(stage: Stage) -> None:
        await stage.submit()
        await stage.desire(ONE)
        pids = await stage.running("worker-0.1")
        stage.broker.kill()
        stage.end_daemon(signal.SIGKILL)
        stage.start_daemon()
        await asyncio.sleep(1.5 * stage.orphan_s)
        assert stage.pids() == pids
        stage.broker.start()
        await stage.until(stage.adopted, "the adoption")
        assert stage.adopted() == [("worker-0.1", pids["worker-0.1"])]
        assert stage.end_daemon(signal.SIGTERM) == 0

    play(scene, orphan_s=6.0)


@pytest.mark.parametrize("seed", range(int(os.environ.get("ROVER_CHAOS_SEEDS", "3"))))
def test_whatever_is_killed_every_life_ends_once_and_nothing_is_left(
    play: Callable[..., None], seed: int
) -> None:
    print(f"seed {seed}")
    draw = random.Random(seed)

    async def hurt(stage: Stage, incarnations: list[int]) -> None:
        match draw.choice(["member", "member", "shim", "stop", "daemon", "broker", "relaunch"]):
            case "member" if pids := stage.pids():
                os.kill(draw.choice(sorted(pids.values())), signal.SIGKILL)
            case "shim" if shims := [
                shim
                for index, number in enumerate(incarnations)
                if (shim := stage.shim_of(Member("worker", index, number))) and proctree.start_ticks(shim)
            ]:
                os.kill(draw.choice(shims), signal.SIGKILL)
            case "stop" if pids := stage.pids():
                os.kill(draw.choice(sorted(pids.values())), signal.SIGSTOP)
            case "daemon":
                stage.end_daemon(signal.SIGKILL)
                await asyncio.sleep(draw.uniform(0.0, 0.5))
                stage.start_daemon()
            case "broker":
                stage.broker.restart()
            case "relaunch":
                incarnations[draw.randrange(2)] += 1

    async def scene(stage: Stage) -> None:
        await stage.submit(HOST)
        incarnations = [1, 1]
        for plan in range(1, 16):
            await stage.desire(*(Member("worker", i, n) for i, n in enumerate(incarnations)), plan=plan)
            await asyncio.sleep(draw.uniform(0.0, 0.4))
            await hurt(stage, incarnations)
        incarnations = [number + 1 for number in incarnations]
        members = [Member("worker", i, n) for i, n in enumerate(incarnations)]
        await stage.desire(*members, plan=99)
        await stage.until(lambda: {str(each) for each in members} <= set(stage.pids()), "the last plan")
        assert stage.end_daemon(signal.SIGTERM) == 0
        logs = {log.name.removesuffix(".log") for log in read_logs(stage.state_dir, "demo")}
        assert stage.processes() == []
        await stage.until(lambda: {name for name, _ in stage.exits()} == logs, "an exit of every life")
        assert set(stage.exits().values()) == {1}

    play(scene)
