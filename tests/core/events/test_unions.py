"""Every class of a fact, and of a record, has its place in a union: what stands in none can be neither decoded nor stored."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar, get_args

import rover_bus
from rover_bus.brain.log import BrainRecord
from rover_bus.events import log
from rover_bus.events.codec import EVENTS
from rover_bus.events.fact import Fact, Unpublished

NAMED_BY_VARIABLE = {"PlanApproved", "PlanRejected"}  # a word of a person: `rover plan approve | reject`
T = TypeVar("T", bound=type)


def below(kind: T) -> Iterator[T]:
    """The classes that are told apart by a tag of their own."""
    for each in kind.__subclasses__():
        yield from below(each)
        if each.__module__.startswith("rover_bus.") and each.__name__ != each.__struct_config__.tag:
            yield each


def test_every_fact_can_be_decoded():
    assert [kind.__name__ for kind in below(Fact) if kind not in EVENTS.values()] == [], (
        "its place is a union at the end of its module in rover_bus.events"
    )


def test_every_record_belongs_to_a_log():
    stored = {*log.UNPUBLISHED, log.RecordPiece, *get_args(BrainRecord)}
    assert [kind.__name__ for kind in below(Unpublished) if kind not in stored] == [], (
        f"its place is UNPUBLISHED of {log.__name__}, or BrainRecord of rover_bus.brain.log"
    )


def test_every_fact_and_record_is_decided_by_a_component():
    made = set()
    for path in Path(rover_bus.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
                    made.add(name)
    events = {kind.__name__ for kind in (*below(Fact), *below(Unpublished))}
    assert events - made == NAMED_BY_VARIABLE, "no rule yields these"
