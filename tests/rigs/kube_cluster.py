"""A real Kubernetes API server on loopback, or a cluster that is there, as tests use it: through kubectl."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

START_S = 180.0


@dataclass(frozen=True)
class Cluster:
    """A cluster with our resource installed. `command`: what stands for `kubectl`."""

    command: Sequence[str]
    environment: dict[str, str]

    def kubectl(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl; `given` is its standard input."""
        return subprocess.run(
            [*self.command, *words],
            input=given,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_S,
        )


def free_ports(count: int) -> int:
    """Return the first of some ports in a row that nothing listens on now."""
    for first in range(20_000, 30_000, count):
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise AssertionError("no ports are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
