"""A stack on this machine whose members are pods: an operator in the place of its daemon. For the rings that run pods.

    python pod_stacks.py STATE [words of the operator]

runs one as a process of its own, until SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kube_cluster import Cluster
from patience import PATIENCE_S

from rover_bus.cli.stack import RunningStack, ending_on_signals
from rover_bus.cli.supervisor import SupervisedService, service_command

NOTHING: Mapping[str, str] = {}


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
        with self.no_restart():
            killed = self.services["daemon"].pid
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            yield

    @contextmanager
    def no_restart(self) -> Iterator[None]:
        """Leave services that are killed dead until the `with` ends."""
        assert self._supervisor is not None
        with self._supervisor.pause:
            yield

    @contextmanager
    def second_operator(self) -> Iterator[SupervisedService]:
        """Another operator of this stack, which stands by; it is not started again."""
        first = self.services["daemon"].order
        order = replace(
            first,
            name="second operator",
            log_file=first.log_file.with_name("second-operator.log"),
            ready_file=first.ready_file.with_name("second-operator.ready"),
        )
        second = SupervisedService(order)
        second.start()
        try:
            second.wait_until_ready(time.monotonic() + PATIENCE_S)
            yield second
        finally:
            second.stop(PATIENCE_S)


@contextmanager
def pod_stack(
    cluster: Cluster, namespace: str, tmp_path: Path, *more: str, notes: Mapping[str, str] = NOTHING
) -> Iterator[PodStack]:
    """A stack whose members are pods that see a folder of this machine. more: further words of the operator. notes: on each pod."""
    words = operator_words(cluster, namespace, tmp_path, notes=notes)
    with PodStack(tmp_path / "stack", [*words, *more]) as made:
        yield made


def operator_words(
    cluster: Cluster,
    namespace: str,
    folder: Path,
    *,
    notes: Mapping[str, str] = NOTHING,
    variables: Mapping[str, str] = NOTHING,
) -> list[str]:
    """Return the command line of an operator whose pods see a folder. notes: on each pod; variables: of its environment."""
    main = {
        "name": "main",
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "volumeMounts": [{"name": "work", "mountPath": str(folder)}],
    }
    template = {
        "metadata": {"annotations": dict(notes)},
        "spec": {"containers": [main], "volumes": [{"name": "work", "hostPath": {"path": str(folder)}}]},
    }
    file = folder / "template.json"
    file.write_text(json.dumps(template))
    words = ["--kubeconfig", str(cluster.config), "--namespace", namespace, "--image", "example.com/any"]
    words += ["--python", sys.executable, "--pod-template", str(file), "--dir", str(folder / "members")]
    return words


def main() -> None:
    """Run a stack as `rover up` does, with an operator of these words."""
    state, *words = sys.argv[1:]
    with ending_on_signals(), suppress(KeyboardInterrupt), PodStack(Path(state), words):
        signal.pause()


if __name__ == "__main__":
    main()
