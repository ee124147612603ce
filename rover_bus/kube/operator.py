"""The operator's process: while it leads, a daemon for each node that can have members, above the pods of that node (0054).

Put together by the composition root. All daemons share one cache of the cluster and one pace of requests; each has a connection to
the bus with its own host's rights. When the operator ends, or loses the lead, its members run on and its hosts keep their names:
the next one takes both over. Beside the daemons RoverJobs are followed (service.py).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rover_bus.events.bus import Bus
from rover_bus.events.errors import RoverError
from rover_bus.events.logs import get_logger
from rover_bus.events.settings import DEFAULTS, Settings
from rover_bus.events.subjects import name
from rover_bus.kube.api import Api
from rover_bus.kube.cluster import KubeCluster
from rover_bus.kube.kinds import KubeNode, Pod, Ref
from rover_bus.kube.known_objects import Objects
from rover_bus.kube.leading import LeaderLease
from rover_bus.kube.leftovers import remove_leftovers
from rover_bus.kube.platform import KubePlatform
from rover_bus.kube.pods import KEPT, PodSettings, host_of, node_of
from rover_bus.kube.reactions import publish
from rover_bus.kube.reading_once import reading_once
from rover_bus.kube.service import Mirrors, follow_objects
from rover_bus.kube.spare_line import answer_spares
from rover_bus.node.daemon import Daemon
from rover_bus.node.host import Host, no_credential
from rover_bus.node.port import Incarnation, Observe
from rover_bus.node.presence import Presence
from rover_bus.node.spans import traced

if TYPE_CHECKING:
    from rover_bus.kube.agents import AgentsOf

LEASE_NAME = "rover-operator"
REST_S = 60.0  # before what cannot help is tried again: keys or rights may be mended meanwhile
LATER_S = 4.0  # before spares are answered: a hundred nodes register first
LOOK_S = 5.0  # at nodes that are gone, and at daemons that failed
CONNECTING = 8  # nodes at once: each has a few seconds for its first words with the broker, which a hundred at once outlast
log = get_logger("rover.kube")


async def _nothing() -> None:
    """Nothing runs beside it."""


@dataclass(frozen=True, kw_only=True)
class OperatorOptions:
    """What an operator is given. connect: a bus with the rights of a host's daemon; connect_asking: with those of what submits jobs
    and asks of them. namespaces: the first holds the Lease. agents: of nodes, to which it gives their rights; None: there are none.
    plan_answers: the policy of the cluster that pins the name in a PlanAnswer to its user; "": there is none, they are refused.
    tenants: that are made with the stack: objects in the namespace of such a name wait until it is there.
    beside: what its process does while it leads.
    """

    pods: PodSettings
    namespaces: list[str]
    connect: Callable[[str], Awaitable[Bus]]
    connect_asking: Callable[[], Awaitable[Bus]]
    credential_of: Callable[[Incarnation, str], str] = lambda run, _host: no_credential(run)
    learn_tenant: Callable[[bytes], None] = lambda _: None
    settings: Settings = DEFAULTS
    agents: AgentsOf | None = None
    plan_answers: str = ""
    tenants: Sequence[str] = ()
    holder: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    beside: Callable[[], Coroutine[None, None, None]] = _nothing


async def run_operator(
    api: Api, leasing: Api, options: OperatorOptions, stop: asyncio.Event, ready: Callable[[], None]
) -> None:
    """Stand by, lead, and stand by again until `stop`; `ready` once it stands by.

    leasing: the same server for the Lease alone, whose renewals must not wait behind a thousand pods.
    """
    lease = LeaderLease(leasing, Ref(options.namespaces[0], LEASE_NAME), options.holder)
    ready()
    while not stop.is_set():
        if not await _first(stop, lease.acquire()):
            return
        log.info("this operator leads", holder=options.holder)
        leading = asyncio.create_task(_lead(api, options))
        try:
            await _first(stop, lease.hold(), leading)
        finally:
            leading.cancel()
            await asyncio.gather(leading, return_exceptions=True)
            await lease.release()


async def _first(stop: asyncio.Event, work: Awaitable[None], other: asyncio.Task[None] | None = None) -> bool:
    """Whether the work ended before `stop`; an error of the other ends both."""
    tasks = [asyncio.ensure_future(work), asyncio.create_task(stop.wait())]
    try:
        await asyncio.wait([*tasks, *([other] if other else [])], return_when=asyncio.FIRST_COMPLETED)
        if other is not None and other.done():
            other.result()
        return tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _lead(api: Api, options: OperatorOptions) -> None:
    cluster = KubeCluster(api, options.pods, options.namespaces)
    async with asyncio.TaskGroup() as group:
        group.create_task(cluster.run())
        group.create_task(NodeDaemons(cluster, options).run())
        group.create_task(options.beside())
        group.create_task(remove_leftovers(cluster))
        group.create_task(_serve_objects(api, options, cluster))
        if options.agents is not None:
            group.create_task(_admit_agents(api, options.agents))


async def _serve_objects(api: Api, options: OperatorOptions, cluster: KubeCluster) -> None:
    """Follow RoverJobs until cancelled. Where that cannot be done, daemons still are."""
    while True:
        try:
            bus = await options.connect_asking()
            publishing = asyncio.create_task(publish(bus, options.holder, cluster.reactions))
            try:
                mirrors = Mirrors(cluster.objects, cluster.answers, cluster.note_admitted)
                begin = Objects(
                    frozenset(options.namespaces),
                    policy=options.plan_answers,
                    declared=frozenset(options.tenants),
                )
                await follow_objects(api, bus, mirrors, begin)
            finally:
                publishing.cancel()
                await bus.close()
        except RoverError as error:
            log.warning("RoverJobs are not followed", why=str(error))
            await asyncio.sleep(LOOK_S if error.retry else REST_S)


async def _admit_agents(api: Api, agents: AgentsOf) -> None:
    """Give agents of nodes their rights until cancelled. Where that cannot be done, all else is."""
    while True:
        try:
            bus = await agents.connect()
            try:
                from rover_bus.kube.agents import admit_agents

                await admit_agents(api, bus, agents)
            finally:
                await bus.close()
        except RoverError as error:
            log.warning("agents of nodes get no rights", why=str(error))
            await asyncio.sleep(LOOK_S if error.retry else REST_S)


class NodeDaemons:
    """The daemons of a cluster's nodes."""

    def __init__(self, cluster: KubeCluster, options: OperatorOptions) -> None:
        self._cluster, self._options = cluster, options
        self._running: dict[str, asyncio.Task[None]] = {}
        self._read = reading_once()
        self._changed = asyncio.Event()
        self._connecting = asyncio.Semaphore(CONNECTING)

    async def run(self) -> None:
        """Have one for each node until cancelled; then hand all members over."""
        await (
            self._cluster.nodes.ready()
        )  # they come to the broker while pods are listed: `adopt` waits for these
        unlisten = self._cluster.nodes.listen(lambda _: self._changed.set())
        listing = asyncio.create_task(self._look_once_listed())
        try:
            while True:
                self._changed.clear()
                self._begin_missing()
                try:
                    async with asyncio.timeout(LOOK_S):
                        await self._changed.wait()
                except TimeoutError:
                    continue
        finally:
            unlisten()
            for task in (listing, *self._running.values()):
                task.cancel()
            await asyncio.gather(listing, *self._running.values(), return_exceptions=True)

    async def _look_once_listed(self) -> None:
        await self._cluster.ready()
        self._changed.set()

    def _begin_missing(self) -> None:
        """A node that has members needs its daemon even when it takes no more, or is gone: their ends are to be published."""
        for node, task in list(self._running.items()):
            if task.done():
                del self._running[node]
                if (error := task.exception()) is not None:  # an error of ours in one must not end the others
                    log.error("the daemon of a node failed", node=node, why=repr(error))
        nodes = {ref.name for ref, node in self._cluster.nodes.objects.items() if _takes_members(node)}
        of_hosts = self._cluster.of_hosts
        nodes |= {node_of(host) for host in of_hosts.hosts if any(map(_counts, of_hosts.ordered(host)))}
        for node in nodes - self._running.keys():
            self._running[node] = asyncio.create_task(self._serve(node))

    async def _serve(self, node: str) -> None:
        """One daemon, until cancelled. One that fails is begun again at the next look."""
        try:
            host = name(host_of(node), "host")
            async with self._connecting:
                bus = await self._options.connect(host)
            try:
                beside: list[asyncio.Task[None]] = []
                daemon = self._daemon(bus, node, host, beside)
                try:
                    await daemon.run(
                        asyncio.Event(), lambda: log.info("a node is served", host=host), then="hand over"
                    )
                finally:
                    for each in beside:
                        each.cancel()
                    await asyncio.gather(*beside, return_exceptions=True)
            finally:
                await bus.close()
        except RoverError as error:
            log.warning("a node is not served", node=node, why=str(error))

    def _daemon(self, bus: Bus, node: str, host: str, beside: list[asyncio.Task[None]]) -> Daemon:
        """beside: what its platform needs done until it ends is added to it."""
        options = self._options
        me = Host(
            name=host,
            daemon=uuid.uuid4().hex[:12],
            settings=_without_samples(options.settings),
            credential_of=lambda run: options.credential_of(run, host),
            learn_tenant=options.learn_tenant,
            read=self._read,
        )
        presence = Presence(bus, host, me.daemon, f"node:{node}", options.settings.hosts.presence_s)

        def attach(observe: Observe) -> KubePlatform:
            made = KubePlatform(self._cluster, node, observe)
            if options.pods.spares is not None:
                beside.append(asyncio.create_task(_later(answer_spares(bus, host, made))))
            return made

        me, platform = traced(me, attach)
        return Daemon(bus, me, presence, platform)


async def _later(work: Coroutine[None, None, None]) -> None:
    """Do what is not urgent once all nodes are served."""
    try:
        await asyncio.sleep(LATER_S)
    except BaseException:
        work.close()
        raise
    await work


def _without_samples(settings: Settings) -> Settings:
    """Nodes are not measured from here. A host that announces samples, and sends none, is lost with its cores after three."""
    return settings.replace(hosts=settings.hosts.replace(sample_every_s=0.0))


def _counts(pod: Pod) -> bool:
    """Whether the end of a pod is still to be published."""
    return KEPT not in pod.metadata.annotations


def _takes_members(node: KubeNode) -> bool:
    """Whether pods of ours could be placed there."""
    ready = any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
    refused = any(each.effect in ("NoSchedule", "NoExecute") for each in node.spec.taints)
    return ready and not refused and not node.spec.unschedulable
