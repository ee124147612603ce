"""Spares of one node as pods: made ready of what workers said that they had loaded, and given to members (docs/design/0087).

Used by platform.py, which observes for the daemon what happens here; fed by spare_line.py with what workers and spares ask over the
bus. A spare asks which member it is: the answer is given at once when an order takes it, and again whenever it asks, because the
object of its pod says so. What no daemon of this process made is removed (leftovers.py): no successor takes a spare over.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rover_bus.events.errors import RoverError, TemporaryError
from rover_bus.events.identity import Member
from rover_bus.events.last_words import LOOKED_AT_BYTES, LOOKED_AT_LINES, last_line
from rover_bus.events.programs import OWN_PYTHON
from rover_bus.events.spare_requests import HELD_S, LoadedReport, SpareQuestion, SpareReply
from rover_bus.kube.api import NOT_FOUND, ApiRefused
from rover_bus.kube.cluster import KubeCluster
from rover_bus.kube.endings import ending_of
from rover_bus.kube.kinds import POD, Pod, Ref
from rover_bus.kube.making import trust
from rover_bus.kube.pods import host_of, is_gated, is_over, namespace_of, order_of
from rover_bus.kube.spare_manifests import membership, spare_manifest, spare_ref
from rover_bus.kube.templates import MAIN, template_of
from rover_bus.node.local.launching import launch_command
from rover_bus.node.port import (
    Incarnation,
    Observe,
    Spare,
    SpareGone,
    SpareKey,
    SpareReady,
    SpareSpawned,
    WorkerLoaded,
)

GRACE_S = 1  # of a spare: it waits, and has nothing to end
LAST_WORDS_S = 5.0
AGAIN_S = 0.5
TRIES, CONFLICT = 5, 409
TAKEN = ("preempted", "evicted", "host_lost")
Respond = Callable[[SpareReply], None]


@dataclass(slots=True)
class SparePod:
    """One spare. `pod`: the uid of its object, once there is one."""

    spare: Spare
    ref: Ref
    pod: str = ""
    ready: bool = False
    asked: bool = False  # to be a member's, perhaps without an answer
    how: Literal["used", "dropped", "ended"] = "ended"
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    waits: Respond | None = None  # for its admission


class NodeSpares:
    """The spares that one node's daemon makes, and what workers of it had loaded."""

    def __init__(self, cluster: KubeCluster, node: str, observe: Observe) -> None:
        self._cluster, self._node, self._observe = cluster, node, observe
        self._loop = asyncio.get_running_loop()
        self._maker = uuid.uuid4().hex[:8]
        cluster.makers.add(self._maker)
        self._told: dict[str, set[tuple[str, Member]]] = {}  # by job: incarnations that said what they loaded
        self._spares: dict[SpareKey, SparePod] = {}
        self._taken: dict[Ref, SparePod] = {}  # by orders, whose object may not say so yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._released = False

    # -- what workers had loaded ---------------------------------------------------------------------------------------

    def note_loaded(self, job: str, report: LoadedReport, held: Incarnation | None) -> SpareReply:
        """A worker says what it had loaded. `held`: the member of its name here, of which it is believed, once an incarnation."""
        known = SpareReply(what="known")
        if held is None or (held.uid, held.member) != (report.uid, report.member):
            return known
        told = self._told.setdefault(job, set())
        if (held.uid, held.member) in told or self._why_none(held, known=True):
            return known
        lists, run = self._cluster.loaded, (job, held.uid)
        if not report.record and not lists.get(run):
            return SpareReply(what="wanted")
        if report.record and not lists.put(run, report.record):
            return known
        told.add((held.uid, held.member))
        self._observe(WorkerLoaded((job, held.member.name), held.uid, report.start_s, self._loop.time()))
        return known

    def forget(self, job: str) -> None:
        """Drop what workers of a job said, which has ended."""
        self._told.pop(job, None)
        self._cluster.loaded.forget(job)

    # -- making --------------------------------------------------------------------------------------------------------

    def prepare(self, spare: Spare) -> None:
        """Make a pod ready for a worker like this one."""
        if spare.key in self._spares:
            return
        ref = spare_ref(self._cluster.settings, spare, host_of(self._node), self._maker)
        made = self._spares[spare.key] = SparePod(spare, ref)
        self._observe(SpareSpawned(spare, self._loop.time()))
        likeness = Incarnation(spare.job, spare.uid, spare.desired)
        if why := self._why_none(likeness, known=bool(self._cluster.loaded.get((spare.job, spare.uid)))):
            self._end(made, why)
        else:
            self._begin(self._carry(made))

    def _why_none(self, run: Incarnation, *, known: bool) -> str:
        """Why workers of a run have no spares; "" where they may. known: whether one has said what it had loaded."""
        settings = self._cluster.settings
        if settings.spares is None:
            return "no priority below that of members is named for pods of spares"
        first, *rest = run.desired.command or [""]
        command = [settings.python if first == OWN_PYTHON else first, *rest]
        if not known or not launch_command(command, Path()):
            return "no worker has said what it had loaded, or its program can have no spares"
        namespace = namespace_of(settings, run.job, run.uid)
        if any(each.metadata.namespace == namespace for each in self._cluster.quotas.objects.values()):
            return f"namespace {namespace} has a quota, of which spares would take what others may need"
        object_ = settings.object_of(run.job, run.uid)
        template = template_of(settings.templates.get("worker", {}), object_, "worker")
        if template.get("spec", {}).get("priorityClassName"):
            return "its workers have a priority of their own, which one that a spare became would not have"
        return ""

    async def _carry(self, made: SparePod) -> None:
        """From its order to its end, or until it is a member's."""
        uncarry = self._cluster.of_hosts.carry(made.ref, lambda _: made.changed.set())
        try:
            await self._create(made)
            while made.how != "used":
                made.changed.clear()
                pod = self._look(made)
                if pod is None or is_over(pod):
                    return self._end(made, await self._why_ended(made, pod))
                if made.how == "dropped" and pod.metadata.deletion_timestamp is None:
                    await self._remove(made)
                await made.changed.wait()
        except RoverError as error:
            if made.how != "used":
                self._end(made, str(error))
                await self._remove(made)
        finally:
            uncarry()

    async def _create(self, made: SparePod) -> None:
        """Make its pod and let it be scheduled; what may help is repeated a few times. Raises RoverError."""
        for _ in range(TRIES):
            try:
                return await self._create_once(made)
            except RoverError as error:
                if not error.retry and getattr(error, "status", 0) != CONFLICT:
                    raise
                last = error
                await asyncio.sleep(AGAIN_S)
        raise last

    async def _create_once(self, made: SparePod) -> None:
        cluster, spares = self._cluster, self._cluster.settings.spares
        assert spares is not None
        credential = spares.credential_of(made.spare, host_of(self._node))
        body = spare_manifest(cluster.settings, made.spare, self._node, self._maker, bool(credential))
        try:
            pod = await cluster.api.create(POD, made.ref.namespace, body)
        except ApiRefused as error:
            if error.code != "AlreadyExists":
                raise
            # Made by a try whose answer was lost: the name is this daemon's own.
            pod = await cluster.api.read(POD, made.ref)
        cluster.pods.put(pod)
        made.pod = pod.metadata.uid
        if is_gated(pod):
            await trust(cluster, pod, credential)

    def _look(self, made: SparePod) -> Pod | None:
        pod = self._cluster.pods.objects.get(made.ref)
        return pod if pod is not None and pod.metadata.uid == made.pod else None

    async def _read(self, made: SparePod) -> Pod | None:
        """The pod as the API server has it: the cache may not show yet what was asked. Raises ApiRefused, ApiUnreachable."""
        try:
            pod = await self._cluster.api.read(POD, made.ref)
        except ApiRefused as error:
            if error.code != NOT_FOUND:
                raise
            return None
        self._cluster.pods.put(pod)
        return pod if pod.metadata.uid == made.pod else None

    async def _why_ended(self, made: SparePod, pod: Pod | None) -> str:
        """How a spare ended, and the last line that it wrote. One that others took away has not failed: so it is meant to go."""
        if pod is None:
            made.how = "dropped"
            return "its pod was deleted"
        exit, said = ending_of(pod), ""
        if pod.metadata.deletion_timestamp is not None or exit.reason in TAKEN:
            made.how = "dropped"
            return exit.detail
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                text = await self._cluster.api.log_tail(
                    pod.metadata.ref, MAIN, LOOKED_AT_LINES, LOOKED_AT_BYTES
                )
                said = last_line(text)
        except (RoverError, TimeoutError):
            pass  # it may never have run
        return ": ".join(each for each in (exit.reason, exit.detail, said) if each)

    # -- taking and ending ---------------------------------------------------------------------------------------------

    def take(self, key: SpareKey) -> SparePod | None:
        """Return the spare that an order names, as a member's from here on; None where it is not ready, or gone."""
        made = self._spares.get(key)
        pod = self._look(made) if made is not None else None
        if made is None or not made.ready or made.how != "ended" or pod is None or is_over(pod):
            return None
        if pod.metadata.deletion_timestamp is not None:
            return None
        made.how = "used"
        made.changed.set()
        self._taken[made.ref] = made
        self._forget(made, "")
        return made

    async def become(self, made: SparePod, run: Incarnation) -> Pod | None:
        """Make its pod the member's; None where it is gone after all. Raises TemporaryError: it may be the member's."""
        for _ in range(TRIES):
            pod = await self._read(made) if made.asked else self._look(made)
            order = order_of(pod.metadata) if pod is not None else None
            if order is not None and order.incarnation.member == run.member:
                return pod  # a former try did it, however the pod is by now
            if pod is None or is_over(pod) or pod.metadata.deletion_timestamp is not None:
                break
            made.asked = True
            try:
                pod = await self._cluster.api.patch(POD, made.ref, membership(run, self._node, pod))
            except ApiRefused as error:
                if error.status == CONFLICT:
                    continue
                break  # it is being taken away: then no finalizer of ours comes on it any more
            self._cluster.pods.put(pod)
            return pod
        else:
            raise TemporaryError(f"{made.ref} changes whenever it is looked at")
        self._give_up(made)
        return None

    def _give_up(self, made: SparePod) -> None:
        """An order is carried out without it."""
        self._taken.pop(made.ref, None)
        self._begin(self._remove(made))

    def admit(self, ref: Ref, environment: dict[str, str]) -> None:
        """Tell a spare which member it is, if it asks now; else it is told when it asks."""
        made = self._taken.pop(ref, None)
        if made is not None and made.waits is not None:
            made.waits(SpareReply(what="become", environment=environment))
            made.waits = None

    def drop(self, key: SpareKey) -> None:
        """End a spare; it is observed once it is dead."""
        made = self._spares.get(key)
        if made is not None and made.how == "ended":
            made.how = "dropped"
            made.changed.set()

    async def _remove(self, made: SparePod) -> None:
        """Delete its pod, until the API server has done it, or refuses to: then it is left over, and looked at by leftovers.py."""
        while True:
            try:
                made.pod = made.pod or (await self._cluster.api.read(POD, made.ref)).metadata.uid
                return await self._cluster.api.delete(POD, made.ref, uid=made.pod, grace_s=GRACE_S)
            except RoverError as error:
                if not error.retry:
                    return None
                await asyncio.sleep(AGAIN_S)

    def _end(self, made: SparePod, why: str) -> None:
        if self._spares.get(made.spare.key) is made:
            self._forget(made, why)
        if (pod := self._look(made)) is not None and pod.metadata.deletion_timestamp is None:
            self._begin(self._remove(made))

    def _forget(self, made: SparePod, why: str) -> None:
        del self._spares[made.spare.key]
        self._observe(SpareGone(made.spare.key, made.how, self._loop.time(), why))

    # -- what they ask -------------------------------------------------------------------------------------------------

    def on_question(
        self, job: str, question: SpareQuestion, respond: Respond, member: dict[str, str] | None
    ) -> None:
        """A spare asks. `member`: what is to be said where its pod is a member's by its object."""
        if self._released:
            return  # the next daemon answers, when it is asked again
        made = next((each for each in self._spares.values() if self._is(each, job, question)), None)
        made = made or next((each for each in self._taken.values() if self._is(each, job, question)), None)
        if member is not None:
            respond(SpareReply(what="become", environment=member))
        elif made is None:
            respond(SpareReply(what="gone"))
        elif not question.loaded:
            record = self._cluster.loaded.get((job, question.uid))
            respond(SpareReply(what="load", record=record) if record else SpareReply(what="gone"))
        else:
            self._hold(made, respond)
            if not made.ready and made.how == "ended":
                made.ready = True
                self._observe(SpareReady(made.spare.key))

    def _is(self, made: SparePod, job: str, question: SpareQuestion) -> bool:
        return (made.spare.job, made.spare.uid, made.ref.name) == (job, question.uid, question.pod)

    def _hold(self, made: SparePod, respond: Respond) -> None:
        """A question waits for an admission; after a time it is to be asked again."""
        made.waits = respond

        def give_up() -> None:
            if made.waits is respond:
                made.waits = None
                respond(SpareReply(what="wait"))

        self._loop.call_later(HELD_S, give_up)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def release(self) -> None:
        self._released = True
        self._cluster.makers.discard(self._maker)
        for task in self._tasks:
            task.cancel()
        self._spares.clear()
        self._taken.clear()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
