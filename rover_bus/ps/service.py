"""A parameter server's run on the bus: joins, is admitted, is routed, beats, writes its part, ends (P5).

Fed by the master's answers; feeds a `core.ServerCore` through a port that runs a function where the tables live (another thread in
`serve_job`, the same loop in simulations). Data never passes here: workers speak to the sockets. All orders arrive as answers to
heartbeats, absolute and safe to repeat; a refusal for good (replaced, job over, generation over) ends the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rover_bus import __version__
from rover_bus.events import subjects
from rover_bus.events.asking import Master
from rover_bus.events.bus import Bus, Subscription
from rover_bus.events.checkpoints import CutOrder, PartReport, RestoreOrder
from rover_bus.events.errors import BusError, Refused
from rover_bus.events.formats import FORMAT
from rover_bus.events.identity import Member
from rover_bus.events.logs import get_logger
from rover_bus.events.own_use import read_own_use
from rover_bus.events.requests import (
    FinishedRequest,
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    RefusedReply,
    RoutingTable,
)
from rover_bus.events.starts import EMPTY
from rover_bus.flash.room import free_bytes
from rover_bus.ps.core import ServerCore
from rover_bus.ps.moves import AskPeer, Moves, no_peer
from rover_bus.ps.routing import owned_slots
from rover_bus.ps.samples import BUSY_S, Measured, Samples, done_in_time
from rover_bus.ps.shared_secret import Secret
from rover_bus.ps.staging import RoomNotPrepared, Stager

if TYPE_CHECKING:
    from rover_bus.ps.peers import Peers
    from rover_bus.ps.server import Server

log = get_logger("rover.ps")

IDLE_BEAT_S = 0.5  # orders come with heartbeats: when no worker trains, the end may be near
FIRST_BEAT_S = 0.1  # until routed
MOVING_BEAT_S = 0.5  # while slots move from here or to here: a beat takes the tables' thread its turn
AGAIN_S = 0.5  # between tries to stage a part for which there is no slot: each is a snapshot, and a beat
NEWS = ("rollout.opened", "slots.moved", "move.failed")  # facts after which there may be orders for us
Run = Callable[[Callable[[], Any]], Awaitable[Any]]
WritePart = Callable[[ServerCore, Path], int]
StagerOf = Callable[[JoinReply], Stager]


@dataclass(frozen=True)
class TableThread:
    """A server's tables and the thread that owns them: `run` executes a function on it and returns what that returns.

    `run_patiently`: as `run`, at a moment when it keeps no worker waiting; None: as `run`. `busy_s`: seconds of processor time of
    the thread so far, asked on it; None: no samples are published.
    """

    core: ServerCore
    run: Run
    run_patiently: Run | None = None
    busy_s: Callable[[], float] | None = None


@dataclass(frozen=True)
class PartStorage:
    """Where a server's part of the state goes: at the end `write` puts it into a file of `directory` and returns its size in bytes.

    `stager_of` opens what stages the parts of cuts, once the server is admitted; None: it takes part in no cuts.
    """

    directory: Path
    write: WritePart
    stager_of: StagerOf | None = None


class WentBack(Exception):
    """The job began another generation while an order of the former one waited for the tables: nothing was done."""


class ServerRun:
    """One incarnation of one server. `hello`: how it introduces itself; `ask`: how it asks other servers."""

    def __init__(
        self,
        bus: Bus,
        job: str,
        hello: JoinRequest,
        thread: TableThread,
        storage: PartStorage,
        ask: AskPeer = no_peer,
    ) -> None:
        self.member, self.core = hello.member, thread.core
        self._woken = asyncio.Event()
        self._moves = Moves(thread.core, thread.run, ask, self._woken.set, thread.run_patiently)
        self._master = Master(bus, job)
        self._bus, self._job = bus, job
        measure = partial(self._measure, thread.busy_s) if thread.busy_s is not None else None
        self._samples = Samples(bus, job, hello.member, thread.core.traffic, thread.run, measure)
        self._run, self._storage = thread.run, storage
        self._hello = hello
        self._sender: dict[str, Any] = {}
        self._finished: FinishedRequest | None = None
        self._closed_before = 0
        self._obeying: asyncio.Future[None] | None = None
        self._counting: asyncio.Future[dict[str, float]] | None = None
        self._statistics: dict[str, float] = {}
        self._pushes = 0.0  # at the last heartbeat
        self._newest: HeartbeatReply | None = None
        self._joined: JoinReply | None = None
        self._stager: Stager | None = None
        self._refused_cut = 0  # the last that was said to be refused
        self._stage_at_s = 0.0  # not before
        self._restore: RestoreOrder | None = None  # to be carried out before the first routing

    async def live(self) -> None:
        """Serve the job until it is over for us. Raises Refused when this incarnation was replaced or is not wanted."""
        loop = asyncio.get_running_loop()
        self.core.need_orders = partial(loop.call_soon_threadsafe, self._woken.set)
        heartbeat_s = await self._join()
        hints = await self._watch_moves()
        measuring = asyncio.create_task(self._samples.follow())
        try:
            await self._converse(heartbeat_s)
        finally:
            self._moves.close()
            measuring.cancel()
            for work in (self._obeying, self._counting):
                if work is not None:
                    work.cancel()
            with suppress(BusError):
                for hint in hints:
                    await hint.stop()

    async def _watch_moves(self) -> list[Subscription]:
        """Ask for orders as soon as there are some. Only hints: without them the next heartbeat asks a little later."""
        hints: list[Subscription] = []
        with suppress(BusError):
            for kind in NEWS:
                subject = subjects.job_facts(self._job, kind)
                hints.append(await self._bus.subscribe(subject, lambda _: self._woken.set()))
        return hints

    async def _converse(self, heartbeat_s: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            beat = await self._beat()
            sent_s = loop.time()
            reply = await self._master.ask(beat)
            if isinstance(reply, HeartbeatReply):
                if reply.order == "stop":
                    return
                await self._begin_to_obey(reply)
            elif isinstance(reply, RefusedReply):
                if reply.code == "job_ended":
                    return
                if reply.code == "stale_generation":  # the job went back to a cut, and we are to stay (P11)
                    await self._join()
                elif not reply.retry_s:
                    raise Refused(f"{self.member} ends: {reply.message}", reply.code)
            if self._routed:
                await self._samples.publish(self._statistics)
            # What the answer took counts: a slow master must not find the next beat late as well (P19).
            await self._pause(sent_s + self._pause_s(heartbeat_s) - loop.time())

    async def _pause(self, seconds: float) -> None:
        """Wait, but for news that must not wait. What is past already is not waited for."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return
        self._woken.clear()

    def _pause_s(self, heartbeat_s: float) -> float:
        """Return how long after this heartbeat the next is due: as the job file says while workers push, less when they do not."""
        if not self._routed:
            return FIRST_BEAT_S
        if self._moves.busy or self.core.takes_part:
            return MOVING_BEAT_S
        pushes = self._statistics.get("pushes", 0)
        pushed, self._pushes = pushes > self._pushes, pushes
        return max(heartbeat_s - BUSY_S, heartbeat_s / 2) if pushed else min(heartbeat_s / 2, IDLE_BEAT_S)

    async def _join(self) -> float:
        while True:
            reply = await self._master.ask(self._hello)
            if isinstance(reply, JoinReply):
                break
            if isinstance(reply, RefusedReply) and not reply.retry_s:
                raise Refused(f"{self.member} was not admitted: {reply.message}", reply.code)
            await asyncio.sleep(FIRST_BEAT_S)
        self._sender = {"member": self.member, "timeline": reply.timeline, "generation": reply.generation}
        joined = reply
        self._newest = None
        self._prepare_memory(joined)
        await self._wait_for_admission(joined)
        log.info("admitted", member=str(self.member), start=str(joined.start))
        if (
            joined.routing is not None and self._restore is None
        ):  # a restore takes longer than silence is borne
            await self._route(joined.routing)
        return joined.heartbeat_s

    async def _wait_for_admission(self, joined: JoinReply) -> None:
        """Begin a generation once the tables' thread is free. Until then say that we live: a part may be in writing."""
        admitting = asyncio.ensure_future(self._run(partial(self._admit, joined)))
        try:
            while not (await asyncio.wait({admitting}, timeout=joined.heartbeat_s / 2))[0]:
                await self._master.ask(self._hello)  # known by its nonce: nothing but a sign of life
            admitting.result()
        finally:
            admitting.cancel()

    def _admit(self, joined: JoinReply) -> None:
        """Begin a generation, on the thread of the tables: what became of a former one's restore is nothing to report in it."""
        before = self.core.state.timeline, self.core.state.generation
        self.core.admit(
            timeline=joined.timeline,
            generation=joined.generation,
            start=joined.start or EMPTY,
            seed=joined.seed,
        )
        if self._stager is not None and before != (joined.timeline, joined.generation):
            self._stager.restored = None

    def _prepare_memory(self, joined: JoinReply) -> None:
        """Know what to begin with, and from now on which rows change, if this job takes cuts."""
        takes_cuts = joined.spec.get("checkpoint") is not None
        self._restore, self._joined = joined.restore, joined
        if (
            self._storage.stager_of is not None
            and self._stager is None
            and (takes_cuts or joined.restore is not None)
        ):
            self._open_stager()
        self.core.follows_changes = takes_cuts and self._stager is not None

    def _open_stager(self) -> None:
        if self._storage.stager_of is not None and self._joined is not None:
            self._stager = self._storage.stager_of(self._joined)

    def _measure(self, busy_s: Callable[[], float]) -> Measured:
        """Take what a sample says at one moment, on the tables' thread: memory, and what is not staged yet of it."""
        stages = self._stager if self.core.follows_changes else None
        return Measured(busy_s(), read_own_use(), stages.unstaged_bytes(self.core) if stages else 0)

    @property
    def _routed(self) -> bool:
        return self.core.state.routing is not None

    async def _beat(self) -> HeartbeatRequest:
        """Return a heartbeat with the counters of now, or the last known ones while the tables' thread does something long."""
        if self._counting is None:
            self._counting = asyncio.ensure_future(self._run(self.core.statistics))
        if not self._moves.urgent and await done_in_time(self._counting):
            self._statistics, self._counting = self._counting.result(), None
        routing, sender = self.core.state.routing, self._sender
        known = routing is not None and (routing.timeline, routing.generation) == (
            sender["timeline"],
            sender["generation"],
        )
        return HeartbeatRequest(
            **sender,
            statistics=self._statistics,
            routing_epoch=routing.epoch if routing is not None and known else 0,
            moves=self._moves.statuses(),
            traffic=self._samples.traffic(),
            staged=self._stager.staged if self._stager is not None else None,
            restored=self._stager.restored if self._stager is not None else None,
        )

    async def _begin_to_obey(self, reply: HeartbeatReply) -> None:
        """Obey beside the heartbeats: a large part takes longer to write than silence is borne. The newest orders are obeyed."""
        self._newest = reply
        if self._obeying is None:
            self._obeying = asyncio.ensure_future(self._obey_newest())
        if await done_in_time(self._obeying):
            obeyed, self._obeying = self._obeying, None
            obeyed.result()

    async def _obey_newest(self) -> None:
        while (reply := self._newest) is not None:
            self._newest = None
            with suppress(WentBack):
                await self._obey(reply)

    async def _run_in(self, generation: int, function: Callable[[], Any]) -> Any:
        """Run on the tables' thread what was ordered in a generation. Raises WentBack where the tables are in another by then."""

        def fenced() -> Any:
            if self.core.state.generation != generation:
                raise WentBack
            return function()

        return await self._run(fenced)

    async def _obey(self, reply: HeartbeatReply) -> None:
        """Do all that is ordered. Each order waits for the tables' thread, and a new generation may begin before its turn."""
        if reply.generation != self._sender["generation"]:
            return
        run = partial(self._run_in, reply.generation)
        if reply.routing is not None:
            await self._route(reply.routing)
        await self._moves.obey(reply.moves, run)
        if reply.closed_before > self._closed_before:
            closed = reply.closed_before
            await run(lambda: self.core.close_epochs(closed))
            self._closed_before = closed
        epoch, batches = reply.settled
        if batches and self.core.has_holes(epoch):
            await run(lambda: self.core.settle(epoch, batches))
        if reply.cut is not None and reply.cut.cut and self._stager is None:
            self._open_stager()  # the cut of a job that takes none by itself was asked for: a whole one
        if self._stager is not None and reply.cut is not None and self._stager.is_due(reply.cut):
            await self._stage(self._stager, reply.cut, run)
        if reply.order == "finish":
            await self._finish(reply.path, reply.generation)

    async def _route(self, routing: RoutingTable) -> None:
        if self._restore is not None and not await self._load(self._restore, routing):
            return
        await self._run_in(routing.generation, lambda: self.core.route(routing))
        self._moves.routed()

    async def _load(self, order: RestoreOrder, routing: RoutingTable) -> bool:
        """Become what the master admitted us as; False when that failed: the master decides what then (P5)."""
        if self._stager is None:
            raise Refused(f"{self.member} has no memory to restore cut {order.cut} from", "no_memory")
        stager, slots = self._stager, owned_slots(routing, self.member.index)
        await self._run_in(routing.generation, lambda: stager.restore(self.core, order, slots))
        if self._restore is order:  # else the job went back again meanwhile, and there is another one
            self._restore = None
        self._woken.set()
        return stager.restored is not None and not stager.restored.problem

    async def _stage(self, stager: Stager, order: CutOrder, run: Run) -> None:
        """Take our part of a cut; room for it is made beside training."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._stage_at_s:
            return
        for _ in range(2):
            try:
                await run(lambda: stager.stage(self.core, order))
                break
            except RoomNotPrepared:
                await stager.prepare(order)
        self._say_refused(stager.staged, order)
        if stager.staged is not None and stager.staged.problem and stager.staged.again:
            self._stage_at_s = loop.time() + AGAIN_S
            loop.call_later(AGAIN_S, self._woken.set)
            return
        self._woken.set()
        await stager.memory.tidy()

    def _say_refused(self, staged: PartReport | None, order: CutOrder) -> None:
        """Once a cut: it is tried at every heartbeat, and given up by the master if that goes on."""
        if staged is not None and staged.problem and self._refused_cut != order.cut:
            self._refused_cut = order.cut
            log.warning(
                "cannot stage yet" if staged.again else "cannot stage", cut=order.cut, why=staged.problem
            )

    def _write_what_is_held(self, path: Path) -> int:
        """Write the part; 0 where the job ends before any worker declared a table: there is none."""
        return self._storage.write(self.core, path) if self.core.tables is not None else 0

    async def _finish(self, name: str, generation: int) -> None:
        """Write our part once in a generation, say so as often as it takes. The part is of the generation that it was asked in."""
        if self._finished is None or self._finished.generation != generation:
            path = self._storage.directory / f"{name}.npz"
            sender = {**self._sender, "generation": generation}
            size: int = await self._run_in(generation, lambda: self._write_what_is_held(path))
            statistics: dict[str, float] = await self._run_in(generation, self.core.statistics)
            self._finished = FinishedRequest(
                **sender, path=str(path) if size else "", size_bytes=size, statistics=statistics
            )
        await self._master.ask(self._finished)


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where a server runs. `directory`: for its part of the final state; `shared_memory`: where parts of cuts are staged, None:
    nowhere; `bind`: an address of this host that workers reach, empty: loopback; `stages_at`: what keeps its parts, empty: its
    host's daemon.
    """

    directory: Path
    shared_memory: Path | None = None
    host: str = ""
    pid: int = 0
    bind: str = ""
    stages_at: str = ""
    cores_held: bool | None = None


