"""What the platform's decider is told of its host, and what it wants done: the words between members.py and what drives processes.

Spoken by local/processes.py and simulated.py (observations), by members.py (actions), and carried by the daemon. Apart from the
decider because both sides of the port need them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rover_bus.events.identity import DesiredMember, Exit, Member, Resources
from rover_bus.events.programs import ProgramReply, ProgramRequest

Key = tuple[str, str]  # job, place


@dataclass(frozen=True, slots=True)
class Life:
    """A member's life as observed here. `cpus` are the shares that it is pinned to; empty: it may use all."""

    job: str
    uid: str
    desired: DesiredMember
    cpus: Mapping[int, float] = field(default_factory=dict)
    pid: int = 0
    stopping: bool = False
    hurried: bool = False

    @property
    def key(self) -> Key:
        return self.job, self.desired.member.place


# -- what is observed --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawned:
    """A shim was started, or found alive after a restart of the daemon."""

    life: Life


@dataclass(frozen=True, slots=True)
class Running:
    """The member's own process runs under this pid."""

    key: Key
    pid: int
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """The member was asked to leave; `hurried`: at once."""

    key: Key
    hurried: bool = False


@dataclass(frozen=True, slots=True)
class Adjusted:
    """A running member has other limits now."""

    key: Key
    resources: Resources
    cpus: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Ended:
    """A life is over, the whole group proven dead. `at_s` is the monotonic second. `reported`: the bus has its fact already."""

    job: str
    uid: str
    member: Member
    exit: Exit
    ran_s: float
    at_s: float
    reported: bool = False
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Tried:
    """Whether the program of a job starts here; None: the question was put (`for_start` of a worker), the answer comes later."""

    job: str
    uid: str
    reply: ProgramReply | None = None
    at_s: float = 0.0
    for_start: bool = False


Observation = Spawned | Running | Told | Adjusted | Ended | Tried


# -- what is to be done ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    life: Life


@dataclass(frozen=True, slots=True)
class Stop:
    """`hurried`: it was lost, its successor waits for its place, and whatever it still says is refused."""

    life: Life
    hurried: bool = False


@dataclass(frozen=True, slots=True)
class Adjust:
    life: Life
    resources: Resources
    cpus: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing of this ended job is left: its records may go."""

    job: str
    uid: str


@dataclass(frozen=True, slots=True)
class Erase:
    """This run of a job is forgotten: its logs, records and parts of its model may go."""

    job: str
    uid: str


@dataclass(frozen=True, slots=True)
class Try:
    """Find out whether the program of a job starts here. `anew`: nothing remembered counts. `for_start`: a worker waits for it."""

    job: str
    uid: str
    program: ProgramRequest
    anew: bool = False
    for_start: bool = False


Action = Start | Stop | Adjust | Forget | Erase | Try
