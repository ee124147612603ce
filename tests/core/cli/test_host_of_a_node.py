"""A member in a pod is told its node's name by the kubelet: as a host it has no dots, which no subject could hold."""

from __future__ import annotations

import pytest

from rover_bus.cli.serve import read_options
from rover_bus.kube.pods import host_of


def test_a_member_calls_its_host_as_the_operator_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROVER_HOST", "ip-10-0-0-1.ec2.internal")
    assert read_options(["ps"]).host == host_of("ip-10-0-0-1.ec2.internal")
