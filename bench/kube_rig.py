"""A Kubernetes control plane for kube.py: started on loopback with an audit log of one user's requests, with fake nodes.

`ROVER_KUBE` names the folder of `kube.sh`, which starts it (as for tests/kube). The audit log is the judge of the bench: what the
operator asked, and when the API server received it, by one clock with the bench.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

USER = "user"  # a user of the control plane without rights of its own, by whom our requests are known
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [USER]}, {"level": "None"}],
}
PORTS = 7
START_S = 180.0


@dataclass(frozen=True, slots=True)
class Request:
    """A request of ours, as the audit log has it. `at_s`: when the API server received it, Unix seconds."""

    at_s: float
    verb: str
    resource: str
    name: str
    code: int


class ControlPlane:
    """A control plane. `run`: its folder."""

    def __init__(self, run: Path) -> None:
        folder = os.environ.get("ROVER_KUBE")
        if not folder:
            raise SystemExit("no Kubernetes: name the folder of kube.sh by ROVER_KUBE")
        self._run, self._script = run / "kube", str(Path(folder) / "kube.sh")
        policy, self._log = run / "policy.json", run / "audit.log"
        policy.write_text(json.dumps(POLICY))
        arguments = f"--audit-policy-file={policy} --audit-log-path={self._log}"
        given = {"RUN": str(self._run), "PORT": str(_free_ports()), "APISERVER_ARGS": arguments}
        self._environment = os.environ | given | {"KUBECONFIG": str(self.config("admin"))}

    def config(self, user: str) -> Path:
        """Return the kubeconfig of a user."""
        return self._run / f"{user}.kubeconfig"

    def call(self, *words: str, given: str = "") -> str:
        """Run kube.sh. Raises CalledProcessError."""
        done = subprocess.run(
            ["bash", self._script, *words],
            env=self._environment,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_S,
        )
        if done.returncode:
            raise SystemExit(f"kube.sh {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self) -> None:
        """Start it; what its programs write goes to files, so that nothing waits for the end of a pipe."""
        with (self._run.parent / "start.log").open("w") as log:
            command = ["bash", self._script, "start"]
            subprocess.run(
                command, env=self._environment, stdout=log, stderr=log, check=True, timeout=START_S
            )
        binding = ("create", "clusterrolebinding", USER, "--clusterrole=cluster-admin", f"--user={USER}")
        self.call("kubectl", *binding)

    def apply(self, objects: Sequence[dict[str, Any]]) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.call("kubectl", "create", "-f", "-", given=json.dumps(listed))

    def get(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.call("kubectl", "get", *words, "-o", "json"))["items"]
        return found

    def requests(self, since_s: float = 0.0) -> Iterator[Request]:
        """Yield our requests, those from a second on, in the order of their answers; a watch when it was opened."""
        with self._log.open() as lines:
            for line in lines:
                each = json.loads(line)
                if each["verb"] == "watch" and each["stage"] != "ResponseStarted":
                    continue
                at_s = datetime.fromisoformat(each["requestReceivedTimestamp"]).timestamp()
                about = each.get("objectRef", {})
                which = "/".join(filter(None, (about.get("resource", ""), about.get("subresource", ""))))
                if at_s >= since_s:
                    code = each.get("responseStatus", {}).get("code", 0)
                    yield Request(at_s, each["verb"], which, about.get("name", ""), code)


@contextmanager
def control_plane(run: Path, nodes: int) -> Iterator[ControlPlane]:
    """A control plane with fake nodes, until the block ends."""
    made = ControlPlane(run)
    try:
        made.start()
        if nodes:
            made.apply([_node(number) for number in range(nodes)])
        yield made
    finally:
        made.call("stop")


def node_name(number: int) -> str:
    return f"fake-{number:03}"


def _node(number: int) -> dict[str, Any]:
    name = node_name(number)
    metadata = {
        "name": name,
        "annotations": {"kwok.x-k8s.io/node": "fake"},
        "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def _free_ports() -> int:
    for first in range(30_000, 32_000, PORTS):
        if all(_is_free(port) for port in range(first, first + PORTS)):
            return first
    raise SystemExit("no ports are free for a control plane")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
