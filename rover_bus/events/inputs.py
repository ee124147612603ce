"""What a decider with a log is given, one at a time: requests, facts of others, samples, the passing of time. Values only.

Made by the shell (shell.py) and by tests; decided on by the master and by the Brain. A decider that has no use for a kind of input
decides nothing on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rover_bus.events.fact import Fact
from rover_bus.events.profiles import AnyProfile
from rover_bus.events.requests import AnyRequest


@dataclass(frozen=True, slots=True)
class Requested:
    """A member's request. Its reply leaves only after the records that led to it are stored."""

    request: AnyRequest


@dataclass(frozen=True, slots=True)
class Observed:
    """A fact that another component published. `id` names it as a cause."""

    fact: Fact
    id: str


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sample of a member or host. Lost ones are lost."""

    sample: AnyProfile


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed. `wall_ms`: the host's clock, milliseconds of Unix time; 0: no clock was asked.

    Only what people name by date is held against it: durations are those of `now`.
    """

    wall_ms: int = 0


@dataclass(frozen=True, slots=True)
class Continued:
    """The last decision was unfinished: go on. What arrived meanwhile was decided on."""


@dataclass(frozen=True, slots=True)
class BusLost:
    """The broker does not answer: silence of members means nothing now (P19)."""


@dataclass(frozen=True, slots=True)
class BusRegained:
    """The broker answers again. Facts are followed from where they were left; samples of the meantime are lost."""


@dataclass(frozen=True, slots=True)
class TookOver:
    """This process leads from now on: every member has a fresh deadline.

    `log_sequence`: the last record that was replayed. `log_lost`: facts of this log are newer than the log, because a power cut
    took its tail (P21). `failing`: rules to switch off, and why: each has ended three incarnations of this `release` (poison.py).
    """

    holder: str
    term: int
    replayed_records: int = 0
    log_lost: bool = False
    log_sequence: int = 0
    failing: Mapping[str, str] = field(default_factory=dict)
    release: str = ""


Input = Requested | Observed | Sampled | Ticked | Continued | BusLost | BusRegained | TookOver
