"""A release of the Helm chart as tests install it: on nodes whose pods are processes here, with clicks that each pod makes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from kube_cluster import Cluster
from outside import rover
from patience import until

from rover_bus.auth.key_folder import PARTS
from rover_bus.kube.crd import definitions
from rover_bus.kube.object import API_VERSION, KIND

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "deploy" / "helm" / "rover"
DATA = "/usr/share/rover"  # where the image has clicks to try with
ROWS = 4_000
KEYS = ["rover-keys", *sorted(f"rover-keys-{process}" for process in PARTS)]  # Secrets of a release
DEFINITION, ANSWERS_DEFINITION = DEFINITIONS = [each["metadata"]["name"] for each in definitions()]


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
        "spares": {
            "create": False
        },  # on a slow machine any worker would have some: tests that mean them switch them on
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

    def conditions(self, name: str) -> dict[str, str]:
        """What a RoverJob says of itself, by type."""
        found = self.get("rj", name).get("status", {}).get("conditions", [])
        return {each["type"]: each["status"] for each in found}

    def until_condition(self, name: str, kind: str) -> None:
        """Wait until a RoverJob's condition is True."""
        until(
            lambda: self.conditions(name).get(kind) == "True",
            kind,
            0.5,
            lambda: self.kubectl("describe", "rj", name) + self.kubectl("get", "pods,events"),
        )

    def secrets(self) -> list[str]:
        """Return the names of those that are not helm's."""
        found = [each["metadata"]["name"] for each in self.get("secrets")["items"]]
        return sorted(each for each in found if not each.startswith("sh.helm."))

    def told(self) -> str:
        """What there is to say of an installation that failed."""
        words = (("get", "events"), ("logs", "job/rover-prepare"), ("get", "pods"))
        return "".join(self.cluster.kubectl("-n", self.namespace, *each).stdout for each in words)

    def address(self, folder: Path) -> list[str]:
        """How a person outside reaches the broker."""
        file = folder / "operator.creds"
        words = ("--namespace", self.namespace, "--role", "operator", "--out", str(file))
        made = rover("kube", "credentials", *words, KUBECONFIG=str(self.cluster.config))
        assert made.returncode == 0, made.stderr
        brokers = [self.get("pod", pod)["status"]["podIP"] for pod in self.pods("broker")]
        return ["--url", ",".join(f"tls://{each}:4222" for each in brokers), "--secret-file", str(file)]


def remove_definition(cluster: Cluster) -> None:
    """Take our resources away, with what other tests left of it: no operator is there that would let their objects go."""
    listed = cluster.kubectl("get", "rj", "--all-namespaces", "-o", "json")
    for each in json.loads(listed.stdout)["items"] if listed.returncode == 0 else ():
        about = each["metadata"]
        patch = ("--type=merge", "-p", '{"metadata": {"finalizers": null}}')
        cluster.kubectl("-n", about["namespace"], "patch", "rj", about["name"], *patch)
    gone = cluster.kubectl("delete", "crd", *DEFINITIONS, "--ignore-not-found", "--timeout=60s")
    assert gone.returncode == 0, gone.stderr


def listed(address: list[str]) -> list[dict[str, Any]]:
    done = rover("jobs", *address, "-o", "json")
    assert done.returncode == 0, done.stderr
    jobs: list[dict[str, Any]] = json.loads(done.stdout)
    return jobs


def state_of(address: list[str], name: str) -> dict[str, Any]:
    return next((each for each in listed(address) if each["job"] == name), {"committed": 0, "state": ""})


def roverjob(name: str, **spec: Any) -> str:
    """Return a RoverJob, with these keys beside those that it must have."""
    plain = {"program": ["dlrm"], "data": {"train": "t.csv", "batch_size": 64}}
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": plain | spec}
    return json.dumps(body)


def example(clicks: str) -> str:
    return (REPOSITORY / "examples" / "kube" / "clicks.yaml").read_text().replace(DATA, clicks)


def conditions(release: Release, name: str) -> dict[str, str]:
    found = release.get("rj", name).get("status", {}).get("conditions", [])
    return {each["type"]: each["status"] for each in found}


def secrets(release: Release) -> list[str]:
    """Return the names of those that are not helm's."""
    found = [each["metadata"]["name"] for each in release.get("secrets")["items"]]
    return [each for each in found if not each.startswith("sh.helm.")]


def facts(address: list[str], job: str, kind: str) -> list[dict[str, Any]]:
    """Return the bodies of a job's facts of a kind, in order; none of a job that is not known yet."""
    done = rover("events", job, "-k", kind, "--json", *address)
    return [json.loads(line)["body"] for line in done.stdout.splitlines()]


def long_job(clicks: str, servers: int = 1, **checkpoint: Any) -> str:
    """Return a job that ends when a test ends it, and takes a cut each second."""
    data = {"train": f"{clicks}/clicks_train.tsv", "batch_size": 16, "epochs": 1_000}
    spec = {"data": data | {"schema": {"format": "criteo"}}, "checkpoint": {"every": "1s"} | checkpoint}
    return roverjob("long", workers={"count": 1}, servers={"count": servers}, **spec)


def pods_of(release: Release, role: str) -> list[dict[str, Any]]:
    """Return the pods of a role that run."""
    words = ("-l", f"rover-bus.io/role={role}", "--field-selector", "status.phase=Running")
    found: list[dict[str, Any]] = release.get("pods", *words)["items"]
    return found


def kill(pod: dict[str, Any]) -> None:
    """Kill a member by SIGKILL."""
    [status] = [each for each in pod["status"]["containerStatuses"] if each["name"] == "main"]
    os.kill(int(status["containerID"].removeprefix("process://")), signal.SIGKILL)


def rendered(cluster: Cluster, values: dict[str, Any], folder: Path) -> Any:
    """Return what helm makes of values, as a process that has ended."""
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    named = ("template", "rover", str(CHART), "-n", "default", "--kube-version", "1.36.0")
    return cluster.helm(*named, "-f", str(file))


def documents(text: str) -> list[dict[str, Any]]:
    """Return the objects of a rendered chart."""
    found = [
        msgspec.yaml.decode(each, type=dict[str, Any] | None)
        for each in re.split(r"^---$", text, flags=re.MULTILINE)
    ]
    return [each for each in found if each]


def rules_of(text: str) -> list[dict[str, list[str]]]:
    """Return every rule of a rendered chart's roles."""
    roles = [each for each in documents(text) if each["kind"] in ("Role", "ClusterRole")]
    return [rule for role in roles for rule in role["rules"]]
