"""A whole job whose plan waits: a person with a kubeconfig alone answers it, and the job's history names this person."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kube_chart import documents, rendered
from kube_cluster import Cluster
from object_jobs import apply_job, status_of
from outside import rover
from patience import until
from pod_stacks import PodStack, pod_stack
from small_job import SmallJob
from waiting_plan import PLAN, propose

from rover_bus.kube.name_policy import SETTLES_S

POLICY = "rover-default-answers"


@pytest.fixture
def stack(cluster: Cluster, node: str, namespace: str, tmp_path: Path) -> Iterator[PodStack]:
    """A stack whose members are pods, and whose operator is told that a policy pins names."""
    with pod_stack(cluster, namespace, tmp_path, "--plan-answers", POLICY) as made:
        yield made


@pytest.fixture
def approver(installed: Cluster, namespace: str, tmp_path: Path) -> Iterator[Cluster]:
    """The cluster as `user` sees it, who is bound to the chart's approver; its policy is there."""
    objects = documents(rendered(installed, {}, tmp_path).stdout)
    made = [
        each
        for each in objects
        if "ValidatingAdmissionPolicy" in each["kind"] or each["metadata"]["name"].endswith("-approver")
    ]
    given = "\n---\n".join(map(json.dumps, made))
    applied = installed.kubectl("apply", "-f", "-", given=given)
    assert applied.returncode == 0, applied.stderr
    role = ("--clusterrole=rover-default-approver", "--user=user")
    bound = installed.kubectl("-n", namespace, "create", "rolebinding", "people", *role)
    assert bound.returncode == 0, bound.stderr
    time.sleep(SETTLES_S)  # a name from before then proves nothing
    config = installed.user()
    yield Cluster(installed.command, installed.environment | {"KUBECONFIG": str(config)}, config)
    installed.kubectl("delete", "-f", "-", given=given)


def test_a_plan_is_rejected_and_the_next_one_approved_by_objects(
    installed: Cluster, namespace: str, stack: PodStack, approver: Cluster, tmp_path: Path
) -> None:
    job = SmallJob(
        folder=tmp_path,
        home=stack.home.root,
        rows=4_000,
        epochs=1,
        workers=0,
        start=1,
        servers=1,
        checkpoint="",
        top='plan = { mode = "approve", window = "5m" }',
    )
    apply_job(installed, namespace, job)

    def shown() -> dict[str, Any]:
        return status_of(approver, namespace, job)

    def answered(word: str, plan: int) -> None:
        asyncio.run(propose(stack.home.root, job.name, plan))
        until(lambda: (shown().get("plan") or {}).get("state") == "Waits", "a plan that waits", 0.5)
        done = rover("kube", word, job.name, "-n", namespace, KUBECONFIG=str(approver.config))
        assert done.returncode == 0, done.stderr

    until(lambda: shown().get("state") == "Running", "Running", 0.5)
    answered("reject", PLAN)
    until(lambda: job.facts("plan.refused"), "the master's word on it")
    answered("approve", PLAN + 1)
    until(lambda: shown().get("workers") == 2, "two workers", 0.5)
    (refused,) = job.facts("plan.refused")
    (passed,) = [each for each in job.facts("plan.applied") if each["plan"] == PLAN + 1]
    assert refused["constant"] == "rejected"
    assert passed["approved_by"].startswith(f"kubernetes/{namespace}/")
    assert passed["approved_by"].endswith("/user")
    events = job.rover("events", job.name, "-k", "plan.applied", "--json").stdout.splitlines()
    told = job.rover("story", str(json.loads(events[-1])["id"])).stdout
    assert f"{passed['approved_by']} approves plan {PLAN + 1}" in told
    job.complete()
    until(lambda: shown().get("state") == "Complete", "Complete", 0.5)
