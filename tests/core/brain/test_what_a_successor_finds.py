"""A Brain that takes over publishes nothing again: every fact that a Brain makes bears its place, where a successor looks (P18)."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from rover_bus.brain import publishing
from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.log import BrainRecord
from rover_bus.cli.samples import sample
from rover_bus.events.facts import SlotsMoveRequested
from rover_bus.events.outbox import FactOut, subject_of
from rover_bus.events.subjects import matches

PLACE = (7, 1)


@pytest.mark.parametrize("kind", get_args(BrainRecord), ids=lambda kind: kind.__struct_config__.tag)
def test_every_fact_of_a_brain_is_found_by_its_successor(kind: type[msgspec.Struct]) -> None:
    for made in publishing.outgoing(sample(kind), PLACE, 3):
        assert isinstance(made, FactOut)
        assert any(matches(pattern, subject_of(made.fact)) for pattern in publishing.SUBJECTS)
        assert BrainDecider.position_of(None, made.fact) == made.position  # type: ignore[arg-type]


def test_a_hot_server_is_one_of_them() -> None:
    [made] = publishing.outgoing(sample(SlotsMoveRequested), PLACE, 3)
    assert made.fact.kind() == "slots.move_requested"  # type: ignore[union-attr]
