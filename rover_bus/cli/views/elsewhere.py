"""The members of a job that run on other hosts, as the bus has them: this host's own are known better, from its daemon's records.

Fed with facts in the order in which they were stored; feeds `rover members`. A process that was started runs until a fact says
that it ended, that its job lost it, or that its host is lost: a lost host publishes nothing itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from rover_bus.events import subjects
from rover_bus.events.facts import Fact, MemberLost, MembersDisplaced
from rover_bus.events.host_facts import HostExited, HostStarted
from rover_bus.events.identity import Process


def filters(job: str) -> list[str]:
    """Return the subjects of the facts that `find_elsewhere` reads."""
    lost = [subjects.job_facts(job, each.kind()) for each in (MemberLost, MembersDisplaced)]
    return [*lost, *(subjects.host_facts(fact=each.kind()) for each in (HostStarted, HostExited))]


def find_elsewhere(
    job: str, facts: Iterable[Fact], here: Collection[str], leader: str = ""
) -> list[dict[str, Any]]:
    """Return a row for each living process of the job whose member is not among those known `here`."""
    running: dict[str, Process] = {}
    for fact in facts:
        match fact:
            case HostStarted(job=of, process=process) if of == job:
                running[str(process.member)] = process
            case HostExited(job=of, member=member) if of == job:
                running.pop(str(member), None)
            case MemberLost(job=of, member=member) if of == job:
                running.pop(str(member), None)
            case MembersDisplaced(job=of, host=host) if of == job:
                running = {member: process for member, process in running.items() if process.host != host}
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
        for member, process in sorted(running.items())
        if member not in here
    ]
