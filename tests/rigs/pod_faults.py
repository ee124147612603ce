"""What happens to members of a job in pods, as a test sees it from outside: which run, and how one ended."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from api_proxy import ApiProxy
from kube_cluster import Cluster
from patience import until
from pod_stacks import PodStack
from small_job import SmallJob

SHOWN = "rover-bus.io/job"
RENEWALS = 2  # five seconds apart


def planned(job: SmallJob) -> set[str]:
    """Return the members that the master wants, with their incarnations."""
    told = job.facts("members.desired")
    return {name_of(each["member"]) for each in told[-1]["members"]} if told else set()


def name_of(member: dict[str, Any]) -> str:
    return f"{member['role']}-{member['index']}.{member['incarnation']}"


def running(cluster: Cluster, namespace: str) -> list[str]:
    """Return the workers and servers whose pods are there and are neither over, nor on a lost node, with their incarnations."""
    shown = cluster.kubectl("-n", namespace, "get", "pods", "-l", SHOWN, "-o", "json").stdout
    found = []
    for pod in json.loads(shown)["items"]:
        labels = pod["metadata"]["labels"]
        role = labels["rover-bus.io/role"]
        if role == "master" or pod["status"]["phase"] in ("Failed", "Succeeded") or _is_lost(pod):
            continue
        found.append(f"{role}-{labels['rover-bus.io/index']}.{labels['rover-bus.io/incarnation']}")
    return sorted(found)


def _is_lost(pod: dict[str, Any]) -> bool:
    """Its node is: the pod may stay for ever, and its incarnation is fenced by the log (P5)."""
    return any(each.get("reason") == "DeletionByTaintManager" for each in pod["status"].get("conditions", []))


def pod_of(cluster: Cluster, namespace: str, role: str) -> str:
    """Return the name of the first pod of a role."""
    words = ("get", "pods", "-l", f"rover-bus.io/role={role}", "-o", "jsonpath={.items[0].metadata.name}")
    return cluster.kubectl("-n", namespace, *words).stdout


def memory_limits(cluster: Cluster, namespace: str, role: str = "role in (worker,ps)") -> list[str]:
    """Return the memory that the containers of workers and servers that run have, in bytes. role: a selector."""
    words = ("get", "pods", "-l", f"rover-bus.io/{role}", "-o", "json")
    pods = json.loads(cluster.kubectl("-n", namespace, *words).stdout)["items"]
    return [
        each["resources"]["limits"]["memory"]
        for pod in pods
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        for each in pod["status"]["containerStatuses"]
    ]


def until_as_planned(cluster: Cluster, namespace: str, job: SmallJob, workers: int, servers: int) -> None:
    """Wait until exactly the planned members run: no orphan, no twin."""
    sizes = {"worker": workers, "ps": servers}

    def is_so() -> bool:
        wanted = planned(job)
        roles = Counter(each.partition("-")[0] for each in wanted)
        return dict(roles) == sizes and running(cluster, namespace) == sorted(wanted)

    until(is_so, "exactly the planned members", 0.5, lambda: (planned(job), running(cluster, namespace)))


def ends(job: SmallJob) -> list[dict[str, Any]]:
    """Return the members whose pods have ended, masters left out, in order."""
    return [each["member"] for each in job.facts("host.exited") if each["member"]["role"] != "master"]


def cause_of_end(job: SmallJob, member: dict[str, Any]) -> dict[str, Any]:
    """Return what the story of a member says of how its pod ended."""
    (exit,) = [each["exit"] for each in story(job, name_of(member)) if each["type"].startswith("host.exited")]
    assert isinstance(exit, dict)
    return exit


def story(job: SmallJob, member: str) -> list[dict[str, Any]]:
    """Return what the story of a member says, in order."""
    done = job.rover("story", f"{job.name}/{member}", "-o", "json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["body"] for line in done.stdout.splitlines()]


def job_to_scale(home: Path, folder: Path, rows: int) -> SmallJob:
    """Return a job of two workers and a server whose size the Brain leaves to people."""
    return SmallJob(
        folder=folder,
        home=home,
        rows=rows,
        epochs=1,
        workers=0,
        start=2,
        servers=1,
        checkpoint='path = "store"\nevery = "1h"',
        top='[plan]\nmode = "observe"',
    )


def scale(job: SmallJob, workers: int) -> None:
    """Ask for so many workers, and do not wait for them."""
    done = job.rover("scale", job.name, "--workers", str(workers), "--no-wait")
    assert done.returncode == 0, done.stderr


def ends_once(cluster: Cluster, namespace: str, job: SmallJob) -> None:
    """Each end is published once, all samples are applied once, and no pod is left."""
    members = [str(each) for each in ends(job)]
    assert len(members) == len(set(members))
    job.complete()
    job.until(lambda: not running(cluster, namespace), "no member's pod")


def kill_after(proxy: ApiProxy, stack: PodStack, count: int) -> list[int]:
    """Kill the operator once the server has done so many writes from here on; the returned list grows with each kill."""
    begun, killed = proxy.done, list[int]()

    def look() -> None:
        if proxy.done - begun >= count and not killed:
            pid = stack.services["daemon"].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    proxy.after_write = look
    return killed


def until_quiet(proxy: ApiProxy) -> None:
    """Wait until an operator leads that has nothing left to write: it has taken the Lease, or renewed it, and renewed it again. One
    that was killed leaves its Lease for a while, in which nothing is written either.
    """
    until(lambda: proxy.renewed >= RENEWALS, "no further write", 0.2)


def committed(job: SmallJob) -> int:
    """Return how many samples were trained at the last report."""
    return max((each["committed"] for each in job.facts("job.reported")), default=0)
