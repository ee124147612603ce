"""What is published of a member that runs or is to run, beside its start and its end: a fact, and what makes its message id. Pure.

Fed by the daemon with what its platform observes; feeds its outbox. The id names the incarnation, so that a successor that observes
the same once more repeats the fact.
"""

from __future__ import annotations

from typing import assert_never

from rover_bus.events.host_facts import HostAdjustRefused, HostFact, HostMemberStalled, HostMemberTaken
from rover_bus.node.port import AdjustRefused, Incarnation, Stalled, TakenAway, Trouble

MOST_WORDS = 500


def told_of(seen: Trouble, run: Incarnation, host: str) -> tuple[HostFact, str]:
    """Return what is published of it, and the end of its message id."""
    job, uid, member = run.job, run.uid, run.member
    match seen:
        case AdjustRefused(resources=resources, why=why):
            size = f"{resources.cores:g}.{resources.memory_bytes}"
            fact: HostFact = HostAdjustRefused(
                host=host, job=job, uid=uid, member=member, resources=resources, why=why[:MOST_WORDS]
            )
            return fact, f"adjust_refused.{job}.{uid}.{member}.{size}"
        case Stalled(reason=reason, why=why):
            fact = HostMemberStalled(
                host=host, job=job, uid=uid, member=member, reason=reason, why=why[:MOST_WORDS]
            )
            return fact, f"member_stalled.{job}.{uid}.{member}"
        case TakenAway(reason=reason, why=why):
            fact = HostMemberTaken(
                host=host, job=job, uid=uid, member=member, reason=reason, why=why[:MOST_WORDS]
            )
            return fact, f"member_taken.{job}.{uid}.{member}"
        case _:
            assert_never(seen)
