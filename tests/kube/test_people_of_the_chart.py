"""What a person may do who is bound to the chart's viewer role: read all of a job, change nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kube_chart import documents, rendered
from kube_cluster import Cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "kube" / "clicks.yaml"
READS = (
    ("get", "roverjobs"),
    ("get", "rj", "clicks", "-o", "yaml"),
    ("describe", "rj", "clicks"),
    ("get", "pods"),
    ("get", "events"),
)
CHANGES = {
    "suspend a job": ("patch", "rj", "clicks", "--type=merge", "-p", '{"spec": {"suspend": true}}'),
    "write a status": (
        *("patch", "rj", "clicks", "--subresource=status", "--type=merge"),
        *("-p", '{"status": {"state": "Complete"}}'),
    ),
    "mark a job": ("annotate", "rj", "clicks", "a=b"),
    "delete a job": ("delete", "rj", "clicks", "--wait=false"),
    "make a pod": ("run", "mine", "--image=example.com/any"),
    "read a credential": ("get", "secrets"),
    "write a setting": ("create", "configmap", "mine"),
}


@pytest.fixture
def viewer(installed: Cluster, namespace: str, tmp_path: Path) -> Cluster:
    """The cluster as its user sees it, who is a viewer of a namespace with a RoverJob."""
    made = rendered(installed, {}, tmp_path)
    (role,) = [each for each in documents(made.stdout) if each["metadata"]["name"].endswith("-viewer")]
    bound = ("create", "rolebinding", "people", f"--clusterrole={role['metadata']['name']}", "--user=user")
    for done in (
        installed.kubectl("apply", "-f", "-", given=json.dumps(role)),
        installed.kubectl("-n", namespace, *bound),
        installed.kubectl("-n", namespace, "apply", "-f", str(EXAMPLE)),
    ):
        assert done.returncode == 0, done.stderr
    config = installed.user()
    return Cluster(installed.command, installed.environment | {"KUBECONFIG": str(config)}, config)


def test_a_viewer_reads_all_of_a_job_and_changes_nothing(
    viewer: Cluster, installed: Cluster, namespace: str
) -> None:
    before = installed.kubectl("-n", namespace, "get", "rj", "clicks", "-o", "json").stdout
    for words in READS:
        done = viewer.kubectl("-n", namespace, *words)
        assert done.returncode == 0, (words, done.stderr)
    for what, words in CHANGES.items():
        done = viewer.kubectl("-n", namespace, *words)
        assert done.returncode != 0, what
        assert "forbidden" in done.stderr.lower(), (what, done.stderr)
    assert installed.kubectl("-n", namespace, "get", "rj", "clicks", "-o", "json").stdout == before