async def serve_job(
    bus: Bus,
    job: str,
    member: Member,
    *,
    secret: Secret,
    nonce: str,
    place: ServerPlace,
) -> None:
    """Run a parameter server in this process: sockets in a thread of their own, its run on the bus in this loop.

    Ends when the job is over for it; raises Refused when it was replaced.
    """
    core = ServerCore(member.index, member.incarnation)
    core.free_bytes = free_bytes
    server, peers = _open_sockets(core, secret, place.bind)
    hello = JoinRequest(
        member=member,
        nonce=nonce,
        host=place.host,
        pid=place.pid,
        addresses=server.addresses,
        stages_at=place.stages_at,
        release=__version__,
        format=FORMAT,
        cores_held=place.cores_held,
    )
    run, run_patiently = partial(_run_on, server), partial(_run_on, server, patient=True)
    thread = TableThread(core, run, run_patiently, time.thread_time)
    stager_of = None if place.shared_memory is None else _stager_in(place.shared_memory, bus, hello, job)
    storage = PartStorage(place.directory, _write_part, stager_of)
    part = ServerRun(bus, job, hello, thread, storage, peers.ask)
    with closing(peers):
        await _serve_while_alive(server, part)


def _open_sockets(core: ServerCore, secret: Secret, bind: str) -> tuple[Server, Peers]:
    """Return the server of sockets, which answers workers and servers, and the peers, which ask other servers."""
    from rover_bus.ps.peers import Peers
    from rover_bus.ps.server import Server, addresses_at, do_not_preempt

    do_not_preempt()
    return Server(core, secret, addresses_at(bind) if bind else ()), Peers(secret)


