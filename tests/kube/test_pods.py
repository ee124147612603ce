"""How members end on a cluster, and what becomes of what cannot be had: each has its own reason, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kube_cluster import Cluster, kubelet
from kube_pods import Pods
from patience import PATIENCE_S
from platform_contract import JOB, SECRET, SOME, UID, Seat

from rover_bus.events.identity import DesiredMember, Member, Resources
from rover_bus.kube.kinds import POD, Pod, quantity
from rover_bus.kube.pods import manifest, ref_of
from rover_bus.node.port import (
    Adjusted,
    AdjustRefused,
    Exited,
    Incarnation,
    Running,
    Spawned,
    Stalled,
    StartOrder,
    TakenAway,
)

EATS = "x = []\nwhile True: x.append(bytearray(1 << 20))"
Scene = Callable[[Seat], Awaitable[None]]
Play = Callable[..., None]


@pytest.fixture
def play(cluster: Cluster, node: str, namespace: str) -> Play:
    """Play a scene with the first daemon of a node; the words are settings of its pods."""

    def run(scene: Scene, **settings: Any) -> None:
        pods = Pods(str(cluster.config), node, namespace, **settings)

        async def main() -> None:
            seat = Seat(pods)
            await seat.platform.adopt()
            await scene(seat)

        pods.run(main())

    return run


def order(seat: Seat, *command: str, credential: str = "", **desired: Any) -> Incarnation:
    """Start worker-0.1 with a command of its own."""
    given = {"resources": SOME, "grace_s": 5.0, **desired}
    member = DesiredMember(
        member=Member("worker", 0, 1), host=seat.adapter.host, command=list(command), **given
    )
    run = Incarnation(JOB, UID, member)
    seat.platform.start(StartOrder(run, credential))
    return run


def pods_of(seat: Seat) -> Pods:
    assert isinstance(seat.adapter, Pods)
    return seat.adapter


def name_of(seat: Seat, run: Incarnation) -> str:
    return ref_of(pods_of(seat).settings, run.job, run.uid, run.member).name


async def read(seat: Seat, run: Incarnation) -> Pod:
    pods = pods_of(seat)
    return await pods.api.read(POD, ref_of(pods.settings, run.job, run.uid, run.member))


def kubectl(cluster: Cluster, seat: Seat, *words: str, given: str = "") -> str:
    done = cluster.kubectl("-n", pods_of(seat).namespace, *words, given=given)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def until_gone(cluster: Cluster, seat: Seat, kind: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while kubectl(cluster, seat, "get", kind, "-o", "name", "-l", "rover-bus.io/job"):  # noqa: ASYNC110
            await asyncio.sleep(0.2)


def test_a_member_without_memory_left_ends_as_out_of_memory(play: Play) -> None:
    async def scene(seat: Seat) -> None:
        order(seat, "python", "-c", EATS, resources=Resources(cores=0.5, memory_bytes=64 << 20))
        ended = await seat.until(Exited)
        assert (ended.exit.reason, ended.exit.status) == ("out_of_memory", 137)
        assert "OOMKilled" in ended.exit.detail

    play(scene)


def test_a_member_that_fails_leaves_its_last_words(play: Play) -> None:
    async def scene(seat: Seat) -> None:
        order(seat, "python", "-c", "for i in range(400): print('word', i)\nraise SystemExit('no such file')")
        ended = await seat.until(Exited)
        assert (ended.exit.reason, ended.exit.status) == ("failed", 1)
        words = ended.exit.stderr.splitlines()
        assert (words[-1], len(words)) == ("no such file", 50)

    play(scene)


def test_a_member_that_a_person_deletes_is_killed(cluster: Cluster, play: Play) -> None:
    async def scene(seat: Seat) -> None:
        run = seat.start()
        await seat.until(Running)
        kubectl(cluster, seat, "delete", "pod", name_of(seat, run), "--wait=false", "--grace-period=5")
        ended = await seat.until(Exited)
        assert (ended.exit.reason, ended.exit.detail) == ("killed", "its pod was deleted")

    play(scene)


SLOW_FAREWELL = "trap 'sleep 2; exit 0' TERM; while :; do sleep 0.05; done"


def test_a_member_that_says_goodbye_because_a_person_deletes_it_was_not_asked_by_us(
    cluster: Cluster, play: Play
) -> None:
    """It leaves its master, which desires it no more for that: the order to stop it comes while it leaves already."""

    async def scene(seat: Seat) -> None:
        run = order(seat, "sh", "-c", SLOW_FAREWELL)
        await seat.until(Running)
        kubectl(cluster, seat, "delete", "pod", name_of(seat, run), "--wait=false", "--grace-period=10")
        seat.platform.stop(run)
        ended = await seat.until(Exited)
        assert (ended.exit.reason, ended.exit.detail) == ("killed", "its pod was deleted")

    play(scene)


def test_a_member_that_is_evicted_says_so(cluster: Cluster, play: Play) -> None:
    async def scene(seat: Seat) -> None:
        run = seat.start(grace_s=5.0)
        await seat.until(Running)
        name, space = name_of(seat, run), pods_of(seat).namespace
        asked = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": space},
        }
        path = f"/api/v1/namespaces/{space}/pods/{name}/eviction"
        kubectl(cluster, seat, "create", "--raw", path, "-f", "-", given=json.dumps(asked))
        taken = await seat.until(TakenAway)
        assert (taken.key, taken.reason) == (run.key, "evicted")
        assert taken.why.startswith("EvictionByEvictionAPI")
        assert seat.of(Exited) == []
        ended = await seat.until(Exited)
        assert ended.exit.reason == "evicted"
        assert ended.exit.detail.startswith("EvictionByEvictionAPI")

    play(scene)


def test_a_member_that_no_node_takes_waits_and_starts_once_one_does(cluster: Cluster, play: Play) -> None:
    """Its patience over, the scheduler's own reason is observed, once; the pod stays, and a new one is never made of it."""

    async def scene(seat: Seat) -> None:
        kubectl(cluster, seat, "create", "-f", "-", given=json.dumps(RIVAL))
        kubectl(cluster, seat, "wait", "--for=condition=PodScheduled", "pod/rival", "--timeout=60s")
        run = order(
            seat, "sleep", "600", resources=Resources(cores=12.0, memory_bytes=1 << 20), start_patience_s=2.0
        )
        waits = await seat.until(Stalled)
        assert (waits.key, waits.reason) == (run.key, "Unschedulable")
        assert "Insufficient cpu" in waits.why
        await asyncio.sleep(4.0)
        kubectl(cluster, seat, "delete", "pod", "rival", "--wait=false", "--grace-period=1")
        await seat.until(Running)
        assert (len(seat.of(Stalled)), seat.of(Exited)) == (1, [])
        await seat.end(run)

    cluster.kubectl("create", "priorityclass", "urgent", "--value=1000")
    play(scene)


