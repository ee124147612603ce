"""Causes: facts linked by the causes that they name (design §2.4). Pure but for reading the facts once.

Fed by the stored facts; feeds `rover story`. What a cause looks like is in events/causes.py. A symbolic one (`cut:3`, `worker-1.2`)
means the newest fact before this one, of the same job, that it names. What a daemon or a person says bears no cause: it is linked
to what it belongs to (a process to the plan that wants it, a stored part to its cut, a command to the submission of its job).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

from rover_bus.cli.views.history import Happened, read_facts
from rover_bus.events import causes
from rover_bus.events.bus import Bus
from rover_bus.events.checkpoint_facts import CheckpointOpened, HostPartFact
from rover_bus.events.errors import InputError
from rover_bus.events.facts import (
    GroupFormed,
    JobFact,
    JobSubmitted,
    MasterElected,
    MemberAdmitted,
    MemberLeft,
    MemberLost,
    MembersDesired,
    MembersUnheard,
    PlanProposed,
    RolloutOpened,
    StragglerFound,
)
from rover_bus.events.host_facts import (
    ClusterFact,
    HostExited,
    HostMemberStalled,
    HostMemberTaken,
    HostRegistered,
    HostStarted,
)
from rover_bus.events.identity import Member
from rover_bus.events.streams import FACTS
from rover_bus.events.subjects import DEFAULT_TENANT

Story = list[tuple[int, str, Happened]]
MOST_EFFECTS = 500  # facts that followed: a story of a submission would else be the whole job
_MEMBER = re.compile(
    r"(?P<job>(?:[^@/]+/)?[^@/]+)/(?P<name>(?:master|worker|ps)-\d+)(?:\.(?P<incarnation>\d+))?"
)


async def find_story(bus: Bus, event: str) -> Story:
    """Return (depth, how it is linked, fact) from the first cause over the event to its effects. Raises InputError.

    Of one tenant the bare name of a job is enough, and `TENANT/JOB` says the same.
    """
    if bus.tenant != DEFAULT_TENANT:
        event = event.removeprefix(f"{bus.tenant}/")
    happened = [each async for each in read_facts(bus)]
    found = _MEMBER.fullmatch(event)
    if found:
        return story_of_member(happened, found["job"], found["name"], int(found["incarnation"] or 0))
    return story_of_event(happened, event)


def story_of_member(happened: Sequence[Happened], job: str, name: str, incarnation: int) -> Story:
    """Return every fact that names a member of a job, or one incarnation of it."""
    story = [
        (0, "", each)
        for each in _in_turn(happened)
        if each.job == job
        and any(member.name == name and incarnation in (0, member.incarnation) for member in _members(each))
    ]
    if not story:
        raise InputError(
            f"nothing is known of {name} of job {job!r}: `rover events {job}` lists what happened"
        )
    return story


def _in_turn(happened: Sequence[Happened]) -> list[Happened]:
    """The facts in order, what takes a member away before the goodbye that it leads to: both are stored within milliseconds."""
    turns, left = list(happened), dict[tuple[str, Member], int]()
    for at, each in enumerate(happened):
        if isinstance(each.fact, MemberLeft):
            left[each.job, each.fact.member] = at
        elif isinstance(each.fact, HostMemberTaken) and (each.job, each.fact.member) in left:
            turns.remove(each)
            goodbye = happened[left[each.job, each.fact.member]]
            turns.insert(turns.index(goodbye), each)
    return turns


def story_of_event(happened: Sequence[Happened], event: str) -> Story:
    """Return the chain of causes of an event, the event, and all that followed from it, in the order in which it happened."""
    links = Links(happened)
    chain = links.chain_of(links.find(event))
    story = [(depth, links.why(each) if depth else "", each) for depth, each in enumerate(chain)]
    return story + links.followed(chain[-1], len(chain))


class Links:
    """The facts by every name that a cause or a person may use for them."""

    def __init__(self, happened: Iterable[Happened]) -> None:
        self._all = sorted(happened, key=lambda each: each.stored.sequence)
        self._by_name: dict[str, Happened] = {}
        self._symbols: dict[tuple[str, str], list[Happened]] = defaultdict(list)  # in the order of the stream
        self._hosts: dict[str, list[Happened]] = defaultdict(list)  # a daemon's causes name no job
        self._submissions: dict[str, list[Happened]] = defaultdict(list)
        self._wanted: dict[tuple[str, Member], list[Happened]] = defaultdict(list)
        self._ends: dict[tuple[str, str], list[Happened]] = defaultdict(list)  # of processes, by member name
        self._taken: dict[tuple[str, Member], list[Happened]] = defaultdict(list)  # what takes members away
        for each in self._all:
            self._take(each)
        self._effects: dict[int, list[Happened]] = defaultdict(list)
        for each in self._all:
            if (cause := self.cause_of(each)) is not None:
                self._effects[cause.stored.sequence].append(each)

    def _take(self, each: Happened) -> None:
        fact = each.fact
        self._by_name[each.id] = each
        self._by_name[str(each.stored.sequence)] = each
        if each.envelope.id:
            self._by_name.setdefault(each.envelope.id, each)
        if isinstance(fact, JobFact) and fact.position:
            sequence, index = fact.position
            self._by_name[f"{fact.job}@{sequence}.{index}"] = each
        if isinstance(fact, JobSubmitted):
            self._by_name[causes.job(fact.uid)] = each
            self._submissions[fact.job].append(each)
        for name in _symbols(each):
            self._symbols[each.job, name].append(each)
        if isinstance(fact, HostRegistered):
            self._hosts[causes.host(fact.host)].append(each)
        if isinstance(fact, HostExited) and fact.member is not None:
            self._ends[each.job, fact.member.name].append(each)
        if isinstance(fact, HostMemberTaken):
            self._taken[fact.job, fact.member].append(each)
        for member in _wanted(each):
            self._wanted[each.job, member].append(each)

    def find(self, event: str) -> Happened:
        """Return the fact that a person means. Raises InputError."""
        if event not in self._by_name:
            raise InputError(
                f"no event {event!r}: take a number of `rover events`, {FACTS}:<n>, an event id, JOB@SEQUENCE.INDEX or JOB/worker-0"
            )
        return self._by_name[event]

    def cause_of(self, happened: Happened) -> Happened | None:
        """Return the fact that caused this one, None where its story begins."""
        cause = self._takes_away(happened) or self.named_by(happened) or self._belongs_to(happened)
        return None if cause is happened else cause

    def _takes_away(self, happened: Happened) -> Happened | None:
        """Return what took a member away that said goodbye; None for one that went by itself."""
        fact = happened.fact
        taken = self._taken.get((happened.job, fact.member), []) if isinstance(fact, MemberLeft) else []
        return taken[0] if taken else None

    def named_by(self, happened: Happened) -> Happened | None:
        """Return the fact that this one's cause names, None where it names none that is stored."""
        written = cause_written(happened)
        if not written:
            return None
        name = causes.named(written)
        if name in self._by_name:
            return self._by_name[name]
        registered = self._hosts.get(name)
        return _before(registered or self._symbols.get((happened.job, name), []), happened)

    def chain_of(self, happened: Happened) -> list[Happened]:
        """Return the causes of a fact, the first one first, and the fact itself."""
        chain, seen = [happened], {happened.stored.sequence}
        while (cause := self.cause_of(chain[-1])) is not None and cause.stored.sequence not in seen:
            chain.append(cause)
            seen.add(cause.stored.sequence)
        return chain[::-1]

    def effects_of(self, happened: Happened) -> list[Happened]:
        """Return the facts that this one caused directly."""
        return self._effects[happened.stored.sequence]

    def followed(self, happened: Happened, depth: int) -> Story:
        """Return all that followed from a fact, each below what caused it; MOST_EFFECTS of it."""
        story: Story = []
        waiting = [(depth, each) for each in reversed(self.effects_of(happened))]
        seen = {happened.stored.sequence}
        while waiting and len(story) < MOST_EFFECTS:
            at, each = waiting.pop()
            if each.stored.sequence in seen:
                continue
            seen.add(each.stored.sequence)
            story.append((at, self.why(each), each))
            waiting += [(at + 1, effect) for effect in reversed(self.effects_of(each))]
        return story

    def why(self, happened: Happened) -> str:
        """Return how a fact is linked to its cause: by the name of a timer, or by nothing but itself."""
        timer = causes.waited_for(cause_written(happened))
        return f"└─ after {timer}:" if timer else "└─"

    def _belongs_to(self, happened: Happened) -> Happened | None:
        """Return what a fact belongs to that names no cause which is stored."""
        fact, job = happened.fact, happened.job
        if isinstance(fact, HostStarted):
            wanted = self._wanted.get((job, fact.process.member), [])
            if wanted:
                return wanted[0]
            if (ended := _before(self._ends.get((job, fact.process.member.name), []), happened)) is not None:
                return ended  # a daemon starts a master again by itself
        elif isinstance(fact, HostMemberStalled):
            if wanted := self._wanted.get((job, fact.member), []):
                return wanted[0]
        elif isinstance(fact, HostExited | HostMemberTaken) and fact.member is not None:
            taken = self._taken.get((job, fact.member), []) if isinstance(fact, HostExited) else []
            started = _before(taken or self._symbols.get((job, str(fact.member)), []), happened)
            if started is not None:
                return started
        elif isinstance(fact, HostPartFact):
            opened = _before(self._symbols.get((job, causes.cut(fact.cut)), []), happened)
            if opened is not None:
                return opened
        if not job or isinstance(fact, JobSubmitted | ClusterFact):
            return None
        return _before(self._submissions.get(job, []), happened)


