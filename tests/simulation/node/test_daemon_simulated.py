"""The daemon on a bus in memory and a clock that jumps: what runs follows what is desired, through outages and lost acks."""

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from told import told

from rover_bus.events import facts
from rover_bus.events import host_facts as about_hosts
from rover_bus.events.bus import MESSAGE_ID, Stored
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import BusError, Refused
from rover_bus.events.identity import DesiredMember, Member
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.memory_broker import CALM, Faults, MemoryBroker
from rover_bus.events.memory_bus import MemoryBus
from rover_bus.events.programs import ProgramRequest
from rover_bus.events.settings import HostSettings, Settings
from rover_bus.events.streams import FACTS, PRESENCE
from rover_bus.events.subjects import host_facts, job_fact
from rover_bus.events.virtual_time import run
from rover_bus.node import decider
from rover_bus.node.daemon import Daemon
from rover_bus.node.host import Host
from rover_bus.node.members import HostMembers
from rover_bus.node.port import Exited, Observation, Observe, Running, StartOrder
from rover_bus.node.presence import Presence
from rover_bus.node.simulated import SimulatedHost, SimulatedPlatform

HOST = "host-a"
SEEDS = int(os.environ.get("ROVER_SEEDS", "20"))
KINDS: dict[str, type[about_hosts.HostFact]] = {
    cls.kind(): cls
    for cls in (
        about_hosts.HostRegistered,
        about_hosts.HostStarted,
        about_hosts.HostExited,
        about_hosts.HostLeaving,
        about_hosts.HostTurnFailed,
        about_hosts.HostProgramRefused,
        about_hosts.HostProgramMended,
        about_hosts.HostLeft,
    )
}


class Cluster:
    """One broker, one machine, one daemon at a time, and everything that the host said."""

    def __init__(self, seed: int = 0, faults: Faults | None = None) -> None:
        self.broker = MemoryBroker(seed, faults) if faults else MemoryBroker(seed)
        self.bus = self.broker.connect("observer")
        self.machine = SimulatedHost(self.obey)
        self.said: list[about_hosts.HostFact] = []
        self.daemons = 0
        self.facts = 0
        self.lived: list[str] = []
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.link: MemoryBus | None = None

    async def obey(self, order: StartOrder, leave: asyncio.Event) -> int:
        self.lived.append(str(order.incarnation.member))
        await leave.wait()
        return 0

    async def begin(self) -> None:
        await self.bus.follow(FACTS, [host_facts()], self.observe, start="first")
        await self.start_daemon()

    def observe(self, stored: Stored) -> None:
        self.said.append(decode(stored.body, KINDS[stored.subject.rsplit(".", 1)[1]]))

    async def start_daemon(self, home: str = "here") -> None:
        self.daemons += 1
        name, self.stop = f"daemon-{self.daemons}", asyncio.Event()
        bus = self.link = self.broker.connect(name)
        host = Host(
            name=HOST,
            daemon=name,
            settings=Settings(hosts=HostSettings(sample_every_s=0.0)),
        )
        daemon = Daemon(bus, host, Presence(bus, HOST, name, home), self.machine.attach)
        self.task = asyncio.create_task(daemon.run(self.stop, lambda: None, then="drain"))

    async def kill_daemon(self) -> None:
        """SIGKILL: no handler of it runs, nothing is said, its members go on."""
        self.machine.detach()
        self.broker.kill(f"daemon-{self.daemons}")
        assert self.task is not None
        while not self.task.done():
            self.task.cancel()  # again and again: a killed process does not get to its `finally`
            await asyncio.sleep(0)

    async def end(self) -> None:
        self.stop.set()
        assert self.task is not None
        await self.task

    async def say(self, fact: facts.JobFact) -> None:
        self.facts += 1
        while True:
            try:
                subject, name = job_fact(fact.job, fact.kind()), f"observer.{self.facts}"
                body, headers = told(fact, self.facts)
                await self.bus.append(
                    FACTS, subject, body, headers={**headers, MESSAGE_ID: name}, timeout_s=1.0
                )
                return
            except BusError:
                await asyncio.sleep(0.1)

    async def submit(self, uid: str = "0000000000a1") -> None:
        spec = JobSpec(name="demo", program=["python", "train.py"], data=DataSpec(train="x"))
        await self.say(facts.JobSubmitted(job="demo", uid=uid, spec=spec))

    async def desire(self, *members: Member, term: int = 1, plan: int = 1, uid: str = "0000000000a1") -> None:
        lines = [DesiredMember(member=each, host=HOST, command=["x"]) for each in members]
        await self.say(facts.MembersDesired(job="demo", uid=uid, term=term, plan=plan, members=lines))

    def running(self) -> list[str]:
        return sorted(str(each.member) for each in self.machine.members.values())

    def exits(self) -> list[tuple[str, str]]:
        return [
            (str(each.member), each.exit.reason)
            for each in self.said
            if isinstance(each, about_hosts.HostExited) and not each.last
        ]

    def reminders(self) -> list[tuple[str, int]]:
        """Who was said to be over although wanted, and up to which life the place is over (P21)."""
        return [
            (str(each.member), each.last)
            for each in self.said
            if isinstance(each, about_hosts.HostExited) and each.last
        ]

    def starts(self) -> list[tuple[str, bool]]:
        return [
            (str(each.process.member), each.adopted)
            for each in self.said
            if isinstance(each, about_hosts.HostStarted)
        ]


