"""A release of the Helm chart as tests install it: on nodes whose pods are processes here, with clicks that each pod makes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kube_cluster import Cluster

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "deploy" / "helm" / "rover"
DATA = "/usr/share/rover"  # where the image has clicks to try with
ROWS = 4_000


def make_clicks(folder: str) -> list[str]:
    """Return what writes clicks into a folder: the same ones each time."""
    files = [f"{folder}/clicks_train.tsv", f"{folder}/clicks_eval.tsv"]
    make = [sys.executable, str(REPOSITORY / "examples" / "clicks.py")]
    return [*make, *files, "--rows", str(ROWS), "--eval-rows", "1000"]


def values_here(folder: str = DATA) -> dict[str, Any]:
    """What stands for the image on this machine: its Python, and its clicks, which are made in each pod."""
    mount = {"name": "clicks", "mountPath": folder}
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec = {
        "initContainers": [
            {
                "name": "clicks",
                "image": "rover-bus:any",
                "command": make_clicks(folder),
                "securityContext": security,
                "volumeMounts": [mount],
            }
        ],
        "containers": [{"name": "main", "volumeMounts": [mount]}],
        "volumes": [{"name": "clicks", "emptyDir": {}}],
    }
    return {
        "image": {"python": sys.executable},
        "nats": {"store": {"claim": False}},
        "members": {"template": {"spec": spec}},
    }


@dataclass(frozen=True)
class Release:
    """One release. `folder`: for its values."""

    cluster: Cluster
    namespace: str
    folder: Path
    name: str = "rover"

    def install(self, values: dict[str, Any], *words: str) -> subprocess.CompletedProcess[str]:
        """Install it, or upgrade it, and wait until all of it is ready."""
        file = self.folder / "values.json"
        file.write_text(json.dumps(values))
        waited = ("--wait", "--timeout", "240s", "-f", str(file), *words)
        return self.cluster.helm("upgrade", "--install", self.name, str(CHART), "-n", self.namespace, *waited)

    def uninstall(self) -> subprocess.CompletedProcess[str]:
        return self.cluster.helm("uninstall", self.name, "-n", self.namespace, "--wait", "--timeout", "240s")

    def kubectl(self, *words: str, given: str = "") -> str:
        """What kubectl prints of its namespace; the test fails where it refuses."""
        done = self.cluster.kubectl("-n", self.namespace, *words, given=given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def pods(self, component: str) -> list[str]:
        """Return the names of the pods of one component."""
        found = self.get("pods", "-l", f"app.kubernetes.io/component={component}")["items"]
        return [each["metadata"]["name"] for each in found]
