"""What the platforms of all nodes share: one connection, one cache of pods, of what has ended, of nodes, quotas, RoverJobs and
answers; what was tried of programs, and what nodes have left.

Built once a process; each node's platform (platform.py) listens to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rover_bus.events.facts import MemberAdmitted
from rover_bus.events.identity import HostCapacity
from rover_bus.events.subjects import split_job
from rover_bus.kube.api import Api
from rover_bus.kube.ends import OF_ENDS, EndsWriter
from rover_bus.kube.kinds import CONFIG_MAP, NODE, POD, QUOTA, Ref
from rover_bus.kube.loaded_lists import LoadedLists
from rover_bus.kube.plan_answers import PLAN_ANSWER
from rover_bus.kube.pods import PodSettings, host_of
from rover_bus.kube.reactions import Reactions
from rover_bus.kube.rooms import OtherPods, allowed, share_out
from rover_bus.kube.roverjobs import ROVER_JOB, RoverJob, uid_of
from rover_bus.kube.telling import PodsOfHosts
from rover_bus.kube.trials import PodTrials
from rover_bus.kube.watching import Mirror


class KubeCluster:
    """One cluster, as one process sees it. `namespaces`: where members are; "": everywhere."""

    def __init__(self, api: Api, settings: PodSettings, namespaces: Sequence[str]) -> None:
        self.api, self.settings = api, replace(settings, object_of=self._object_of)
        self.pods = Mirror(api, POD, namespaces)
        self.ends = Mirror(api, CONFIG_MAP, namespaces, _selector(OF_ENDS))
        self.end_writes = EndsWriter(api, self.ends)
        self.nodes = Mirror(api, NODE)
        self.quotas = Mirror(api, QUOTA, namespaces, may_lack=True)
        self.objects = Mirror(api, ROVER_JOB, namespaces, may_lack=True)
        self._runs = dict[tuple[str, str], RoverJob]()  # by the name and the uid of what each means
        self._run_of = dict[Ref, tuple[str, str]]()
        self.objects.listen(self._on_object)
        self.of_hosts = PodsOfHosts(self.pods)
        self.answers = Mirror(api, PLAN_ANSWER, namespaces, may_lack=True)
        self.reactions = Reactions()
        self.loaded = LoadedLists()
        self.makers = set[str]()  # of spares: the daemons that live, by a mark that each draws
        self.trials = PodTrials(api, self.settings, self.pods)
        self._namespaces = namespaces
        self._others, self._capacities = OtherPods(), dict[str, HostCapacity]()
        self._cores_held = dict[str, bool]()  # by host: the last word of a member
        self._room_listeners: list[Callable[[], None]] = []
        self.pods.listen(self._on_pod)
        for each in (self.nodes, self.quotas):
            each.listen(lambda _: self._change_rooms())

    async def ready(self) -> None:
        """Return once all of it was listed."""
        for each in self._mirrors:
            await each.ready()

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            for each in self._mirrors:
                group.create_task(each.run())

    @property
    def _mirrors(self) -> tuple[Mirror[Any], ...]:
        return self.pods, self.ends, self.nodes, self.quotas, self.objects, self.answers

    # -- what nodes have left ------------------------------------------------------------------------------------------

    def capacity_of(self, node: str) -> HostCapacity:
        """Return what a node can give to members; nothing, where it takes none."""
        if not self._capacities:
            nodes = {ref.name: each for ref, each in self.nodes.objects.items()}
            left = allowed(self._namespaces, self.quotas.objects.values(), self._others)
            self._capacities = share_out(nodes, self._others, left, self._cores_held)
        return self._capacities.get(node, HostCapacity(cores=0.0, memory_bytes=0))

    def note_admitted(self, fact: MemberAdmitted) -> None:
        """A member takes part, and may say whether its node holds it to its cores. Facts are noted in their order."""
        host = host_of(fact.host)
        if fact.cores_held is not None and self._cores_held.get(host) is not fact.cores_held:
            self._cores_held[host] = fact.cores_held
            self._change_rooms()

    def listen_to_rooms(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call this when what nodes have left may be another; the returned function ends that."""
        self._room_listeners.append(on_change)
        return lambda: self._room_listeners.remove(on_change)

    def _on_pod(self, ref: Ref) -> None:
        if self._others.take(ref, self.pods.objects.get(ref)):
            self._change_rooms()

    def _change_rooms(self) -> None:
        self._capacities = {}
        for each in list(self._room_listeners):
            each()

    def _object_of(self, job: str, uid: str) -> RoverJob | None:
        """The RoverJob of a run; its namespace is not the run's to know."""
        return self._runs.get((split_job(job)[1], uid))

    def _on_object(self, ref: Ref) -> None:
        """A hundred nodes ask for each of a hundred objects at once: they are found by name and uid."""
        if (former := self._run_of.pop(ref, None)) is not None:
            del self._runs[former]
        if (object_ := self.objects.objects.get(ref)) is not None:
            run = self._run_of[ref] = ref.name, uid_of(object_.metadata)
            self._runs[run] = object_


def _selector(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())