def play(scene: Callable[[Cluster], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main() -> None:
        cluster = Cluster(**options)
        await cluster.begin()
        await scene(cluster)

    run(main())


WORKER, NEXT = Member("worker", 0, 1), Member("worker", 0, 2)


def test_members_start_and_end_as_desired_and_every_change_is_a_fact() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.submit()
        await cluster.say(facts.PlanProposed(job="demo", plan=1, workers=1, servers=0, masters=[HOST, HOST]))
        await cluster.desire(WORKER)
        await asyncio.sleep(2.0)
        assert cluster.running() == ["master-0.1", "master-1.1", "worker-0.1"]
        await cluster.desire(NEXT, plan=2)
        await asyncio.sleep(2.0)
        assert cluster.running() == ["master-0.1", "master-1.1", "worker-0.2"]
        await cluster.say(facts.JobEnded(job="demo", state="completed"))
        await asyncio.sleep(2.0)
        assert cluster.running() == []
        assert cluster.exits()[0] == ("worker-0.1", "drained")
        assert len(cluster.exits()) == len(cluster.starts()) == 4
        await cluster.end()

    play(scene)


def test_a_daemon_that_stops_drains_its_members_and_leaves_nothing_on_the_bus() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.submit()
        await cluster.desire(WORKER)
        await asyncio.sleep(1.0)
        assert await cluster.bus.get(PRESENCE, HOST) is not None
        await cluster.end()
        await asyncio.sleep(0.1)
        assert (cluster.running(), cluster.exits()) == ([], [("worker-0.1", "drained")])
        assert isinstance(cluster.said[-1], about_hosts.HostLeft)
        assert await cluster.bus.get(PRESENCE, HOST) is None

    play(scene)


@pytest.mark.parametrize(
    ("meanwhile", "said"),
    [("desired no more", "drained"), ("still desired", "completed"), ("the job ended", "completed")],
)
def test_what_ended_in_order_while_no_daemon_was_there_is_named_by_what_is_desired(
    meanwhile: str, said: str
) -> None:
    """A worker leaves on its master's word: its daemon, which alone would have asked it to, is dead at that moment."""

    async def scene(cluster: Cluster) -> None:
        told_to_leave = asyncio.Event()

        async def until_told(order: StartOrder, leave: asyncio.Event) -> int:
            await told_to_leave.wait()
            return 0

        cluster.machine = SimulatedHost(until_told)
        await cluster.kill_daemon()
        await cluster.start_daemon()
        await cluster.submit()
        await cluster.desire(WORKER)
        await asyncio.sleep(2.0)
        await cluster.kill_daemon()
        if meanwhile == "desired no more":
            await cluster.desire(plan=2)
        elif meanwhile == "the job ended":
            await cluster.say(facts.JobEnded(job="demo", state="completed"))
        told_to_leave.set()
        await asyncio.sleep(1.0)
        await cluster.start_daemon()
        await asyncio.sleep(2.0)
        assert cluster.exits()[0] == ("worker-0.1", said)
        await cluster.kill_daemon()
        await cluster.start_daemon()
        await asyncio.sleep(2.0)
        assert [each for each in cluster.exits() if each[0] == "worker-0.1"] == [("worker-0.1", said)]
        assert all(each.reported for each in cluster.machine.observations() if isinstance(each, Exited))
        await cluster.end()

    play(scene)


def test_a_killed_daemon_loses_no_member_and_its_successor_reports_who_died_meanwhile_once() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.submit()
        await cluster.desire(WORKER, Member("worker", 1, 1))
        await asyncio.sleep(1.0)
        await cluster.kill_daemon()
        cluster.machine.kill(("demo", "worker-1"))
        await asyncio.sleep(5.0)
        assert cluster.running() == ["worker-0.1"]
        await cluster.start_daemon()
        await asyncio.sleep(5.0)
        assert cluster.exits() == [("worker-1.1", "killed")]
        assert cluster.starts()[2:] == [("worker-0.1", True)]
        assert cluster.running() == ["worker-0.1"]
        await cluster.end()

    play(scene)


def test_a_restarted_daemon_reads_the_whole_history_before_it_starts_anybody() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.kill_daemon()
        for number in range(5):
            await cluster.submit(f"u{number}")
            await cluster.desire(WORKER, uid=f"u{number}")
            await cluster.say(facts.JobEnded(job="demo", state="completed"))
        await cluster.start_daemon()
        await asyncio.sleep(5.0)
        assert cluster.starts() == []
        await cluster.end()

    play(scene)


def test_exits_during_an_outage_of_the_bus_arrive_once_in_order_when_it_is_back() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.submit()
        await cluster.say(facts.PlanProposed(job="demo", plan=1, workers=0, servers=0, masters=[HOST]))
        await asyncio.sleep(1.0)
        cluster.broker.restart(down_s=8.0)
        for _ in range(3):
            await asyncio.sleep(2.0)
            cluster.machine.kill(("demo", "master-0"))
        await asyncio.sleep(20.0)
        assert cluster.exits() == [(f"master-0.{number}", "killed") for number in (1, 2, 3)]
        assert cluster.running() == ["master-0.4"]
        assert await cluster.bus.get(PRESENCE, HOST) is not None
        await cluster.end()

    play(scene)


def test_presence_expires_when_the_daemon_dies_and_is_there_again_after_a_broker_restart() -> None:
    async def scene(cluster: Cluster) -> None:
        await asyncio.sleep(1.0)
        cluster.broker.restart(down_s=0.5)
        await asyncio.sleep(3.0)
        assert await cluster.bus.get(PRESENCE, HOST) is not None
        await cluster.kill_daemon()
        await asyncio.sleep(3.5)
        assert await cluster.bus.get(PRESENCE, HOST) is None

    play(scene)


def test_a_second_machine_under_the_same_name_is_refused_while_the_first_lives() -> None:
    async def scene(cluster: Cluster) -> None:
        await asyncio.sleep(1.0)
        first, stop = cluster.task, cluster.stop
        await cluster.start_daemon(home="another machine")
        assert cluster.task is not None
        with pytest.raises(Refused, match="--host"):
            await cluster.task
        assert first is not None
        assert not first.done()
        stop.set()
        await first

    play(scene)


def test_foreign_bytes_and_names_that_lead_elsewhere_are_counted_and_start_nobody() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.submit()
        subject = job_fact("demo", "members.desired")
        line = DesiredMember(member=WORKER, host=HOST, command=["x"])
        escape = facts.MembersDesired(job="../x", uid="0000000000a1", term=1, plan=1, members=[line])
        other = facts.MembersDesired(job="other", uid="0000000000a1", term=1, plan=1, members=[line])
        uid = facts.MembersDesired(job="demo", uid="../u", term=1, plan=1, members=[line])
        unproven = encode(
            facts.MembersDesired(job="demo", uid="0000000000a1", term=1, plan=1, members=[line])
        )
        foreign = [(body, {}) for body in (b"", b"\xc1", b"\x81\xa1a", unproven)]
        for body, headers in [*foreign, *(told(fact, 1) for fact in (escape, other, uid))]:
            await cluster.bus.append(FACTS, subject, body, headers=headers)
        await asyncio.sleep(3.0)
        assert cluster.starts() == []
        await cluster.desire(WORKER)
        await asyncio.sleep(1.0)
        assert cluster.running() == ["worker-0.1"]
        await cluster.end()

    play(scene)


WEATHER = Faults(
    delay_s=(0.0, 0.2), ack_delay_s=(0.0, 0.3), drop=0.05, duplicate=0.05, append_lost=0.05, ack_lost=0.1
)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_in_any_weather_each_life_is_started_once_and_its_end_reported_once(seed: int) -> None:
    print(f"seed {seed}")
    draw = random.Random(seed)

    async def scene(cluster: Cluster) -> None:
        await cluster.submit()
        await cluster.say(facts.PlanProposed(job="demo", plan=1, workers=0, servers=0, masters=[HOST, HOST]))
        incarnations = [1, 1]
        for plan in range(1, 15):
            await cluster.desire(*(Member("worker", i, n) for i, n in enumerate(incarnations)), plan=plan)
            await asyncio.sleep(draw.uniform(0.0, 3.0))
            match draw.choice(["kill", "kill", "daemon", "broker", "relaunch"]):
                case "kill" if cluster.machine.members:
                    cluster.machine.kill(draw.choice(sorted(cluster.machine.members)))
                case "daemon":
                    await cluster.kill_daemon()
                    await asyncio.sleep(draw.uniform(0.0, 4.0))
                    await cluster.start_daemon()
                case "broker":
                    cluster.broker.restart(down_s=draw.uniform(0.1, 2.0))
                    await asyncio.sleep(2.5)
                case "relaunch":
                    incarnations[draw.randrange(2)] += 1
        cluster.broker.faults = CALM
        await asyncio.sleep(30.0)
        await cluster.end()
        await asyncio.sleep(5.0)
        ends = [member for member, _ in cluster.exits()]
        assert sorted(ends) == sorted(set(ends))
        reminders = cluster.reminders()
        assert {member for member, _ in reminders} <= set(ends), "no end is said for the first time so"
        assert sorted(cluster.lived) == sorted(set(cluster.lived))
        assert set(ends) >= set(cluster.lived) >= {member for member, _ in cluster.starts()}
        assert cluster.running() == []

    play(scene, seed=seed, faults=WEATHER)


# -- a broker that has forgotten (P21) ---------------------------------------------------------------------------------


def forget_facts(cluster: Cluster, after: int) -> None:
    """A power cut takes the tail of FACTS."""
    cluster.broker.streams[FACTS].truncate(after)
    cluster.broker.restart(0.3)


def test_a_desired_set_of_a_lower_term_is_obeyed_once_the_broker_has_forgotten_the_higher_one() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.submit()
        kept = cluster.broker.streams[FACTS].last
        await cluster.desire(WORKER, term=5, plan=9)
        await asyncio.sleep(1.0)
        forget_facts(cluster, kept)
        await asyncio.sleep(1.0)
        await cluster.desire(WORKER, Member("worker", 1, 1), term=1, plan=1)
        await asyncio.sleep(1.0)
        assert cluster.running() == ["worker-0.1", "worker-1.1"]
        await cluster.end()

    play(scene)


def test_without_a_loss_a_lower_term_stays_stale() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.submit()
        await cluster.desire(WORKER, term=5, plan=9)
        await asyncio.sleep(1.0)
        cluster.broker.restart(0.3)
        await asyncio.sleep(1.0)
        await cluster.desire(WORKER, Member("worker", 1, 1), term=1, plan=1)
        await asyncio.sleep(1.0)
        assert cluster.running() == ["worker-0.1"]
        await cluster.end()

    play(scene)


async def forget_that_a_fourth_life_is_over(cluster: Cluster) -> None:
    """worker-0.4 ran and died; then the broker lost all that was said since the submission."""
    await cluster.submit()
    kept = cluster.broker.streams[FACTS].last
    await cluster.desire(Member("worker", 0, 4), term=2)
    await asyncio.sleep(1.0)
    cluster.machine.kill(("demo", "worker-0"))
    await asyncio.sleep(1.0)
    forget_facts(cluster, kept)
    await asyncio.sleep(1.0)


def test_who_is_wanted_although_a_later_life_is_over_is_said_to_be_over_at_once_with_the_last_one() -> None:
    async def scene(cluster: Cluster) -> None:
        await forget_that_a_fourth_life_is_over(cluster)
        await cluster.desire(Member("worker", 0, 1))
        await asyncio.sleep(1.0)
        assert cluster.reminders() == [("worker-0.1", 4)]
        await cluster.desire(Member("worker", 0, 5), plan=2)
        await asyncio.sleep(1.0)
        assert cluster.running() == ["worker-0.5"]
        await cluster.end()

    play(scene)


def test_a_wanted_life_that_ended_before_is_said_to_be_over_again_when_nobody_reacts() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.submit()
        await cluster.desire(WORKER)
        await asyncio.sleep(1.0)
        cluster.machine.kill(("demo", "worker-0"))
        await asyncio.sleep(10.0)
        assert (cluster.exits(), cluster.reminders()) == ([("worker-0.1", "killed")], [])
        await asyncio.sleep(10.0)
        assert cluster.reminders() == [("worker-0.1", 1)]
        await asyncio.sleep(100.0)
        assert cluster.reminders() == [("worker-0.1", 1)], "said once more, not for ever"
        await cluster.end()

    play(scene)


def test_what_was_said_of_a_life_that_is_over_is_said_again_once_the_broker_has_forgotten_it() -> None:
    """The desired set is older than the loss: nothing that the daemon heard is gone, only what it said."""

    async def scene(cluster: Cluster) -> None:
        await cluster.submit()
        await cluster.desire(Member("worker", 0, 4), term=2)
        await asyncio.sleep(1.0)
        cluster.machine.kill(("demo", "worker-0"))
        await asyncio.sleep(1.0)
        await cluster.desire(Member("worker", 0, 1), term=3)
        kept = cluster.broker.streams[FACTS].last
        await asyncio.sleep(1.0)
        assert cluster.reminders() == [("worker-0.1", 4)]
        forget_facts(cluster, kept)
        await asyncio.sleep(1.0)
        assert cluster.reminders() == 2 * [("worker-0.1", 4)]
        cluster.broker.restart(0.3)
        await asyncio.sleep(30.0)
        assert cluster.reminders() == 2 * [("worker-0.1", 4)], "a connection that lost nothing is no reason"
        await cluster.end()

    play(scene)


def test_a_desired_set_that_the_broker_has_forgotten_is_obeyed_no_longer() -> None:
    """The log may have forgotten it too, and then it is the older set, told long ago, that somebody waits for."""

    async def scene(cluster: Cluster) -> None:
        await cluster.submit()
        await cluster.desire(WORKER)
        await asyncio.sleep(1.0)
        cluster.machine.kill(("demo", "worker-0"))
        kept = cluster.broker.streams[FACTS].last
        await cluster.desire(NEXT, Member("worker", 1, 1), plan=2)
        await asyncio.sleep(1.0)
        cluster.machine.kill(("demo", "worker-0"))
        await asyncio.sleep(1.0)
        assert cluster.running() == ["worker-1.1"]
        forget_facts(cluster, kept)
        await asyncio.sleep(2.0)
        assert cluster.running() == []
        stored = cluster.broker.streams[FACTS].select(["rover.host.*.exited"], kept + 1)
        exits = [decode(each.body, about_hosts.HostExited) for each in stored]
        assert [(str(each.member), each.last) for each in exits if each.last] == [("worker-0.1", 2)]
        await cluster.end()

    play(scene)


def test_whoever_asks_anew_for_somebody_who_is_over_is_told_so() -> None:
    """The first reminder reached a master that did not know the job yet; its plan came later, and wants the same life."""

    async def scene(cluster: Cluster) -> None:
        await forget_that_a_fourth_life_is_over(cluster)
        for term in (3, 4):
            await cluster.desire(Member("worker", 0, 1), term=term)
            await asyncio.sleep(1.0)
        assert cluster.reminders() == 2 * [("worker-0.1", 4)]
        await cluster.end()

    play(scene)


def test_a_job_on_which_the_daemon_cannot_decide_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = decider.desired_here

    def desired_here(state: HostMembers, job: str) -> dict[str, DesiredMember]:
        if job == "bad":
            raise KeyError("never seen before")
        return whole(state, job)

    async def scene(cluster: Cluster) -> None:
        await cluster.submit()
        await cluster.desire(WORKER)
        await asyncio.sleep(1.0)
        monkeypatch.setattr(decider, "desired_here", desired_here)
        spec = JobSpec(name="bad", program=["x"], data=DataSpec(train="x"))
        await cluster.say(facts.JobSubmitted(job="bad", uid="0000000000b2", spec=spec))
        await cluster.desire(WORKER, Member("worker", 1, 1), plan=2)
        await asyncio.sleep(3.0)
        assert cluster.running() == ["worker-0.1", "worker-1.1"]
        failed = [each for each in cluster.said if isinstance(each, about_hosts.HostTurnFailed)]
        assert [(each.job, each.why) for each in failed] == [("bad", "KeyError('never seen before')")]
        monkeypatch.undo()
        await cluster.end()

    play(scene)


class Pods(SimulatedHost):
    """A host whose platform shows no process ids and pins nothing."""

    def attach(self, observe: Observe) -> SimulatedPlatform:
        def without_pid(seen: Observation) -> None:
            observe(replace(seen, pid=0) if isinstance(seen, Running) else seen)

        self._attached = PodPlatform(self, without_pid)
        return self._attached


class PodPlatform(SimulatedPlatform):
    @property
    def cpus(self) -> tuple[int, ...]:
        return ()


def test_a_platform_needs_neither_process_ids_nor_pins() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.machine = Pods(cluster.obey)
        await cluster.kill_daemon()
        await cluster.start_daemon()
        await cluster.submit()
        await cluster.desire(WORKER, Member("ps", 0, 1))
        await asyncio.sleep(2.0)
        await cluster.kill_daemon()
        await cluster.start_daemon()
        await asyncio.sleep(2.0)
        assert sorted(cluster.starts()) == [
            ("ps-0.1", False),
            ("ps-0.1", True),
            ("worker-0.1", False),
            ("worker-0.1", True),
        ]
        cluster.broker.restart(0.1)
        await asyncio.sleep(2.0)
        registered = [each for each in cluster.said if isinstance(each, about_hosts.HostRegistered)][-1]
        assert sorted(each.member.name for each in registered.processes) == ["ps-0", "worker-0"]
        await cluster.end()
        assert sorted(cluster.exits()) == [("ps-0.1", "drained"), ("worker-0.1", "drained")]

    play(scene)


class CountingHost(SimulatedHost):
    """Notes when a program was tried."""

    def __init__(self, program: Any, tried: list[float]) -> None:
        super().__init__(program)
        self._tried = tried

    def try_program(self, request: ProgramRequest, answer: Any) -> None:
        self._tried.append(asyncio.get_running_loop().time())
        super().try_program(request, answer)


def test_a_program_that_does_not_start_is_said_once_and_starts_the_worker_when_it_is_mended() -> None:
    async def scene(cluster: Cluster) -> None:
        tried: list[float] = []
        cluster.machine = CountingHost(cluster.obey, tried)
        await cluster.kill_daemon()
        await cluster.start_daemon()
        cluster.machine.refuses = "no such file"
        await cluster.submit()
        await cluster.desire(WORKER)
        await asyncio.sleep(300.0)
        assert (cluster.lived, cluster.exits()) == ([], [])
        (refused,) = [each for each in cluster.said if isinstance(each, about_hosts.HostProgramRefused)]
        assert (refused.job, refused.path, refused.problem) == ("demo", "train.py", "no such file")
        waits = [round(after - before) for before, after in pairwise(tried)]
        assert waits[:7] == [1, 2, 4, 8, 16, 32, 60]
        cluster.machine.refuses = ""
        await asyncio.sleep(70.0)
        assert cluster.running() == ["worker-0.1"]
        assert [each.job for each in cluster.said if isinstance(each, about_hosts.HostProgramMended)] == [
            "demo"
        ]
        await cluster.end()

    play(scene)


def test_the_next_daemon_tries_a_refused_program_itself_and_says_so_after_it_registered() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.machine.refuses = "no such file"
        await cluster.submit()
        await asyncio.sleep(5.0)
        await cluster.kill_daemon()
        await cluster.start_daemon()
        await asyncio.sleep(30.0)
        said = [
            (each.kind(), each.daemon)
            for each in cluster.said
            if isinstance(each, about_hosts.HostRegistered | about_hosts.HostProgramRefused)
        ]
        assert said == [
            ("registered", "daemon-1"),
            ("program_refused", "daemon-1"),
            ("registered", "daemon-2"),
            ("program_refused", "daemon-2"),
        ]
        await cluster.end()

    play(scene)


@pytest.mark.parametrize("mended", [False, True])
def test_a_refusal_that_a_power_cut_may_have_taken_is_asked_and_said_anew(mended: bool) -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.machine.refuses = "no such file"
        await cluster.submit()
        await asyncio.sleep(0.5)
        (stored,) = [each async for each in cluster.bus.read(FACTS, host_facts(fact="program_refused"))]
        cluster.machine.refuses = "" if mended else "no such file"
        cluster.broker.streams[FACTS].truncate(stored.sequence - 1)
        cluster.broker.restart(0.1)
        await asyncio.sleep(10.0)
        said = [each.subject.rsplit(".", 1)[1] async for each in cluster.bus.read(FACTS, host_facts())]
        assert said[-1] == ("program_mended" if mended else "program_refused")
        await cluster.end()

    play(scene)


def test_an_added_worker_is_what_a_spare_becomes_and_a_successor_of_the_daemon_makes_its_own() -> None:
    async def scene(cluster: Cluster) -> None:
        def warm() -> dict[str, bool]:
            started = [each for each in cluster.said if isinstance(each, about_hosts.HostStarted)]
            return {str(each.process.member): each.warm for each in started if not each.adopted}

        second, third = Member("worker", 1, 1), Member("worker", 2, 1)
        await cluster.submit()
        await cluster.desire(WORKER)
        await asyncio.sleep(1.0)
        cluster.machine.tell_loaded(("demo", "worker-0"), 5.0)
        await asyncio.sleep(10.0)
        assert cluster.starts() == [("worker-0.1", False)], "spares are no members"
        await cluster.desire(WORKER, second, plan=2)
        await asyncio.sleep(1.0)
        assert warm() == {"worker-0.1": False, "worker-1.1": True}
        await cluster.kill_daemon()
        await cluster.start_daemon()
        await asyncio.sleep(10.0)
        await cluster.desire(WORKER, second, third, plan=3)
        await asyncio.sleep(1.0)
        assert warm()["worker-2.1"]
        assert cluster.running() == ["worker-0.1", "worker-1.1", "worker-2.1"]
        await cluster.end()
        assert cluster.running() == []

    play(scene)


def test_after_a_daemon_died_its_successor_takes_no_spare_that_died_with_it() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.submit()
        await cluster.desire(WORKER)
        await asyncio.sleep(1.0)
        cluster.machine.tell_loaded(("demo", "worker-0"), 5.0)
        await asyncio.sleep(10.0)
        await cluster.kill_daemon()
        await cluster.desire(WORKER, Member("worker", 1, 1), plan=2)
        await cluster.start_daemon()
        await asyncio.sleep(5.0)
        started = [each for each in cluster.said if isinstance(each, about_hosts.HostStarted)]
        assert not any(each.warm for each in started)
        assert cluster.running() == ["worker-0.1", "worker-1.1"]
        await cluster.end()

    play(scene)
