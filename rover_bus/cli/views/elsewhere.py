"""The members of a job that run on other hosts, as the bus has them: this host's own are known better, from its daemon's records.

Fed with facts in the order in which they were stored; feeds `rover members`. A process that was started runs until a fact says
that it ended, that its job lost it, or that its host is lost: a lost host publishes nothing itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from rover_bus.events import subjects
from rover_bus.events.facts import Fact, MemberLost, MembersDisplaced
from rover_bus.events.host_facts import HostExited, HostStarted
from rover_bus.events.identity import Process


def filters(job: str) -> list[str]:
    """Return the subjects of the facts that `find_elsewhere` reads."""
    lost = [subjects.job_facts(job, each.kind()) for each in (MemberLost, MembersDisplaced)]
    return [*lost, *(subjects.host_facts(fact=each.kind()) for each in (HostStarted, HostExited))]


@dataclass(slots=True)
class RunningMembers:
    """The processes of one job, by what facts say of them. `running`: by incarnation."""

    job: str
    running: dict[str, Process] = field(default_factory=dict)

    def take(self, fact: Fact) -> None:
        """Take a fact in; those of other jobs change nothing."""
        match fact:
            case HostStarted(job=of, process=process) if of == self.job:
                self.running[str(process.member)] = process
            case HostExited(job=of, member=member) | MemberLost(job=of, member=member) if of == self.job:
                self.running.pop(str(member), None)
            case MembersDisplaced(job=of, host=host) if of == self.job:
                self.running = {
                    member: process for member, process in self.running.items() if process.host != host
                }
            case _:
                pass  # of no process

    def rows(self, here: Collection[str] = (), leader: str = "") -> list[dict[str, Any]]:
        """Return a row for each process whose member is not among those known `here`."""
        return [
            {
                "role": process.member.role,
                "index": process.member.index,
                "incarnation": process.member.incarnation,
                "host": process.host,
                "pid": process.pid,
                "state": "running",
                "leads": member == leader if process.member.role == "master" else None,
                "exit": None,
                "log": None,
            }
            for member, process in sorted(self.running.items())
            if member not in here
        ]


def find_elsewhere(
    job: str, facts: Iterable[Fact], here: Collection[str], leader: str = ""
) -> list[dict[str, Any]]:
    """Return a row for each living process of the job whose member is not among those known `here`."""
    members = RunningMembers(job)
    for fact in facts:
        members.take(fact)
    return members.rows(here, leader)