def cause_written(happened: Happened) -> str:
    """Return the cause that a fact states, "" where it states none."""
    return happened.envelope.cause or (happened.fact.cause if happened.fact else "")


def _before(candidates: Sequence[Happened], happened: Happened) -> Happened | None:
    """Return the newest of them before a fact; where there is none, the first after it: daemons and masters publish apart."""
    at = bisect_left(candidates, happened.stored.sequence, key=lambda each: each.stored.sequence)
    found = candidates[at - 1] if at else next(iter(candidates), None)
    return None if found is happened else found


def _symbols(happened: Happened) -> list[str]:
    """Return the names that causes of the same job may use for a fact."""
    match happened.fact:
        case MasterElected(term=term):
            return [causes.term(term)]
        case PlanProposed(plan=plan):
            return [causes.plan(plan)]
        case CheckpointOpened(cut=cut):
            return [causes.cut(cut)]
        case RolloutOpened(rollout=rollout):
            return [causes.rollout(rollout)]
        case MemberLost(member=member):
            return [causes.lost(member)]
        case GroupFormed(number=number):
            return [causes.group(number)]
        case StragglerFound(member=member):
            return [causes.straggler(member)]
        case HostStarted(process=process):
            return [str(process.member)]
        case MemberAdmitted(member=member):
            return [str(member)]  # a process that no daemon started has only this
        case _:
            pass  # the others do not matter here
    return []


def _wanted(happened: Happened) -> list[Member]:
    """Return the members that a fact wants to run: those it names, and the masters that it seats."""
    match happened.fact:
        case MembersDesired(members=members, masters=seats):
            seated = [Member("master", index, seat.first) for index, seat in enumerate(seats)]
            return [*(each.member for each in members), *seated]
        case PlanProposed(masters=hosts):
            return [Member("master", index, 1) for index in range(len(hosts))]
        case MembersUnheard(stand_in=seat) if seat is not None:
            return [Member("master", 0, seat.first)]
    return []


def _members(happened: Happened) -> list[Member]:
    """Return the members that a fact is about."""
    fact = happened.fact
    if isinstance(fact, HostStarted):
        return [fact.process.member]
    if isinstance(fact, MembersDesired):
        return [each.member for each in (*fact.members, *fact.former)]
    member = getattr(fact, "member", None)
    return [member] if isinstance(member, Member) else []
