"""What the tests of this folder share: stacks on a cluster (tests/rigs/kube_fixtures.py)."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from api_proxy import ApiProxy, api_proxy
from kube_chart import make_clicks
from kube_cluster import Cluster
from pod_stacks import PodStack, pod_stack


@pytest.fixture(scope="session")
def clicks() -> Iterator[str]:
    """A folder with clicks, where any user may look; pods have the same ones at the same place."""
    folder = tempfile.mkdtemp(dir="/var/tmp", prefix="rover-clicks-")
    try:
        subprocess.run(make_clicks(folder), check=True, capture_output=True)
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def stack(cluster: Cluster, node: str, namespace: str, tmp_path: Path) -> Iterator[PodStack]:
    """A stack whose members are pods of this namespace."""
    with pod_stack(cluster, namespace, tmp_path) as made:
        yield made


@pytest.fixture
def proxy(cluster: Cluster, tmp_path: Path) -> Iterator[ApiProxy]:
    with api_proxy(cluster, tmp_path) as made:
        yield made


@pytest.fixture
def stack_by_proxy(
    proxy: ApiProxy, cluster: Cluster, node: str, namespace: str, tmp_path: Path
) -> Iterator[PodStack]:
    """A stack whose operator asks through the proxy."""
    with pod_stack(replace(cluster, config=proxy.config), namespace, tmp_path) as made:
        yield made
