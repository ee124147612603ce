"""Bounds hold from construction on, whether their annotation has a description or not."""

import pytest

from rover_bus.events.job import CheckpointSpec, LeaseSpec, RoleSpec


@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [
        (RoleSpec, "count", -1),
        (RoleSpec, "count", 10_001),
        (RoleSpec, "cores", -1.0),
        (RoleSpec, "memory_bytes", -1),
        (LeaseSpec, "heartbeat_s", 0.0),
        (LeaseSpec, "target_s", float("nan")),
        (CheckpointSpec, "every_s", -1.0),
        (CheckpointSpec, "overhead", 0.0),
        (CheckpointSpec, "parity", 3),
    ],
)
def test_a_value_outside_its_bounds_cannot_be_constructed(cls, field, value):
    with pytest.raises(ValueError, match=field):
        cls(**{field: value})
    with pytest.raises(ValueError, match=field):
        cls().replace(**{field: value})
