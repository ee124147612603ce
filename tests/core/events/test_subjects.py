"""The subjects of facts and their types name each other."""

from __future__ import annotations

import pytest

from rover_bus.cli.schemas import address_of
from rover_bus.events.checkpoint_facts import CHECKPOINT_FACTS
from rover_bus.events.fact import Fact
from rover_bus.events.facts import FACTS
from rover_bus.events.subjects import parse


@pytest.mark.parametrize("cls", [*FACTS, *CHECKPOINT_FACTS], ids=lambda cls: cls.tag())
def test_a_fact_is_found_by_its_type_on_its_subject(cls: type[Fact]) -> None:
    parsed = parse(address_of(cls.tag(), cls).format(job="ads", host="h"))
    assert parsed is not None
    assert f"{parsed.noun_verb}.v1" == cls.tag()
