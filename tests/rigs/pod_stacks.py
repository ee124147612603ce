"""A stack on this machine whose members are pods: an operator in the place of its daemon. For the tests of tests/kube."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from kube_cluster import Cluster

from rover_bus.cli.stack import RunningStack
from rover_bus.cli.supervisor import service_command


class PodStack(RunningStack):
    """A stack whose daemon is an operator. `cluster`: words of its command line."""

    def __init__(self, home: Path, cluster: list[str]) -> None:
        super().__init__(home)
        self._cluster = cluster

    def _service(self, role: Any, arguments: list[str]) -> Any:
        service = super()._service(role, arguments)
        if role == "daemon":
            words = [*self._shown(role), "--url", self.url, "--host", self.host, *self._cluster]
            order = replace(service.order, command=service_command("operator", *words))
            service.order = order
        return service

    @contextmanager
    def no_operator(self) -> Iterator[None]:
        """Kill the operator, and start none until the `with` ends."""
        assert self._supervisor is not None
        with self._supervisor.pause:
            killed = self.services["daemon"].pid
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            yield


@contextmanager
def pod_stack(cluster: Cluster, namespace: str, tmp_path: Path, *more: str) -> Iterator[PodStack]:
    """A stack whose members are pods that see a folder of this machine. more: further words of the operator."""
    folder = str(tmp_path)
    template = {
        "spec": {
            "containers": [{"name": "main", "volumeMounts": [{"name": "work", "mountPath": folder}]}],
            "volumes": [{"name": "work", "hostPath": {"path": folder}}],
        }
    }
    file = tmp_path / "template.json"
    file.write_text(json.dumps(template))
    words = ["--kubeconfig", str(cluster.config), "--namespace", namespace, "--image", "example.com/any"]
    words += [
        "--python",
        sys.executable,
        "--pod-template",
        str(file),
        "--dir",
        str(tmp_path / "members"),
        *more,
    ]
    with PodStack(tmp_path / "stack", words) as made:
        yield made
