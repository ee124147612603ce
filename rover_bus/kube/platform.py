"""The platform of one node: the port of node/port.py on the pods of a cluster (docs/design/0054).

Built for each node's daemon; all of them share one KubeCluster. Which members there are stands here, what successors adopt, and
what is kept of ends; held.py carries each member from its order to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from rover_bus.events.errors import RoverError
from rover_bus.events.identity import IN_ORDER, Exit, HostCapacity, Member, Resources, Role
from rover_bus.events.logs import get_logger
from rover_bus.events.profiles import HostProfile
from rover_bus.events.programs import ProgramRequest
from rover_bus.events.spare_requests import LoadedReport, SpareQuestion, SpareReply
from rover_bus.kube.cluster import KubeCluster
from rover_bus.kube.endings import ending_of
from rover_bus.kube.ends import KeptEnds
from rover_bus.kube.held import HeldPod, PodReports, Warm
from rover_bus.kube.kinds import Pod, Ref
from rover_bus.kube.pods import (
    KEPT,
    REPORTED,
    PodOrder,
    grace_s,
    host_of,
    is_gated,
    is_over,
    order_of,
    ran_s,
)
from rover_bus.kube.removing import free, remove, remove_unborn
from rover_bus.kube.spare_manifests import admission
from rover_bus.kube.spares import NodeSpares, Respond
from rover_bus.node.exits import HURRY_S
from rover_bus.node.port import (
    Answer,
    Exited,
    Incarnation,
    Key,
    Leaving,
    Observation,
    Observe,
    Spare,
    Spawned,
    StartOrder,
)

LEFT_FOR_S = (
    2.0  # a change of what a node has left is looked at after it: pods of others come and go together
)
KEPT_FAILED = 3  # failed pods of a job's role that stay for people to look at
AGAIN_S, MOST_AGAIN_S = 0.2, 5.0  # before a request is repeated that the API server did not answer
log = get_logger("rover.kube")


class KubePlatform:
    """Members that one node's daemon orders. `node`: its name in the cluster."""

    def __init__(self, cluster: KubeCluster, node: str, observe: Observe) -> None:
        self._cluster, self._api, self._settings = cluster, cluster.api, cluster.settings
        self._node, self._host = node, host_of(node)
        self._tell, self._observing = observe, True
        self._reports = PodReports(self._observe, self._end, self._move)
        self._loop = asyncio.get_running_loop()
        self._held: dict[Key, HeldPod] = {}
        self._by_pod: dict[Ref, HeldPod] = {}
        self._uncarry: dict[Ref, Callable[[], None]] = {}
        self._ends = KeptEnds(cluster.end_writes, cluster.settings, self._host)
        self._over: dict[tuple[str, str, Member], tuple[Ref, str]] = {}  # whose pod may still be there
        self._tasks: set[asyncio.Task[None]] = set()
        self._writes: set[asyncio.Task[None]] = set()  # that are repeated until they are done
        self._spares = NodeSpares(cluster, node, self._observe)
        self._capacity = self._cluster.capacity_of(self._node)
        self.adopted = asyncio.Event()  # what a former daemon left is taken over
        self._unlisten = [
            cluster.of_hosts.listen(self._host, self._on_pod),
            cluster.listen_to_rooms(lambda: self._capacity_changed.set()),
        ]
        self._capacity_changed = asyncio.Event()

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> HostCapacity:
        return self._capacity

    async def capacity_changes(self) -> None:
        while True:
            await self._capacity_changed.wait()
            await asyncio.sleep(LEFT_FOR_S)
            self._capacity_changed.clear()
            if (now := self._cluster.capacity_of(self._node)) != self._capacity:
                self._capacity = now
                return

    @property
    def cpus(self) -> tuple[int, ...]:
        return ()

    @property
    def roles(self) -> frozenset[Role]:
        return self._settings.commands.roles

    async def measure(self, host: str) -> HostProfile | None:  # noqa: ARG002 - the port's
        """Not known here: what runs on the node itself samples it."""
        return None

    def _on_pod(self, ref: Ref) -> None:
        """A pod changed. One of this host that is not known is an order of ours whose answer was lost."""
        pod = self._cluster.pods.objects.get(ref)
        if held := self._by_pod.get(ref):
            held.changed.set()
        elif pod is not None and self.adopted.is_set() and not is_over(pod):
            self._find(pod)

    def _observe(self, observation: Observation) -> None:
        if self._observing:
            self._tell(observation)

    # -- orders --------------------------------------------------------------------------------------------------------

    def start(self, order: StartOrder) -> None:
        run = order.incarnation
        if run.key in self._held:
            return
        made = self._spares.take((run.job, order.spare)) if order.spare else None
        warm = Warm(made, self._spares) if made is not None else None
        credential = order.credential
        self._hold(HeldPod(self._cluster, self._node, run, self._reports, credential=credential, found=warm))

    def stop(self, incarnation: Incarnation, hurried: bool = False) -> None:
        held = self._held.get(incarnation.key)
        self._observe(Leaving(incarnation.key, hurried))
        if held is not None:
            held.ask_to_leave(grace_s(HURRY_S if hurried else held.incarnation.desired.grace_s))

    def adjust(self, incarnation: Incarnation, resources: Resources, cpus: Mapping[int, float]) -> None:  # noqa: ARG002 - none are pinned
        held = self._held.get(incarnation.key)
        if held is not None:
            held.want(resources)

    def prepare(self, spare: Spare) -> None:
        self._spares.prepare(spare)

    def drop(self, spare: Spare) -> None:
        self._spares.drop(spare.key)

    def note_loaded(self, job: str, report: LoadedReport) -> SpareReply:
        """A worker says what it had loaded, of which spares are made."""
        held = self._held.get((job, report.member.name))
        return self._spares.note_loaded(job, report, held.incarnation if held is not None else None)

    def answer_spare(self, job: str, question: SpareQuestion, respond: Respond) -> None:
        """A spare asks what it is to load, or which member it is, by the order on its pod."""
        became = next((each for each in self._held.values() if _is_of(each, job, question)), None)
        member = None
        if became is not None and became.is_of_a_spare and self._settings.spares is not None:
            credential = self._settings.spares.member_credential_of(became.incarnation, self._host)
            member = admission(became.incarnation, credential, {})
        self._spares.on_question(job, question, respond, member)

    def try_program(
        self, request: ProgramRequest, answer: Answer, anew: bool = False, of: tuple[str, str] = ("", "")
    ) -> None:
        self._begin(self._cluster.trials.answer(request, answer, anew, of))

    # -- what a former daemon left -------------------------------------------------------------------------------------

    async def adopt(self) -> None:
        await self._cluster.ready()
        self._capacity = self._cluster.capacity_of(self._node)
        ordered = self._cluster.of_hosts.ordered(self._host)
        pods = [pod for pod in ordered if KEPT not in pod.metadata.annotations]
        known = set[tuple[str, str, Member]]()
        for pod in filter(is_gated, pods):
            await self._until_done(lambda unborn=pod: remove_unborn(self._cluster, unborn))  # type: ignore[misc]
        pods = [pod for pod in pods if not is_gated(pod)]
        for pod in filter(is_over, pods):
            order = order_of(pod.metadata)
            if order is not None:
                known.add((order.job, order.uid, order.desired.member))
                await self._found(order, pod).conclude(pod)
        for ended in self._ends.all(self._loop.time()):
            if (ended.job, ended.uid, ended.member) not in known:
                self._observe(ended)
        for pod in pods:
            if not is_over(pod):
                self._find(pod)
        self.adopted.set()

    def _find(self, pod: Pod) -> None:
        """Take over a pod that runs, or will. One without its credential never ran: its order comes again."""
        order = order_of(pod.metadata)
        if order is None or order.host != self._host or order.incarnation.key in self._held:
            return
        if is_gated(pod):
            self._write(lambda: remove_unborn(self._cluster, pod))
            return
        self._hold(self._found(order, pod))

    def _found(self, order: PodOrder, pod: Pod) -> HeldPod:
        return HeldPod(self._cluster, self._node, order.incarnation, self._reports, found=pod)

    # -- one member ----------------------------------------------------------------------------------------------------

    def _move(self, held: HeldPod, ref: Ref) -> None:
        """The spare that it was to be is gone: its pod is one of its own."""
        self._uncarry.pop(held.ref)()
        del self._by_pod[held.ref]
        held.ref = ref
        self._by_pod[ref] = held
        self._uncarry[ref] = self._cluster.of_hosts.carry(ref, self._on_pod)

    def _hold(self, held: HeldPod) -> None:
        self._held[held.incarnation.key] = self._by_pod[held.ref] = held
        if held.ref not in self._uncarry:
            self._uncarry[held.ref] = self._cluster.of_hosts.carry(held.ref, self._on_pod)
        self._observe(Spawned(held.incarnation))
        if (pod := held.look()) is not None:
            held.show(pod)
        self._begin(held.carry())

    # -- ended ---------------------------------------------------------------------------------------------------------

    def _end(self, held: HeldPod, exit: Exit, pod: Pod | None) -> None:
        run = held.incarnation
        if self._held.get(run.key) is held:
            del self._held[run.key], self._by_pod[held.ref]
            self._uncarry.pop(held.ref)()
        self._over[run.job, run.uid, run.member] = held.ref, held.pod
        self._observe(
            Exited(
                job=run.job,
                uid=run.uid,
                member=run.member,
                exit=exit,
                ran_s=ran_s(pod) if pod is not None else 0.0,
                at_s=self._loop.time(),
                reported=pod is not None and REPORTED in pod.metadata.annotations,
            )
        )

    def mark_reported(self, ended: Exited) -> None:
        self._write(lambda: self._note_reported(ended))

    async def _note_reported(self, ended: Exited) -> None:
        """Write the end down, then let its pod go: at once where it ended in order, or where others of its role are kept."""
        await self._ends.keep(ended)
        ref, uid = self._over.get((ended.job, ended.uid, ended.member), (None, ""))
        pod = self._cluster.pods.objects.get(ref) if ref is not None else None
        if pod is None or pod.metadata.uid != uid:
            return
        notes = {REPORTED: "true"}
        if ended.exit.reason in IN_ORDER:
            await remove(self._cluster, pod, notes)
            return
        await free(self._cluster, pod, notes)
        for each in self._failed(ended.job, ended.member.role)[:-KEPT_FAILED]:
            await remove(self._cluster, each)

    def _failed(self, job: str, role: Role) -> list[Pod]:
        """The ended pods of a role whose ends are published, the newest last."""
        found = []
        for pod in self._cluster.pods.objects.values():
            order = order_of(pod.metadata)
            if order and (order.job, order.desired.member.role) == (job, role) and is_over(pod):
                found += [pod] if REPORTED in pod.metadata.annotations else []
        return sorted(found, key=lambda each: each.metadata.version)

    # -- forgotten -----------------------------------------------------------------------------------------------------

    def forget(self, job: str) -> None:
        """Failed pods that are kept stay for people to look at, until their run is erased, or their object goes with its TTL."""
        self._spares.forget(job)
        self._write(lambda: self._drop(lambda other, _uid: other == job, failed=False))

    def erase(self, job: str, uid: str) -> None:
        self._write(lambda: self._drop(lambda *run: run == (job, uid), failed=True))

    async def _drop(self, wanted: Callable[[str, str], bool], *, failed: bool) -> None:
        for pod in self._cluster.of_hosts.ordered(self._host):
            order = order_of(pod.metadata)
            if not (order and wanted(order.job, order.uid) and is_over(pod)):
                continue
            if failed or ending_of(pod).reason in IN_ORDER:
                await remove(self._cluster, pod)
            elif KEPT not in pod.metadata.annotations:
                await free(self._cluster, pod, {REPORTED: "true", KEPT: "true"})
        await self._ends.drop(wanted)
        self._over = {run: where for run, where in self._over.items() if not wanted(run[0], run[1])}

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def release(self) -> None:
        for stop in (*self._unlisten, *self._uncarry.values()):
            stop()
        self._unlisten.clear()
        self._uncarry.clear()
        for task in self._tasks | self._writes:
            task.cancel()
        self._held.clear()
        self._observing = False
        self._spares.release()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._keep(self._tasks, work)

    def _keep(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _write(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something until the API server has done it."""
        self._keep(self._writes, self._until_done(work))

    async def _until_done(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        wait_s = AGAIN_S
        while True:
            try:
                return await work()
            except RoverError as error:
                log.info("a request is repeated", host=self._host, why=str(error))
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, MOST_AGAIN_S)


def _is_of(held: HeldPod, job: str, question: SpareQuestion) -> bool:
    run = held.incarnation
    return (run.job, run.uid, held.ref.name) == (job, question.uid, question.pod)
