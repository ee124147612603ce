"""What a master's decider is given: requests of members, facts of others, and the passing of time. Values only.

Built by service.py (live) and by the simulation alike; `decider.decide` takes one of them at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rover_bus.events.facts import Fact
from rover_bus.events.requests import AnyRequest


@dataclass(frozen=True, slots=True)
class Asked:
    """A member's request. Its reply leaves only after the records that led to it are stored."""

    request: AnyRequest


@dataclass(frozen=True, slots=True)
class Noticed:
    """A fact of somebody else (the CLI, the Brain, a daemon). `id` names it as a cause."""

    fact: Fact
    id: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class BusLost:
    """The broker does not answer: silence of members means nothing now (P19)."""


@dataclass(frozen=True, slots=True)
class BusRegained:
    """The broker answers again."""


@dataclass(frozen=True, slots=True)
class TookOver:
    """This master leads from now on: every member has a fresh deadline."""

    holder: str
    term: int
    replayed_records: int = 0
    log_lost: bool = False  # facts of ours are newer than the log: a power cut took its tail (P21)
    failing: Mapping[str, str] = field(default_factory=dict)  # rules to switch off, and why (guarding.py)
    release: str = ""


Input = Asked | Noticed | Ticked | BusLost | BusRegained | TookOver
