"""What a later format writes otherwise, and the one form in which deciders and readers know it (docs/design/0073).

`as_written` stands where bytes are made (journal.py, outbox.py), `as_read` where they are read (journal.py, codec.py): nothing
between them knows more than one form. Apart from facts.py, because no component decides these.

Format 2: `members.desired.v2`. A change of one member repeats all of them, and of each the program, the environment and the limits
that it shares with its role: 265 bytes a member and change, in the log and in FACTS, and no message of 1 MiB holds more than 4,000.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from rover_bus.events.errors import BadMessage
from rover_bus.events.fact import MasterFact
from rover_bus.events.facts import MembersDesired
from rover_bus.events.identity import DesiredMember, MasterSeat, Member, Resources, Role
from rover_bus.events.invariants import Checked, Count, Seconds

T = TypeVar("T")
Place = Annotated[int, msgspec.Meta(ge=1)]


class SharedTerms(Checked, frozen=True, kw_only=True):
    """What many members have in common: all of `DesiredMember` but which one it is, and where it runs."""

    command: list[str] = []
    environment: dict[str, str] = {}
    resources: Resources = Resources()
    directory: str = ""
    grace_s: Seconds = 10.0
    start_patience_s: Seconds = 60.0
    restart: bool = False
    after_loss: bool = False


class MembersDesiredV2(MasterFact, frozen=True, kw_only=True, tag="members.desired.v2"):
    """Absolute desired state for platforms, as `members.desired.v1` says it, with what members share written once.

    `members`: role, index, incarnation, place of the host in `on`, place of all else in `terms`; both places count from 1.
    """

    since_format: ClassVar[int] = 2

    term: Count = 0
    plan: Count
    members: list[tuple[Role, Count, Count, Place, Place]]
    on: list[str] = []
    terms: list[SharedTerms] = []
    uid: str = ""
    masters: list[MasterSeat] = []
    proposal: Count = 0
    hosts: list[str] = []
    slow_hosts: list[str] = []
    former: list[DesiredMember] = []
    reason: str = ""


LATER: tuple[type[Any], ...] = (MembersDesiredV2,)  # forms that deciders and readers know otherwise
_SAME = tuple(name for name in MembersDesired.__struct_fields__ if name != "members")
_SHARED = SharedTerms.__struct_fields__


def as_written(event: Any, written: int) -> Any:
    """Return an event as a stack of format `written` has it."""
    if written >= MembersDesiredV2.since_format and isinstance(event, MembersDesired):
        return _share(event)
    return event


def as_read(event: T) -> T | MembersDesired:
    """Return an event of any format in the form that readers know. Raises BadMessage for one that contradicts itself."""
    return _spread(event) if isinstance(event, MembersDesiredV2) else event


def least_format(events: Iterable[Any]) -> int:
    """Return the least format that a release must read to read all of these: what came later says so by its `since_format`."""
    return max((getattr(each, "since_format", 1) for each in events), default=1)


def _share(fact: MembersDesired) -> MembersDesiredV2:
    on: dict[str, int] = {}
    places: dict[tuple[Any, ...], int] = {}
    terms: list[SharedTerms] = []
    members: list[tuple[Role, int, int, int, int]] = []
    for each in fact.members:
        place = places.setdefault(_terms_of(each), len(places) + 1)
        if place > len(terms):
            terms.append(SharedTerms(**{name: getattr(each, name) for name in _SHARED}))
        named, host = each.member, on.setdefault(each.host, len(on) + 1)
        members.append((named.role, named.index, named.incarnation, host, place))
    same = {name: getattr(fact, name) for name in _SAME}
    return MembersDesiredV2(members=members, on=list(on), terms=terms, **same)


def _terms_of(each: DesiredMember) -> tuple[Any, ...]:
    """Return what tells terms apart, as a key: a job has thousands of members and a few terms."""
    return (
        *each.command,
        *each.environment.items(),
        each.resources.cores,
        each.resources.memory_bytes,
        each.directory,
        each.grace_s,
        each.start_patience_s,
        each.restart,
        each.after_loss,
    )


def _spread(fact: MembersDesiredV2) -> MembersDesired:
    shared = [{name: getattr(each, name) for name in _SHARED} for each in fact.terms]
    try:
        members = [
            DesiredMember(
                member=Member(role, index, incarnation), host=fact.on[host - 1], **shared[place - 1]
            )
            for role, index, incarnation, host, place in fact.members
        ]
    except IndexError:
        raise BadMessage(f"{fact.tag()} names a host or terms that it does not hold") from None
    return MembersDesired(members=members, **{name: getattr(fact, name) for name in _SAME})
