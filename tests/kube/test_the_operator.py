"""A job trains to its end in pods: a broker and a Brain of a stack, and an operator in the place of its daemon."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kube_cluster import Cluster
from patience import until
from pod_stacks import PodStack
from small_job import SmallJob

from rover_bus.brain.watch import LOST_SAMPLES
from rover_bus.events.settings import DEFAULTS
from rover_bus.kube.object import manifest_of


def workers(job: SmallJob) -> int:
    """How many were admitted."""
    return len([each for each in job.facts("member.admitted") if each["member"]["role"] == "worker"])


@pytest.fixture
def job(stack: PodStack, tmp_path: Path) -> SmallJob:
    return SmallJob(
        folder=tmp_path,
        home=stack.home.root,
        rows=2_000,
        epochs=1,
        workers=2,
        servers=2,
        checkpoint='path = "store"\nevery = "1h"',
    )


Shown = Callable[..., str]


@pytest.fixture
def pods(cluster: Cluster, namespace: str) -> Shown:
    """What `kubectl get pods` shows of the job's namespace."""
    return lambda *words: cluster.kubectl("-n", namespace, "get", "pods", *words).stdout


def test_a_job_trains_to_its_end_in_pods(job: SmallJob, pods: Shown) -> None:
    job.submit()
    job.until(lambda: workers(job) == 2, "two workers")
    roles = pods("-o", "jsonpath={.items[*].metadata.labels.rover-bus\\.io/role}").split()
    assert sorted(roles) == ["master", "master", "ps", "ps", "worker", "worker"]
    job.complete()
    until(lambda: not pods("-o", "name"), "no pod", 0.5)


def test_nodes_count_though_nothing_measures_them(stack: PodStack, job: SmallJob) -> None:
    """Their operator takes no samples of nodes. As long as three of them would take, and longer, their cores stay."""
    job.submit()
    job.until(lambda: workers(job) == 2, "two workers")
    time.sleep((LOST_SAMPLES + 1) * DEFAULTS.hosts.sample_every_s)
    scaled = job.rover("scale", job.name, "--workers", "3")
    assert scaled.returncode == 0, scaled.stderr
    job.until(lambda: workers(job) == 3, "one more worker")
    job.complete()


def test_training_goes_on_while_there_is_no_operator_and_the_next_one_takes_over(
    cluster: Cluster, namespace: str, stack: PodStack, job: SmallJob, pods: Shown
) -> None:
    """The operator is killed, and its Lease has to expire; then a worker is deleted by hand, which only an operator replaces."""
    job.submit()
    job.until(lambda: workers(job) == 2, "two workers")
    before = pods("-o", "name", "-l", "rover-bus.io/role=worker")
    killed = stack.services["daemon"].pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    job.until(lambda: len(job_hosts(job)) == 2, "the next operator's daemon")
    assert pods("-o", "name", "-l", "rover-bus.io/role=worker") == before
    assert workers(job) == 2, "none was admitted again"
    first = before.split()[0]
    assert cluster.kubectl("-n", namespace, "delete", first, "--wait=false").returncode == 0
    job.until(lambda: workers(job) == 3, "its next incarnation")
    job.complete()
    until(lambda: not pods("-o", "name"), "no pod", 0.5)


def job_hosts(job: SmallJob) -> set[str]:
    """The daemons that registered."""
    done = job.rover("events", "-k", "host.registered", "--json")
    return {json.loads(line)["body"]["daemon"] for line in done.stdout.splitlines()}


def test_an_applied_object_trains_to_complete_in_pods(
    installed: Cluster, namespace: str, job: SmallJob, pods: Shown
) -> None:
    """What `rover submit` does for a job file, `kubectl apply` does for its object; the end is in its status."""
    job.write()
    made = manifest_of(job.folder / "job.toml")
    made["spec"]["data"]["train"] = str(job.folder / made["spec"]["data"]["train"])
    made["spec"]["checkpoint"] = {"every": "1h"}  # without storage: this machine's file system is every pod's
    own = {
        "metadata": {"labels": {"team": "ads"}},
        "spec": {"volumes": [{"name": "scratch", "emptyDir": {}}]},
    }
    made["spec"]["templates"] = {"worker": own}
    applied = installed.kubectl("-n", namespace, "apply", "-f", "-", given=json.dumps(made))
    assert applied.returncode == 0, applied.stderr
    job.until(lambda: workers(job) == 2, "two workers")

    def shown(path: str) -> str:
        return installed.kubectl("-n", namespace, "get", "rj", job.name, "-o", f"jsonpath={path}").stdout

    until(lambda: shown("{.status.state}") == "Running", "Running", 0.2)
    assert len(pods("-l", "team=ads,rover-bus.io/role=worker", "-o", "name").split()) == 2, "by its template"
    owners = pods("-o", "jsonpath={.items[*].metadata.ownerReferences[0].uid}").split()
    assert set(owners) == {shown("{.metadata.uid}")}
    assert (shown("{.status.workers}"), shown("{.status.servers}")) == ("2", "2")
    job.complete()
    until(lambda: shown("{.status.state}") == "Complete", "Complete", 0.2)
    assert shown("{.status.result.samples_committed}") == str(job.rows)
    assert shown("{.metadata.finalizers}") in ("", "[]")
    until(lambda: not pods("-o", "name"), "no pod", 0.5)
