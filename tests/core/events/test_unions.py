"""Every class of a fact, and of a record, has its place in a union: what stands in none can be neither decoded nor stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar, get_args

from rover_bus.brain.log import BrainRecord
from rover_bus.events import checkpoint_facts, facts, log, plan_facts
from rover_bus.events.codec import EVENTS
from rover_bus.events.fact import Fact, Unpublished

T = TypeVar("T", bound=type)


def below(kind: T) -> Iterator[T]:
    """The classes that are told apart by a tag of their own."""
    for each in kind.__subclasses__():
        yield from below(each)
        if each.__module__.startswith("rover_bus.") and each.__name__ != each.__struct_config__.tag:
            yield each


def test_every_fact_can_be_decoded():
    assert [kind.__name__ for kind in below(Fact) if kind not in EVENTS.values()] == [], (
        f"its place is a union at the end of {facts.__name__}, {plan_facts.__name__} or {checkpoint_facts.__name__}"
    )


def test_every_record_belongs_to_a_log():
    stored = {*log.UNPUBLISHED, log.RecordPiece, *get_args(BrainRecord)}
    assert [kind.__name__ for kind in below(Unpublished) if kind not in stored] == [], (
        f"its place is UNPUBLISHED of {log.__name__}, or BrainRecord of rover_bus.brain.log"
    )
