"""Spares of one node as pods: made ready of what workers said that they had loaded, and given to members (docs/design/0087).

Used by platform.py, which observes for the daemon what happens here; fed by spare_line.py with what workers and spares ask over the
bus. A spare asks which member it is: the answer is given at once when an order takes it, and again whenever it asks, because the
object of its pod says so. What no daemon of this process made is removed (leftovers.py): no successor takes a spare over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rover_bus.events.errors import BadMessage, RoverError
from rover_bus.events.last_words import LOOKED_AT_BYTES, LOOKED_AT_LINES, last_line
from rover_bus.events.programs import OWN_PYTHON
from rover_bus.events.spare_requests import HELD_S, LoadedReport, SpareQuestion, SpareReply, unpack
from rover_bus.kube.api import ApiRefused
from rover_bus.kube.cluster import KubeCluster
from rover_bus.kube.endings import ending_of
from rover_bus.kube.kinds import POD, Pod, Ref
from rover_bus.kube.making import trust
from rover_bus.kube.pods import host_of, is_gated, is_over, namespace_of
from rover_bus.kube.spare_manifests import membership, spare_manifest, spare_ref
from rover_bus.kube.templates import MAIN, template_of
from rover_bus.node.local.launching import launch_command
from rover_bus.node.port import (
    Incarnation,
    Key,
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
Respond = Callable[[SpareReply], None]
Run = tuple[str, str]  # job, uid


@dataclass(slots=True)
class SparePod:
    """One spare. `pod`: the uid of its object, once there is one."""

    spare: Spare
    ref: Ref
    pod: str = ""
    ready: bool = False
    how: Literal["used", "dropped", "ended"] = "ended"
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    waits: Respond | None = None  # for its admission


class NodeSpares:
    """The spares that one node's daemon makes, and what workers of it had loaded."""

    def __init__(self, cluster: KubeCluster, node: str, observe: Observe) -> None:
        self._cluster, self._node, self._observe = cluster, node, observe
        self._loop = asyncio.get_running_loop()
        self._loaded: dict[Run, bytes] = {}
        self._spares: dict[SpareKey, SparePod] = {}
        self._taken: dict[Ref, SparePod] = {}  # by orders, whose object may not say so yet
        self._tasks: set[asyncio.Task[None]] = set()

    # -- what workers had loaded ---------------------------------------------------------------------------------------

    def note_loaded(self, job: str, report: LoadedReport, held: Incarnation | None) -> SpareReply:
        """A worker says what it had loaded. `held`: the member of its name here, of which it is believed."""
        if held is None or (held.uid, held.member) != (report.uid, report.member):
            return SpareReply(what="known")
        run = job, report.uid
        if self._why_none(held, known=True):
            return SpareReply(what="known")
        if not report.record:
            return SpareReply(what="known" if run in self._loaded else "wanted")
        try:
            unpack(report.record)
        except BadMessage:
            return SpareReply(what="known")
        self._loaded[run] = report.record
        key: Key = job, held.member.name
        self._observe(WorkerLoaded(key, report.uid, report.start_s, self._loop.time()))
        return SpareReply(what="known")

    def forget(self, job: str) -> None:
        """Drop what workers of a job said, which has ended."""
        self._loaded = {run: record for run, record in self._loaded.items() if run[0] != job}

    # -- making --------------------------------------------------------------------------------------------------------

    def prepare(self, spare: Spare) -> None:
        """Make a pod ready for a worker like this one."""
        if spare.key in self._spares:
            return
        settings = self._cluster.settings
        made = SparePod(spare, spare_ref(settings, spare, host_of(self._node), self._cluster.maker))
        self._spares[spare.key] = made
        self._observe(SpareSpawned(spare, self._loop.time()))
        likeness = Incarnation(spare.job, spare.uid, spare.desired)
        if why := self._why_none(likeness, known=(spare.job, spare.uid) in self._loaded):
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
                    return self._end(made, await self._why_ended(pod))
                if made.how == "dropped" and pod.metadata.deletion_timestamp is None:
                    await self._remove(made)
                await made.changed.wait()
        except RoverError as error:
            await self._remove(made)
            self._end(made, str(error))
        finally:
            uncarry()

    async def _create(self, made: SparePod) -> None:
        cluster, spares = self._cluster, self._cluster.settings.spares
        assert spares is not None
        credential = spares.credential_of(made.spare, host_of(self._node))
        body = spare_manifest(cluster.settings, made.spare, self._node, cluster.maker, bool(credential))
        pod = await cluster.api.create(POD, made.ref.namespace, body)
        cluster.pods.put(pod)
        made.pod = pod.metadata.uid
        if is_gated(pod):
            await trust(cluster, pod, credential)

    def _look(self, made: SparePod) -> Pod | None:
        pod = self._cluster.pods.objects.get(made.ref)
        return pod if pod is not None and pod.metadata.uid == made.pod else None

    async def _why_ended(self, pod: Pod | None) -> str:
        """How a spare ended, and the last line that it wrote."""
        if pod is None:
            return "its pod was deleted"
        exit, said = ending_of(pod), ""
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
        """Make its pod the member's; None where it is gone after all. Raises ApiUnreachable: it may be one."""
        pod = self._look(made)
        if pod is None or pod.metadata.deletion_timestamp is not None or is_over(pod):
            self._taken.pop(made.ref, None)
            return None
        try:
            pod = await self._cluster.api.patch(POD, made.ref, membership(run, self._node, pod))
        except ApiRefused:  # it is being taken away: then no finalizer of ours comes on it any more
            self._taken.pop(made.ref, None)
            await self._remove(made)
            return None
        self._cluster.pods.put(pod)
        return pod

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
        """Delete its pod, until the API server has done it."""
        while made.pod:
            try:
                return await self._cluster.api.delete(POD, made.ref, uid=made.pod, grace_s=GRACE_S)
            except RoverError as error:
                if getattr(error, "status", 0) in (404, 409):
                    return None
                await asyncio.sleep(AGAIN_S)
        return None

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
        made = next((each for each in self._spares.values() if self._is(each, job, question)), None)
        made = made or next((each for each in self._taken.values() if self._is(each, job, question)), None)
        if member is not None:
            respond(SpareReply(what="become", environment=member))
        elif made is None:
            respond(SpareReply(what="gone"))
        elif not question.loaded:
            record = self._loaded.get((job, question.uid))
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
        for task in self._tasks:
            task.cancel()
        self._spares.clear()
        self._taken.clear()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
