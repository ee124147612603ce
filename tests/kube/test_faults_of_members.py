"""What a cluster does to members of a job that trains: it goes on with exactly the planned members, and says what came first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kube_cluster import Cluster, kubelet
from pod_faults import cause_of_end, ends, name_of, pod_of, running, story, until_as_planned
from pod_stacks import PodStack
from small_job import SmallJob

from rover_bus.client.programs import find_example

EATER = """
import os, runpy, sys, threading, time

def eat():
    time.sleep(3.0)
    eaten = []
    while True:
        eaten.append(b"x" * (8 << 20))
        time.sleep(0.01)

if (os.environ["ROVER_INDEX"], os.environ["ROVER_INCARNATION"]) == ("0", "1"):
    threading.Thread(target=eat, daemon=True).start()
sys.path[0], sys.argv = {folder!r}, [{program!r}]
runpy.run_path({program!r}, run_name="__main__")
"""


def small_job(stack: PodStack, folder: Path, **more: Any) -> SmallJob:
    return SmallJob(
        folder=folder,
        home=stack.home.root,
        rows=2_000,
        epochs=1,
        workers=2,
        servers=1,
        checkpoint='path = "store"\nevery = "1h"',
        **more,
    )


def begin(cluster: Cluster, namespace: str, job: SmallJob) -> None:
    """Submit it, and see its members run and take part."""
    job.submit()
    until_as_planned(cluster, namespace, job, workers=2, servers=1)
    job.until(lambda: len(job.facts("member.admitted")) == 3, "members that take part")


def ends_as_planned(cluster: Cluster, namespace: str, job: SmallJob, reason: str, said: str) -> None:
    """One worker ended, for this reason; exactly the planned members run, and every sample is applied once."""
    job.until(lambda: ends(job), "an end")
    until_as_planned(cluster, namespace, job, workers=2, servers=1)
    (ended,) = ends(job)
    cause = cause_of_end(job, ended)
    assert (ended["role"], cause["reason"]) == ("worker", reason), cause
    assert said in cause["detail"]
    job.complete()
    until_no_pods(cluster, namespace, job)


def is_named_before_it_leaves(job: SmallJob, reason: str, said: str) -> None:
    """The story of a worker that is taken away begins its end with what takes it. Its goodbye names that, unless it came first."""
    ended = ends(job)[0]
    facts = [each for each in story(job, name_of(ended)) if each["type"] in TOLD]
    assert [each["type"] for each in facts] == list(TOLD)
    taken, left, _ = facts
    assert taken["reason"] == reason
    assert left["taken"] in (reason, "")
    assert said in taken["why"]


TOLD = ("host.member_taken.v1", "member.left.v1", "host.exited.v1")


def until_no_pods(cluster: Cluster, namespace: str, job: SmallJob) -> None:
    job.until(lambda: not running(cluster, namespace), "no member's pod")


def test_a_worker_that_was_deleted_by_hand(
    cluster: Cluster, namespace: str, stack: PodStack, tmp_path: Path
) -> None:
    job = small_job(stack, tmp_path)
    begin(cluster, namespace, job)
    gone = pod_of(cluster, namespace, "worker")
    assert cluster.kubectl("-n", namespace, "delete", "pod", gone, "--wait=false").returncode == 0
    ends_as_planned(cluster, namespace, job, "killed", "its pod was deleted")
    is_named_before_it_leaves(job, "killed", "its pod was deleted")


BUDGET: dict[str, Any] = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "workers"},
    "spec": {"minAvailable": 2, "selector": {"matchLabels": {"rover-bus.io/role": "worker"}}},
}


def test_an_eviction_that_a_disruption_budget_refuses_and_then_allows(
    cluster: Cluster, namespace: str, stack: PodStack, tmp_path: Path
) -> None:
    job = small_job(stack, tmp_path)
    begin(cluster, namespace, job)
    made = cluster.kubectl("-n", namespace, "apply", "-f", "-", given=json.dumps(BUDGET))
    assert made.returncode == 0, made.stderr
    words = ("-n", namespace, "get", "pdb", "workers", "-o", "jsonpath={.status.currentHealthy}")
    job.until(lambda: cluster.kubectl(*words).stdout == "2", "a budget that counts both workers")
    name = pod_of(cluster, namespace, "worker")
    asked = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"

    def evict() -> str:
        done = cluster.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(asked))
        return done.stderr if done.returncode else ""

    assert "disruption budget" in evict()
    assert ends(job) == []
    eased = ("patch", "pdb", "workers", "--type=merge", "-p", '{"spec": {"minAvailable": 1}}')
    assert cluster.kubectl("-n", namespace, *eased).returncode == 0
    job.until(lambda: not evict(), "an eviction that is allowed")
    ends_as_planned(cluster, namespace, job, "evicted", "EvictionByEvictionAPI")
    is_named_before_it_leaves(job, "evicted", "EvictionByEvictionAPI")


def test_a_worker_without_memory_left(
    cluster: Cluster, namespace: str, stack: PodStack, tmp_path: Path
) -> None:
    program = find_example("dlrm/train.py")
    eater = tmp_path / "eater.py"
    eater.write_text(EATER.format(folder=str(Path(program).parent), program=str(program)))
    job = small_job(stack, tmp_path, inner=eater, worker_lines='memory = "512MiB"')
    job.submit()
    ends_as_planned(cluster, namespace, job, "out_of_memory", "OOMKilled")


RIVAL: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "rival"},
    "spec": {
        "priorityClassName": "more-urgent",
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "example.com/any", "resources": {"requests": {"cpu": "6"}}}],
    },
}


def test_a_member_that_the_scheduler_preempts(
    cluster: Cluster, namespace: str, stack: PodStack, tmp_path: Path
) -> None:
    made = cluster.kubectl("create", "priorityclass", "more-urgent", "--value=1000")
    assert made.returncode == 0, made.stderr
    job = small_job(stack, tmp_path, cores=4.0)
    begin(cluster, namespace, job)
    made = cluster.kubectl("-n", namespace, "create", "-f", "-", given=json.dumps(RIVAL))
    assert made.returncode == 0, made.stderr
    job.until(lambda: ends(job), "an end")
    gone = cluster.kubectl("-n", namespace, "delete", "pod", "rival", "--wait=false")
    assert gone.returncode == 0, gone.stderr
    ends_as_planned(cluster, namespace, job, "preempted", "PreemptionByScheduler")
    is_named_before_it_leaves(job, "preempted", "PreemptionByScheduler")


def test_members_whose_node_is_lost(
    cluster: Cluster, namespace: str, stack: PodStack, tmp_path: Path
) -> None:
    """Their pods may stay Terminating for ever: their incarnations are fenced, and count as gone."""
    with kubelet(cluster, "node-2", tmp_path) as second:
        job = small_job(stack, tmp_path)
        begin(cluster, namespace, job)
        second.kill()
        job.until(lambda: ends(job), "an end")
        until_as_planned(cluster, namespace, job, workers=2, servers=1)
        for ended in ends(job):
            cause = cause_of_end(job, ended)
            assert cause["reason"] == "host_lost"
            assert "DeletionByTaintManager" in cause["detail"]
        job.complete()
        until_no_pods(cluster, namespace, job)
    cluster.kubectl("delete", "node", "node-2", "--wait=false")
