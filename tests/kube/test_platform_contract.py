"""What every platform must do for a daemon, asked of pods: on a real API server, with a kubelet that runs them."""

from __future__ import annotations

import pytest
from kube_cluster import Cluster
from kube_pods import Pods
from platform_contract import *  # noqa: F403
from platform_contract import Adapter


@pytest.fixture
def adapter(cluster: Cluster, node: str, namespace: str) -> Adapter:
    return Pods(str(cluster.config), node, namespace)
