"""The chart's broker of three: a server and what it stored are lost while a job trains, and no sample is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kube_chart import ROWS, Release, example, facts, remove_definition, state_of, values_here
from kube_cluster import Cluster
from network_policies import Policies, look
from outside import rover
from patience import until

pytestmark = pytest.mark.timeout(1800)
SERVERS = [f"rover-broker-{number}" for number in range(3)]


def of_three(clicks: str) -> dict[str, Any]:
    return values_here(clicks) | {"nats": {"replicas": 3, "store": {"claim": False}}}


@pytest.fixture
def release(cluster: Cluster, node: str, namespace: str, clicks: str, tmp_path: Path) -> Iterator[Release]:
    made = Release(cluster, namespace, tmp_path)
    done = made.install(of_three(clicks))
    assert done.returncode == 0, done.stderr + made.told()
    yield made
    made.uninstall()
    remove_definition(cluster)


def servers_of(release: Release) -> dict[str, str]:
    """Return the uid of each server that is ready."""
    found = release.get("pods", "-l", "app.kubernetes.io/component=broker")["items"]
    return {
        each["metadata"]["name"]: each["metadata"]["uid"]
        for each in found
        if any(c["type"] == "Ready" and c["status"] == "True" for c in each["status"].get("conditions", ()))
    }


def test_a_server_that_is_lost_with_its_store_costs_no_sample(
    release: Release, clicks: str, tmp_path: Path
) -> None:
    before = servers_of(release)
    assert sorted(before) == SERVERS
    release.kubectl("apply", "-f", "-", given=example(clicks))
    address = release.address(tmp_path)
    until(lambda: facts(address, "clicks", "member.admitted"), "members", 0.5)
    release.kubectl("delete", "pod", SERVERS[0], "--wait=false")
    until(
        lambda: servers_of(release).get(SERVERS[0], before[SERVERS[0]]) != before[SERVERS[0]],
        "another server",
    )
    release.until_condition("clicks", "Complete")
    address = release.address(tmp_path)
    row = state_of(address, "clicks")
    assert (row["committed"], row["state"]) == (ROWS, "completed")
    assert facts(address, "clicks", "ledger.rewound") == [], "training went on"
    streams = rover("doctor", *address).stdout
    assert "as this release wants them" in streams, streams
    policies, seen = (
        Policies.of(release.cluster, (release.namespace,)),
        look(release.cluster, (release.namespace,)),
    )
    routes = [each for each in seen.edges if str(each) == "broker -> broker:6222"]
    assert routes
    assert all(policies.allow(each) for each in routes)
    refused = release.install(values_here(clicks))
    assert refused.returncode != 0
    assert "nats.replicas is 1 where 3 run" in refused.stderr
