"""An agent on each node, by the chart: pods that really run, a server that is killed, and what a job and a release leave behind."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deleted_jobs import delete_in_time
from kube_chart import KEYS, Release, example, facts, kill, long_job, pods_of, remove_definition, values_here
from kube_cluster import Cluster
from patience import until

NAMESPACE = "rover-agents"
MEMORY = Path(f"/dev/shm/rover-{NAMESPACE}-rover")
GONE_S = 60.0  # an uninstallation, and the end of a namespace


@pytest.fixture(scope="module")
def release(
    cluster: Cluster, node: str, clicks: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    made = Release(cluster, NAMESPACE, tmp_path_factory.mktemp("chart"))
    assert cluster.kubectl("create", "namespace", made.namespace).returncode == 0
    done = made.install(values_here(clicks) | {"nodeAgent": {"mode": "daemonset"}})
    assert done.returncode == 0, done.stderr + made.told()
    yield made
    made.uninstall()
    remove_definition(cluster)
    shutil.rmtree(MEMORY, ignore_errors=True)


@pytest.fixture(scope="module")
def address(release: Release, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return release.address(tmp_path_factory.mktemp("person"))


def test_an_agent_runs_on_each_node_without_a_right_in_the_cluster(release: Release, node: str) -> None:
    [name] = release.pods("node-agent")
    pod = release.get("pod", name)
    assert pod["spec"]["nodeName"] == node
    [agent] = pod["spec"]["containers"]
    [memory] = pod["spec"]["initContainers"]
    assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert memory["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    mounted = {each["mountPath"] for each in agent["volumeMounts"]}
    assert not {each for each in mounted if "kubernetes.io" in each}, "no token for the API server"
    assert "rover-keys" not in json.dumps(pod["spec"])
    account = f"system:serviceaccount:{NAMESPACE}:rover-node-agent"
    may = release.cluster.kubectl("auth", "can-i", "--list", f"--as={account}", "-n", NAMESPACE).stdout
    assert not [each for each in ("secrets", "pods", "tokenreviews") if f"{each} " in may]
    jobs = MEMORY / "jobs"
    assert (jobs.stat().st_uid, jobs.stat().st_mode & 0o777) == (65532, 0o700)


def test_the_example_trains_to_its_end(release: Release, clicks: str) -> None:
    release.kubectl("apply", "-f", "-", given=example(clicks))
    release.until_condition("clicks", "Complete")
    release.kubectl("delete", "rj", "clicks", "--timeout=60s")


def test_a_server_that_was_killed_goes_back_to_the_memory_of_its_node_and_a_deleted_job_leaves_nothing(
    release: Release, address: list[str], clicks: str
) -> None:
    release.kubectl("apply", "-f", "-", given=long_job(clicks))
    until(lambda: facts(address, "long", "checkpoint.ready"), "a checkpoint", 0.5)
    kill(pods_of(release, "ps")[0])
    until(lambda: facts(address, "long", "server.restored"), "its next pod", 0.5)
    [restored] = facts(address, "long", "server.restored")
    assert restored["source"] == "memory", restored
    [uid] = {each["uid"] for each in facts(address, "long", "job.submitted")}
    assert (MEMORY / "jobs" / uid).is_dir()
    delete_in_time(release, address[1], "long", lambda: [str(each) for each in (MEMORY / "jobs").iterdir()])
    assert release.secrets() == [*KEYS, "rover-node-agent"], "no credential of a member"


def test_the_next_agent_of_a_node_goes_on_with_the_memory_that_is_there(
    release: Release, address: list[str], clicks: str
) -> None:
    """Its pod is deleted, as by a roll-out; the directory that its successor prepares is another user's by then."""
    release.kubectl("apply", "-f", "-", given=long_job(clicks))
    until(lambda: facts(address, "long", "checkpoint.ready"), "a checkpoint", 0.5)
    [former] = ready_agents(release)
    release.kubectl("delete", "pod", former, "--timeout=60s")
    until(
        lambda: set(ready_agents(release)) - {former},
        "the next agent",
        0.5,
        lambda: release.kubectl("get", "pods"),
    )
    ready = len(facts(address, "long", "checkpoint.ready"))
    until(lambda: len(facts(address, "long", "checkpoint.ready")) > ready, "one more checkpoint", 0.5)
    release.kubectl("delete", "rj", "long", "--timeout=60s")
    until(lambda: not release.pods("member"), "no pod of the job", 0.5)


def ready_agents(release: Release) -> list[str]:
    found = release.get("pods", "-l", "app.kubernetes.io/component=node-agent")["items"]
    ready = {"type": "Ready", "status": "True"}
    return [
        each["metadata"]["name"]
        for each in found
        if any(ready.items() <= one.items() for one in each["status"].get("conditions", []))
    ]


def test_uninstalled_with_a_job_running_and_its_namespace_deleted_both_end_soon(
    release: Release, address: list[str], clicks: str
) -> None:
    release.kubectl("apply", "-f", "-", given=long_job(clicks))
    until(lambda: facts(address, "long", "checkpoint.ready"), "a checkpoint", 0.5)
    began = time.monotonic()
    done = release.uninstall()
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began <= GONE_S
    assert release.secrets() == []
    assert release.get("pods")["items"] == []
    gone = release.cluster.kubectl("delete", "namespace", NAMESPACE, f"--timeout={GONE_S:.0f}s")
    assert gone.returncode == 0, gone.stderr
