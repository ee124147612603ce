"""What nodes have left for members: pods of others and quotas are respected."""

from __future__ import annotations

from typing import Any, cast

from rover_bus.events.facts import MemberAdmitted
from rover_bus.events.identity import HostCapacity, Member
from rover_bus.kube.api import Api
from rover_bus.kube.cluster import KubeCluster
from rover_bus.kube.kinds import (
    ContainerSpec,
    KubeNode,
    KubeNodeSpec,
    KubeNodeStatus,
    Metadata,
    Pod,
    PodSpec,
    PodStatus,
    Quantities,
    Quota,
    QuotaSpec,
    Ref,
)
from rover_bus.kube.pods import OF_MEMBERS, PodSettings
from rover_bus.kube.rooms import UNBOUND, NodeRoom, OtherPods, allowed, share_out

GIB = 1 << 30
NODES = {
    name: KubeNode(
        spec=KubeNodeSpec(unschedulable=name == "c"),
        status=KubeNodeStatus(allocatable={"cpu": "4", "memory": "8Gi"}),
    )
    for name in ("a", "b", "c")
}


def pod(node: str = "a", *, ours: bool = False, phase: str = "Running", **asked: str) -> Pod:
    container = ContainerSpec(name="x", resources=Quantities(requests=asked))
    return Pod(
        metadata=Metadata(labels=OF_MEMBERS if ours else {}),
        spec=PodSpec(node_name=node, containers=[container]),
        status=PodStatus(phase=phase),
    )


def capacity(others: OtherPods, left: NodeRoom = NodeRoom(UNBOUND, UNBOUND)) -> dict[str, tuple[float, int]]:  # noqa: B008 - a value
    return {
        name: (each.cores, each.memory_bytes // GIB)
        for name, each in share_out(NODES, others, left, {}).items()
    }


def test_what_others_ask_for_is_not_left_and_what_members_ask_for_is() -> None:
    others, ref = OtherPods(), Ref("team", "p")
    assert capacity(others) == {"a": (4.0, 8), "b": (4.0, 8), "c": (0.0, 0)}
    assert others.take(ref, pod(cpu="1500m", memory="2Gi"))
    assert not others.take(ref, pod(cpu="1500m", memory="2Gi")), "nothing has changed"
    assert not others.take(Ref("team", "m"), pod(ours=True, cpu="2", memory="1Gi"))
    assert capacity(others)["a"] == (2.5, 6)
    assert others.take(ref, pod("b", cpu="1", memory="1Gi"))
    assert capacity(others) == {"a": (4.0, 8), "b": (3.0, 7), "c": (0.0, 0)}
    assert others.take(ref, pod("b", phase="Succeeded", cpu="1", memory="1Gi"))
    assert capacity(others)["b"] == (4.0, 8)
    assert others.take(ref, pod("b", cpu="64", memory="1Ti"))
    assert capacity(others)["b"] == (0.0, 0), "never less than nothing"
    assert others.take(ref, None)
    assert not others.take(ref, None)
    assert capacity(others)["b"] == (4.0, 8)


def quota(namespace: str = "team", scopes: tuple[str, ...] = (), **hard: Any) -> Quota:
    spec = QuotaSpec(hard={key.replace("_", "."): value for key, value in hard.items()}, scopes=list(scopes))
    return Quota(metadata=Metadata(namespace=namespace), spec=spec)


def test_quotas_hold_for_all_nodes_together() -> None:
    others = OtherPods()
    left = allowed(["team"], [quota(requests_cpu="10", limits_cpu="6", memory="20Gi")], others)
    assert left == NodeRoom(6.0, 20.0 * GIB), "the strictest of them"
    assert capacity(others, left) == {"a": (4.0, 8), "b": (2.0, 8), "c": (0.0, 0)}
    others.take(Ref("team", "p"), pod("elsewhere", cpu="3", memory="10Gi"))
    others.take(Ref("others", "p"), pod("elsewhere", cpu="1", memory="1Gi"))
    assert allowed(["team"], [quota(requests_cpu="6", memory="20Gi")], others) == NodeRoom(3.0, 10.0 * GIB)


def test_a_namespace_without_a_quota_and_a_quota_of_some_pods_bind_nothing() -> None:
    own = quota(cpu="2")
    assert allowed(["team"], [own], OtherPods()) == NodeRoom(2.0, UNBOUND)
    assert allowed(["team", "others"], [own], OtherPods()) == NodeRoom(UNBOUND, UNBOUND)
    assert allowed(["team"], [quota(scopes=("BestEffort",), cpu="2")], OtherPods()) == NodeRoom(
        UNBOUND, UNBOUND
    )
    assert allowed([""], [own], OtherPods()) == NodeRoom(UNBOUND, UNBOUND)


def test_whether_a_node_holds_members_to_their_cores_is_their_word_and_without_one_not_known() -> None:
    node = NODES["a"]
    nodes = {"a.example": node, "b": node, "c": NODES["c"], "d": node}
    found = share_out(
        nodes, OtherPods(), NodeRoom(UNBOUND, UNBOUND), {"a_example": True, "b": False, "c": True}
    )
    assert found["a.example"] == HostCapacity(
        cores=4.0, memory_bytes=8 * GIB, cores_bind=True, cores_seen="members"
    )
    assert {name: (each.cores_bind, each.cores_seen) for name, each in found.items()} == {
        "a.example": (True, "members"),
        "b": (False, "members"),
        "c": (True, "members"),  # cordoned: its kubelet is the same
        "d": (False, "none"),
    }


def admitted(host: str, held: bool | None) -> MemberAdmitted:
    return MemberAdmitted(job="j", member=Member("worker", 0, 1), host=host, cores_held=held)


def test_the_last_word_of_a_nodes_members_counts_and_a_change_is_noticed() -> None:
    cluster = KubeCluster(cast(Api, None), PodSettings("image", lambda _: "team"), ["team"])
    cluster.nodes._objects = {Ref("", "n.1"): NODES["a"]}
    changes: list[bool] = []
    cluster.listen_to_rooms(lambda: changes.append(cluster.capacity_of("n.1").cores_bind))
    assert cluster.capacity_of("n.1").cores_seen == "none"
    for held in (None, True, None, True, False, None):
        cluster.note_admitted(admitted("n.1", held))
    assert changes == [True, False]
    assert cluster.capacity_of("n.1").cores_seen == "members"
