"""The node daemon: facts of the bus in, decisions of decider.py out to the platform of this host, what became of them back.

The shell of the room. It follows what shall run here, observes what runs, and asks the pure decider after each; it keeps the
host's presence, publishes samples of it, and posts what happened. Everything it knows is rebuilt from the FACTS stream and its
platform: after a SIGKILL its successor adopts the members, which run on. Nothing is started before the stream's history has been
read to its end, because half a history asks for members that its other half takes back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sized
from typing import get_args

from rover_bus.events import facts, host_facts
from rover_bus.events.bus import Bus, ConnectionState, Stored
from rover_bus.events.deciding import Decider, WakeAt
from rover_bus.events.errors import BadMessage
from rover_bus.events.identity import Exit, Member, Process
from rover_bus.events.logs import get_logger
from rover_bus.events.profiles import HostProfile
from rover_bus.events.programs import ProgramReply
from rover_bus.events.settings import changed
from rover_bus.events.subjects import everywhere, job_facts, split_job
from rover_bus.node.decider import (
    Adjust,
    Effect,
    Erase,
    Forget,
    Input,
    MembersDecider,
    Start,
    Stop,
    TryProgram,
    overtaken,
)
from rover_bus.node.ends import FoundEnds, told_of_end
from rover_bus.node.exits import STUCK_S
from rover_bus.node.host import Departure, Host
from rover_bus.node.members import (
    FollowedFact,
    Happening,
    HistoryLost,
    HostMembers,
    ObservedMember,
    ProgramTried,
    PublishedLost,
    RecordsForgotten,
    RunErased,
    same_run,
    wants_the_same,
)
from rover_bus.node.outbox import Letter, Outboxes
from rover_bus.node.port import (
    AdjustRefused,
    Exited,
    Key,
    Observation,
    Observe,
    Platform,
    Running,
    Stalled,
    StartOrder,
    TakenAway,
    Trouble,
)
from rover_bus.node.presence import Presence
from rover_bus.node.programs import Trial, program_fact
from rover_bus.node.questions import answer_logs, answer_programs
from rover_bus.node.samples import publish_samples
from rover_bus.node.spares import Drop, MemoryPressed, Prepare, Spares, is_pressed, spare_fact
from rover_bus.node.storage.persister import Persister, Places
from rover_bus.node.storage.state import Cut
from rover_bus.node.tenants import WatchedTenants, seen_by
from rover_bus.node.troubles import told_of
from rover_bus.node.turns import FailingJobs, Following, Turns, decide_turn, ends_before, run_until

REACTION_S = 15.0  # of a master to an end: received in milliseconds, or after a take-over
FLUSH_S = 5.0
DRAIN_LOOK_S = 0.02
log = get_logger("rover.node")


class Daemon:
    """One host's daemon on one bus, above one platform."""

    def __init__(
        self,
        bus: Bus,
        host: Host,
        presence: Presence,
        platform: Callable[[Observe], Platform],
        places: Places | None = None,
    ) -> None:
        """`places`: where this host stages and stores checkpoints; None: it does neither."""
        self._bus = bus
        self._host = host
        self._presence = presence
        self._outboxes = Outboxes(bus, host.name, self._lose_published)
        self._tenants = WatchedTenants(bus, host.learn_tenant, self._on_tenants)
        self._ends: dict[Key, Exited] = {}  # the last incarnation that ended of each member
        self._found = FoundEnds(self._report_end)
        self._loop = asyncio.get_running_loop()
        self._platform = platform(self._observe)
        cpus, roles = self._platform.cpus, self._platform.roles
        here = HostMembers(
            host.name, cpus, roles, restarts=host.settings.members, capacity=self._platform.capacity
        )
        self._decider: Decider[HostMembers, Input, Effect] = MembersDecider(here)
        self._persister = Persister(bus, host.name, host.daemon, places, self._post) if places else None
        subjects = everywhere(*(job_facts("*", each.kind()) for each in get_args(FollowedFact)))
        self._following = Following(bus, subjects, self._on_fact, self._lose_history, f"{host.name}.daemon")
        self._turns = Turns(self._decide)
        self._closing = False
        self._unreported: set[tuple[str, str, Member]] = set()
        # desired, but ended: when that is published again
        self._overtaken: dict[tuple[str, str, Member], float] = {}
        self._registrations = 0
        self._trials_published = 0
        self._failing = FailingJobs(host.name, f"turn_failed.{host.daemon}", self._post)

    @property
    def state(self) -> HostMembers:
        return self._decider.state

    # -- its run -------------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event, ready: Callable[[], None], *, then: Departure) -> None:
        """Serve until `stop`; then drain the members (or leave them to their shims) and take everything of ours off the bus.

        Where a successor is to come, both stay: it finds the members, and the host's name is free for it.
        """
        if not await self._come_in(stop):
            return  # as when there never was a broker: what ran here ends with its shims, or is a successor's
        self._bus.on_connection(self._on_connection)
        self._register()
        works = [
            self._outboxes.run(),
            self._tenants.run(),
            self._presence.run(),
            self._follow(),
            self._follow_capacity(),
        ]
        works += [answer_programs(self._bus, self._host.name, self._platform)]
        works += [answer_logs(self._bus, self._host)]
        works += [self._sample()] if self._host.settings.hosts.sample_every_s else []
        works += [self._persister.run()] if self._persister else []
        tasks = [self._loop.create_task(work) for work in works]
        try:
            ready()
            await run_until(stop, tasks)
        except Exception:
            then = "leave" if then == "drain" else then  # an error of ours is no reason to end training
            raise
        finally:
            await self._close(tasks, then)

    async def _come_in(self, stop: asyncio.Event) -> bool:
        """Find what runs here and take the host's name, whenever the bus lets us; False where `stop` came first."""
        came = False
        try:
            came = await ends_before(stop, self._adopt_and_claim())
            return came
        finally:
            if not came:
                self._platform.release()

    async def _adopt_and_claim(self) -> None:
        await self._platform.adopt()
        await self._presence.claim()

    async def _close(self, tasks: list[asyncio.Task[None]], then: Departure) -> None:
        self._closing = True
        self._turns.end()
        try:
            if then == "drain":
                await self._leave_in_order()
            if self._persister:
                await self._persister.close()
            if then != "hand over":
                left = host_facts.HostLeft(host=self._host.name, reason="stopped")
                self._post_to_all(left, f"left.{self._host.daemon}")
            await self._outboxes.flush(FLUSH_S)
            if then != "hand over":
                await self._presence.leave()
        finally:
            self._platform.release()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _leave_in_order(self) -> None:
        """Workers first: to commit what they hold they need servers and a master. Then a last cut becomes safe (S29)."""
        jobs = {each.job for each in self._members("ps") if each.running}
        waiting = self._persister.unsafe_jobs(jobs) if self._persister else {}
        if self.state.observed:
            leaving = host_facts.HostLeaving(
                host=self._host.name, within_s=self._host.settings.hosts.notice_s, reason="stopped"
            )
            self._post_to_all(leaving, f"leaving.{self._host.daemon}")
        for held in list(self.state.spares.held.values()):
            self._platform.drop(held.spare)
        await self._drain("worker")
        await self._outlive(lambda: self.state.spares.held, STUCK_S)
        if self._persister and waiting:
            await self._wait_for_cuts(self._persister, waiting)
        await self._drain("ps", "master")

    def _members(self, *roles: str) -> list[ObservedMember]:
        return [each for each in self.state.observed.values() if each.desired.member.role in roles]

    async def _drain(self, *roles: str) -> None:
        draining = self._members(*roles)
        for each in draining:
            if not each.stopping:
                self._platform.stop(each.incarnation)
        if draining:
            patience_s = max(each.desired.grace_s for each in draining) + 2 * STUCK_S
            await self._outlive(lambda: self._members(*roles), patience_s)

    async def _wait_for_cuts(self, persister: Persister, waiting: dict[str, Cut]) -> None:
        """Until a newer cut of each job is ready or redundant, its servers here are gone, or the time has passed."""
        end_s = self._loop.time() + self._host.settings.hosts.notice_s
        while self._loop.time() < end_s:
            serving = {each.job for each in self._members("ps")}
            if not any(job in serving and not persister.is_safe(job, cut) for job, cut in waiting.items()):
                return
            await asyncio.sleep(DRAIN_LOOK_S)
        log.warning("leaves before the last cut is safe", jobs=sorted(waiting))

    async def _outlive(self, left: Callable[[], Sized], patience_s: float) -> None:
        end_s = self._loop.time() + patience_s
        while left():
            if self._loop.time() > end_s:
                log.error("members could not be ended", members=sorted(self.state.observed))
                return
            await asyncio.sleep(DRAIN_LOOK_S)

    def _on_connection(self, state: ConnectionState) -> None:
        if state == "connected" and not self._closing:
            self._register()

    # -- what shall run ------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Follow the facts that say what shall run; act once their present end is reached."""
        try:
            await self._following.begin()
            if not self._closing:
                self._found.read(self.state)
                self._turns.begin()
            await asyncio.Event().wait()
        finally:
            await self._following.stop()

    def _on_fact(self, stored: Stored) -> None:
        """Of a hundred hosts a plan concerns a few: only where it changes anything is there anything to decide."""
        if fact := self._read(stored):
            before, now_s = self.state, self._loop.time()
            self._decider.decide(fact, now_s)
            if not self._following.caught_up:
                return  # its turn is the one that ends the history
            changes = not wants_the_same(before, self.state, fact.job)
            if isinstance(fact, facts.MembersDesired):
                self._repeat_ends(fact)
                changes = self._expect_anew(fact.job) or changes
            if changes:
                self._turns.soon(now_s)

    def _lose_history(self) -> None:
        self._take(HistoryLost())
        self._overtaken.clear()

    def _lose_published(self) -> None:
        """A member that is desired although it has ended is published as ended once more: that fact may be lost."""
        self._overtaken.clear()
        self._take(PublishedLost())

    def _read(self, stored: Stored) -> FollowedFact | None:
        """Return the fact, None for one that cannot be read: it is logged and passed over."""
        try:
            fact = self._host.read(stored)
        except BadMessage as error:
            log.warning(
                "a fact cannot be used", subject=stored.subject, sequence=stored.sequence, why=str(error)
            )
            return None
        return fact if isinstance(fact, FollowedFact) else None

    # -- decide and act ------------------------------------------------------------------------------------------------

    def _decide(self) -> float | None:
        jobs = [*self.state.jobs, *(key[0] for key in self.state.observed)]
        wakes = list[float]()
        for effect in decide_turn(self._decider, self._loop.time(), jobs, self._failing):
            if isinstance(effect, WakeAt):
                wakes.append(effect.at_s)
            else:
                self._act(effect)
        again_s = self._report_overtaken()
        return min(wakes if again_s is None else [*wakes, again_s], default=None)

    def _take(self, happening: Happening) -> None:
        self._decider.decide(happening, self._loop.time())
        self._turns.soon()

    def _act(self, effect: Start | Stop | Adjust | Forget | TryProgram | Erase | Prepare | Drop) -> None:
        match effect:
            case Start(incarnation, spare):
                credential = self._host.credential_of(incarnation)
                self._platform.start(StartOrder(incarnation, credential, spare))
            case Prepare(made):
                self._platform.prepare(made)
            case Drop(held):
                self._platform.drop(held)
            case Stop(incarnation, hurried):
                self._platform.stop(incarnation, hurried)
            case Adjust(incarnation, resources, cpus):
                self._platform.adjust(incarnation, resources, cpus)
            case Forget(job):
                if not any(each[0] == job for each in self._unreported):
                    self._platform.forget(job)
                    self._ends = {key: ended for key, ended in self._ends.items() if key[0] != job}
                    self._take(RecordsForgotten(job))
            case TryProgram():
                self._try_program(effect)
            case Erase(job, uid):
                self._platform.erase(job, uid)
                self._take(RunErased(job))

    # -- programs ------------------------------------------------------------------------------------------------------

    def _try_program(self, wanted: TryProgram) -> None:
        def answer(reply: ProgramReply) -> None:
            self._take_trial(ProgramTried(wanted.job, wanted.uid, reply, self._loop.time()))

        self._take_trial(ProgramTried(wanted.job, wanted.uid, for_start=wanted.for_start))
        self._platform.try_program(wanted.program, answer, wanted.anew, (wanted.job, wanted.uid))

    def _take_trial(self, tried: ProgramTried) -> None:
        before = self.state.jobs.get(tried.job)
        self._take(tried)
        if before is not None and tried.reply is not None:
            self._report_program(tried.job, tried.uid, before.trial)

    def _report_program(self, job: str, uid: str, before: Trial) -> None:
        """Publish that a program does not start here, and why; or that it would start again."""
        known = self.state.jobs.get(job)
        if known is None or known.trial.published == before.published or self._closing:
            return
        self._trials_published += 1
        if known.trial.published:
            log.warning(
                "a program does not start here", job=job, path=known.trial.path, why=known.trial.problem
            )
        fact = program_fact(known.trial, self._host.name, self._host.daemon, job, uid)
        self._post(fact, f"program.{self._host.daemon}.{job}.{self._trials_published}", job)

    # -- what happened -------------------------------------------------------------------------------------------------

    def _observe(self, observation: Observation) -> None:
        spares = self.state.spares
        self._take(observation)
        self._report_spare(spares, observation)
        observed = self.state.observed
        match observation:
            case Running(key) if key in observed:
                self._report_start(observed[key], observation)
            case Exited():
                self._ends[observation.job, observation.member.name] = observation
                self._found.take(observation)
            case AdjustRefused(key) | Stalled(key) | TakenAway(key) if key in observed:
                self._report_trouble(observed[key], observation)
            case _:
                pass  # no other component needs to know

    def _report_trouble(self, known: ObservedMember, seen: Trouble) -> None:
        self._post(*told_of(seen, known.incarnation, self._host.name), known.job)

    def _report_start(self, known: ObservedMember, seen: Running) -> None:
        job, member = known.job, known.desired.member
        process = Process(member=member, pid=seen.pid, host=self._host.name)
        fact = host_facts.HostStarted(
            host=self._host.name, job=job, process=process, adopted=seen.adopted, warm=seen.warm
        )
        self._post(fact, f"started.{self._host.daemon}.{job}.{known.incarnation.uid}.{member}", job)

    def _repeat_ends(self, fact: facts.MembersDesired) -> None:
        """A master that desires what has ended does not know its end: a power cut of the broker may have taken it (P21)."""
        for each in fact.members:
            ended = self._ends.get((fact.job, each.member.name))
            if ended and ended.member == each.member and same_run(ended.uid, fact.uid):
                self._report_end(ended)

    def _expect_anew(self, job: str) -> bool:
        """Whether there is one: the master that desires what has ended may not be the one that received its end."""
        known = len(self._overtaken)
        self._overtaken = {which: when_s for which, when_s in self._overtaken.items() if which[0] != job}
        return len(self._overtaken) < known

    def _report_overtaken(self) -> float | None:
        """Publish once more that desired incarnations have ended: at once those of a forgotten past, others when no master reacts
        (returns the monotonic second at which to look again).
        """
        found = {(job, uid, each.member): last for job, uid, each, last in overtaken(self.state)}
        self._overtaken = {which: when_s for which, when_s in self._overtaken.items() if which in found}
        now_s, again_s = self._loop.time(), None
        for which, last in found.items():
            patience_s = REACTION_S if last == which[2].incarnation else 0.0
            due_s = self._overtaken.setdefault(which, now_s + patience_s)
            if due_s <= now_s:
                self._report_ended_before(*which, last)
                self._overtaken[which] = math.inf
            elif due_s < math.inf:
                again_s = min(due_s, again_s or due_s)
        return again_s

    def _report_spare(self, before: Spares, seen: Observation) -> None:
        fact = spare_fact(before, self.state.spares, seen, self._host.name, self._host.daemon)
        if fact is not None and not self._closing:
            self._post(fact, f"{fact.kind()}.{self._host.daemon}.{fact.job}.{fact.number}", fact.job)

    def _report_ended_before(self, job: str, uid: str, member: Member, last: int) -> None:
        exit = Exit(reason="unknown", detail=f"{member.name}.{last} has ended already")
        fact = host_facts.HostExited(host=self._host.name, job=job, member=member, exit=exit, last=last)
        at_ms = round(self._loop.time() * 1000)
        self._post(fact, f"overtaken.{job}.{uid}.{member}.{last}.{at_ms}", job)

    def _report_end(self, ended: Exited) -> None:
        which = ended.job, ended.uid, ended.member
        self._unreported.add(which)

        def stored() -> None:
            self._unreported.discard(which)
            self._platform.mark_reported(ended)
            self._turns.soon()

        fact = told_of_end(ended, self._host.name)
        self._post(fact, f"exited.{ended.job}.{ended.uid}.{ended.member}", ended.job, stored)

    async def _follow_capacity(self) -> None:
        """Register again whenever the platform can give something else."""
        while True:
            await self._platform.capacity_changes()
            self._register()

    def _register(self) -> None:
        if self._closing:
            return  # it would take back that this host leaves
        self._registrations += 1
        running = [each for each in self.state.observed.values() if each.running]
        fact = host_facts.HostRegistered(
            host=self._host.name,
            capacity=self._platform.capacity,
            daemon=self._host.daemon,
            processes=[
                Process(member=each.desired.member, pid=each.pid, host=self._host.name) for each in running
            ],
            jobs=[each.job for each in running],
            settings=changed(self._host.settings),
            sample_s=self._host.settings.hosts.sample_every_s,
        )
        self._post_to_all(fact, f"registered.{self._host.daemon}.{self._registrations}")

    def _on_tenants(self, tenants: frozenset[str]) -> None:
        """A tenant that is new knows no host yet; one that is gone takes no facts any more."""
        self._outboxes.keep(tenants)
        self._register()

    def _post_to_all(self, fact: host_facts.HostFact, what: str) -> None:
        """Post what concerns every job, to each tenant without the names of others' members."""
        self._post(fact, what)
        for tenant in self._tenants.known:
            self._outboxes.post(Letter(seen_by(tenant, fact), f"{self._host.name}.{what}"), tenant)

    def _post(
        self, fact: host_facts.HostFact, what: str, job: str = "", stored: Callable[[], None] | None = None
    ) -> None:
        tenant, bare = split_job(job)
        self._outboxes.post(Letter(fact, f"{self._host.name}.{what}", bare, stored), tenant)

    # -- samples -------------------------------------------------------------------------------------------------------

    async def _sample(self) -> None:
        host, every_s = self._host.name, self._host.settings.hosts.sample_every_s
        await publish_samples(
            self._bus, host, every_s, lambda: self._platform.measure(host), self._look_at_memory
        )

    def _look_at_memory(self, sample: HostProfile) -> None:
        before = self.state.spares.pressed
        if is_pressed(before, sample.memory_used_bytes, sample.memory_bytes) != before:
            self._take(MemoryPressed(not before))
