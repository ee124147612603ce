"""When workers that train on elsewhere leave for their successors (docs/design/0091). Generators of records.

Fed by requests to join, which are refused for as long as a former trains, and by ticks; feeds the sets of members without those
whose successors have come. Their hosts then drain them, so that they end in order and no lease is lost (S3).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from rover_bus.events import causes
from rover_bus.events.identity import Member
from rover_bus.events.job import is_synchronous
from rover_bus.events.log import Record
from rover_bus.master.guarding import FORMERS
from rover_bus.master.phases import Closed, Ended, Finishing
from rover_bus.master.planning import without_formers
from rover_bus.master.state import State
from rover_bus.master.stepping import JOIN_S

ASK_AGAIN_S = 0.2  # a successor hears that it waits, and asks again
HEARD_S = 3.0  # a successor that has not asked for so long has not come
END_S = 5.0  # beyond its grace, for a former to end: a host needs a moment to hear that it shall, and to say that it did

Steps = Generator[Record, None, None]


@dataclass(slots=True)
class Successors:
    """The successors that ask to join: when each first and last did, since when its former is to end. Never logged (P19)."""

    asked_s: dict[Member, float] = field(default_factory=dict)
    first_asked_s: dict[Member, float] = field(default_factory=dict)
    ends_since_s: dict[Member, float] = field(default_factory=dict)

    def must_wait(self, state: State, member: Member, now: float) -> bool:
        """Whether a worker that asks to join finds its former there, and that one has time to end. Notes that it asks."""
        known = state.seats.admitted.get(member.name)
        if known is None or not known.planned or member.role != "worker":
            return False
        self.asked_s[member] = now
        self.first_asked_s.setdefault(member, now)
        if state.seats.has_former(member.name) and FORMERS not in state.rules_off:
            return True
        since_s = self.ends_since_s.setdefault(member, now)
        return now - since_s < state.job.spec.workers.grace_s + END_S

    def has_come(self, member: Member, now: float) -> bool:
        """Whether a successor asks to join."""
        return now - self.asked_s.get(member, float("-inf")) < HEARD_S

    def forget(self, state: State) -> None:
        """Keep only those that still wait."""
        waiting = [each for each in self.asked_s if state.seats.wants(each) and not state.seats.has(each)]
        self.asked_s = {each: self.asked_s[each] for each in waiting}
        self.first_asked_s = {each: at for each, at in self.first_asked_s.items() if each in self.asked_s}
        self.ends_since_s = {each: at for each, at in self.ends_since_s.items() if each in self.asked_s}


def tick(state: State, successors: Successors, now: float) -> Steps:
    """Name the members without the formers whose successors have come, and without those that are gone."""
    if successors.asked_s:
        successors.forget(state)
    if not state.seats.former or isinstance(state.phase, Closed | Finishing | Ended) or state.ending.stop:
        return  # a former may do what is left to do
    gone = {name for name in state.seats.former if not state.seats.has_former(name)}
    come = {name for name in state.seats.former if _has_come(state, name, successors, now)}
    if come and is_synchronous(state.job.spec) and not _have_gathered(state, come, successors, now):
        come = set()  # a change of the group is for all that come within seconds of one another
    if gone | come:
        cause = causes.timer("successors", causes.job(state.job.uid))
        yield without_formers(state, gone | come, cause, _words(state, sorted(come) or sorted(gone), come))


def _has_come(state: State, name: str, successors: Successors, now: float) -> bool:
    return successors.has_come(state.seats.wanted[name].member, now)


def _have_gathered(state: State, come: set[str], successors: Successors, now: float) -> bool:
    """Whether no other worker is missing, or none has come for a while."""
    wanted = {name: each.member for name, each in state.seats.wanted.items() if each.member.role == "worker"}
    if all(state.seats.has(member) or successors.has_come(member, now) for member in wanted.values()):
        return True
    return now - max(successors.first_asked_s[wanted[name]] for name in come) >= JOIN_S


def _words(state: State, names: list[str], come: set[str]) -> str:
    first, others = state.seats.former[names[0]].member, len(names) - 1
    more = f" and {others} more" if others else ""
    return (
        f"the successor of {first}{more} is there"
        if come
        else f"{first}{more} left before its successor came"
    )
