"""Cores are an axis of plans where members in pods read a quota of their own: both answers, and what is said before the first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kube_cluster import Cluster, kubelet
from outside import rover
from pod_stacks import PodStack, pod_stack
from small_job import SmallJob

from rover_bus.node.local.capacity import read_machine
from rover_bus.node.local.cores import CoreGroups

CORES = 1.5  # of a member


@contextmanager
def only_node(cluster: Cluster, name: str, folder: Path, cores: float = 0.0) -> Iterator[None]:
    """A node beside which none takes pods. cores: its kubelet is in a control group of so many, and each container of it: the
    quota that a container of theirs would have, which the kubelet of the tests does not set. 0: there is none, as of kubelets that
    run with `--cpu-cfs-quota=false`.
    """
    groups = CoreGroups.below(read_machine().cgroup, folder)
    entrance = groups.entrance("kubelet", cores) if cores else ""
    if cores and not entrance:
        pytest.skip("no control group can be written here")
    others = cluster.kubectl("get", "nodes", "-o", "name").stdout.split()
    for each in others:
        assert cluster.kubectl("cordon", each).returncode == 0
    try:
        folder.mkdir()
        with kubelet(cluster, name, folder) as process:
            if entrance:
                Path(entrance).write_text(str(process.pid))
            yield
    finally:
        groups.remove_empty(10.0)
        cluster.kubectl("delete", "node", name, "--wait=false")
        for each in others:
            cluster.kubectl("uncordon", each)


def job_of(stack: PodStack, folder: Path) -> SmallJob:
    return SmallJob(
        folder=folder,
        home=stack.home.root,
        rows=2_000,
        epochs=1,
        workers=1,
        servers=1,
        cores=CORES,
        checkpoint='path = "store"\nevery = "1h"',
    )


def registered(job: SmallJob, host: str) -> list[tuple[bool, str]]:
    """What the host's platform reported of cores, each time."""
    said = job.rover("events", "-k", "host.registered", "--json").stdout.splitlines()
    bodies = [json.loads(line)["body"] for line in said]
    given = [each["capacity"] for each in bodies if each["host"] == host]
    return [(each["cores_bind"], each["cores_seen"]) for each in given]


def explained(job: SmallJob) -> dict[str, Any]:
    done = job.rover("explain", job.name, "-o", "json")
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


def what_doctor_says(job: SmallJob) -> str:
    said = rover("doctor", home=job.home).stdout.splitlines()
    return next((line for line in said if "cores bind" in line or "cores do not bind" in line), "")


@pytest.mark.parametrize("held", [False, True], ids=["no-limit", "limit"])
def test_a_node_reports_what_members_read_in_their_own_group(
    cluster: Cluster, namespace: str, tmp_path: Path, held: bool
) -> None:
    node = f"node-{'held' if held else 'free'}"
    with (
        only_node(cluster, node, tmp_path / "kubelet", CORES if held else 0.0),
        pod_stack(cluster, namespace, tmp_path) as stack,
    ):
        job = job_of(stack, tmp_path)
        job.until(lambda: registered(job, node), "the node")
        assert set(registered(job, node)) == {(False, "none")}
        assert f"whether cores bind on {node} is not known" in what_doctor_says(job)
        job.submit()
        job.until(lambda: len(job.facts("member.admitted")) == 2, "members that take part")
        assert [each["cores_held"] for each in job.facts("member.admitted")] == [held, held]
        job.until(
            lambda: registered(job, node)[-1] == (held, "members"), "what members say, said by the platform"
        )
        says = what_doctor_says(job)
        assert ("cores bind: members are held to theirs" in says) == held
        assert (f"cores do not bind on {node}: members there find no limit" in says) != held
        assert job.rover("scale", job.name, "--workers", "2", "--no-wait").returncode == 0
        job.until(lambda: "cores_bind" in explained(job), "a plan of a job that trains")
        found = explained(job)
        assert (found["cores_bind"], found["cores_loose"]) == (held, [] if held else ["members"])
        no_axis = "cores      are no axis: a host does not hold members to theirs"
        assert (no_axis in job.rover("explain", job.name).stdout) != held
        times = len(registered(job, node))
        with stack.no_operator():
            pass
        job.until(
            lambda: len(registered(job, node)) > times and registered(job, node)[-1] == (held, "members"),
            "the same, by the next operator",
        )
        job.complete()
