"""How soon a worker that is added to a job of pods trains, without spares and with them: a real API server, pods that really run.

    ROVER_KUBE=FOLDER PYTHONPATH=tests/rigs python -m bench.kube_spares [--pairs 5]

Needs root, for a kubelet that runs pods as processes of this machine. The job's program sleeps 2 s while it is imported; one with
torch loads for 2 to 20 s. A stack without spares and one with them, in turn; from the plan (`members.desired`) to the admission of
the added worker, and to its first commit. Prints a line a run, and medians.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kube_cluster import Cluster, kubelet
from patience import until
from pod_stacks import pod_stack
from slow_to_load import CLASS, make_class, ready_spares, slow_job

from bench import rig
from bench.kube_rig import control_plane
from bench.living.heard import Heard
from bench.living.stage import listen
from rover_bus.events import facts

SPARES = 2


class Added(NamedTuple):
    """Seconds from the plan that names a worker to its admission, and to its first commit."""

    joined_s: float
    committed_s: float


@contextmanager
def cluster_with_a_node(folder: Path) -> Iterator[Cluster]:
    """A control plane, and a node whose pods are processes of this machine."""
    with control_plane(folder, 0) as plane:
        script = Path(os.environ["ROVER_KUBE"]) / "kube.sh"
        environment = {"RUN": str(folder / "kube"), "KUBECONFIG": str(plane.config("admin"))}
        made = Cluster(("bash", str(script), "kubectl"), environment, plane.config("admin"), script)
        (folder / "kubelet").mkdir()
        with kubelet(made, "node-1", folder / "kubelet"):
            yield made


def measure(cluster: Cluster, folder: Path, spares: int) -> Added:
    """Add a worker to a job in a namespace of its own, and see when it trains."""
    folder.mkdir()
    namespace = f"bench-{folder.name}"
    assert cluster.kubectl("create", "namespace", namespace).returncode == 0
    account = ("-n", namespace, "get", "serviceaccount", "default")
    until(lambda: cluster.kubectl(*account).returncode == 0, "the account of the namespace's pods", 0.2)
    with pod_stack(cluster, namespace, folder, "--spare-priority", CLASS) as stack:
        job = slow_job(stack, folder, spares=spares)
        job.submit()
        job.until(lambda: job.facts("job.reported"), "training")
        until(lambda: len(ready_spares(cluster, namespace)) == spares, "spares", 0.3)
        time.sleep(
            2.0
        )  # the last one has just begun to wait, and imports of nothing else compete with the start
        return asyncio.run(_add(stack.url, stack.secret_file.read_text().strip(), job.name, job.rover))


async def _add(url: str, secret: str, name: str, rover: object) -> Added:
    bus, heard = await rig.connect(url, secret, "bench-kube-spares"), Heard()
    try:
        await listen(bus, heard, name)
        await asyncio.to_thread(rover, "scale", name, "--workers", "2")  # type: ignore[arg-type]
        desired, _ = await heard.wait(facts.MembersDesired, lambda fact: fact.count("worker") == 2)
        joined, _ = await heard.wait(facts.MemberAdmitted, lambda fact: fact.member.name == "worker-1")
        committed = await heard.first_commit(1)
        return Added(joined - desired, committed - desired)
    finally:
        await bus.close()


def main() -> None:
    """Print what was measured."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pairs", type=int, default=5)
    pairs = options.parse_args().pairs
    found: dict[int, list[Added]] = {0: [], SPARES: []}
    with (
        tempfile.TemporaryDirectory(prefix="rover-kube-spares-") as name,
        cluster_with_a_node(Path(name)) as cluster,
    ):
        make_class(cluster)
        for pair in range(pairs):
            for spares in found:
                added = measure(cluster, Path(name, f"{pair}-{spares}"), spares)
                found[spares].append(added)
                print(
                    f"spares {spares}: joined after {added.joined_s:.2f} s, first commit after {added.committed_s:.2f} s"
                )
    cold, warm = (statistics.median(each.committed_s for each in found[spares]) for spares in found)
    shares = [warm.committed_s / cold.committed_s for cold, warm in zip(*found.values(), strict=True)]
    joined = [statistics.median(each.joined_s for each in found[spares]) for spares in found]
    print(f"medians: joined {joined[0]:.2f} -> {joined[1]:.2f} s, first commit {cold:.2f} -> {warm:.2f} s")
    print(
        f"share of a cold start: {statistics.median(shares):.2f} in the median of the pairs, {min(shares):.2f} to {max(shares):.2f}"
    )


if __name__ == "__main__":
    main()
