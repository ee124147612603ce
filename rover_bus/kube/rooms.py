"""What nodes have left for members: their allocatable, less what pods of others ask for, within the quotas of the namespaces.

Fed by cluster.py with pods and quotas as the API server has them, and with what members say of their cores; read by the platform
of each node, which publishes it as the capacity of its host, so that the Brain plans what the scheduler can place. Kept pod by pod:
a cluster has thousands. Pods of namespaces that are not followed are not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rover_bus.events.identity import HostCapacity
from rover_bus.kube.kinds import KubeNode, Pod, Quota, Ref, quantity
from rover_bus.kube.pods import OURS, host_of, is_over

UNBOUND = float("inf")
CORES = (
    "requests.cpu",
    "cpu",
    "limits.cpu",
)  # what a quota may say of cores: members ask for what they are held to
MEMORY = ("requests.memory", "memory", "limits.memory")


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """Cores, and bytes."""

    cores: float = 0.0
    memory_bytes: float = 0.0

    def __add__(self, other: NodeRoom) -> NodeRoom:
        return NodeRoom(self.cores + other.cores, self.memory_bytes + other.memory_bytes)

    def __sub__(self, other: NodeRoom) -> NodeRoom:
        return NodeRoom(max(self.cores - other.cores, 0.0), max(self.memory_bytes - other.memory_bytes, 0.0))

    def within(self, other: NodeRoom) -> NodeRoom:
        """Return no more than that."""
        return NodeRoom(min(self.cores, other.cores), min(self.memory_bytes, other.memory_bytes))


class OtherPods:
    """What pods that are none of ours ask for, by node and by namespace."""

    def __init__(self) -> None:
        self._pods: dict[Ref, tuple[str, NodeRoom]] = {}
        self._by_node: dict[str, NodeRoom] = {}
        self._by_namespace: dict[str, NodeRoom] = {}

    def take(self, ref: Ref, pod: Pod | None) -> bool:
        """A pod is so now, None: it is gone. Returns whether that changes any room."""
        now = None if pod is None or _is_ours(pod) or is_over(pod) else (pod.spec.node_name, asked_by(pod))
        was = self._pods.pop(ref, None)
        if now is not None:
            self._pods[ref] = now
        if was == now:
            return False
        for each, sign in ((was, -1), (now, 1)):
            if each is not None:
                self._add(self._by_node, each[0], each[1], sign)
                self._add(self._by_namespace, ref.namespace, each[1], sign)
        return True

    def on(self, node: str) -> NodeRoom:
        return self._by_node.get(node, NodeRoom())

    def of(self, namespace: str) -> NodeRoom:
        return self._by_namespace.get(namespace, NodeRoom())

    @staticmethod
    def _add(sums: dict[str, NodeRoom], key: str, room: NodeRoom, sign: int) -> None:
        before = sums.get(key, NodeRoom())
        sums[key] = before + room if sign > 0 else before - room


def _is_ours(pod: Pod) -> bool:
    return all(pod.metadata.labels.get(key) == value for key, value in OURS.items())


def asked_by(pod: Pod) -> NodeRoom:
    """Return what the containers of a pod ask for together."""
    asked = [each.resources.requests for each in pod.spec.containers]
    return NodeRoom(
        sum(quantity(each.get("cpu", "0")) for each in asked),
        sum(quantity(each.get("memory", "0")) for each in asked),
    )


def allowed(namespaces: Iterable[str], quotas: Iterable[Quota], others: OtherPods) -> NodeRoom:
    """Return what quotas leave to members in these namespaces together: everything where one of them has none."""
    quotas, total = list(quotas), NodeRoom()
    for namespace in namespaces:
        own = [each for each in quotas if each.metadata.namespace == namespace and not each.spec.is_scoped]
        bound = NodeRoom(_least(own, CORES), _least(own, MEMORY))
        total = total + (bound - others.of(namespace))
    return total


def _least(quotas: Iterable[Quota], keys: tuple[str, ...]) -> float:
    return min(
        (quantity(each.spec.hard[key]) for each in quotas for key in keys if key in each.spec.hard),
        default=UNBOUND,
    )


def share_out(
    nodes: Mapping[str, KubeNode], others: OtherPods, left: NodeRoom, cores_held: Mapping[str, bool]
) -> dict[str, HostCapacity]:
    """Return the capacity of each node. Quotas hold for all of them together: node after node has what it can while any is left.

    cores_held: by host, what the last member said that could tell whether its control group holds it to its cores (`own_cores`).
    """
    found: dict[str, HostCapacity] = {}
    for name in sorted(nodes):
        has = nodes[name].status.allocatable
        whole = (
            NodeRoom()
            if nodes[name].spec.unschedulable
            else NodeRoom(quantity(has.get("cpu", "0")), quantity(has.get("memory", "0")))
        )
        room = (whole - others.on(name)).within(left)
        left = left - room
        held = cores_held.get(host_of(name))
        found[name] = HostCapacity(
            cores=round(room.cores, 3),
            memory_bytes=int(room.memory_bytes),
            cores_bind=held is True,
            cores_seen="none" if held is None else "members",
        )
    return found
