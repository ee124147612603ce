"""`rover doctor --namespace`: what an operator needs is what the chart grants, and what an account lacks is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kube_chart import documents, rendered
from kube_cluster import Cluster
from outside import rover

from rover_bus.kube.rights import needs

POLICY = "rover-default-answers"
VERBS = {(need.group, need.resource, verb, need.name) for need in needs(POLICY) for verb in need.verbs}


@pytest.mark.parametrize("values", [{}, {"clusterWide": True}], ids=("default", "cluster-wide"))
def test_what_is_needed_is_what_the_chart_grants(
    values: dict[str, Any], cluster: Cluster, tmp_path: Path
) -> None:
    objects = documents(rendered(cluster, values, tmp_path).stdout)
    bound = {
        each["roleRef"]["name"]
        for each in objects
        if each["kind"].endswith("RoleBinding")
        and any(subject["name"] == "rover-operator" for subject in each["subjects"])
    }
    granted = {
        (group, resource, verb, (rule.get("resourceNames") or [""])[0])
        for each in objects
        if each["kind"] in ("Role", "ClusterRole") and each["metadata"]["name"] in bound
        for rule in each["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == VERBS


def test_what_an_account_may_not_do_is_named(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """The administrator may do all of it, `user` nothing."""
    where = ("--dir", str(tmp_path / "state"), "--namespace", namespace, "--plan-answers", POLICY)
    said = rover("doctor", *where, "--kubeconfig", str(cluster.config)).stdout
    assert f"ok    it may do all that an operator does in {namespace}" in said
    done = rover("doctor", *where, "--kubeconfig", str(cluster.user()))
    assert done.returncode == 1
    lines = [line for line in done.stdout.splitlines() if "it may not" in line]
    assert len(lines) == len(VERBS)
    assert any(f"it may not patch pods/resize in {namespace}:" in line for line in lines)
    assert any("it may not get namespaces kube-system:" in line for line in lines)
    absent = rover("doctor", *where, "--kubeconfig", str(tmp_path / "absent"))
    assert (absent.returncode, "cannot be asked for rights" in absent.stdout) == (1, True)
