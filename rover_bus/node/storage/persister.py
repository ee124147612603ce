"""The persister of a node daemon: staged parts of this host to storage, off the training path (protocol P12, P14).

Fed by the FACTS stream (staged parts, the master's orders) and by a look at the shared memory when it starts; asks the pure
decider after each; runs its tasks on threads that give way to training; posts what came of them through the daemon's outbox.
What it knows is rebuilt from the stream and the shared memory: after a SIGKILL its successor answers the newest order again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rover_bus.events import checkpoint_facts as cuts
from rover_bus.events.bus import Bus, ConnectionState, Message, Stored, Subscription
from rover_bus.events.checkpoints import PartReply, PartRequest
from rover_bus.events.codec import decode, encode
from rover_bus.events.deciding import Decider, WakeAt
from rover_bus.events.errors import BadMessage, RoverError
from rover_bus.events.facts import JobEnded, JobSubmitted
from rover_bus.events.host_facts import HostFact, HostLeft, HostStorageOpened
from rover_bus.events.logs import get_logger
from rover_bus.events.reading import read_fact
from rover_bus.events.settings import DEFAULTS, StorageSettings
from rover_bus.events.subjects import daemon as daemon_subject
from rover_bus.events.subjects import everywhere, host_facts, job_facts, name, of_tenant, parse
from rover_bus.events.tenancy import of_control
from rover_bus.flash.places import COPIES, PARITY, directories_of, job_directory, make_ours, parts_in
from rover_bus.flash.sweep import sweep
from rover_bus.node.members import HistoryLost
from rover_bus.node.storage.decider import (
    Begin,
    CallOff,
    Effect,
    GiveUp,
    Input,
    StorageDecider,
    groups,
    is_being_digested,
    sources,
)
from rover_bus.node.storage.evolution import has_ended
from rover_bus.node.storage.holders import ParityGroup
from rover_bus.node.storage.state import (
    IN_MEMORY,
    Begun,
    CalledOff,
    Cut,
    Done,
    Failed,
    GivenUp,
    Happening,
    JobCheckpoints,
    PartFound,
    PartNeeded,
    PartOfCut,
    Persisting,
    StorageTask,
)
from rover_bus.node.storage.throttle import give_way
from rover_bus.node.turns import FailingJobs, Following, Turns, decide_turn, insist
from rover_bus.node.users import MemberUsers, acting
from rover_bus.ps.shared_secret import Secret

if TYPE_CHECKING:
    from rover_bus.node.storage.peers import PartServer
    from rover_bus.node.storage.tasks import Tasks

FOLLOWED = (
    JobSubmitted,
    JobEnded,
    cuts.CheckpointOpened,
    cuts.PartStaged,
    cuts.CheckpointStaged,
    cuts.CheckpointRedundant,
    cuts.CheckpointPersistOrdered,
    cuts.CheckpointManifestOrdered,
    cuts.CheckpointSearchOrdered,
    cuts.CheckpointReady,
    cuts.CheckpointSuperseded,
    cuts.CheckpointFailed,
)
CLOSING = (cuts.CheckpointReady, cuts.CheckpointSuperseded, cuts.CheckpointFailed)
HOSTS = (
    HostStorageOpened,
    HostLeft,
    cuts.HostPartDigested,
    cuts.HostPartMirrored,
    cuts.HostStorageSearched,
)
Post = Callable[[HostFact, str, str], None]  # fact, what makes its message id, job
log = get_logger("rover.node")


@dataclass(frozen=True, slots=True)
class Places:
    """Where this host stages (`shm`), and where checkpoints go that name no path of their own.

    `made_early`: the directories of a job are made when it is submitted: its pods mount these, and no other job's.
    `job`, `run`: the only one, and the uid of its run, that is kept here, in the pod of one of its servers; empty: all are.
    """

    shm: Path
    storage: Path
    secret: Secret = b""  # of the stack; empty: nothing is served to other hosts, nothing held for them
    bind: str = "127.0.0.1"
    domain: str = ""  # what fails together with this host (a rack, a machine); empty: the host alone
    patient: StorageSettings = DEFAULTS.storage
    made_early: bool = False
    job: str = ""
    run: str = ""
    users: MemberUsers | None = None  # of the runs, whose files all this is; None: the daemon's


class Persister:
    """One daemon's persister. `daemon` is the incarnation, stamped on every fact."""

    def __init__(
        self,
        bus: Bus,
        host: str,
        daemon: str,
        places: Places,
        post: Post,
    ) -> None:
        self._bus, self._places, self._post = bus, places, post
        self._host, self._daemon = host, daemon
        self._decider: Decider[Persisting, Input, Effect] = StorageDecider(host, places.patient, places.run)
        self._loop = asyncio.get_running_loop()
        self._lanes = {lane: _lane(lane) for lane in ("digest", "memory", "search", "storage")}
        self._called_off: dict[StorageTask, threading.Event] = {}
        self._blocks = 0  # how often the storage was found blocked, or free again
        self._loaded: Tasks | None = None
        self._failing = FailingJobs(host, f"turn_failed.cuts.{daemon}", post)
        self._server: PartServer | None = None
        self._made: set[str] = set()  # the jobs, by uid, whose directories were made early
        self._openings = 0  # how often it was published that this host keeps checkpoints
        self._fetches: dict[PartOfCut, str] = {}  # what a server waits for; why it did not come
        subjects = [job_facts(places.job or "*", each.kind()) for each in FOLLOWED]
        subjects += [host_facts("*", each.kind()) for each in HOSTS]
        if not places.job:
            subjects += [of_tenant("*", job_facts("*", each.kind())) for each in FOLLOWED]
            of_jobs = [each for each in HOSTS if "job" in each.__struct_fields__]
            subjects += [of_tenant("*", host_facts("*", each.kind())) for each in of_jobs]
        self._following = Following(bus, subjects, self._on_fact, self._lose_history, f"{host}.persister")
        self._turns = Turns(self._decide)
        self._closing = False
        bus.on_connection(self._on_connection)

    @property
    def serves_at(self) -> str:
        """Where other daemons get parts from us; empty as long as there is none."""
        return self._server.address if self._server else ""

    @property
    def state(self) -> Persisting:
        return self._decider.state

    def unsafe_jobs(self, jobs: Iterable[str]) -> dict[str, Cut]:
        """Of these jobs those whose cuts become safe anywhere, each with its newest: one that opens from now on is newer."""
        known = {job: self.state.jobs[job] for job in jobs if job in self.state.jobs}
        return {job: about.opened for job, about in known.items() if about.can_be_safe}

    def is_safe(self, job: str, cut: Cut) -> bool:
        """Whether a newer cut of the job is ready, or redundant; a job that has ended needs none."""
        about = self.state.jobs.get(job)
        return about is None or about.safe > cut

    # -- its run -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow, decide, act, for ever."""
        try:
            await self._following.begin()
            await asyncio.to_thread(self._sweep)
            await asyncio.to_thread(self._find_what_is_held)
            self._look()
            if not self._closing:
                self._turns.begin()
            self._open()
            serving = await self._serve()
            try:
                await asyncio.Event().wait()
            finally:
                await serving.stop()
        finally:
            await self._following.stop()

    def _on_connection(self, state: ConnectionState) -> None:
        """The broker may have forgotten that this host keeps checkpoints (P21)."""
        if state == "connected" and self._openings:
            self._open()

    def _open(self) -> None:
        """Publish that this host keeps checkpoints, and where it serves them: hosts that hold copies are chosen among those."""
        if self._closing:
            return
        self._openings += 1
        fact = HostStorageOpened(
            host=self._host,
            daemon=self._daemon,
            serves_parts_at=self.serves_at,
            domain=self._places.domain,
            run=self._places.run,
        )
        self._post(fact, f"storage_opened.{self._daemon}.{self._openings}", "")

    async def _serve(self) -> Subscription:
        """Answer servers of this host that restore from a part in the memory of a host."""
        asked = daemon_subject(self._host, "part")
        endpoints = dict.fromkeys([asked] if self._places.job else everywhere(asked), self._on_wanted)
        return await insist(lambda: self._bus.serve("rover-daemon", endpoints, metadata={"host": self._host}))

    async def close(self) -> None:
        """Call everything off; what was not finished has no name yet, and its remains are pruned later."""
        self._closing = True
        self._turns.end()
        for event in self._called_off.values():
            event.set()
        if self._server:
            await asyncio.to_thread(self._server.close)
        for lane in self._lanes.values():
            await asyncio.to_thread(lane.shutdown, cancel_futures=True)
        if self._loaded:
            self._loaded.parities.close()

    @property
    def _tasks(self) -> Tasks:
        """Loaded by the first task: a host that stages nothing has no use for numpy."""
        if self._loaded is None:
            from rover_bus.node.storage.tasks import Tasks

            self._loaded = Tasks(
                self._host,
                self._daemon,
                self._places.shm,
                self._places.storage,
                self._places.secret,
                self._places.users,
            )
        return self._loaded

    def _look(self) -> None:
        """Observe what lies in shared memory: a former incarnation of the daemon may have known of it."""
        for about in self.state.jobs.values():
            directory = job_directory(self._places.shm, about.uid) if about.uid else None
            if directory is None or not directory.is_dir():
                continue
            from rover_bus.flash.staged import find_staged

            for part in parts_in(directory):
                with suppress(RoverError, OSError), acting(self._places.users, about.uid):
                    for found in find_staged(directory, part)[:1]:
                        seal = found.seal
                        self._take(PartFound(about.uid, part, seal.cut, seal.generation))

    def _alive(self) -> list[str]:
        return [about.uid for about in self.state.jobs.values() if about.uid]

    def _find_what_is_held(self) -> None:
        """Look for what a former incarnation held for other hosts, and serve it again: they may be gone, and need it now."""
        held = [uid for uid in self._alive() if self._holds(uid)]
        for uid in held:
            with acting(self._places.users, uid):
                self._tasks.parities.find(uid)
        if held:
            self._loop.call_soon_threadsafe(self._begin_to_serve)

    def _holds(self, uid: str) -> bool:
        return any(job_directory(self._places.shm, uid + suffix).is_dir() for suffix in (COPIES, PARITY))

    def _sweep(self) -> None:
        """Take away what jobs left in shared memory that have ended, or that the stream does not know."""
        alive = self._alive()
        try:
            kept = [name_ for each in alive for name_ in directories_of(each)]
            for uid in sweep(self._places.shm, kept):
                log.info("shared memory of an ended job is free again", uid=uid)
        except OSError as error:
            log.warning("shared memory of ended jobs cannot be freed", why=str(error))

    # -- facts and decisions -------------------------------------------------------------------------------------------

    def _on_fact(self, stored: Stored) -> None:
        try:
            fact = read_fact(stored)
        except BadMessage as error:
            log.warning("a fact cannot be used", subject=stored.subject, why=str(error))
            return
        if not isinstance(fact, FOLLOWED) and not isinstance(fact, HOSTS):
            return
        if self._places.job and getattr(fact, "job", self._places.job) != self._places.job:
            return
        if isinstance(fact, CLOSING) and self._loaded:
            self._loaded.unpin(fact.uid, cut=(fact.generation, fact.cut))
            if isinstance(fact, cuts.CheckpointFailed):
                self._loaded.forget_chains(fact.uid)
        self._take(fact)

    def _lose_history(self) -> None:
        self._take(HistoryLost())

    def _on_wanted(self, message: Message) -> None:
        if message.respond is None:
            return
        try:
            wanted = decode(message.body, PartRequest)
            for each in (wanted.job, wanted.uid, wanted.part):
                name(each)
            at = parse(message.subject)
            with acting(self._places.users, wanted.uid):
                reply = self._find(wanted if at is None else of_control(wanted, at.tenant))
        except RoverError as error:
            reply = PartReply(state="absent", problem=str(error))
        message.respond(encode(reply))

    def _find(self, wanted: PartRequest) -> PartReply:
        """Say where the part is in this host's memory, or begin to fetch it. What has no digests yet is no source (P12)."""
        if has_ended(self.state, wanted.job, wanted.uid):
            return PartReply(state="absent", problem="the job has ended: its memory is free again")
        which = PartOfCut(wanted.uid, wanted.part, (wanted.generation, wanted.cut))
        own, copies = (job_directory(self._places.shm, wanted.uid + suffix) for suffix in ("", COPIES))
        if not wanted.elsewhere:
            if _has_digests(own, wanted):
                return PartReply(state="here", directory=str(own), source="memory")
            task = StorageTask(wanted.job, wanted.uid, "digest", wanted.cut, wanted.generation, wanted.part)
            if is_being_digested(self.state, task):
                return PartReply(state="coming")
        if _has_digests(copies, wanted):
            rebuilt = self._loaded is not None and which in self._loaded.rebuilt
            return PartReply(state="here", directory=str(copies), source="parity" if rebuilt else "peer")
        if not self._places.secret:
            return PartReply(state="absent", problem="this daemon has no secret to ask others with")
        if self._fetches.get(which):
            return PartReply(state="absent", problem=self._fetches.pop(which))
        if which not in self._fetches:
            self._fetches[which] = ""
            self._take(PartNeeded(wanted.job, wanted.uid, wanted.part, wanted.cut, wanted.generation))
        return PartReply(state="coming")

    def _take(self, happening: Happening) -> None:
        self._decider.decide(happening, self._loop.time())
        self._turns.soon()

    def _make_early(self) -> None:
        alive = set(self._alive())
        for uid in alive - self._made:
            try:
                for name_ in directories_of(uid):
                    make_ours(job_directory(self._places.shm, name_))
            except (RoverError, OSError) as error:
                log.error("pods cannot stage here", uid=uid, why=str(error))
        self._made = alive

    def _decide(self) -> float | None:
        if self._places.made_early:
            self._make_early()
        effects = decide_turn(self._decider, self._loop.time(), self.state.jobs, self._failing)
        wake_s = None
        for effect in effects:
            match effect:
                case Begin(task):
                    self._begin(task)
                case CallOff(task):
                    self._called_off[task].set()
                case GiveUp(task, reason):
                    log.error("given up", job=task.job, cut=task.cut, step=task.step, why=reason)
                    self._report_failed(task, reason)
                    self._take(GivenUp(task))
                case WakeAt(at_s):
                    wake_s = at_s
        return wake_s

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def _begin(self, task: StorageTask) -> None:
        about = JobCheckpoints(task.uid) if task.step == "sweep" else self.state.jobs[task.job]
        self._called_off[task] = threading.Event()
        self._take(Begun(task))
        parts = {task.part, *about.complete} if task.step in ("fetch", "parity") else {task.part}
        addresses = {part: sources(self.state, task.job, part, task.of) for part in parts}
        group = None
        if task.step == "parity":
            group = next(g for g in groups(self.state, about) if g.name == task.part)
        running = self._loop.run_in_executor(
            self._lanes[task.lane], self._carry_out, task, about, self._called_off[task], addresses, group
        )
        running.add_done_callback(lambda future: self._ended(task, future))

    def _ended(self, task: StorageTask, future: asyncio.Future[list[HostFact]]) -> None:
        called_off = self._called_off.pop(task).is_set()
        if self._closing or future.cancelled():
            return
        if future.exception() is not None and called_off:
            self._take(CalledOff(task))
            return
        former = self.state.troubles.get(task)
        try:
            facts = future.result()
        except RoverError as error:
            news = former is None or former.reason != str(error)
            if news and error.retry and task.step != "sweep":  # members are on their way out
                log.warning("will be tried again", job=task.job, cut=task.cut, step=task.step, why=str(error))
                self._report_blocked(task, str(error))
            self._take(Failed(task, str(error), error.retry, self._loop.time()))
            return
        except Exception as error:  # noqa: BLE001 - not foreseen: its lane must not stand still for ever
            log.error("failed", job=task.job, cut=task.cut, step=task.step, why=repr(error))
            self._take(Failed(task, repr(error), True, self._loop.time()))
            return
        if former is not None and task.step != "sweep":
            log.info("goes on", job=task.job, cut=task.cut, step=task.step)
            self._report_blocked(task, "")
        if task.step in IN_MEMORY:
            self._begin_to_serve()
        if task.step == "fetch":
            self._fetches.pop(task.about(), None)
        for fact in facts:
            self._publish(task.step, task, fact)
        self._take(Done(task))

    def _begin_to_serve(self) -> None:
        """There is something that other daemons may want: serve it, and publish where, before they know of it."""
        if self._server is None and self._places.secret:
            from rover_bus.node.storage.peers import PartServer

            self._server = PartServer(
                self._places.shm,
                self._places.secret,
                self._places.bind,
                self._tasks.parities,
                self._places.users,
            )
            self._open()

    def _carry_out(
        self,
        task: StorageTask,
        about: JobCheckpoints,
        called_off: threading.Event,
        addresses: dict[str, list[str]],
        group: ParityGroup | None,
    ) -> list[HostFact]:
        return self._tasks.carry_out(task, about, called_off, addresses, group)

    def _report_failed(self, task: StorageTask, reason: str) -> None:
        if task.step == "fetch":
            self._fetches[task.about()] = reason
        if task.step == "search":
            self._publish(task.step, task, self._tasks.unsearched(task, reason))
        if task.step in ("pin", "digest", "mirror", "parity", "persist", "manifest"):
            if task.step in ("pin", "persist"):
                self._tasks.unpin(task.uid, task.part)
            fact = cuts.HostPartFailed(step=task.step, reason=reason, **self._tasks.stamp(task))
            self._publish(f"{task.step}_failed", task, fact)

    def _report_blocked(self, task: StorageTask, reason: str) -> None:
        """Publish at once that the storage takes nothing, or takes something again: its user has a minute less to lose."""
        if task.step in ("persist", "manifest"):
            self._blocks += 1
            fact = cuts.HostStorageBlocked(reason=reason, **self._tasks.stamp(task))
            self._publish(f"blocked_{self._blocks}", task, fact)

    def _publish(self, what: str, task: StorageTask, fact: HostFact) -> None:
        """Post a fact. A later incarnation of the daemon posts it again, under an id of its own."""
        generation, cut = getattr(fact, "generation", task.generation), getattr(fact, "cut", task.cut)
        which = f"{task.uid}.{generation}.{cut}.{getattr(fact, 'part', task.part)}"
        if isinstance(
            fact, cuts.HostPartDigested
        ):  # of a part that is staged once more it is posted once more
            which += f".{fact.save_number}"
        self._post(fact, f"{what}.{self._daemon}.{which}", task.job)


def _has_digests(directory: Path, wanted: PartRequest) -> bool:
    """Whether exactly this cut lies in a directory and was digested; whether it still is that, its reader checks."""
    from rover_bus.flash.digests import is_digested
    from rover_bus.flash.staged import find_staged

    return any(
        (found.seal.generation, found.seal.cut) == (wanted.generation, wanted.cut)
        and is_digested(found.path, found.seal)
        for found in find_staged(directory, wanted.part)
    )


def _lane(lane: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix=f"rover-{lane}", initializer=give_way)
