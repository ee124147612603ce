"""A namespace is taken off an installation while a RoverJob there has not ended: its operator would lose all rights there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
from kube_chart import remove_definition, roverjob
from kube_cluster import Cluster
from outside import rover
from patience import until

from rover_bus.kube.roverjobs import FINALIZER

LEFT, KEPT = "left", "kept"


@pytest.fixture
def spaces(cluster: Cluster, namespace: str) -> Iterator[dict[str, str]]:
    """The namespace of a release, and two of teams, each with a RoverJob that runs."""
    made = {each: f"{namespace}-{each}" for each in (LEFT, KEPT)}
    for each in made.values():
        assert cluster.kubectl("create", "namespace", each).returncode == 0
    yield made | {"release": namespace}
    remove_definition(cluster)


def prepare(cluster: Cluster, spaces: dict[str, str], *followed: str) -> subprocess.CompletedProcess[str]:
    """What the chart's hook runs."""
    words = [f"--follows={spaces[each]}" for each in ("release", *followed)]
    words += ["--namespace", spaces["release"], "--keys=rover-keys", "--definition"]
    return rover("kube", "prepare", *words, KUBECONFIG=str(cluster.config))


def test_a_namespace_with_a_running_job_stays_followed_and_the_job_is_named(
    cluster: Cluster, spaces: dict[str, str]
) -> None:
    def keys() -> dict[str, object]:
        found = cluster.kubectl("-n", spaces["release"], "get", "secret", "rover-keys", "-o", "json")
        secret: dict[str, object] = json.loads(found.stdout)
        return secret

    done = prepare(cluster, spaces, LEFT, KEPT)
    assert done.returncode == 0, done.stderr
    for each in (LEFT, KEPT):
        job = json.loads(roverjob("long"))
        job["metadata"]["finalizers"] = [FINALIZER]
        applied = cluster.kubectl("-n", spaces[each], "apply", "-f", "-", given=json.dumps(job))
        assert applied.returncode == 0, applied.stderr
    before = keys()
    refused = prepare(cluster, spaces, KEPT)
    assert refused.returncode == 3, refused.stderr
    assert f"{spaces[LEFT]}/long: let them end or delete them first" in refused.stderr
    assert f"{spaces[KEPT]}/long" not in refused.stderr, "its namespace is followed"
    assert keys() == before, "nothing was changed"

    cluster.kubectl("-n", spaces[LEFT], "delete", "rj", "long", "--wait=false")
    assert prepare(cluster, spaces, KEPT).returncode == 3, "it waits for what follows it"
    freed = ("--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    assert cluster.kubectl("-n", spaces[LEFT], "patch", "rj", "long", *freed).returncode == 0
    until(lambda: cluster.kubectl("-n", spaces[LEFT], "get", "rj", "long").returncode != 0, "its end", 0.2)
    done = prepare(cluster, spaces, KEPT)
    assert done.returncode == 0, done.stderr
    assert prepare(cluster, spaces, KEPT).returncode == 0
    assert cluster.kubectl("-n", spaces[KEPT], "get", "rj", "long").returncode == 0
