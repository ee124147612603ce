"""The daemons of a cluster's nodes connect a few at once: all of them together would outlast the time that each has."""

from __future__ import annotations

import asyncio

from rover_bus.events.bus import Bus
from rover_bus.events.errors import TemporaryError
from rover_bus.kube.api import Api
from rover_bus.kube.cluster import KubeCluster
from rover_bus.kube.kinds import Condition, KubeNode, KubeNodeStatus, Metadata
from rover_bus.kube.operator import CONNECTING, NodeDaemons, OperatorOptions
from rover_bus.kube.pods import PodSettings

NODES = 3 * CONNECTING


def node(number: int) -> KubeNode:
    about = Metadata(name=f"node-{number}", resource_version=str(number + 1))
    return KubeNode(
        metadata=about, status=KubeNodeStatus(conditions=[Condition(type="Ready", status="True")])
    )


def test_so_many_nodes_connect_at_once_and_no_more() -> None:
    now, most, came = 0, 0, set[str]()

    async def connect(host: str) -> Bus:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        came.add(host)
        await asyncio.sleep(0)
        now -= 1
        raise TemporaryError("there is no broker")

    async def main() -> None:
        settings = PodSettings("example.com/any", lambda _: "default")
        api = Api.__new__(Api)  # nothing is asked of it
        cluster = KubeCluster(api, settings, [""])
        for number in range(NODES):
            cluster.nodes.put(node(number))
        options = OperatorOptions(
            pods=settings, namespaces=["default"], connect=connect, connect_asking=lambda: connect("")
        )
        daemons = NodeDaemons(cluster, options)
        daemons._begin_missing()
        await asyncio.gather(*daemons._running.values())

    asyncio.run(main())
    assert len(came) == NODES
    assert most == CONNECTING