RIVAL: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "rival"},
    "spec": {
        "priorityClassName": "urgent",
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {"name": "main", "image": "example.com/any", "resources": {"requests": {"cpu": "12"}}},
        ],
    },
}


def test_a_member_that_makes_room_for_more_urgent_pods_is_preempted(cluster: Cluster, play: Play) -> None:
    cluster.kubectl("create", "priorityclass", "urgent", "--value=1000")

    async def scene(seat: Seat) -> None:
        run = order(seat, "sleep", "600", resources=Resources(cores=12.0, memory_bytes=1 << 26), grace_s=1.0)
        await seat.until(Running)
        kubectl(cluster, seat, "create", "-f", "-", given=json.dumps(RIVAL))
        ended = await seat.until(Exited)
        assert (ended.member, ended.exit.reason) == (run.member, "preempted")
        assert ended.exit.detail.startswith("PreemptionByScheduler")
        kubectl(cluster, seat, "delete", "pod", "rival", "--wait=false", "--grace-period=1")

    play(scene)


def test_a_member_on_a_node_that_is_lost_is_lost_with_it_and_fenced(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """Its pod stays: no kubelet says that it has ended, and none may ever. The next incarnation begins all the same."""
    there = {"spec": {"nodeSelector": {"kubernetes.io/hostname": "node-2"}}}
    with kubelet(cluster, "node-2", tmp_path) as process:
        pods = Pods(str(cluster.config), "node-2", namespace, templates={"worker": there})

        async def scene() -> None:
            seat = Seat(pods)
            await seat.platform.adopt()
            seat.start("deaf")
            await seat.until(Running)
            process.kill()
            ended = await seat.until(Exited)
            assert ended.exit.reason == "host_lost"
            assert ended.exit.detail.startswith("DeletionByTaintManager")
            seat.platform.mark_reported(ended)
            await pods.settle(seat.platform)
            successor = await seat.successor()
            assert [each.reported for each in successor.of(Exited)] == [True]
            next_one = successor.start(number=2)
            assert successor.of(Spawned) == [Spawned(next_one)]

        pods.run(scene())
    cluster.kubectl("delete", "node", "node-2", "--wait=false")


FAKE = {
    "metadata": {"annotations": {"test/outcome": "ImagePullBackOff"}},
    "spec": {"nodeSelector": {"kubernetes.io/hostname": "fake-1"}},
}


def test_a_member_whose_image_is_missing_waits_and_says_why(cluster: Cluster, play: Play) -> None:
    assert cluster.script is not None
    made = cluster.kubectl("apply", "-f", str(cluster.script.with_name("node.yaml")))
    assert made.returncode == 0, made.stderr

    async def scene(seat: Seat) -> None:
        order(seat, "sleep", "600", start_patience_s=3.0)
        waits = await seat.until(Stalled)
        assert (waits.reason, waits.why) == ("ImagePullBackOff", "no such image")
        await asyncio.sleep(2.0)
        assert seat.of(Exited) == []

    play(scene, templates={"worker": FAKE})
    cluster.kubectl("delete", "node", "fake-1", "--wait=false")


def test_a_pod_that_the_api_server_refuses_never_starts(play: Play) -> None:
    async def scene(seat: Seat) -> None:
        seat.start()
        ended = await seat.until(Exited)
        assert ended.exit.reason == "never_started"
        assert "spec.containers[1].name" in ended.exit.detail

    play(scene, templates={"worker": {"spec": {"containers": [{"name": "Not A Name"}]}}})


# -- changed in place ------------------------------------------------------------------------------------------------------


def test_cores_and_memory_change_while_the_member_runs(play: Play) -> None:
    async def scene(seat: Seat) -> None:
        run = seat.start()
        await seat.until(Running)
        more = Resources(cores=1.5, memory_bytes=1 << 30)
        seat.platform.adjust(run, more, {})
        assert await seat.until(Adjusted) == Adjusted(run.key, more, {})
        (status,) = (await read(seat, run)).status.container_statuses
        assert status.resources is not None
        assert {key: quantity(value) for key, value in status.resources.limits.items()} == {
            "cpu": 1.5,
            "memory": 1 << 30,
        }
        assert len(seat.of(Running)) == 1
        assert seat.of(Exited) == []

    play(scene)


@pytest.mark.parametrize(
    ("notes", "cores", "said"),
    [
        ({"test/resize": "Infeasible"}, 1.0, "Infeasible"),
        ({"test/resize": "Deferred"}, 1.0, "Deferred"),
        ({}, 5000.0, "403"),
    ],
)
def test_what_a_node_cannot_give_is_refused_and_the_member_runs_on(
    play: Play, notes: dict[str, str], cores: float, said: str
) -> None:
    async def scene(seat: Seat) -> None:
        run = seat.start()
        await seat.until(Running)
        wanted = Resources(cores=cores, memory_bytes=SOME.memory_bytes)
        seat.platform.adjust(run, wanted, {})
        refused = await seat.until(AdjustRefused)
        assert (refused.key, refused.resources) == (run.key, wanted)
        assert said in refused.why
        (container,) = (await read(seat, run)).spec.containers
        assert container.resources.limits["cpu"] == "500m", "what was not given is not asked for any more"
        assert seat.of(Exited) == []

    play(scene, templates={"worker": {"metadata": {"annotations": notes}}}, adjust_patience_s=2.0)


# -- what is left --------------------------------------------------------------------------------------------------------


def test_of_a_member_that_left_nothing_stays_but_the_record_of_its_end(cluster: Cluster, play: Play) -> None:
    """Without it, the next operator would start this incarnation once more."""

    async def scene(seat: Seat) -> None:
        run = order(seat, "sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.05; done", credential=SECRET)
        await seat.until(Running)
        assert kubectl(cluster, seat, "get", "secrets", "-o", "name", "-l", "rover-bus.io/job")
        ended = await seat.end(run)
        assert ended.exit.reason == "drained"
        seat.platform.mark_reported(ended)
        await until_gone(cluster, seat, "pods")
        await until_gone(cluster, seat, "secrets")
        heir = await seat.successor()
        assert [(each.member, each.reported, each.exit.reason) for each in heir.of(Exited)] == [
            (run.member, True, "drained")
        ]
        heir.platform.forget(JOB)
        await until_gone(cluster, heir, "configmaps")

    play(scene)


def test_a_pod_stays_until_its_end_is_reported_whatever_deletes_it(cluster: Cluster, play: Play) -> None:
    async def scene(seat: Seat) -> None:
        run = seat.start("failing")
        await seat.until(Exited)
        kubectl(cluster, seat, "delete", "pod", name_of(seat, run), "--wait=false")
        heir = await seat.successor()
        (ended,) = heir.of(Exited)
        assert (ended.exit.reason, ended.exit.status, ended.reported) == ("failed", 3, False)
        heir.platform.mark_reported(ended)
        await until_gone(cluster, heir, "pods")

    play(scene)


def test_the_last_three_that_failed_are_kept_for_people(cluster: Cluster, play: Play) -> None:
    async def scene(seat: Seat) -> None:
        for number in range(1, 6):
            seat.start("failing", number=number)
            ended = await seat.until(Exited)
            seat.platform.mark_reported(ended)
            await seat.adapter.settle(seat.platform)
            seat.seen.clear()
        shown = kubectl(cluster, seat, "get", "pods", "-o", "jsonpath={.items[*].metadata.labels}")
        assert sorted(
            each["rover-bus.io/incarnation"] for each in json.loads(f"[{shown.replace('} {', '},{')}]")
        ) == [
            "3",
            "4",
            "5",
        ]
        seat.platform.forget(JOB)  # the job has ended: they stay, and are no members of any operator
        await seat.adapter.settle(seat.platform)
        heir = await seat.successor()
        assert heir.of(Exited) == []
        assert len(kubectl(cluster, seat, "get", "pods", "-o", "name").split()) == 3
        heir.platform.erase(JOB, UID)
        await until_gone(cluster, seat, "pods")

    play(scene)


def test_a_pod_that_waits_for_its_credential_when_its_operator_dies_is_ordered_once_more(play: Play) -> None:
    """Its credential is kept nowhere, so that its successor cannot give it: it was never a member."""

    async def scene(seat: Seat) -> None:
        pods = pods_of(seat)
        member = DesiredMember(
            member=Member("worker", 0, 1), host=pods.host, command=pods.command("trusted"), resources=SOME
        )
        run = Incarnation(JOB, UID, member)
        made = manifest(pods.settings, run, pods.host, secret=True)
        await pods.api.create(POD, pods.namespace, made)
        heir = await seat.successor()
        assert heir.of(Spawned) == []
        heir.platform.start(StartOrder(run, SECRET))
        assert (await heir.until(Exited)).exit.reason == "completed"
        assert len(heir.of(Spawned)) == 1

    play(scene)


def test_a_pod_that_was_made_though_the_answer_was_lost_is_taken_over(play: Play) -> None:
    async def scene(seat: Seat) -> None:
        pods = pods_of(seat)
        member = DesiredMember(
            member=Member("worker", 0, 1),
            host=pods.host,
            command=pods.command("polite"),
            resources=SOME,
            grace_s=600.0,
        )
        run = Incarnation(JOB, UID, member)
        await pods.api.create(POD, pods.namespace, manifest(pods.settings, run, pods.host, secret=False))
        await seat.until(Running)
        assert seat.of(Spawned) == [Spawned(run)]
        seat.platform.start(StartOrder(run))
        assert (await seat.end(run)).exit.reason == "drained"

    play(scene)
