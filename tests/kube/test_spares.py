"""Warm spares that are pods: what an added worker is, what their room is worth to others, and an operator that dies between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube_cluster import Cluster
from kube_pods import Pods
from patience import until
from platform_contract import JOB, SOME, UID, Seat
from pod_faults import ends
from pod_stacks import PodStack, pod_stack
from slow_to_load import CLASS, make_class, ready_spares, slow_job
from small_job import SmallJob

from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.codec import decode, encode
from rover_bus.events.identity import DesiredMember, Member
from rover_bus.events.spare_requests import SpareQuestion, SpareReply
from rover_bus.events.subjects import spares
from rover_bus.kube.pods import host_of
from rover_bus.kube.spares import NodeSpares
from rover_bus.node.port import Exited, Incarnation, Spawned, StartOrder

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def stack(cluster: Cluster, node: str, namespace: str, tmp_path: Path) -> Iterator[PodStack]:
    make_class(cluster)
    with pod_stack(cluster, namespace, tmp_path, "--spare-priority", CLASS) as made:
        yield made


def begin(cluster: Cluster, namespace: str, job: SmallJob, spares: int) -> None:
    """Submit it, and see its first worker train and its spares wait."""
    job.submit()
    until(lambda: len(ready_spares(cluster, namespace)) == spares, "spares", 0.3)


def warm_workers(job: SmallJob) -> list[int]:
    """Return the indexes of workers that spares became."""
    return sorted(
        each["process"]["member"]["index"] for each in job.facts("host.started") if each.get("warm")
    )


def test_an_added_worker_and_the_successor_of_a_killed_one_are_what_spares_become(
    cluster: Cluster, namespace: str, stack: PodStack, tmp_path: Path
) -> None:
    job = slow_job(stack, tmp_path)
    begin(cluster, namespace, job, spares=2)
    waiting = set(ready_spares(cluster, namespace))
    scaled = job.rover("scale", job.name, "--workers", "2")
    assert scaled.returncode == 0, scaled.stderr
    job.until(lambda: len(job.facts("member.admitted")) == 3, "the added worker")
    assert warm_workers(job) == [1]
    words = (
        "-n",
        namespace,
        "get",
        "pods",
        "-l",
        "rover-bus.io/role=worker,rover-bus.io/index=1",
        "-o",
        "json",
    )
    [pod] = json.loads(cluster.kubectl(*words).stdout)["items"]
    assert pod["metadata"]["name"] in waiting
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "member"
    until(lambda: len(ready_spares(cluster, namespace)) == 2, "another spare in its place", 0.3)
    gone = cluster.kubectl("-n", namespace, "delete", "pod", pod["metadata"]["name"], "--wait=false")
    assert gone.returncode == 0, gone.stderr
    job.until(lambda: len(job.facts("member.admitted")) == 4, "its successor")
    assert warm_workers(job) == [1, 1]
    assert [each["index"] for each in ends(job)] == [1]
    job.complete()
    until(lambda: ready_spares(cluster, namespace) == [], "an ended job has no spares", 0.3)


def test_a_pod_of_others_has_the_room_of_a_spare_and_members_keep_theirs(
    cluster: Cluster, namespace: str, stack: PodStack, tmp_path: Path
) -> None:
    """A worker, a server and two spares of 3.5 cores each leave two of the node's sixteen: the rival asks for four."""
    job = slow_job(stack, tmp_path, cores=3.5)
    begin(cluster, namespace, job, spares=2)
    main = {"name": "main", "image": "example.com/any", "resources": {"requests": {"cpu": "4"}}}
    rival = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "rival"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [main]},
    }
    made = cluster.kubectl("-n", namespace, "create", "-f", "-", given=json.dumps(rival))
    assert made.returncode == 0, made.stderr
    phase = ("-n", namespace, "get", "pod", "rival", "-o", "jsonpath={.status.phase}")
    until(lambda: cluster.kubectl(*phase).stdout == "Running", "the rival has room", 0.3)
    assert ends(job) == []
    assert len(ready_spares(cluster, namespace)) == 1
    job.complete()


def test_an_operator_that_dies_before_it_tells_a_spare_which_member_it_is_is_followed_by_one_that_does(
    cluster: Cluster, node: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_class(cluster)
    with EmbeddedBroker(tmp_path / "broker") as broker:
        pods = Pods(str(cluster.config), node, namespace).with_spares(broker, tmp_path, CLASS)

        async def scene() -> None:
            seat = Seat(pods)
            spare = await seat.spare(await seat.loaded())
            monkeypatch.setattr(NodeSpares, "admit", lambda *_: None)
            run = seat.start("warm", index=1, credential="lost with it", spare=spare.number)
            await pods.until_ordered(run)
            heir = await seat.successor()
            assert await pods.knows(run) == "worker 1.1, trusted"
            assert [each.incarnation for each in heir.of(Spawned)].count(run) == 1
            heir.platform.stop(run, hurried=True)
            assert (await heir.until(Exited)).member == run.member

        pods.run(scene())


def test_a_daemon_says_nothing_to_what_asks_for_a_pod_that_was_no_spare(
    cluster: Cluster, node: str, namespace: str, tmp_path: Path
) -> None:
    """A spare, or whatever has its rights, would have the credential of a master, or of another worker."""
    make_class(cluster)
    with EmbeddedBroker(tmp_path / "broker") as broker:
        pods = Pods(str(cluster.config), node, namespace).with_spares(broker, tmp_path, CLASS)

        async def scene() -> None:
            seat = Seat(pods)
            await seat.loaded()
            master = DesiredMember(
                member=Member("master", 0, 1), host=node, command=["sleep", "600"], resources=SOME
            )
            run = Incarnation(JOB, UID, master)
            seat.platform.start(StartOrder(run))
            await pods.until_ordered(run)
            for each in pods.orders():
                question = SpareQuestion(uid=UID, pod=each.name, loaded=True)
                said = await pods.bus.request(spares(host_of(node), JOB), encode(question), timeout_s=5.0)
                assert decode(said.body, SpareReply) == SpareReply(what="gone"), each

        pods.run(scene())


def test_the_next_operator_makes_spares_of_its_own(
    cluster: Cluster, namespace: str, stack: PodStack, tmp_path: Path
) -> None:
    job = slow_job(stack, tmp_path, spares=1)
    begin(cluster, namespace, job, spares=1)
    [former] = ready_spares(cluster, namespace)
    with stack.no_operator():
        pass
    until(lambda: set(ready_spares(cluster, namespace)) - {former}, "another spare", 0.5)
    until(lambda: former not in ready_spares(cluster, namespace), "the end of the former one", 0.5)
    assert ends(job) == []
    job.complete()
