"""The operator's process loads what it uses of its Kubernetes client, and the rest only where a name of it is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rover_bus.kube.lean_imports import leave_unloaded

CONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: me, user: {token: word}}]
"""
PROGRAM = """
import asyncio, sys
from rover_bus.kube.api import Api

async def connect():
    await (await Api.connect(sys.argv[1])).close()

asyncio.run(connect())
print(any(each.startswith("kubernetes_asyncio.client.models.") for each in sys.modules))
from kubernetes_asyncio import client
from kubernetes_asyncio.client.models import V1Pod
print(client.V1Pod is V1Pod, client.CoreV1Api.__name__)
"""


def test_an_api_is_connected_without_the_clients_models(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(config)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["False", "True", "CoreV1Api"], done.stderr


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "heavy_for_a_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("weight = 1")
    (folder / "light.py").write_text("weight = 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder.name


def test_a_package_is_loaded_for_a_name_that_it_lacks(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, package)
    leave_unloaded(package)
    made = sys.modules[package]
    assert made.light.weight == 0
    assert "weight" not in vars(made)
    assert made.weight == 1
    with pytest.raises(AttributeError):
        _ = made.no_such_name


def test_what_is_not_installed_is_left_to_its_import() -> None:
    leave_unloaded("no_such_package_of_any_kind")
    with pytest.raises(ModuleNotFoundError):
        __import__("no_such_package_of_any_kind")
