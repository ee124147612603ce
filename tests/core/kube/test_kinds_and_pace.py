"""Quantities as an API server writes them, paths of kinds, and how fast requests go."""

from __future__ import annotations

import pytest

from rover_bus.events.errors import BadMessage
from rover_bus.kube.kinds import LEASE, NODE, POD, Ref, quantity
from rover_bus.kube.pace import RequestPace


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", 2.0),
        ("100m", 0.1),
        ("1.5Gi", 1.5 * 2**30),
        ("128974848", 128974848.0),
        ("1e3", 1e3),
        ("1E", 1e18),
    ],
)
def test_a_quantity_is_a_number(text: str, number: float) -> None:
    assert quantity(text) == pytest.approx(number)


@pytest.mark.parametrize("text", ["", "Gi", "1.2.3", "much", "1 Gi", "1GiB"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(BadMessage, match="no quantity"):
        quantity(text)


def test_a_kind_is_found_under_its_group_and_namespace() -> None:
    assert POD.path(Ref("a", "b")) == "/api/v1/namespaces/a/pods/b"
    assert POD.path(Ref("a", "b"), "resize") == "/api/v1/namespaces/a/pods/b/resize"
    assert POD.path(Ref("", "")) == "/api/v1/pods"
    assert NODE.path(Ref("", "n")) == "/api/v1/nodes/n"
    assert LEASE.path(Ref("a", "")) == "/apis/coordination.k8s.io/v1/namespaces/a/leases"


def test_a_burst_goes_at_once_and_the_rest_at_the_pace() -> None:
    pace = RequestPace(per_s=10.0, burst=3)
    assert [pace.take(100.0) for _ in range(5)] == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.2])
    assert pace.take(101.0) == 0.0
    assert [pace.take(200.0) for _ in range(4)] == pytest.approx([0.0, 0.0, 0.0, 0.1])


def test_while_the_server_asks_for_a_pause_nothing_goes() -> None:
    pace = RequestPace(per_s=10.0, burst=3)
    pace.hold(105.0)
    assert pace.take(100.0) == pytest.approx(5.1)
    assert pace.take(106.0) == 0.0
