"""Of several operators one leads; the next one follows when it lets go, and not before."""

from __future__ import annotations

import asyncio

from kube_cluster import Cluster
from patience import PATIENCE_S

from rover_bus.events.bus import Bus
from rover_bus.kube.api import Api, ApiRefused
from rover_bus.kube.kinds import LEASE, Ref
from rover_bus.kube.leading import LeaderLease
from rover_bus.kube.operator import OperatorOptions, run_operator
from rover_bus.kube.pace import RequestPace
from rover_bus.kube.pods import PodSettings


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


def test_a_lead_is_kept_while_other_requests_wait(cluster: Cluster, namespace: str) -> None:
    """An operator that may ask for nothing else for an hour, as behind a burst of thousands, leads all the same."""

    async def never(*_: str) -> Bus:
        await asyncio.Event().wait()
        raise AssertionError

    async def main() -> None:
        pace, stop = RequestPace(1.0, 1), asyncio.Event()
        pace.hold(asyncio.get_running_loop().time() + 3600.0)
        waiting = await Api.connect(str(cluster.config), pace)
        leasing = await Api.connect(str(cluster.config))
        options = OperatorOptions(
            pods=PodSettings("example.com/any", lambda _tenant: namespace),
            namespaces=[namespace],
            connect=never,
            connect_asking=never,
        )
        running = asyncio.create_task(run_operator(waiting, leasing, options, stop, lambda: None))
        try:
            renewals = set[str]()
            async with asyncio.timeout(PATIENCE_S):
                while len(renewals) < 3:
                    await asyncio.sleep(0.5)
                    try:
                        held = await leasing.read(LEASE, Ref(namespace, "rover-operator"))
                    except ApiRefused:  # not made yet
                        continue
                    assert held.spec.holder_identity == options.holder
                    renewals.add(held.metadata.resource_version)
        finally:
            stop.set()
            await running
            await waiting.close()
            await leasing.close()

    asyncio.run(main())