async def _serve_while_alive(server: Server, run: ServerRun) -> None:
    """Answer sockets in a thread until the run on the bus ends. Raises what ended it, or the thread."""
    serving = asyncio.get_running_loop().run_in_executor(None, server.serve)
    living = asyncio.ensure_future(run.live())
    try:
        done, _ = await asyncio.wait({living, serving}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled():  # by a thread that ended under it
                task.result()
    finally:
        living.cancel()  # first: it asks a thread that ends now
        if not serving.done():
            server.stop()
            await serving


async def _run_on(server: Server, function: Callable[[], Any], *, patient: bool = False) -> Any:
    """Run a function on the thread that owns the tables; `patient`: when it keeps no worker waiting."""
    return await asyncio.wrap_future(server.call(function, patient=patient))


def _stager_in(shared_memory: Path, bus: Bus, hello: JoinRequest, job: str) -> StagerOf:
    """Return how a server stages its parts below `shared_memory` once it is admitted."""

    def open_stager(joined: JoinReply) -> Stager:
        from rover_bus.ps.flash_memory import FlashMemory
        from rover_bus.ps.lenders import ask_daemon

        slots = (joined.spec.get("checkpoint") or {}).get("slots", 2)
        peers = ask_daemon(bus, hello.stages_at or hello.host, job)
        index = hello.member.index
        memory = FlashMemory(shared_memory, joined.uid, index, joined.timeline, slots, peers)
        return Stager(memory, time.monotonic)

    return open_stager


def _write_part(core: ServerCore, path: Path) -> int:
    from rover_bus.ps.parts import write_part

    path.parent.mkdir(parents=True, exist_ok=True)
    return write_part(core, path)
