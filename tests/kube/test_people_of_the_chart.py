"""What people may do who are bound to the chart's roles: a viewer reads all of a job, an approver answers plans in the own name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kube_chart import documents, rendered
from kube_cluster import Cluster
from patience import until

from rover_bus.kube.plan_answers import answer_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "kube" / "clicks.yaml"
READS = (
    ("get", "roverjobs"),
    ("get", "rj", "clicks", "-o", "yaml"),
    ("describe", "rj", "clicks"),
    ("get", "pods"),
    ("get", "events"),
    ("get", "plananswers"),
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
    "mark an answer": ("annotate", "plananswer", "theirs", "a=b"),
    "settle an answer": (
        *("patch", "plananswer", "theirs", "--subresource=status", "--type=merge"),
        *("-p", '{"status": {"state": "Refused"}}'),
    ),
    "take an answer back": ("delete", "plananswer", "theirs", "--wait=false"),
}


def answer(name: str, by: str) -> str:
    body = answer_of("clicks", 3, "Approve", by)
    return json.dumps({**body, "metadata": {"name": name}})


@pytest.fixture
def objects(installed: Cluster, tmp_path: Path) -> list[dict[str, Any]]:
    """What the chart makes."""
    return documents(rendered(installed, {}, tmp_path).stdout)


@pytest.fixture
def team(installed: Cluster, namespace: str) -> Cluster:
    """The cluster as its administrator sees it: a namespace with a RoverJob, and an answer of another person."""
    for done in (
        installed.kubectl("-n", namespace, "apply", "-f", str(EXAMPLE)),
        installed.kubectl("-n", namespace, "create", "-f", "-", given=answer("theirs", "ann")),
    ):
        assert done.returncode == 0, done.stderr
    return installed


def bound(team: Cluster, namespace: str, objects: list[dict[str, Any]], role: str) -> Cluster:
    """Return the cluster as its user sees it, who is bound to a role of the chart in a namespace."""
    (made,) = [
        each
        for each in objects
        if each["kind"] == "ClusterRole" and each["metadata"]["name"].endswith(f"-{role}")
    ]
    words = ("create", "rolebinding", role, f"--clusterrole={made['metadata']['name']}", "--user=user")
    for done in (
        team.kubectl("apply", "-f", "-", given=json.dumps(made)),
        team.kubectl("-n", namespace, *words),
    ):
        assert done.returncode == 0, done.stderr
    config = team.user()
    return Cluster(team.command, team.environment | {"KUBECONFIG": str(config)}, config)


@pytest.fixture
def policy(team: Cluster, namespace: str, objects: list[dict[str, Any]]) -> Iterator[None]:
    """The chart's policy of answers, in force."""
    made = [each for each in objects if each["kind"].startswith("ValidatingAdmissionPolicy")]
    assert len(made) == 2
    given = "\n---\n".join(map(json.dumps, made))
    assert team.kubectl("apply", "-f", "-", given=given).returncode == 0
    try:
        tried = ("-n", namespace, "create", "--dry-run=server", "-f", "-")
        until(lambda: team.kubectl(*tried, given=answer("probe", "x")).returncode != 0, "the policy", 0.2)
        yield
    finally:
        team.kubectl("delete", "-f", "-", given=given)


def test_a_viewer_reads_all_of_a_job_and_changes_nothing(
    team: Cluster, objects: list[dict[str, Any]], namespace: str
) -> None:
    viewer = bound(team, namespace, objects, "viewer")
    only_reads(viewer, team, namespace)
    done = viewer.kubectl("-n", namespace, "create", "-f", "-", given=answer("mine", "user"))
    assert "forbidden" in done.stderr.lower(), done.stderr


@pytest.mark.usefixtures("policy")
def test_an_approver_reads_what_a_viewer_does_and_answers_in_the_own_name_alone(
    team: Cluster, objects: list[dict[str, Any]], namespace: str
) -> None:
    approver = bound(team, namespace, objects, "approver")
    only_reads(approver, team, namespace)
    create = ("-n", namespace, "create", "-f", "-")
    done = approver.kubectl(*create, given=answer("forged", "ann"))
    assert done.returncode != 0
    assert "spec.by is ann, and you are user: a plan is answered in the own name" in done.stderr
    impersonated = approver.kubectl("--as=ann", *create, "--validate=false", given=answer("forged", "ann"))
    assert "cannot impersonate" in impersonated.stderr
    assert approver.kubectl(*create, given=answer("mine", "user")).returncode == 0
    change = ("--type=merge", "-p", '{"spec": {"answer": "Reject"}}')
    assert (
        "forbidden"
        in approver.kubectl("-n", namespace, "patch", "plananswer", "mine", *change).stderr.lower()
    )
    elsewhere = approver.kubectl("-n", "default", "create", "-f", "-", given=answer("mine", "user"))
    assert "forbidden" in elsewhere.stderr.lower()
    shown = json.loads(team.kubectl("-n", namespace, "get", "plananswers", "-o", "json").stdout)["items"]
    assert {each["metadata"]["name"]: each["spec"]["by"] for each in shown} == {
        "theirs": "ann",
        "mine": "user",
    }


def only_reads(person: Cluster, team: Cluster, namespace: str) -> None:
    """All reads are answered, and all changes are refused."""
    before = team.kubectl("-n", namespace, "get", "rj,plananswers", "-o", "json").stdout
    for words in READS:
        done = person.kubectl("-n", namespace, *words)
        assert done.returncode == 0, (words, done.stderr)
    for what, words in CHANGES.items():
        done = person.kubectl("-n", namespace, *words)
        assert done.returncode != 0, what
        assert "forbidden" in done.stderr.lower(), (what, done.stderr)
    assert team.kubectl("-n", namespace, "get", "rj,plananswers", "-o", "json").stdout == before
