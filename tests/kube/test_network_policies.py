"""The chart's NetworkPolicies against the connections that processes of pods really open: each is allowed, each permit is used."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kube_chart import Release, facts, long_job, pods_of, remove_definition, values_here
from kube_cluster import Cluster, kubelet
from network_policies import Edge, Permit, Place, Policies, look
from outside import rover
from patience import until

PAGE = {"web": {"enabled": True, "tls": "page-tls", "tokens": "page-tokens"}}


pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def release(cluster: Cluster, node: str, namespace: str, tmp_path: Path) -> Iterator[Release]:
    made = Release(cluster, namespace, tmp_path)
    yield made
    made.uninstall()
    remove_definition(cluster)


APART = """
import os, socket, time

if os.environ.get("ROVER_ROLE") == "worker":
    time.sleep(1.5)  # so long a start is worth spares, which reach the broker too

class Apart(socket.socket):
    def connect(self, address):
        if self.family == socket.AF_UNIX and address[:1] == "\\0":
            raise ConnectionRefusedError("an abstract name of another network namespace")
        return super().connect(address)

socket.socket = Apart
"""


def values_apart(clicks: str) -> dict[str, Any]:
    """Return values with members that have no way to one another but TCP.

    Pods of tests share the machine's network namespace, and with it the abstract names of sockets, by which a worker finds a server
    of its own host; between pods of a cluster these lead nowhere.
    """
    values = values_here(clicks) | {"spares": {"create": True}}
    spec = values["members"]["template"]["spec"]
    [made] = spec["initContainers"]
    script = f'"$@" && cat > {clicks}/sitecustomize.py <<"END"\n{APART}\nEND\n'
    made["command"] = ["sh", "-c", script, "sh", *made["command"]]
    spec["containers"][0]["env"] = [{"name": "PYTHONPATH", "value": clicks}]
    return values


class Watch:
    """What has been seen of a release until now, against the policies of its namespaces."""

    def __init__(self, release: Release, *others: str) -> None:
        self.cluster, self.namespaces = release.cluster, (release.namespace, *others)
        self.policies = Policies.of(self.cluster, self.namespaces)
        self.edges: set[Edge] = set()
        self.listening: set[tuple[Place, int]] = set()

    def unused(self) -> list[Permit]:
        """Look once more; return what is permitted and was not seen yet.

        What comes from outside of pods to another than the page is this test's or a probe's, and comes by the node.
        """
        seen = look(self.cluster, self.namespaces)
        self.edges |= {each for each in seen.edges if each.dialler or each.listener.name == "web"}
        self.listening |= seen.listening
        return [each for each in self.policies.permits if not any(each.covers(edge) for edge in self.edges)]

    def shown(self) -> str:
        lines = sorted({str(each) for each in self.edges})
        return "\n".join(["", *map(str, self.unused()), "seen:", *lines])

    def holds(self) -> None:
        """Nothing was refused, all that is permitted is used, and no port is open that nothing may reach."""
        until(lambda: not self.unused(), "a connection for each permit", 0.5, self.shown)
        assert {str(each) for each in self.edges if not self.policies.allow(each)} == set()
        permits = self.policies.permits
        idle = [each for each in self.listening if not any(permit.reaches(*each) for permit in permits)]
        assert {f"{place.name}:{port}" for place, port in idle} == set(), "listens, and nothing may connect"
        guarded = {place for place, _ in self.listening}
        assert {each.name for each in guarded if not self.policies.guards(each)} == set()


def open_page(release: Release) -> None:
    """Make the Secrets that the page needs."""
    folder = release.folder
    files = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=rover-web",
    ]
    subprocess.run([*made, *files], check=True, capture_output=True)
    tokens = folder / "tokens"
    assert rover("auth", "page-token", "ada", "--file", str(tokens)).returncode == 0
    pair = (f"--cert={folder / 'tls.crt'}", f"--key={folder / 'tls.key'}")
    release.kubectl("create", "secret", "tls", "page-tls", *pair)
    release.kubectl("create", "secret", "generic", "page-tokens", f"--from-file=tokens={tokens}")


def test_agents_beside_servers_a_page_and_jobs_in_a_namespace_of_their_own(
    cluster: Cluster, release: Release, clicks: str
) -> None:
    jobs = replace(release, namespace=f"{release.namespace}-jobs")
    assert cluster.kubectl("create", "namespace", jobs.namespace).returncode == 0
    open_page(release)
    done = release.install(values_apart(clicks) | PAGE | {"watchNamespaces": [jobs.namespace]})
    assert done.returncode == 0, done.stderr + release.told()
    jobs.kubectl("apply", "-f", "-", given=long_job(clicks, servers=2, copies=1))
    [page] = release.pods("web")
    with socket.create_connection((release.get("pod", page)["status"]["podIP"], 8443)):
        watch = Watch(release, jobs.namespace)
        watch.holds()
    to_broker = {f"{each} -> broker:4222" for each in ("master", "worker", "ps", "spare")}
    assert to_broker <= {*map(str, watch.edges)}
    kinds = {(each.dialler.name, each.listener.name) for each in watch.edges if each.dialler}
    assert {("worker", "ps"), ("ps", "ps"), ("web", "broker")} <= kinds
    jobs.kubectl("delete", "rj", "long", "--timeout=60s")


@pytest.mark.long
def test_an_agent_on_each_node_and_a_server_that_joins(
    cluster: Cluster, release: Release, clicks: str, tmp_path: Path
) -> None:
    """Agents copy from node to node; slots move from server to server."""
    (tmp_path / "kubelet").mkdir()
    with kubelet(cluster, "node-2", tmp_path / "kubelet"):
        done = release.install(values_apart(clicks) | {"nodeAgent": {"mode": "daemonset"}})
        assert done.returncode == 0, done.stderr + release.told()
        address = release.address(tmp_path)
        release.kubectl("apply", "-f", "-", given=growing_job(clicks))
        until(lambda: facts(address, "long", "checkpoint.ready"), "a checkpoint", 0.5)
        scaled = rover("scale", "long", "--servers", "2", "--no-wait", *address)
        assert scaled.returncode == 0, scaled.stderr
        watch = Watch(release)
        watch.holds()
        kinds = {(each.dialler.name, each.listener.name) for each in watch.edges if each.dialler}
        assert {("node-agent", "node-agent"), ("ps", "ps"), ("node-agent", "broker")} <= kinds
        assert len(pods_of(release, "ps")) == 2
        release.kubectl("delete", "rj", "long", "--timeout=60s")
    cluster.kubectl("delete", "node", "node-2", "--wait=false")


def growing_job(clicks: str) -> str:
    """Return a job whose servers people may add."""
    made: dict[str, Any] = json.loads(long_job(clicks, copies=1))
    made["spec"] |= {"servers": {"start": 1, "max_count": 4}, "plan": {"mode": "observe"}}
    return json.dumps(made)
