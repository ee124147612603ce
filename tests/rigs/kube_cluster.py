"""A real Kubernetes API server on loopback, or a cluster that is there, as tests use it: through kubectl."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from patience import until

START_S = 180.0
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}
IMAGE = (
    "--entrypoint",
    f"rover-bus:={Path(sys.executable).parent / 'rover'}",
)  # what the image of the chart begins with


@dataclass(frozen=True)
class Cluster:
    """A cluster. `command`: what stands for `kubectl`; `config`: of its administrator; `script`: what started it, where we did."""

    command: Sequence[str]
    environment: dict[str, str]
    config: Path
    script: Path | None = field(default=None)
    audit: Path | None = field(default=None)  # what service accounts asked for, where we keep that log

    def user(self) -> Path:
        """Return the kubeconfig of a user without rights."""
        return self._ours("a user of its own").with_name("user.kubeconfig")

    def helm(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run helm, as what started the cluster has it; without, the one on the path."""
        command = ("bash", str(self.script), "helm") if self.script else ("helm",)
        if self.script is None and shutil.which("helm") is None:
            pytest.skip("no helm on the path")
        return subprocess.run(
            [*command, *words],
            env=os.environ | self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_S,
        )

    def requests(self, account: str) -> Iterator[tuple[str, int]]:
        """Yield what a service account (NAMESPACE:NAME) asked for, as `verb resource`, each with the code of its answer."""
        if self.audit is None:
            pytest.skip("the cluster of ROVER_TEST_KUBECONFIG keeps no audit log for us")
        for line in self.audit.read_text().splitlines():
            each = json.loads(line)
            if each["user"]["username"] == f"system:serviceaccount:{account}" and "objectRef" in each:
                about = each["objectRef"]
                which = "/".join(filter(None, (about["resource"], about.get("subresource"))))
                yield f"{each['verb']} {which}", each.get("responseStatus", {}).get("code", 0)

    def fault(self, name: str) -> None:
        """Do something to the control plane: `restart-api`, `compact`."""
        self._ours(name)
        done = subprocess.run(
            ["bash", str(self.script), name],
            env=os.environ | self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _ours(self, what: str) -> Path:
        if self.script is None:
            pytest.skip(f"the cluster of ROVER_TEST_KUBECONFIG is not ours to change: {what}")
        return self.config

    def kubectl(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl; `given` is its standard input."""
        return subprocess.run(
            [*self.command, *words],
            input=given,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_S,
        )


@contextmanager
def kubelet(cluster: Cluster, name: str, run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a node whose pods are processes of this machine, until the `with` ends."""
    if cluster.script is None or os.geteuid() != 0:
        pytest.skip("no kubelet that runs pods as processes: it needs ROVER_KUBE and root")
    program = [sys.executable, str(cluster.script.with_name("kubelet.py"))]
    with (run / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *program,
                "--kubeconfig",
                str(cluster.config),
                "--node",
                name,
                "--run",
                str(run / "run"),
                *IMAGE,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: cluster.kubectl("get", "node", name).returncode == 0, "the node", 0.2)
        yield process
    finally:
        process.terminate()
        process.wait(START_S)


def free_ports(count: int) -> int:
    """Return the first of some ports in a row that nothing listens on now; processes that look at once begin apart."""
    for number in range(10_000 // count):
        first = 20_000 + (os.getpid() + number) * count % 10_000
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise AssertionError("no ports are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
