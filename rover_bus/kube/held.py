"""One member as a pod, from its order to its end: what is due is done, again until it is done, and what came of it observed.

Made by platform.py for each incarnation that is ordered or found. `carry` is its task: it looks at the cache, does what is due, and
waits for a change. Every write may be repeated: a pod's name is its incarnation's, a deletion names the pod that it means, and a
successor finds on the pod what it must know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from rover_bus.events import traces
from rover_bus.events.errors import RoverError, TemporaryError
from rover_bus.events.identity import IN_ORDER, Exit, Resources
from rover_bus.events.last_words import LOOKED_AT_BYTES, LOOKED_AT_LINES, end_of
from rover_bus.events.logs import get_logger
from rover_bus.events.traces import Context
from rover_bus.kube.api import STRATEGIC, ApiRefused
from rover_bus.kube.cluster import KubeCluster
from rover_bus.kube.endings import ending_of, gone, taken_away
from rover_bus.kube.kinds import POD, Json, Pod, Quantities, Ref, quantity
from rover_bus.kube.making import trust
from rover_bus.kube.pods import (
    ASKED,
    ORDER,
    UNSTARTED,
    PodOrder,
    asked_for,
    host_of,
    is_gated,
    is_over,
    main_of,
    manifest,
    ref_of,
    runs,
    stalled_by,
    why_not_started,
    written,
)
from rover_bus.kube.spare_manifests import SPARE, admission
from rover_bus.kube.spares import NodeSpares, SparePod
from rover_bus.kube.templates import MAIN
from rover_bus.node.port import Adjusted, AdjustRefused, Incarnation, Observe, Running, Stalled, TakenAway

LAST_WORDS_S = 5.0  # for a log: its node may be gone
AGAIN_S, MOST_AGAIN_S = 0.2, 5.0  # before a request is repeated that the API server did not answer
WHY = "asked to leave"
log = get_logger("rover.kube")


@dataclass(frozen=True, slots=True)
class PodReports:
    """What a member tells its platform: what happens to it, how it ended, with its pod, if that is there still; and that its pod
    is another than it was to be.
    """

    observe: Observe
    ended: Callable[[HeldPod, Exit, Pod | None], None]
    moved: Callable[[HeldPod, Ref], None]


class Warm(NamedTuple):
    """A spare that is to become a member, and what has it."""

    made: SparePod
    spares: NodeSpares


class HeldPod:
    """A member of which a pod was ordered, or found. `node`: of the daemon that orders it; `found`: its pod, or its spare."""

    def __init__(
        self,
        cluster: KubeCluster,
        node: str,
        incarnation: Incarnation,
        reports: PodReports,
        *,
        credential: str = "",
        found: Pod | Warm | None = None,
    ) -> None:
        self._cluster, self._api, self._settings = cluster, cluster.api, cluster.settings
        self._node, self._reports, self._credential = node, reports, credential
        self._loop = asyncio.get_running_loop()
        self.incarnation = incarnation
        self._start_patience_s = incarnation.desired.start_patience_s
        self.ref = ref_of(self._settings, incarnation.job, incarnation.uid, incarnation.member)
        self.pod = ""  # the uid of its object, once there is one
        self.adopted = isinstance(found, Pod)
        self.warm = found if isinstance(found, Warm) else None
        if isinstance(found, Pod):
            self.ref, self.pod = found.metadata.ref, found.metadata.uid
        elif found is not None:
            self.ref = found.made.ref
        self.changed = asyncio.Event()
        self.grace_s: int | None = None  # it is to leave within it
        self.granted_s: int | None = None  # what the API server was told of that
        self._running, self._since_s = False, self._loop.time()
        self._stalled = self._taken = (
            False  # it was observed that it cannot start; that another takes it away
        )
        self._unstarted = ""  # why it is given up before it ran
        self._wanted: Resources | None = None  # it is to have
        self._wanted_s = 0.0
        self._changed_by: Context | None = None  # the span that its leaving, or other resources, are part of
        self._start, self._change = cluster.reactions.begin(), cluster.reactions.nothing

    def ask_to_leave(self, within_s: int) -> None:
        """A shorter time counts, a longer one does not."""
        self.grace_s = min(within_s, self.grace_s or within_s)
        self._note_change()
        self.changed.set()

    def want(self, resources: Resources) -> None:
        """It is to have these; once more changes nothing."""
        if self._wanted != resources:
            self._wanted, self._wanted_s = resources, self._loop.time()
            self._note_change()
            self.changed.set()

    def _note_change(self) -> None:
        """The present turn asks for something else than before."""
        self._changed_by, self._change = traces.current(), self._cluster.reactions.begin()

    @property
    def is_of_a_spare(self) -> bool:
        """Whether its pod was made as a spare: of no other pod does anything ask which member it is."""
        pod = self.look() if self.pod else None
        return (
            pod is not None and self.incarnation.member.role == "worker" and SPARE in pod.metadata.annotations
        )

    async def carry(self) -> None:
        """From its order to its end."""
        wait_s = AGAIN_S
        while True:
            self.changed.clear()
            try:
                if not self.pod and (refused := await self._create()):
                    return self._reports.ended(self, refused, None)
                pod = self.look()
                if pod is None or is_over(pod):
                    return await self.conclude(pod)
                self.show(pod)
                with traces.following(self._changed_by or traces.current()), self._change.awaited():
                    await self._leave(pod)
                    await self._resize(pod)
                wait_s = AGAIN_S
                await self._wait(self._patience_s())
            except RoverError as error:
                log.info("a request is repeated", pod=str(self.ref), why=str(error))
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, MOST_AGAIN_S)

    def look(self) -> Pod | None:
        """Return its pod; None for one that is gone, in whose place there may be another."""
        pod = self._cluster.pods.objects.get(self.ref)
        return pod if pod is not None and pod.metadata.uid == self.pod else None

    def show(self, pod: Pod) -> None:
        """Observe that it runs, that it cannot start, and that another takes it away; each once."""
        if runs(pod) and not self._running:
            self._running = True
            self._reports.observe(
                Running(self.incarnation.key, adopted=self.adopted, warm=self.warm is not None)
            )
            traces.leave()  # what this task asks from here on is not its start
        if not self._taken and (taken := taken_away(pod)) is not None:
            self._taken = True
            self._reports.observe(TakenAway(self.incarnation.key, *taken))
        stalled = stalled_by(pod)
        if self._stalled and stalled is None:
            self._stalled, self._since_s = (
                False,
                self._loop.time(),
            )  # it goes on: its start has the whole patience
        elif not self._stalled and stalled is not None and self._is_overdue():
            self._stalled = True
            self._reports.observe(Stalled(self.incarnation.key, *stalled))

    def _is_overdue(self) -> bool:
        """Whether its patience is over, and it neither runs nor is to leave."""
        late = self._loop.time() - self._since_s >= self._start_patience_s
        return late and not self._running and self.grace_s is None

    def _patience_s(self) -> float | None:
        """After how many seconds to look again though nothing changes; None: never."""
        now_s = self._loop.time()
        if not self._running and self.granted_s is None and not self._stalled:
            return max(self._since_s + self._start_patience_s - now_s, AGAIN_S)
        return (
            max(self._wanted_s + self._settings.adjust_patience_s - now_s, AGAIN_S)
            if self._wanted is not None
            else None
        )

    async def _wait(self, within_s: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.changed.wait()

    # -- created -------------------------------------------------------------------------------------------------------

    async def _create(self) -> Exit | None:
        """Make its pod, then its credential, then let it be scheduled. Returns its end where there cannot be such a pod."""
        if self.warm is not None and await self._become(self.warm):
            return None
        if self.grace_s is not None:  # an earlier try that was made after all is found by the watch
            return Exit(reason="drained", detail=WHY)
        secret, trace = bool(self._credential), traces.environment()
        made = manifest(self._settings, self.incarnation, self._node, secret, trace)
        try:
            with self._start.awaited():
                pod = await self._api.create(POD, self.ref.namespace, made)
        except ApiRefused as error:
            if error.code != "AlreadyExists":
                return Exit(reason="never_started", detail=str(error))
            pod = await self._api.read(POD, self.ref)
            if is_gated(pod) and pod.metadata.deletion_timestamp:
                raise TemporaryError(f"{self.ref} of a former try is still being deleted") from error
        self._cluster.pods.put(pod)
        if is_gated(pod):
            pod = await self._trust(pod, self._credential)
        self.pod = pod.metadata.uid
        return None

    async def _become(self, warm: Warm) -> bool:
        """Make a spare's pod this member's, and tell it so. False: it is gone, and the start is a cold one."""
        run, trace = self.incarnation, traces.environment()
        with self._start.awaited():
            pod = await warm.spares.become(warm.made, run)
        if pod is None:
            self.warm = None
            self._reports.moved(self, ref_of(self._settings, run.job, run.uid, run.member))
            return False
        self.pod = pod.metadata.uid
        warm.spares.admit(self.ref, admission(run, self._credential, trace))
        return True

    async def _trust(self, pod: Pod, credential: str) -> Pod:
        """Give a pod its credential, and one to the agent beside a server."""
        sidecars, run = self._settings.sidecars, self.incarnation
        beside = sidecars is not None and run.member.role == "ps"
        agent = sidecars.credential_of(run, pod.metadata.name) if sidecars and beside else ""
        return await trust(self._cluster, pod, credential, agent)

    # -- asked to leave, or given up -----------------------------------------------------------------------------------

    async def _leave(self, pod: Pod) -> None:
        if self._is_overdue() and not self._stalled:
            self._unstarted, self.grace_s = why_not_started(pod) or "its container did not start in time", 1
        if self.grace_s is None or self.grace_s == self.granted_s:
            return
        granted_s = self.grace_s
        note = {UNSTARTED: self._unstarted} if self._unstarted else {ASKED: WHY}
        if self._unstarted or not _leaves_already(pod):
            # The cache may not show yet that another asks: then this conflicts, and the pod is looked at again.
            seen = pod.metadata.resource_version
            about = {"uid": self.pod, "resourceVersion": seen, "annotations": note}
            self._cluster.pods.put(await self._api.patch(POD, self.ref, {"metadata": about}))
        await self._api.delete(POD, self.ref, uid=self.pod, grace_s=granted_s)
        self.granted_s = granted_s

    # -- changed in place ----------------------------------------------------------------------------------------------

    async def _resize(self, pod: Pod) -> None:
        """Bring its cores and memory to what is wanted; observed once the kubelet says that they hold."""
        wanted = self._wanted
        if wanted is None or self.grace_s is not None or not self._running:
            return None
        amounts = asked_for(wanted)
        if not _same(_spec_of(pod), amounts):
            try:
                pod = await self._ask_for(amounts)
            except ApiRefused as error:
                return self._refuse(wanted, str(error))
        if _has(pod, amounts):
            await self._note_resources(wanted)
            return None
        pending = pod.status.condition("PodResizePending") or pod.status.condition("PodResizeInProgress")
        late = self._loop.time() - self._wanted_s >= self._settings.adjust_patience_s
        if late or (pending and pending.reason == "Infeasible"):
            await self._restore()
            why = (
                f"{pending.reason}: {pending.message}" if pending else "its node did not change them in time"
            )
            return self._refuse(wanted, why)
        return None

    async def _ask_for(self, amounts: Json) -> Pod:
        body = {"spec": {"containers": [{"name": MAIN, "resources": amounts}]}}
        pod = await self._api.patch(POD, self.ref, body, subresource="resize", content=STRATEGIC)
        self._cluster.pods.put(pod)
        return pod

    async def _note_resources(self, wanted: Resources) -> None:
        """A successor finds the limits that hold as those that were ordered."""
        run = self.incarnation
        run = replace(run, desired=run.desired.replace(resources=wanted))
        order = PodOrder(job=run.job, uid=run.uid, host=host_of(self._node), desired=run.desired)
        about = {"uid": self.pod, "annotations": {ORDER: written(order)}}
        self._cluster.pods.put(await self._api.patch(POD, self.ref, {"metadata": about}))
        self.incarnation = run
        if self._wanted == wanted:
            self._wanted = None
        self._reports.observe(Adjusted(run.key, wanted, {}))

    async def _restore(self) -> None:
        """Take back what the node cannot give: else it would be given at some later time that nothing expects."""
        try:
            await self._ask_for(asked_for(self.incarnation.desired.resources))
        except ApiRefused as error:
            log.warning("a resize cannot be taken back", pod=str(self.ref), why=str(error))

    def _refuse(self, wanted: Resources, why: str) -> None:
        if self._wanted == wanted:
            self._wanted = None
        log.warning("a member keeps its cores and memory", pod=str(self.ref), why=why)
        self._reports.observe(AdjustRefused(self.incarnation.key, wanted, why))

    # -- ended ---------------------------------------------------------------------------------------------------------

    async def conclude(self, pod: Pod | None) -> None:
        """Say how it ended, with its last words where it did not end in order."""
        to_leave = self.grace_s is not None and not self._unstarted
        wanted_gone = WHY if to_leave and pod is not None and not _leaves_already(pod) else ""
        exit = ending_of(pod, wanted_gone) if pod is not None else gone()
        main = main_of(pod) if pod is not None else None
        if exit.reason not in IN_ORDER and main is not None and main.state.terminated:
            exit = exit.replace(stderr=await self._last_words(self.ref))
        self._reports.ended(self, exit, pod)

    async def _last_words(self, ref: Ref) -> str:
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                text = await self._api.log_tail(ref, MAIN, LOOKED_AT_LINES, LOOKED_AT_BYTES)
        except (RoverError, TimeoutError):
            return ""
        return end_of(text)


def _leaves_already(pod: Pod) -> bool:
    """Whether another asked it to leave before us: a member says goodbye then, and is desired no more because of it."""
    return pod.metadata.deletion_timestamp is not None and ASKED not in pod.metadata.annotations


def _spec_of(pod: Pod) -> Quantities:
    """What the container is to have; the API server writes amounts in its own way."""
    return next(each for each in pod.spec.containers if each.name == MAIN).resources


def _has(pod: Pod, amounts: Json) -> bool:
    """Whether the node gives the container what it is to have."""
    main = main_of(pod)
    return main is not None and main.resources is not None and _same(main.resources, amounts)


def _same(given: Quantities, amounts: Json) -> bool:
    return _numbers(given.limits) == _numbers(amounts["limits"]) and _numbers(given.requests) == _numbers(
        amounts["requests"]
    )


def _numbers(amounts: Mapping[str, str]) -> dict[str, float]:
    return {key: quantity(value) for key, value in amounts.items()}
