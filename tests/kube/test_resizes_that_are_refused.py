"""More memory for members of a job in pods that its node does not give in place: others take their places, and training goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube_cluster import Cluster
from pod_faults import cause_of_end, ends, memory_limits, planned, running, until_as_planned
from pod_stacks import pod_stack
from small_job import SmallJob
from waiting_plan import propose

from rover_bus.events.identity import IN_ORDER

BEFORE, AFTER = 512 << 20, 768 << 20
FOLLOWERS = {"worker-0.2", "worker-1.2", "ps-1.1"}


FORBIDDEN, WORDS = "Forbidden", "no resizes here"
NO_RESIZES = [
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "NAME"},
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["UPDATE"],
                        "resources": ["pods/resize"],
                    }
                ]
            },
            "validations": [{"expression": "false", "reason": FORBIDDEN, "message": WORDS}],
        },
    },
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "NAME"},
        "spec": {
            "policyName": "NAME",
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "NAME"}}},
        },
    },
]


@pytest.fixture
def forbidden(cluster: Cluster, namespace: str, answer: str) -> Iterator[None]:
    """Where that is the answer: a cluster whose administrators let no pod of the namespace be resized (403)."""
    if answer != FORBIDDEN:
        yield
        return
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": NO_RESIZES}).replace("NAME", namespace)
    made = cluster.kubectl("apply", "-f", "-", given=objects)
    assert made.returncode == 0, made.stderr
    try:
        yield
    finally:
        cluster.kubectl("delete", "-f", "-", given=objects)


@pytest.mark.usefixtures("forbidden")
@pytest.mark.parametrize(
    "answer", ["Infeasible", pytest.param("Deferred", marks=pytest.mark.long), FORBIDDEN]
)
def test_workers_are_replaced_and_slots_move_to_a_server_with_the_memory_and_none_is_killed(
    cluster: Cluster, node: str, namespace: str, tmp_path: Path, answer: str
) -> None:
    notes = {} if answer == FORBIDDEN else {"test/resize": answer}  # else the kubelet's answer
    with pod_stack(cluster, namespace, tmp_path, notes=notes) as stack:
        job = SmallJob(
            folder=tmp_path,
            home=stack.home.root,
            rows=2_000,
            epochs=1,
            workers=2,
            servers=1,
            checkpoint='path = "store"\nevery = "1h"',
            worker_lines=f"memory = {BEFORE}",
            server_lines=f"memory = {BEFORE}",
        )
        job.submit()
        until_as_planned(cluster, namespace, job, workers=2, servers=1)
        job.until(lambda: len(job.facts("member.admitted")) == 3, "members that take part")
        assert memory_limits(cluster, namespace) == [str(BEFORE)] * 3
        more = {"worker_memory_bytes": AFTER, "server_memory_bytes": AFTER}
        asyncio.run(propose(job.home, job.name, mode="auto", **more))
        job.until(lambda: planned(job) == FOLLOWERS, "members that follow")
        until_as_planned(cluster, namespace, job, workers=2, servers=1)
        assert memory_limits(cluster, namespace) == [str(AFTER)] * 3
        refused = job.facts("host.adjust_refused")
        assert {each["member"]["role"] for each in refused} == {"worker", "ps"}
        said = WORDS if answer == FORBIDDEN else answer
        assert all(said in each["why"] for each in refused), refused
        (moved,) = [each for each in job.facts("rollout.closed") if each["outcome"] == "done"][-1:]
        assert moved
        assert {cause_of_end(job, each)["reason"] for each in ends(job)} <= set(IN_ORDER)
        job.complete()
        job.until(lambda: not running(cluster, namespace), "no member's pod")
