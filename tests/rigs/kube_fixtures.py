"""A real Kubernetes API server for the rings that run pods (tests/kube, tests/upgrade); without one they skip, and say why.

`ROVER_TEST_KUBECONFIG` names a cluster that is there (`kubectl` is on the path); `ROVER_KUBE`, or `shared/kube` beside the
checkout, holds `kube.sh`, which starts a control plane on loopback. A plugin of `tests/conftest.py`: one cluster a session.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube_cluster import AUDIT_POLICY, START_S, Cluster, free_ports, kubelet
from patience import until

BESIDE = Path(__file__).parents[3] / "shared" / "kube"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if config := os.environ.get("ROVER_TEST_KUBECONFIG"):
        yield Cluster(("kubectl",), {"KUBECONFIG": config}, Path(config))
        return
    script = Path(os.environ.get("ROVER_KUBE") or BESIDE) / "kube.sh"
    if not script.exists():
        pytest.skip(
            "no Kubernetes: name a cluster by ROVER_TEST_KUBECONFIG, or a folder with kube.sh by ROVER_KUBE"
        )
    run = tmp_path_factory.mktemp("kube")
    beside = tmp_path_factory.mktemp("audit")  # `kube.sh start` makes its own folder empty
    policy, audit = beside / "policy.json", beside / "log"
    policy.write_text(json.dumps(AUDIT_POLICY))
    environment = {
        "RUN": str(run),
        "PORT": str(free_ports(7)),
        "KUBECONFIG": str(run / "admin.kubeconfig"),
        "APISERVER_ARGS": f"--audit-policy-file={policy} --audit-log-path={audit}",
    }
    try:
        with (run / "start.log").open("w") as log:
            started = subprocess.run(
                ["bash", str(script), "start"],
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
                timeout=START_S,
            )
        assert started.returncode == 0, (run / "start.log").read_text()
        yield Cluster(("bash", str(script), "kubectl"), environment, run / "admin.kubeconfig", script, audit)
    finally:
        subprocess.run(
            ["bash", str(script), "stop"], env=os.environ | environment, check=False, timeout=START_S
        )


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    """The cluster, with our resources; tests of the chart take them away."""
    from rover_bus.kube.crd import definitions  # other rings load this file too

    for each in definitions():
        applied = cluster.kubectl("apply", "-f", "-", given=json.dumps(each))
        assert applied.returncode == 0, applied.stderr
        name = each["metadata"]["name"]
        waited = cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=60s")
        assert waited.returncode == 0, waited.stderr
    return cluster


@pytest.fixture(scope="session")
def node(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node whose pods run as processes of this machine; its name."""
    with kubelet(cluster, "node-1", tmp_path_factory.mktemp("kubelet")):
        yield "node-1"


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of one test, in which pods can be made; those that it leaves hold no room of the nodes that others share."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    assert cluster.kubectl("create", "namespace", name).returncode == 0
    account = ("-n", name, "get", "serviceaccount", "default")
    until(lambda: cluster.kubectl(*account).returncode == 0, "the account of the namespace's pods", 0.2)
    yield name
    left = cluster.kubectl("-n", name, "get", "pods", "-o", "name").stdout.split()
    if left:
        free = json.dumps({"metadata": {"finalizers": None}})
        cluster.kubectl("-n", name, "patch", *left, "--type=merge", "-p", free)
        cluster.kubectl("-n", name, "delete", *left, "--grace-period=0", "--force", "--ignore-not-found")
