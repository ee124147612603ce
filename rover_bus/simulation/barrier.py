"""The barrier that programs of a simulated synchronous job bring: all of a group pass it together, or its break ends them.

Used by members.py. What is simulated is what sockets between processes do: one that ends breaks the steps that it was to take.
"""

from __future__ import annotations

import asyncio

from rover_bus.events.identity import Member
from rover_bus.events.requests import StepGroup


class BrokenStep(Exception):
    """Another worker of the group is gone."""


class Barriers:
    """The barriers of all groups of one history, by number."""

    def __init__(self) -> None:
        self._groups: dict[int, _Barrier] = {}
        self._gone: set[Member] = set()

    async def wait(self, group: StepGroup, member: Member) -> None:
        """Wait until all of the group have come. Raises BrokenStep."""
        if group.number not in self._groups:
            self._groups[group.number] = _Barrier(group)
            for gone in self._gone:
                self._groups[group.number].leave(gone)
        await self._groups[group.number].wait(member)

    def leave(self, member: Member) -> None:
        """A process has ended."""
        self._gone.add(member)
        for barrier in self._groups.values():
            barrier.leave(member)


class _Barrier:
    def __init__(self, group: StepGroup) -> None:
        self.group = group
        self.broken = False
        self.waiting: dict[Member, asyncio.Future[None]] = {}

    async def wait(self, member: Member) -> None:
        if self.broken:
            raise BrokenStep
        passed = self.waiting[member] = asyncio.get_running_loop().create_future()
        if len(self.waiting) == len(self.group.members):
            waiting, self.waiting = self.waiting, {}
            for each in waiting.values():
                if not each.done():
                    each.set_result(None)
        await passed

    def leave(self, member: Member) -> None:
        if member not in self.group.members:
            return
        self.broken = True
        waiting, self.waiting = self.waiting, {}
        for each in waiting.values():
            if not each.done():
                each.set_exception(BrokenStep())
                each.exception()  # its process may have ended as well
