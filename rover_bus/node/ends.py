"""The ends of members as a daemon tells of them; those that it finds as it begins are named by what it reads then.

A worker hears from its master, not from its daemon, that it is desired no more. Where nothing watches its host at that moment, its
platform finds a program that ended with status 0 and was not asked to: "completed", as a worker is once its job's data is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rover_bus.events.host_facts import HostExited
from rover_bus.node.members import HostMembers, same_run
from rover_bus.node.port import Exited

UNSEEN = "desired no more; no daemon was there as it left"


class FoundEnds:
    """Reports ends at once, but for those that wait until what is desired was read."""

    def __init__(self, report: Callable[[Exited], None]) -> None:
        self._report = report
        self._waiting: list[Exited] | None = []  # None: it was read

    def take(self, ended: Exited) -> None:
        """Report an end, now or by `read`. One that was published by a former daemon is not."""
        if ended.reported:
            return
        if self._waiting is None or ended.exit.reason != "completed":
            self._report(ended)
        else:
            self._waiting.append(ended)

    def read(self, state: HostMembers) -> None:
        """What is desired is known from here on."""
        waiting, self._waiting = self._waiting or [], None
        for ended in waiting:
            exit = ended.exit
            if is_desired_no_more(state, ended):
                exit = exit.replace(reason="drained", detail=UNSEEN)
            self._report(replace(ended, exit=exit))


def is_desired_no_more(state: HostMembers, ended: Exited) -> bool:
    """Whether a job that goes on was read to desire other members than the one that has ended."""
    job = state.jobs.get(ended.job)
    if job is None or job.ended or job.fence[0] < 0 or not same_run(job.uid, ended.uid):
        return False
    desired = (*job.members.values(), *job.former.values())
    return ended.member.role != "master" and all(each.member != ended.member for each in desired)


def told_of_end(ended: Exited, host: str) -> HostExited:
    """Return the fact that says of an end what its platform knows."""
    return HostExited(
        host=host,
        job=ended.job,
        member=ended.member,
        exit=ended.exit,
        ran_s=ended.ran_s,
        cpu_s=ended.cpu_s,
        peak_memory_bytes=ended.peak_memory_bytes,
    )
