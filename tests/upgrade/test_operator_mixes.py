"""The operator alone new, then alone old, on a real Kubernetes API server: members are pods that really run, and are killed.

What a pod's interpreter runs is chosen as elsewhere (mixed/sitecustomize.py), by the template of members.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kube_cluster import Cluster
from mixed_stacks import MixedPods, job_of, mixes
from object_jobs import status_of
from patience import until

pytestmark = pytest.mark.chaos
IN_CI = (("operator", "old"),)


@pytest.mark.parametrize("old", mixes(["operator"], MixedPods.parts, IN_CI))
def test_a_job_in_pods_trains_through_kills_while_the_operator_is_of_another_release(
    old: frozenset[str], former: Path, installed: Cluster, node: str, namespace: str, tmp_path: Path
) -> None:
    pods = (installed, namespace)
    MixedPods(tmp_path, former, frozenset(MixedPods.parts), pods).makes_a_stack()
    mix = MixedPods(tmp_path, former, old, pods)
    with mix.runs():
        job = job_of(mix, tmp_path)
        job.trains_through_kills()
        until(
            lambda: status_of(installed, namespace, job)["state"] == "Complete", "what its object shows", 0.5
        )
    mix.assert_ran()
    ((_, begun),) = mix.ran("operator").items()
    assert begun > 1, "it was killed and started again"
