"""The workers of a synchronous job that take each step together, as one of them sees it: what a program builds its barrier of.

Fed by `worker` with what a lease says; read by the program as `job.group`.
"""

from __future__ import annotations

from typing import NamedTuple

from rover_bus.events.identity import Member
from rover_bus.events.requests import StepGroup


class TrainingGroup(NamedTuple):
    """One group: its number, which grows with each change; this worker's place in it, 0 <= rank < size; and where each runs."""

    number: int
    rank: int
    hosts: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many workers take each step."""
        return len(self.hosts)


ALONE = TrainingGroup(0, 0, ("localhost",))


def group_of(group: StepGroup | None, member: Member) -> TrainingGroup:
    """Return a group as `member` sees it; one of itself alone where the job is not synchronous."""
    if group is None or member not in group.members:
        return ALONE
    return TrainingGroup(group.number, group.members.index(member), tuple(group.hosts))
