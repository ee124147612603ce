"""Who caused what: facts linked by the causes that they name (design §2.4). Pure but for reading the facts once.

A cause is `ROVER_FACTS:<sequence>` (another fact), `job:<uid>` (a submission), or a word for an input that is no fact (a request
of a member, the clock, a take-over): there the walk ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rover_bus.cli.history import Happened, read_facts
from rover_bus.events.bus import Bus
from rover_bus.events.errors import InputError
from rover_bus.events.facts import HostExited, HostStarted, JobFact, JobSubmitted, MembersDesired
from rover_bus.events.identity import Member
from rover_bus.events.streams import FACTS

Told = list[tuple[int, str, Happened]]
MAX_DEPTH = 100
_MEMBER = re.compile(r"(?P<job>[^@/]+)/(?P<place>(?:master|worker|ps)-\d+)(?:\.(?P<incarnation>\d+))?")


async def find_story(bus: Bus, event: str) -> Told:
    """Return (depth, how it is linked, fact) from the first cause over the event to its effects. Raises InputError."""
    happened = [each async for each in read_facts(bus)]
    found = _MEMBER.fullmatch(event)
    if found:
        return tell_life(happened, found["job"], found["place"], int(found["incarnation"] or 0))
    return tell_event(happened, event)


def tell_life(happened: Sequence[Happened], job: str, place: str, incarnation: int) -> Told:
    """Return every fact that names a place of a job, or one life of it."""
    told = [
        (0, "", each)
        for each in happened
        if each.job == job
        and any(member.place == place and incarnation in (0, member.incarnation) for member in _members(each))
    ]
    if not told:
        raise InputError(
            f"nothing is known of {place} of job {job!r}: `rover events {job}` lists what happened"
        )
    return told


def tell_event(happened: Sequence[Happened], event: str) -> Told:
    """Return the chain of causes of an event, the event, and what it caused directly."""
    links = Links(happened)
    chain = [links.find(event)]
    while len(chain) < MAX_DEPTH and (cause := links.cause_of(chain[-1])) is not None and cause not in chain:
        chain.append(cause)
    chain.reverse()
    told = [(depth, "└─" if depth else "", each) for depth, each in enumerate(chain)]
    return told + [(len(chain), "→", effect) for effect in links.effects_of(chain[-1])]


class Links:
    """The facts by every name that a cause or a person may use for them."""

    def __init__(self, happened: Iterable[Happened]) -> None:
        self._all = list(happened)
        self._by_name: dict[str, Happened] = {}
        for each in self._all:
            fact = each.fact
            self._by_name[each.id] = each
            self._by_name[str(each.stored.sequence)] = each
            if each.envelope.id:
                self._by_name.setdefault(each.envelope.id, each)
            if isinstance(fact, JobFact) and fact.position:
                sequence, index = fact.position
                self._by_name[f"{fact.job}@{sequence}.{index}"] = each
            if isinstance(fact, JobSubmitted):
                self._by_name[f"job:{fact.uid}"] = each

    def find(self, event: str) -> Happened:
        """Return the fact that a person means. Raises InputError."""
        if event not in self._by_name:
            raise InputError(
                f"no event {event!r}: take a number that `rover events` prints, {FACTS}:<number>, an event id, or JOB/worker-0"
            )
        return self._by_name[event]

    def cause_of(self, happened: Happened) -> Happened | None:
        """Return the fact that caused this one, None where the cause is no fact."""
        named = happened.envelope.cause or (happened.fact.cause if happened.fact else "")
        if named in self._by_name:
            return self._by_name[named]
        return self._implied_cause(happened)

    def effects_of(self, happened: Happened) -> list[Happened]:
        """Return the facts that this one caused directly."""
        return [each for each in self._all if each is not happened and self.cause_of(each) is happened]

    def _implied_cause(self, happened: Happened) -> Happened | None:
        """A process is started because some desired state named it, and ends after it was started."""
        fact = happened.fact
        if isinstance(fact, HostStarted):
            wanted, member = MembersDesired, fact.process.member
        elif isinstance(fact, HostExited):
            wanted, member = HostStarted, fact.member  # type: ignore[assignment]
        else:
            return None
        earlier = [
            each
            for each in self._all
            if each.stored.sequence < happened.stored.sequence
            and isinstance(each.fact, wanted)
            and each.job == happened.job
            and member in _members(each)
        ]
        return (earlier[0] if wanted is MembersDesired else earlier[-1]) if earlier else None


def _members(happened: Happened) -> list[Member]:
    """Return the members that a fact is about."""
    fact = happened.fact
    if isinstance(fact, HostStarted):
        return [fact.process.member]
    if isinstance(fact, MembersDesired):
        return [each.member for each in fact.members]
    member = getattr(fact, "member", None)
    return [member] if isinstance(member, Member) else []
