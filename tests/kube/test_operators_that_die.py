"""An operator dies after each of its writes in turn: its successor ends with the same member, one end of it, and nothing left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from kube_cluster import Cluster
from kube_pods import Pods
from patience import PATIENCE_S
from platform_contract import JOB, SECRET, SOME, UID, Seat

from rover_bus.events.identity import DesiredMember, Member
from rover_bus.kube.api import Api, ApiUnreachable
from rover_bus.kube.kinds import CONFIG_MAP, POD, Json, Kind, Ref
from rover_bus.kube.kinds import SECRET as SECRETS
from rover_bus.node.port import Exited, Incarnation, Running, Spawned, StartOrder

WRITES = ("pod", "secret", "gate off", "asked", "deleted", "end kept", "finalizer off")


class DyingApi(Api):
    """Its process does `left` writes; of the last one it has no answer, and does nothing more."""

    left = 0

    async def call(self, method: str, path: str, body: Json | None = None, **more: Any) -> bytes:
        if self.left <= 0:
            raise ApiUnreachable("this process is dead")
        answer = await super().call(method, path, body, **more)
        self.left -= method != "GET"
        if self.left <= 0:
            raise ApiUnreachable("the answer is lost")
        return answer


async def until(claim: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not claim():  # noqa: ASYNC110 - it is a cluster that is waited for
            await asyncio.sleep(0.02)


async def carry(seat: Seat, order: StartOrder, dead: Callable[[], bool]) -> None:
    """What a daemon does with a member that runs and then is desired no more; until it is dead."""
    run = order.incarnation
    if not seat.of(Exited):
        seat.platform.start(order)
        await until(lambda: seat.of(Running) or dead())
        seat.platform.stop(run)
        await until(lambda: seat.of(Exited) or dead())
    for ended in seat.of(Exited):
        if not ended.reported:
            seat.platform.mark_reported(ended)


async def left(api: Api, namespace: str) -> Sequence[str]:
    """The pods and Secrets of the namespace."""
    found = list[str]()
    kinds: tuple[Kind[Any], ...] = (POD, SECRETS)
    for kind in kinds:
        body = await api.call(
            "GET", kind.path(Ref(namespace, "")), query=[("labelSelector", "rover-bus.io/job")]
        )
        found += [kind.plural] * body.count(b'"uid":')
    return found


@pytest.mark.parametrize("writes", range(1, len(WRITES) + 1), ids=lambda count: WRITES[count - 1])
def test_an_operator_that_dies_after(writes: int, cluster: Cluster, node: str, namespace: str) -> None:
    pods = Pods(str(cluster.config), node, namespace)
    member = DesiredMember(
        member=Member("worker", 0, 1), host=node, command=pods.command("polite"), resources=SOME, grace_s=5.0
    )
    order = StartOrder(Incarnation(JOB, UID, member), SECRET)

    async def scene() -> None:
        whole = pods.api
        pods.api = dying = await DyingApi.connect(str(cluster.config))
        dying.left = 1 << 20
        seat = Seat(pods)
        await seat.platform.adopt()
        dying.left = writes
        await carry(seat, order, lambda: dying.left <= 0)
        await until(lambda: dying.left <= 0)
        pods.kill_daemon(seat.platform)
        await dying.close()

        pods.api = whole
        heir = Seat(pods)
        await heir.platform.adopt()
        await carry(heir, order, lambda: False)
        await pods.settle(heir.platform)
        async with asyncio.timeout(PATIENCE_S):
            while await left(whole, namespace):  # noqa: ASYNC110 - it is a cluster that is waited for
                await asyncio.sleep(0.1)
        assert len(heir.of(Spawned)) <= 1
        last = await heir.successor()
        assert last.of(Spawned) == []
        assert [(each.member, each.exit.reason, each.reported) for each in last.of(Exited)] == [
            (member.member, "drained", True)
        ]
        last.platform.forget(JOB)
        await pods.settle(last.platform)
        body = await whole.call("GET", CONFIG_MAP.path(Ref(namespace, "")))
        assert b"-ends-" not in body

    pods.run(scene())


def test_members_start_and_leave_while_the_api_server_is_killed(
    cluster: Cluster, node: str, namespace: str
) -> None:
    pods = Pods(str(cluster.config), node, namespace)

    async def scene() -> None:
        seat = Seat(pods)
        await seat.platform.adopt()
        killed = asyncio.create_task(asyncio.to_thread(cluster.fault, "restart-api"))
        runs = list[Incarnation]()
        for index in range(4):
            runs.append(seat.start(index=index, grace_s=5.0))
            await asyncio.sleep(0.3)
        await killed
        await until(lambda: len(seat.of(Running)) == 4)
        killed = asyncio.create_task(asyncio.to_thread(cluster.fault, "restart-api"))
        for run in runs:
            seat.platform.stop(run)
            await asyncio.sleep(0.3)
        await killed
        await until(lambda: len(seat.of(Exited)) == 4)
        assert len(seat.of(Spawned)) == 4
        assert {each.exit.reason for each in seat.of(Exited)} == {"drained"}

    pods.run(scene())
