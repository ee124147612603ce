"""What every platform must do for a daemon, asked of pods: on a real API server, with a kubelet that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kube_cluster import Cluster
from kube_pods import Pods
from platform_contract import *  # noqa: F403
from platform_contract import Adapter

from rover_bus.events.broker import EmbeddedBroker

SPARES = "spares-of-a-contract"


@pytest.fixture
def adapter(cluster: Cluster, node: str, namespace: str, tmp_path: Path) -> Iterator[Adapter]:
    cluster.kubectl("create", "priorityclass", SPARES, "--value=-10", "--preemption-policy=Never")
    with EmbeddedBroker(tmp_path / "broker") as broker:
        yield Pods(str(cluster.config), node, namespace).with_spares(broker, tmp_path, SPARES)
