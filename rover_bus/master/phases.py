"""The phases of a job, each with the fields that it alone has, and the edges between them. `evolve` takes no other edge.

waiting (for a plan) -> starting (servers come up) -> training -> closed (every epoch is done; the result is computed) -> finishing
(servers write their parts) -> ended. A job that lost its model is `searching` until it knows what to go back to.
"""

from __future__ import annotations

import msgspec

from rover_bus.events.identity import DesiredMember, Member


class Waiting(msgspec.Struct, tag="waiting", omit_defaults=True):
    """For a plan."""


class Starting(msgspec.Struct, tag="starting", omit_defaults=True):
    """Servers come up, empty or from a cut; when all are there, slots are routed."""


class Searching(msgspec.Struct, tag="searching", omit_defaults=True):
    """For a checkpoint on storage: see searching.py. `asking`: none is usable, and a person decides what becomes of the job.

    `look`: the last search of those that go on meanwhile; `there`: how many checkpoints lay on storage then.
    """

    number: int
    host: str
    detail: str
    wanted: int = 0
    tries: int = 1
    asking: bool = False
    problems: list[str] = []
    servers: list[DesiredMember] = []  # that come again when a person has decided
    look: int = 0
    there: int = 0

    @property
    def open(self) -> int:
        """The search whose answer counts; 0 for none."""
        return self.look if self.asking else self.number


class Training(msgspec.Struct, tag="training", omit_defaults=True):
    """Batches are leased."""


class Closed(msgspec.Struct, tag="closed", omit_defaults=True):
    """Every epoch is done; a worker computes the result."""


class WrittenPart(msgspec.Struct, omit_defaults=True):
    """A server's part of the final state on disk."""

    member: Member
    path: str
    size_bytes: int = 0
    statistics: dict[str, float] = {}


class Finishing(msgspec.Struct, tag="finishing", omit_defaults=True):
    """Servers write their parts, by index."""

    parts: dict[int, WrittenPart] = {}


class Ended(msgspec.Struct, tag="ended", omit_defaults=True):
    """The job is over."""

    state: str
    reason: str = ""
    detail: str = ""


Phase = Waiting | Starting | Searching | Training | Closed | Finishing | Ended
Running = Starting | Training  # workers may come and go

EDGES: dict[type[Phase], frozenset[type[Phase]]] = {
    Waiting: frozenset({Starting, Searching, Ended}),
    Starting: frozenset({Starting, Searching, Training, Finishing, Ended}),
    Searching: frozenset({Searching, Starting, Ended}),
    Training: frozenset({Starting, Searching, Closed, Finishing, Ended}),
    Closed: frozenset({Starting, Searching, Finishing, Ended}),
    Finishing: frozenset({Starting, Searching, Ended}),
    Ended: frozenset(),
}


def name_of(phase: Phase) -> str:
    """Return the name of a phase, as answers and `rover jobs` print it."""
    return str(type(phase).__struct_config__.tag)


def after(phase: Phase, next_phase: Phase) -> Phase:
    """Return the next phase. Raises ValueError where no edge leads to it."""
    if type(next_phase) not in EDGES[type(phase)]:
        raise ValueError(
            f"a job that is {name_of(phase)} cannot be {name_of(next_phase)}: the log does not belong to this job"
        )
    return next_phase
