"""A table that outgrows the memory limit of its server's pod (S10): forecast, and given more before the kill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kube_cluster import Cluster
from pod_faults import cause_of_end, ends, memory_limits
from pod_stacks import pod_stack
from small_job import SmallJob

from rover_bus.events.identity import IN_ORDER

pytestmark = pytest.mark.timeout(1800)
LIMIT = 160 << 20  # of a process that begins with 60 MiB
NEARLY_ALL = 0.95  # of the samples
GROWS = """
import numpy as np
import rover_bus.client as rover
from rover_bus.client.data import Schema, open_log
from rover_bus.ps.spec import Adagrad, Growing
from rover_bus.ps.store import BatchKey

IDS = 100  # 26 kB a batch
with rover.join() as job:
    log = open_log(job.data.train, Schema.parse(job.data.schema))
    batches = log.dataset(job.data.batch_size).batches
    job.parameters.declare(Growing(name="grows", width=32, optimizer=Adagrad(0.1)))
    for batch in job.batches(log):
        ids = np.arange(IDS) + (batch.epoch * batches + batch.number) * IDS
        pulled = job.parameters.pull({"grows": ids})
        job.parameters.push(BatchKey(batch.epoch, batch.number), {"grows": np.ones((IDS, 32), np.float32)}, pulled=pulled)
"""


@contextmanager
def growing(
    cluster: Cluster, namespace: str, folder: Path, plan: str = "", notes: dict[str, str] | None = None
) -> Iterator[SmallJob]:
    """A job whose table passes the limit long before its data ends. plan: further lines of that table."""
    program = folder / "grows.py"
    program.write_text(GROWS)
    with pod_stack(cluster, namespace, folder, notes=notes or {}) as stack:
        job = SmallJob(
            folder=folder,
            home=stack.home.root,
            rows=128_000,  # 4,000 batches: 100 MB, and as much for each of two cuts that are staged
            epochs=1,
            workers=2,
            servers=1,
            server_lines=f"memory = {LIMIT}",
            checkpoint=f'path = "store"\nevery = "5s"\n[plan]\nwindow = "2s"\n{plan}',
            pace_s=0.02,
            inner=program,
        )
        job.submit()
        job.until(lambda: len(job.facts("member.admitted")) == 3, "members that take part")
        yield job


def lost_servers(job: SmallJob) -> list[str]:
    return [each["reason"] for each in job.facts("member.lost") if each["member"]["role"] == "ps"]


def committed(job: SmallJob) -> int:
    return max((each["committed"] for each in job.facts("job.reported")), default=0)


def has_more(cluster: Cluster, namespace: str) -> bool:
    """Whether the kubelet says that the server's container has more than it began with."""
    return [int(each) > LIMIT for each in memory_limits(cluster, namespace, "role=ps")] == [True]


def until_relieved(job: SmallJob) -> None:
    """Wait until a server's limit was raised, or a server was lost."""
    job.until(lambda: job.facts("incident.opened") or lost_servers(job), "a forecast")
    [incident] = {each["incident"] for each in job.facts("incident.opened")}
    assert incident
    job.until(
        lambda: (
            [
                each
                for each in job.facts("plan.applied")
                if each["size"] and each["size"]["server_memory_bytes"] > LIMIT
            ]
            or lost_servers(job)
        ),
        "a plan with more memory",
    )


def complete(job: SmallJob) -> None:
    """See its table grow to the end at the pace that was forecast, and the job end without the loss of a server.

    What is left when the gate opens is trained 15 times as fast: more than any forecast allows for (`SURGE`), and a server that got
    half as much again because it was too early for a forecast would be killed.
    """
    most = job.rows * job.epochs * NEARLY_ALL
    job.until(lambda: committed(job) >= most or lost_servers(job), "nearly all samples")
    if not lost_servers(job):
        job.finish()
        job.until(lambda: job.facts("job.ended") or lost_servers(job), "the end")
    assert lost_servers(job) == [], (job.facts("member.lost"), job.facts("incident.opened"))
    job.complete()


def test_its_limit_is_raised_in_place_and_nothing_is_restarted_or_killed(
    cluster: Cluster, node: str, namespace: str, tmp_path: Path
) -> None:
    with growing(cluster, namespace, tmp_path) as job:
        until_relieved(job)
        job.until(lambda: has_more(cluster, namespace) or lost_servers(job), "memory in place")
        complete(job)
        assert {cause_of_end(job, each)["reason"] for each in ends(job)} <= set(IN_ORDER)
        assert {each["member"]["incarnation"] for each in job.facts("member.admitted")} == {1}


@pytest.mark.long
def test_its_slots_move_where_the_node_gives_no_more_and_nothing_is_killed(
    cluster: Cluster, node: str, namespace: str, tmp_path: Path
) -> None:
    with growing(cluster, namespace, tmp_path, notes={"test/resize": "Infeasible"}) as job:
        until_relieved(job)
        job.until(
            lambda: (
                [each for each in job.facts("rollout.closed") if each["outcome"] == "done"]
                or lost_servers(job)
            ),
            "slots on a larger server",
        )
        complete(job)
        assert job.facts("host.adjust_refused")


@pytest.mark.long
def test_without_relief_it_is_killed_at_its_limit(
    cluster: Cluster, node: str, namespace: str, tmp_path: Path
) -> None:
    with growing(cluster, namespace, tmp_path, plan="relief = false") as job:
        job.until(lambda: lost_servers(job), "the kill")
        assert lost_servers(job)[0] == "out_of_memory"
        assert job.facts("incident.opened") == []
        job.rover("cancel", job.name)
