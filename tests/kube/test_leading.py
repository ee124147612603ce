"""Of several operators one leads; the next one follows when it lets go, and not before."""

from __future__ import annotations

import asyncio

from kube_cluster import Cluster
from patience import PATIENCE_S

from rover_bus.kube.api import Api
from rover_bus.kube.kinds import LEASE, Ref
from rover_bus.kube.leading import LeaderLease


def test_one_leads_and_the_next_one_follows_when_it_lets_go(cluster: Cluster, namespace: str) -> None:
    async def main() -> None:
        api = await Api.connect(str(cluster.config))
        try:
            ref = Ref(namespace, "rover-operator")
            first, second = (LeaderLease(api, ref, each) for each in ("one", "two"))
            async with asyncio.timeout(PATIENCE_S):
                await first.acquire()
                waiting = asyncio.create_task(second.acquire())
                await asyncio.wait([waiting], timeout=3.0)
                assert not waiting.done()
                await first.release()
                await waiting
                assert (await api.read(LEASE, ref)).spec.holder_identity == "two"
        finally:
            await api.close()

    asyncio.run(main())


def test_one_whose_lease_another_took_stops_leading(cluster: Cluster, namespace: str) -> None:
    async def main() -> None:
        api = await Api.connect(str(cluster.config))
        try:
            ref = Ref(namespace, "rover-operator")
            lease = LeaderLease(api, ref, "one")
            async with asyncio.timeout(PATIENCE_S):
                await lease.acquire()
                holding = asyncio.create_task(lease.hold())
                await api.patch(LEASE, ref, {"spec": {"holderIdentity": "two"}})
                await holding
                await lease.release()
            assert (await api.read(LEASE, ref)).spec.holder_identity == "two", "it releases only its own"
        finally:
            await api.close()

    asyncio.run(main())
