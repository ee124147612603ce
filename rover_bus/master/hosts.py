"""Decisions on hosts that are gone: their members go elsewhere, and nobody is started there until they are heard again (S19, S29);
and on hosts where the job's program does not start (docs/design/0032).

Asked by the decider on ticks and by `noticing` when a daemon says that it leaves. A master hears members, not hosts: a host whose
members are all silent at a time when others are heard is taken for lost. Should it live after all, its daemon reads the next
desired set and ends what belongs to others now, and the fences refuse what it says meanwhile (P5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator

from rover_bus.events import causes
from rover_bus.events.facts import HostProgramRefused, MembersDisplaced
from rover_bus.events.identity import Member
from rover_bus.events.log import HostFit, HostNoticed, HostReturned, HostUnfit, Record
from rover_bus.master import cutting, lifecycle
from rover_bus.master.planning import able_hosts, replace_members, seat_masters
from rover_bus.master.state import State, Unfit

Consequences = Generator[Record, None, None]


def lost_with(state: State, silent: Collection[Member]) -> list[str]:
    """Return the hosts whose admitted members are all silent, where somebody elsewhere is not; and those without a heard member
    that others do not hear either, where another host is left.
    """
    heard = {life.host for life in state.lives.values() if life.planned and life.member not in silent}
    quiet = {life.host for life in state.lives.values() if life.planned and life.member in silent}
    lost = {host for host in quiet if heard and _others(state, host)}
    if any(host not in {*state.away, *state.unheard} for host in state.hosts):
        lost |= {host for host in state.unheard if _has_ours(state, host)}
    return sorted(lost - heard - set(state.away))


def lose(state: State, host: str, reason: str, cause: str) -> Consequences:
    """A host is gone without a word: all its members are dead."""
    dead = [life.member for life in state.lives.values() if life.host == host and life.planned]
    yield MembersDisplaced(host=host, reason=reason, members=_planned_on(state, host), cause=cause)
    yield from cutting.lose_host(state, host, "was lost", cause)
    yield from lifecycle.lose_together(state, dead, reason, f"with its host {host}", cause)
    yield from _start_elsewhere(state, host, f"host {host} lost: {reason}", cause)


def miss(state: State, host: str, cause: str) -> Consequences:
    """Others hear nothing of a host. What that means is decided by ticks: members that are heard there prove the contrary."""
    if host in state.hosts and host not in state.unheard:
        yield HostNoticed(host=host, unheard=True, cause=cause)


def take_notice(state: State, host: str, cause: str) -> Consequences:
    """A host will be gone soon: next lives are named for others from now on, and a last cut is due (`cutting`)."""
    if host in state.leaving or not _planned_on(state, host):
        return
    yield HostNoticed(host=host, cause=cause)
    if host not in state.away and _others(state, host):
        yield MembersDisplaced(host=host, reason="leaving", members=_planned_on(state, host), cause=cause)
        yield from _start_elsewhere(state, host, f"host {host} is leaving", cause)


def leave(state: State, host: str, cause: str) -> Consequences:
    """A daemon ended on purpose. Members that it left alone still speak for themselves; those to come are started elsewhere."""
    if host in state.away or not _others(state, host):
        return
    yield MembersDisplaced(host=host, reason="left", members=_planned_on(state, host), cause=cause)
    yield from _start_elsewhere(state, host, f"host {host} left", cause)


def _start_elsewhere(state: State, host: str, reason: str, cause: str) -> Consequences:
    """Lives that were named for this host and never came there get successors on others."""
    admitted = {life.member for life in state.lives.values()}
    waiting = [member for member in _planned_on(state, host) if member not in admitted]
    if waiting and state.phase not in ("finishing", "ended"):
        yield replace_members(state, waiting, cause, reason)
    if state.phase != "ended" and any(seat.host == host for seat in state.masters):
        yield seat_masters(state, cause, reason)


def come_back(state: State, host: str, cause: str) -> Consequences:
    """The daemon of a lost host is heard again. Of two masters that share a host since then, one goes there."""
    yield HostReturned(host=host, cause=cause)
    sharing = Counter(seat.host for seat in state.masters)
    if (
        state.phase != "ended"
        and host in state.hosts
        and not sharing[host]
        and max(sharing.values(), default=0) > 1
    ):
        yield seat_masters(state, cause, f"host {host} is back")


def find_unfit(state: State, fact: HostProgramRefused, cause: str) -> Consequences:
    """The job's program does not start on a host: its workers that wait there go elsewhere, and cost the job no failure."""
    problem = f"{fact.path}: {fact.problem}"
    if state.unfit.get(fact.host) != Unfit(fact.daemon, problem):
        yield HostUnfit(host=fact.host, daemon=fact.daemon, problem=problem, cause=cause)
    yield from use_able_hosts(state, cause)


def find_fit(state: State, host: str, cause: str) -> Consequences:
    """The job's program starts there again; or is taken to, until its daemon says otherwise: that one tries it first."""
    yield HostFit(host=host, cause=cause)
    yield from use_able_hosts(state, cause)


def tick(state: State) -> Consequences:
    """However a worker came to wait on such a host, and whenever another one can take it: a refusal is published once."""
    if state.unfit:
        yield from use_able_hosts(state, causes.timer("program", causes.host(min(state.unfit))))


def use_able_hosts(state: State, cause: str) -> Consequences:
    """Workers that were named for hosts where the program does not start get successors on others, where there are any."""
    able = set(able_hosts(state, "worker", state.hosts)) - {*state.unfit, *state.away}
    admitted = {life.member for life in state.lives.values()}
    waiting = [
        desired.member
        for place, desired in state.planned.items()
        if desired.member.role == "worker"
        and desired.host in state.unfit
        and desired.member not in admitted
        and place not in state.gaps  # the next tick names their successors
    ]
    if able and waiting and state.phase not in ("finishing", "ended"):
        where = ", ".join(sorted({state.planned[member.place].host for member in waiting}))
        yield replace_members(state, waiting, cause, f"the program does not start on {where}")


def _planned_on(state: State, host: str) -> list[Member]:
    return [desired.member for desired in state.planned.values() if desired.host == host]


def _has_ours(state: State, host: str) -> bool:
    return bool(_planned_on(state, host)) or any(seat.host == host for seat in state.masters)


def _others(state: State, host: str) -> list[str]:
    """The hosts that the plan names and that are not lost either."""
    return [each for each in state.hosts if each != host and each not in state.away]
