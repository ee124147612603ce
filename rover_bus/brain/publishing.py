"""What leaves the Brain: the records of its log that are facts, with their place in it (P18)."""

from __future__ import annotations

from typing import Any, get_args

from rover_bus.brain.log import BrainDecided
from rover_bus.events import subjects
from rover_bus.events.fact import Fact, Record
from rover_bus.events.facts import BrainFact, PlanProposed
from rover_bus.events.host_facts import BrainHostFact, HostFact
from rover_bus.events.outbox import FactOut, Outgoing

SUBJECTS = [
    subject
    for fact in get_args(BrainDecided)
    for subject in (
        [subjects.host_facts(fact=fact.kind())]
        if issubclass(fact, HostFact)
        else subjects.everywhere(subjects.job_facts(kind=fact.kind()))
    )
]


def outgoing(record: Record, position: tuple[int, int], term: int) -> list[Outgoing]:
    """Return the fact that a record is, with what all records of this log share."""
    if not isinstance(record, BrainDecided):
        return []
    shared: dict[str, Any] = {"by": record.by or "brain", "brain_position": position}
    if isinstance(record, PlanProposed | BrainFact | BrainHostFact):
        shared["brain_term"] = term
    return [FactOut(record.replace(**shared), position, term)]


def position_of(fact: Fact) -> tuple[int, int] | None:
    """Return the place of a fact in the Brain's log, None of one that came from elsewhere."""
    return fact.brain_position if isinstance(fact, BrainDecided) else None
