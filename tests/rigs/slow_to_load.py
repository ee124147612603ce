"""A job of pods whose program loads for seconds, as one with torch does: what spares save, in tests/kube and bench.kube_spares."""

from __future__ import annotations

import json
from pathlib import Path

from kube_cluster import Cluster
from pod_stacks import PodStack
from small_job import SmallJob

from rover_bus.client.programs import find_example

CLASS = "rover-spares"  # of spares: below all else
LOADS_S = 2.0
LIBRARY = f"import time\ntime.sleep({LOADS_S})\n"
PROGRAM = """
import sys
import runpy
import slow_library
sys.argv[0] = {program!r}
sys.path.insert(0, {folder!r})
runpy.run_path({program!r}, run_name="__main__")
"""
OF_SPARES = "app.kubernetes.io/component=spare"


def make_class(cluster: Cluster) -> None:
    """Make the priority of spares, once."""
    words = ("create", "priorityclass", CLASS, "--value=-100", "--preemption-policy=Never")
    cluster.kubectl(*words)


def slow_job(stack: PodStack, folder: Path, *, spares: int = 2, cores: float = 0.0) -> SmallJob:
    """Return a job of one worker, to which others are added by hand."""
    (folder / "slow_library.py").write_text(LIBRARY)
    program = folder / "slow.py"
    inner = Path(find_example("dlrm/train.py"))
    program.write_text(PROGRAM.format(program=str(inner), folder=str(inner.parent)))
    return SmallJob(
        folder=folder,
        home=stack.home.root,
        rows=4_000,
        epochs=1,
        workers=0,
        servers=1,
        start=1,
        most=4,
        spares=spares,
        cores=cores,
        checkpoint='path = "store"\nevery = "1h"',
        top=f'environment = {{ PYTHONPATH = "{folder}" }}\n[plan]\nmode = "observe"',
        inner=program,
    )


def ready_spares(cluster: Cluster, namespace: str) -> list[str]:
    """Return the pods of spares that run."""
    words = ("-n", namespace, "get", "pods", "-l", OF_SPARES, "-o", "json")
    found = json.loads(cluster.kubectl(*words).stdout)["items"]
    return [each["metadata"]["name"] for each in found if each["status"]["phase"] == "Running"]
