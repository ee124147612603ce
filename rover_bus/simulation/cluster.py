"""A simulated cluster: a host with its daemon, the Brain, and whatever the platform starts; and the hands that break it.

Fed by a Plan; `blow` does what chaos would do from outside. Workers may go to a second host, which is there from
then on. Every process has a bus connection of its own: when it is killed,
its tasks end, its connection dies, and nothing of it runs on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from rover_bus.brain.service import build_brain
from rover_bus.events import subjects
from rover_bus.events.bus import MESSAGE_ID, Bus
from rover_bus.events.codec import encode
from rover_bus.events.deciding import ServiceProcess
from rover_bus.events.errors import BusError, RoverError
from rover_bus.events.facts import JobFact, PlanProposed, SlotsMoveRequested
from rover_bus.events.identity import Member
from rover_bus.events.leadership import Deposed, read_leader
from rover_bus.events.log import Record
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.settings import HostSettings, RetentionSettings, Settings
from rover_bus.events.streams import BUCKETS, FACTS, LEADERS, STREAMS
from rover_bus.master.checks import broken
from rover_bus.master.decider import MasterDecider
from rover_bus.node.daemon import Daemon
from rover_bus.node.host import Host
from rover_bus.node.port import Incarnation, StartOrder
from rover_bus.node.presence import Presence
from rover_bus.node.simulated import SimulatedHost
from rover_bus.simulation.digester import digest_for_ever
from rover_bus.simulation.members import Shared, run_server, run_worker
from rover_bus.simulation.plan import Blow, chance_of
from rover_bus.simulation.storage import StorageDaemon

JOB = "job"
HOST, OTHER = "h1", "h2"


class Cluster:
    """Everything of one history that runs."""

    def __init__(self, broker: MemoryBroker, shared: Shared) -> None:
        self.broker, self.shared = broker, shared
        broker.ensure(STREAMS, BUCKETS)
        self.host, self.other = (shared.rules.host(self._run_member) for _ in range(2))
        self._processes = 0
        self._services: dict[str, asyncio.Task[None]] = {}
        self._names: dict[Member, str] = {}
        self._daemons = 0
        self._brains = 0
        self._wishes, self._servers = 0, shared.plan.servers
        self._healing: list[asyncio.Task[None]] = []

    # -- services --------------------------------------------------------------------------------------------------------

    def start_daemon(self) -> None:
        self._daemons += 1
        name = f"daemon-{self._daemons}"
        bus = self.broker.connect(name)
        host = Host(
            name=HOST,
            daemon=name,
            settings=Settings(hosts=HostSettings(sample_every_s=0.0)),
        )
        daemon = Daemon(bus, host, Presence(bus, HOST, name, HOST), self.host.attach)
        digesting = digest_for_ever(
            bus, JOB, HOST, self.shared.memory, chance_of(self.shared.plan.seed, f"digests of {name}")
        )
        self._services["daemon"] = self._spawn(
            name, _beside(digesting, daemon.run(asyncio.Event(), lambda: None, then="leave"))
        )

    def _start_other(self) -> None:
        """A second host, for workers alone."""
        if "other" not in self._services:
            bus = self.broker.connect("daemon-other")
            host = Host(name=OTHER, daemon="other", settings=Settings(hosts=HostSettings(sample_every_s=0.0)))
            daemon = Daemon(bus, host, Presence(bus, OTHER, "other", OTHER), self.other.attach)
            running = daemon.run(asyncio.Event(), lambda: None, then="leave")
            self._services["other"] = self._spawn("daemon-other", running)

    def start_storage(self) -> None:
        """What a daemon does for storage has a connection of its own: it is not killed with the platform."""
        bus = self.broker.connect("storage")
        daemon = StorageDaemon(bus, JOB, HOST, self.shared.memory, self.shared.storage)
        self._services["storage"] = self._spawn("storage", daemon.run(asyncio.sleep))

    def start_brain(self) -> None:
        self._brains += 1
        name = f"brain-{self._brains}"
        self._services["brain"] = self._spawn(name, self._lead_again_and_again(name))

    async def _lead_again_and_again(self, name: str) -> None:
        """A Brain that lost its lead stands by again, in the same process."""
        bus = self.broker.connect(name)
        while True:
            shell, _ = build_brain(bus, process=ServiceProcess(name, self._now, lambda: 0), timeline=7)
            try:
                await shell.run()
            except* Deposed:
                self.shared.say(f"{name} was deposed")

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work
            except* Deposed:
                self.shared.say(f"{name} was deposed")
            except* RoverError as errors:
                self.shared.say(f"{name} failed: {errors.exceptions}")
            finally:
                self.broker.kill(name)

        return asyncio.create_task(run(), name=name)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    # -- members ---------------------------------------------------------------------------------------------------------

    async def _run_member(self, order: StartOrder, leave: asyncio.Event) -> int:
        member = order.incarnation.member
        self._processes += 1
        name = f"{member}/{self._processes}"
        self._names[order.incarnation.member] = name
        self.shared.say(f"{member} starts")
        bus = self.broker.connect(name)
        try:
            if member.role == "master":
                return await self._run_master(bus, name)
            if member.role == "ps":
                return await run_server(bus, member, self.shared, leave)
            return await run_worker(bus, order.incarnation.desired, self.shared, leave, self._processes)
        finally:
            self.broker.kill(name)
            self.shared.say(f"{member} ends")

    async def _run_master(self, bus: Bus, name: str) -> int:
        shell, decider = self.shared.rules.build_master(
            bus,
            JOB,
            process=ServiceProcess(name, self._now, lambda: 0),
            settings=Settings(
                retention=RetentionSettings(snapshot_batches=self.shared.plan.snapshot_every_batches)
            ),
        )
        self._check_each_record(decider)
        code = 0
        try:
            await shell.run()
        except* Deposed:
            code = 1  # a new process of it stands by; a real one does without one (serve.py)
        except* RoverError as errors:
            self.shared.say(f"{name} failed: {errors.exceptions}")
            code = 1
        return code

    def _check_each_record(self, decider: MasterDecider) -> None:
        evolve = decider.evolve

        def evolve_and_check(record: Record) -> None:
            evolve(record)
            for why in broken(decider.state):
                self.shared.broken.setdefault(why, type(record).__name__)

        decider.evolve = evolve_and_check  # type: ignore[method-assign]

    # -- blows -----------------------------------------------------------------------------------------------------------

    async def blow(self, blow: Blow) -> None:
        """Do to the cluster what a bad day would do."""
        match blow.act:
            case "kill_worker":
                self._kill("worker", blow.who)
            case "preempt":
                self._kill("worker", blow.who)
                self._kill("worker", blow.who)
            case "kill_leader":
                await self._kill_master(leader=True)
            case "kill_standby":
                await self._kill_master(leader=False)
            case "kill_daemon":
                await self._kill_service("daemon", self.host.detach, self.start_daemon, blow.for_s)
            case "kill_brain":
                await self._kill_service("brain", lambda: None, self.start_brain, blow.for_s)
            case "restart_broker":
                self.shared.say("the broker restarts")
                self.broker.restart(blow.for_s / 4)
            case "move_slots" | "scale":
                self._ask(self._wish(blow))
            case "move_workers":
                self._start_other()
                self._ask(self._journey(blow))
            case "kill_server":
                self._kill("ps", blow.who)
            case "kill_all":
                self.shared.say("SIGKILL to every process of the job")
                self._kill_all()
            case "lose_memory":
                part = f"ps-{int(blow.who * self.shared.plan.servers)}"
                self.shared.say(f"what {part} had staged is lost")
                self.shared.memory.forget(part)
            case "lose_all_memory":
                self.shared.say("SIGKILL to every process of the job, and all that was staged is lost")
                self.shared.memory.parts.clear()
                self._kill_all()
            case "damage_storage":
                hit = self.shared.storage.damage(random.Random(blow.who), int(blow.for_s))
                self.shared.say(f"checkpoints {hit} on storage are damaged")
            case "power_cut":
                self.shared.say("the power fails under the broker")
                self.broker.power_cut(blow.for_s / 4)
            case "partition":
                self._partition(blow)

    def _wish(self, blow: Blow) -> JobFact:
        """Return what a person asks for: slots elsewhere, or another number of servers."""
        self._wishes += 1
        if blow.act == "scale":
            servers = self._servers = 1 + int(blow.who * 3)
            self.shared.say(f"a person wants {servers} servers")
            return PlanProposed(
                job=JOB,
                plan=1000 + self._wishes,
                workers=self.shared.plan.workers,
                servers=servers,
                hosts=[HOST],
                masters=[HOST, HOST],
            )
        present = sorted(run.member.name for _, run in self._living("ps")) or ["ps-0"]
        source = present[int(blow.who * len(present))]
        self.shared.say(f"a person wants {blow.for_s:.0%} of the slots of {source} elsewhere")
        return SlotsMoveRequested(job=JOB, source=source, share=blow.for_s)

    def _journey(self, blow: Blow) -> PlanProposed:
        """Return a plan that gives workers the other host than they have."""
        self._wishes += 1
        living = self._living("worker")
        moved = living[: max(round(blow.for_s * len(living)), 1)]
        names, stays = [run.member for _, run in moved], blow.who < 0.8
        words = "once their successors are there" if stays else "at once"
        self.shared.say(f"{', '.join(map(str, names))} shall leave their hosts {words}")
        return PlanProposed(
            job=JOB,
            plan=1000 + self._wishes,
            workers=self.shared.plan.workers,
            servers=self._servers,
            hosts=[HOST, OTHER],
            masters=[HOST, HOST],
            replaces=names,
            stays=names if stays else [],
            worker_hosts=[OTHER if host is self.host else HOST for host, _ in moved],
            server_hosts=[HOST] * self._servers,
        )

    def _ask(self, fact: JobFact) -> None:
        async def insist() -> None:
            name = f"person-{self._wishes}"
            bus, subject = self.broker.connect(name), subjects.job_fact(JOB, fact.kind())
            while True:
                try:
                    await bus.append(FACTS, subject, encode(fact), headers={MESSAGE_ID: name})
                    return
                except BusError:
                    await asyncio.sleep(0.1)

        self._healing.append(asyncio.create_task(insist()))

    def _living(self, role: str) -> list[tuple[SimulatedHost, Incarnation]]:
        return [
            (host, run)
            for host in (self.host, self.other)
            for run in host.members.values()
            if run.desired.member.role == role
        ]

    def _kill(self, role: str, who: float) -> None:
        living = self._living(role)
        if living:
            host, run = living[int(who * len(living))]
            self.shared.say(f"SIGKILL {self._names.get(run.member, run.key)}")
            host.kill(run.key)

    def _kill_all(self) -> None:
        for host in (self.host, self.other):
            for key in list(host.members):
                host.kill(key)

    async def _kill_master(self, leader: bool) -> None:
        entry = self.broker.buckets[LEADERS].entries.get(JOB)
        found = read_leader(entry)
        holder = found.holder if found is not None else ""
        for host, run in self._living("master"):
            if (self._names.get(run.member) == holder) == leader:
                self.shared.say(
                    f"SIGKILL {self._names[run.member]} ({'leading' if leader else 'standing by'})"
                )
                host.kill(run.key)
                return

    async def _kill_service(
        self, which: str, before: Callable[[], None], start: Callable[[], None], for_s: float
    ) -> None:
        task = self._services[which]
        if task.done() or task.cancelling():
            return
        self.shared.say(f"SIGKILL {task.get_name()}")
        before()
        self.broker.kill(task.get_name())  # it cannot say goodbye
        task.cancel()
        self._later(for_s, start)

    def _partition(self, blow: Blow) -> None:
        """A member cannot reach the broker for a while, but goes on: the zombie of S3."""
        living = self._living("worker") or self._living("master")
        if living:
            name = self._names[living[int(blow.who * len(living))][1].member]
            self.shared.say(f"{name} is cut off for {blow.for_s:.1f} s")
            self.broker.partition(name)
            self._later(blow.for_s, lambda: self.broker.heal(name))

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            call()

        self._healing.append(asyncio.create_task(wait()))

    async def shut_down(self) -> None:
        """End everything that still runs."""
        self.host.lose_power()
        self.other.lose_power()
        tasks = [*self._services.values(), *self._healing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(20):
            await asyncio.sleep(0)


async def _beside(work: Coroutine[Any, Any, None], main: Coroutine[Any, Any, None]) -> None:
    """Do some work as long as another goes on."""
    working = asyncio.create_task(work)
    try:
        await main
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
