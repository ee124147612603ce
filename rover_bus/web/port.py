"""What is served: the port between HTTP and what a stack knows of itself. Implemented by `cli/page.py` with its commands' views.

All methods raise RoverErrors: InputError for a name that there is not, Refused, BusError.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple, Protocol

from rover_bus.web.bodies import (
    ClusterShown,
    EventShown,
    HeatShown,
    JobShown,
    LanesShown,
    MemberShown,
    MemoryShown,
    PlanShown,
    ProgramShown,
    Row,
    StateShown,
    StoryStep,
    ThroughputShown,
)


class Figure(NamedTuple):
    """One series of a metric: the name of its family (families.py), the values of its labels in their order, and its value."""

    family: str
    labels: tuple[str, ...]
    value: float


class OneJob(Protocol):
    """One job, at one moment for all that is asked of it. Each answer rests on the facts up to `sequence`."""

    @property
    def sequence(self) -> int:
        """The newest fact that is in its answers."""

    async def job(self) -> JobShown:
        """Return its figures, its progress by its own log."""

    async def members(self) -> list[MemberShown]:
        """Return its processes that run."""

    def plans(self) -> list[PlanShown]:
        """Return its plans in their order."""

    async def explanation(self, number: int | None) -> Row:
        """Return why a plan is what it is (None: the newest), with its front and its losers."""

    def throughput(self) -> ThroughputShown:
        """Return measured throughput beside what plans promised."""

    def lanes(self) -> LanesShown:
        """Return where the time of each member went."""

    def program(self) -> ProgramShown:
        """Return loss and metrics as the program reports them, and when it ends."""

    async def memory(self) -> MemoryShown:
        """Return the memory of members with limits and forecasts."""

    async def heat(self) -> HeatShown:
        """Return how much servers are asked for."""


class Page(Protocol):
    """What a stack shows, and takes."""

    @property
    def ready(self) -> bool:
        """Whether all that was stored has been read, and the bus is there."""

    @property
    def sequence(self) -> int:
        """The newest fact that answers rest on."""

    @property
    def timeline(self) -> int:
        """Which past its sequences and numbers of plans are of: a restore from a backup draws another one. 0: there was none."""

    def figures(self) -> list[Figure]:
        """Return every series as it is now, in one go: none of it is of another moment."""

    def cluster(self) -> ClusterShown:
        """Return what is there."""

    def jobs(self) -> list[JobShown]:
        """Return all jobs in the order of their submission."""

    async def of_job(self, job: str, at: int | None) -> OneJob:
        """Return one job as it is, or as it was known after a record of its log. Raises Refused for what is not kept."""

    async def state(self, job: str, at: int | None) -> StateShown:
        """Return the job's state after a record of its log (None: the newest). Raises Refused for what is not kept."""

    async def story(self, event: str) -> list[StoryStep]:
        """Return the causes of an event and its effects."""

    async def past(self, job: str, before: int | None, count: int) -> list[EventShown]:
        """Return the last facts before a sequence, of one job or ("") of all, in their order."""

    def events(self, job: str, after: int | None) -> AsyncGenerator[EventShown, None]:
        """Iterate facts behind a sequence (None: from now on) in their order, and those to come, for ever; none twice."""

    async def answer(self, job: str, number: int, reason: str, by: str, *, yes: bool) -> str:
        """Say yes or no to a plan that waits, in a person's name; return what became of it.

        Raises Refused when it does not wait.
        """
