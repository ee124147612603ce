"""A node's agent keeps what pods stage there: it stores checkpoints, and a server's next pod goes back to the node's memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kube_cluster import Cluster
from outside import ROVER
from patience import until
from pod_stacks import PodStack, pod_stack
from small_job import SmallJob


@pytest.fixture
def memory() -> Iterator[Path]:
    """The node's memory for staged cuts. What is left in it at the end belongs to no job."""
    with tempfile.TemporaryDirectory(prefix="rover-node-", dir="/dev/shm") as folder:
        yield Path(folder) / "jobs"


@pytest.fixture
def stack(cluster: Cluster, node: str, namespace: str, tmp_path: Path, memory: Path) -> Iterator[PodStack]:
    with pod_stack(cluster, namespace, tmp_path, "--node-memory", str(memory)) as made:
        yield made


@contextmanager
def node_agent(stack: PodStack, node: str, folder: Path, memory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The agent of the node, with the credentials that the operator made for its host."""
    secret = stack.home.auth / "creds" / f"daemon-{node}.creds"
    until(secret.exists, "the credentials of the node's host", 0.2)
    words = ["--url", stack.url, "--secret-file", str(secret), "--host", node]
    words += ["--dir", str(folder / "agent"), "--memory", str(memory), "--set", "hosts.sample_every=1s"]
    with (folder / "agent.log").open("ab") as log:
        running = subprocess.Popen([*ROVER, "node-agent", *words], stderr=log)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


@pytest.fixture
def agent(stack: PodStack, node: str, tmp_path: Path, memory: Path) -> Iterator[subprocess.Popen[bytes]]:
    with node_agent(stack, node, tmp_path, memory) as running:
        yield running


def job_of(stack: PodStack, folder: Path, servers: int = 1) -> SmallJob:
    return SmallJob(
        folder=folder,
        home=stack.home.root,
        rows=2_000,
        epochs=1,
        workers=1,
        servers=servers,
        checkpoint='path = "store"\nevery = "1s"',
    )


def test_a_servers_next_pod_goes_back_to_the_memory_of_its_node(
    cluster: Cluster, namespace: str, stack: PodStack, agent: object, tmp_path: Path, memory: Path
) -> None:
    """A server is killed by SIGKILL. Its job's directories are its own, and are gone with the job."""
    job = job_of(stack, tmp_path)
    job.submit()
    job.until(lambda: job.facts("checkpoint.ready"), "a checkpoint in storage")
    mounted = cluster.kubectl(
        *("-n", namespace, "get", "pods", "-l", "rover-bus.io/role=ps"),
        *("-o", "jsonpath={.items[0].spec.volumes[*].hostPath.path}"),
    ).stdout.split()
    (uid,) = {each["uid"] for each in job.facts("job.submitted")}
    assert mounted[-3:] == [f"{memory}/{uid}{end}" for end in ("", "-copies", "-parity")]
    os.kill(process_of(cluster, namespace, "ps"), signal.SIGKILL)
    job.until(lambda: job.facts("server.restored"), "its next pod")
    (restored,) = job.facts("server.restored")
    assert restored["source"] == "memory", restored
    job.complete()
    until(lambda: not list(memory.glob("*")), "memory without the job", 0.5)


def test_an_agent_that_was_killed_goes_on_where_it_was(
    cluster: Cluster, namespace: str, stack: PodStack, node: str, tmp_path: Path, memory: Path
) -> None:
    """Cuts wait for an agent; the next one finds what lies in the memory of the node."""
    job = job_of(stack, tmp_path)
    with node_agent(stack, node, tmp_path, memory) as first:
        job.submit()
        job.until(lambda: job.facts("checkpoint.ready"), "a checkpoint in storage")
        first.kill()
        first.wait()
    ready = len(job.facts("checkpoint.ready"))
    with node_agent(stack, node, tmp_path, memory) as second:
        job.until(lambda: len(job.facts("checkpoint.ready")) > ready, "another one, by the next agent")
        job.complete()
        until(lambda: not list(memory.glob("*")), "memory without the job", 0.5)
        second.terminate()
        assert second.wait(30) == 0, (tmp_path / "agent.log").read_text()


def process_of(cluster: Cluster, namespace: str, role: str) -> int:
    """The process of a pod's container, as the kubelet of these tests names it."""
    shown = cluster.kubectl("-n", namespace, "get", "pods", "-l", f"rover-bus.io/role={role}", "-o", "json")
    (pod,) = json.loads(shown.stdout)["items"]
    (status,) = pod["status"]["containerStatuses"]
    return int(status["containerID"].removeprefix("process://"))
