"""A definition or a namespace is deleted while no operator runs: the lines of the manual free what waits for our finalizers."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube_chart import DEFINITION, REPOSITORY, remove_definition, roverjob
from kube_cluster import Cluster
from patience import until

from rover_bus.kube.crd import definitions
from rover_bus.kube.pods import FINALIZER as OF_PODS
from rover_bus.kube.pods import OF_MEMBERS
from rover_bus.kube.roverjobs import FINALIZER as OF_JOBS

GONE_S = 60


@pytest.fixture
def job(cluster: Cluster, namespace: str) -> Iterator[str]:
    """A RoverJob and a pod that an operator left: their finalizers are ours."""
    for each in definitions():
        applied = cluster.kubectl("apply", "-f", "-", given=json.dumps(each))
        assert applied.returncode == 0, applied.stderr
    held = json.loads(roverjob("left"))
    held["metadata"]["finalizers"] = [OF_JOBS]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "left-worker-0", "labels": OF_MEMBERS, "finalizers": [OF_PODS]},
        "spec": {
            "containers": [{"name": "main", "image": "any"}],
            "schedulingGates": [{"name": "example.com/never"}],
        },
    }
    for each in (held, pod):
        until(
            lambda each=each: (
                cluster.kubectl("-n", namespace, "apply", "-f", "-", given=json.dumps(each)).returncode == 0
            ),
            f"the {each['kind']}",
            0.5,
        )
    yield "left"
    remove_definition(cluster)


def line_of_the_manual(begins: str, namespace: str) -> str:
    """Return a command that the manual shows, with the namespace of this test for that of the release."""
    manual = (REPOSITORY / "docs" / "kubernetes-install.md").read_text()
    [line] = [each.strip() for each in manual.splitlines() if each.startswith(f"    {begins}")]
    return (
        line.replace("--namespace ads ", "")
        .replace("--namespace rover", f"--namespace {namespace}")
        .replace("-n rover", f"-n {namespace}")
    )


def run(cluster: Cluster, line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line in a shell that has `kubectl` and `rover`, and this cluster for the one of the user."""
    (folder / "bin").mkdir()
    kubectl = folder / "bin" / "kubectl"
    kubectl.write_text(f'#!/bin/bash\nexec {shlex.join(cluster.command)} "$@"\n')
    kubectl.chmod(0o700)
    found = os.environ | cluster.environment
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = line.replace("~/.kube/config", str(cluster.config))
    return subprocess.run(
        ["bash", "-c", given],
        env=found | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=GONE_S,
    )


@pytest.mark.parametrize("begins", ["rover kube clean", "for kind in rj"])
def test_a_definition_and_a_namespace_that_were_deleted_without_an_operator_go_by_one_line(
    cluster: Cluster, namespace: str, job: str, begins: str, tmp_path: Path
) -> None:
    def is_there(*words: str) -> bool:
        return cluster.kubectl("get", *words).returncode == 0

    for words in (("crd", DEFINITION), ("namespace", namespace)):
        deleted = cluster.kubectl("delete", *words, "--wait=false")
        assert deleted.returncode == 0, deleted.stderr
    waits = cluster.kubectl("wait", "--for=delete", f"crd/{DEFINITION}", "--timeout=3s")
    assert waits.returncode != 0, "it hangs"
    assert is_there("rj", job, "-n", namespace)
    assert is_there("pod", "left-worker-0", "-n", namespace)
    done = run(cluster, line_of_the_manual(begins, namespace), tmp_path)
    assert done.returncode == 0, done.stderr
    until(lambda: not is_there("crd", DEFINITION), "the definition is gone", 0.5)
    until(lambda: not is_there("namespace", namespace), "the namespace is gone", 0.5)
