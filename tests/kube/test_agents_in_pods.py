"""An agent in each server's pod, by the chart, in a namespace that enforces Pod Security `restricted`: pods that really run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deleted_jobs import delete_in_time
from kube_chart import KEYS, Release, example, facts, kill, long_job, pods_of, remove_definition, values_here
from kube_cluster import Cluster
from object_jobs import claim
from patience import until

NAMESPACE = "rover-sidecars"


@pytest.fixture(scope="module")
def release(
    cluster: Cluster, node: str, clicks: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    made = Release(cluster, NAMESPACE, tmp_path_factory.mktemp("chart"))
    assert cluster.kubectl("create", "namespace", NAMESPACE).returncode == 0
    label = "pod-security.kubernetes.io/enforce=restricted"
    assert cluster.kubectl("label", "namespace", NAMESPACE, label).returncode == 0
    done = made.install(values_here(clicks) | {"nodeAgent": {"mode": "sidecar"}})
    assert done.returncode == 0, done.stderr + made.told()
    yield made
    made.uninstall()
    remove_definition(cluster)


@pytest.fixture(scope="module")
def address(release: Release, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return release.address(tmp_path_factory.mktemp("person"))


def test_the_example_trains_to_its_end(release: Release, clicks: str) -> None:
    release.kubectl("apply", "-f", "-", given=example(clicks))
    release.until_condition("clicks", "Complete")
    release.kubectl("delete", "rj", "clicks", "--timeout=60s")


def test_a_killed_server_goes_back_to_the_copy_in_another_servers_pod_and_a_deleted_job_leaves_nothing(
    release: Release, address: list[str], clicks: str
) -> None:
    release.kubectl("apply", "-f", "-", given=long_job(clicks, servers=2, copies=1))
    until(lambda: facts(address, "long", "checkpoint.redundant"), "a checkpoint in two pods", 0.5)
    first, second = pods_of(release, "ps")
    [agent] = [each for each in first["spec"]["initContainers"] if each["name"] == "rover-agent"]
    assert agent["restartPolicy"] == "Always"
    opened = {each["place"]["host"] for each in facts(address, "long", "part.staged")}
    assert opened == {first["metadata"]["name"], second["metadata"]["name"]}, "each pod keeps its own"
    kill(first)
    until(lambda: facts(address, "long", "server.restored"), "its next pod", 0.5)
    restored = facts(address, "long", "server.restored")
    assert "peer" in {each["source"] for each in restored}, restored
    ready = len(facts(address, "long", "checkpoint.redundant"))
    until(lambda: len(facts(address, "long", "checkpoint.redundant")) > ready, "copies in living pods", 0.5)
    delete_in_time(release, address[1], "long")
    assert release.secrets() == KEYS, "no credential of a member, or of what was beside it"


def test_a_killed_server_goes_back_to_the_claim_of_its_job(
    release: Release, address: list[str], clicks: str, tmp_path: Path
) -> None:
    """Alone, its memory goes with its pod; the agent beside it has stored what it staged."""
    folder = tmp_path / "claim"
    release.kubectl("apply", "-f", "-", given=claim(NAMESPACE, "checkpoints", folder))
    release.kubectl("apply", "-f", "-", given=long_job(clicks, storage={"claim": "checkpoints"}))
    until(lambda: facts(address, "long", "checkpoint.ready"), "a stored checkpoint", 0.5)
    assert list(folder.iterdir())
    kill(pods_of(release, "ps")[0])
    until(lambda: facts(address, "long", "server.restored"), "its next pod", 0.5)
    assert {each["source"] for each in facts(address, "long", "server.restored")} == {"storage"}
    release.kubectl("delete", "rj", "long", "--timeout=60s")
    until(lambda: not release.pods("member"), "no pod of the job", 0.5)
