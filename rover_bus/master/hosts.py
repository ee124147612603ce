"""Decisions on hosts that are gone: their members go elsewhere, and none is started there until they are heard again (S19, S29);
and on hosts where the job's program does not start (docs/design/0032).

Asked by the decider on ticks and by `noticing` when a daemon says that it leaves. A master hears members, not hosts: a host whose
members are all silent at a time when others are heard is taken for lost. Should it live after all, its daemon reads the next
desired set and ends what belongs to others now, and the fences refuse what it says meanwhile (P5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator

from rover_bus.events import causes
from rover_bus.events.facts import MembersDisplaced
from rover_bus.events.host_facts import HostProgramRefused
from rover_bus.events.identity import Member
from rover_bus.events.log import HostFit, HostNoticed, HostReturned, HostUnfit, Record
from rover_bus.master import cutting, lifecycle
from rover_bus.master.phases import Ended, Finishing
from rover_bus.master.planning import able_hosts, replace_members, seat_masters
from rover_bus.master.state import Hosts, Seats, State, Unfit

Consequences = Generator[Record, None, None]


def lost_with(seats: Seats, silent: Collection[Member]) -> list[str]:
    """Return the hosts whose admitted members are all silent, where a member elsewhere is not; and those without a heard member
    that others do not hear either, where another host is left.
    """
    hosts = seats.hosts
    heard = {each.host for each in seats.admitted.values() if each.planned and each.member not in silent}
    quiet = {each.host for each in seats.admitted.values() if each.planned and each.member in silent}
    lost = {host for host in quiet if heard and _others(hosts, host)}
    if any(host not in {*hosts.away, *hosts.unheard} for host in hosts.named):
        lost |= {host for host in hosts.unheard if _has_ours(seats, host)}
    return sorted(lost - heard - set(hosts.away))


def lose(state: State, host: str, reason: str, cause: str) -> Consequences:
    """A host is gone without a word: all its members are dead."""
    dead = [
        seated.member for seated in state.seats.admitted.values() if seated.host == host and seated.planned
    ]
    yield MembersDisplaced(host=host, reason=reason, members=state.seats.on(host), cause=cause)
    yield from cutting.lose_host(state, host, "was lost", cause)
    yield from lifecycle.lose_together(state, dead, reason, f"with its host {host}", cause)
    yield from _start_elsewhere(state, host, f"host {host} lost: {reason}", cause)


def miss(state: State, host: str, cause: str) -> Consequences:
    """Others hear nothing of a host. What that means is decided by ticks: members that are heard there prove the contrary."""
    if host in state.seats.hosts.named and host not in state.seats.hosts.unheard:
        yield HostNoticed(host=host, unheard=True, cause=cause)


def take_notice(state: State, host: str, cause: str) -> Consequences:
    """A host will be gone soon: next incarnations are named for others from now on, and a last cut is due (`cutting`)."""
    if host in state.seats.hosts.leaving or not state.seats.holds(host):
        return
    yield HostNoticed(host=host, cause=cause)
    if host not in state.seats.hosts.away and _others(state.seats.hosts, host):
        yield MembersDisplaced(host=host, reason="leaving", members=state.seats.on(host), cause=cause)
        yield from _start_elsewhere(state, host, f"host {host} is leaving", cause)


def leave(state: State, host: str, cause: str) -> Consequences:
    """A daemon ended on purpose. Members that it left alone still speak for themselves; those to come are started elsewhere."""
    if host in state.seats.hosts.away or not _others(state.seats.hosts, host):
        return
    yield MembersDisplaced(host=host, reason="left", members=state.seats.on(host), cause=cause)
    yield from _start_elsewhere(state, host, f"host {host} left", cause)


def _start_elsewhere(state: State, host: str, reason: str, cause: str) -> Consequences:
    """Members that were named for this host and never came there get successors on others."""
    admitted = {seated.member for seated in state.seats.admitted.values()}
    waiting = [member for member in state.seats.on(host) if member not in admitted]
    if waiting and not isinstance(state.phase, Finishing | Ended):
        yield replace_members(state, waiting, cause, reason)
    if not isinstance(state.phase, Ended) and any(seat.host == host for seat in state.seats.masters):
        yield seat_masters(state, cause, reason)


def come_back(state: State, host: str, cause: str) -> Consequences:
    """The daemon of a lost host is heard again. Of two masters that share a host since then, one goes there."""
    yield HostReturned(host=host, cause=cause)
    sharing = Counter(seat.host for seat in state.seats.masters)
    if (
        not isinstance(state.phase, Ended)
        and host in state.seats.hosts.named
        and not sharing[host]
        and max(sharing.values(), default=0) > 1
    ):
        yield seat_masters(state, cause, f"host {host} is back")


def find_unfit(state: State, fact: HostProgramRefused, cause: str) -> Consequences:
    """The job's program does not start on a host: its workers that wait there go elsewhere, and cost the job no failure."""
    problem = f"{fact.path}: {fact.problem}"
    if state.seats.hosts.unfit.get(fact.host) != Unfit(fact.daemon, problem):
        yield HostUnfit(host=fact.host, daemon=fact.daemon, problem=problem, cause=cause)
    yield from use_able_hosts(state, cause)


def find_fit(state: State, host: str, cause: str) -> Consequences:
    """The job's program starts there again; or is taken to, until its daemon says otherwise: that one tries it first."""
    yield HostFit(host=host, cause=cause)
    yield from use_able_hosts(state, cause)


def tick(state: State) -> Consequences:
    """However a worker came to wait on such a host, and whenever another one can take it: a refusal is published once."""
    if state.seats.hosts.unfit:
        yield from use_able_hosts(state, causes.timer("program", causes.host(min(state.seats.hosts.unfit))))


def use_able_hosts(state: State, cause: str) -> Consequences:
    """Workers that were named for hosts where the program does not start get successors on others, where there are any."""
    able = set(able_hosts(state, "worker", state.seats.hosts.named)) - {
        *state.seats.hosts.unfit,
        *state.seats.hosts.away,
    }
    admitted = {seated.member for seated in state.seats.admitted.values()}
    waiting = [
        desired.member
        for name, desired in state.seats.wanted.items()
        if desired.member.role == "worker"
        and desired.host in state.seats.hosts.unfit
        and desired.member not in admitted
        and name not in state.seats.gaps  # the next tick names their successors
    ]
    if able and waiting and not isinstance(state.phase, Finishing | Ended):
        where = ", ".join(sorted({state.seats.wanted[member.name].host for member in waiting}))
        yield replace_members(state, waiting, cause, f"the program does not start on {where}")


def _has_ours(seats: Seats, host: str) -> bool:
    return seats.holds(host) or any(seat.host == host for seat in seats.masters)


def _others(hosts: Hosts, host: str) -> list[str]:
    """The hosts that the plan names and that are not lost either."""
    return [each for each in hosts.named if each != host and each not in hosts.away]
