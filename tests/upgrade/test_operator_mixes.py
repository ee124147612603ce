"""The operator alone new, then alone old, on a real Kubernetes API server: members are pods that really run, and are killed.
Then an operator that changes over while others stay, and meets pods that it did not make.

What a pod's interpreter runs is chosen as elsewhere (mixed/sitecustomize.py), by the template of members.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kube_cluster import Cluster
from mixed_stacks import DISTURBED_S, MixedPods, disturb, job_of, mixes
from object_jobs import status_of
from patience import until
from small_job import SmallJob

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
        until_shown(installed, namespace, job)
    mix.assert_ran()
    ((_, begun),) = mix.ran("operator").items()
    assert begun > 1, "it was killed and started again"


@pytest.mark.long
def test_an_operator_is_upgraded_and_put_back_over_the_pods_that_the_other_release_made(
    former: Path, installed: Cluster, node: str, namespace: str, tmp_path: Path
) -> None:
    mix = MixedPods(tmp_path, former, frozenset(MixedPods.parts), (installed, namespace))
    mix.makes_a_stack()
    with mix.runs():
        job = job_of(mix, tmp_path)
        job.begin()
        for _ in range(2):
            mix.turn("operator")
            disturb(mix, job, DISTURBED_S / 2)
        job.end()
        until_shown(installed, namespace, job)
    mix.assert_ran("operator")


def until_shown(cluster: Cluster, namespace: str, job: SmallJob) -> None:
    until(lambda: status_of(cluster, namespace, job)["state"] == "Complete", "the end in its RoverJob", 0.5)
