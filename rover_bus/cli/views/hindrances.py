"""Why a job does not get on, in one line with what to do about it: no plan, no master, no host where its members are to run; or
it gets on, and its checkpoints do not.

Fed by the job's facts (history.py), its log as its master would read it (progress.py), and by the hosts and leaders that are
there now (buckets); feeds `rover jobs` and `rover doctor`. Apart because no service puts these together: each knows what it
itself waits for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from rover_bus.cli.views.history import JobRow
from rover_bus.events.bus import Bus
from rover_bus.events.host_facts import HostRegistered
from rover_bus.events.leadership import read_leader
from rover_bus.events.looks import last_fact
from rover_bus.events.streams import LEADERS, PRESENCE
from rover_bus.events.subjects import DEFAULT_TENANT, host_fact
from rover_bus.master.phases import Searching, Starting, Training
from rover_bus.master.state import State

BRAIN_KEY = "brain.leader"
UP_AGAIN = "`rover up` there"
MOST_NAMED = 3  # members in one line
MANY_WAIT = 50  # facts of one job on their way: more than any one decision makes


@dataclass(slots=True)
class Present:
    """What is there: hosts with a live daemon, the leading master of each job, and whether a Brain leads."""

    hosts: set[str] = field(default_factory=set)
    leaders: dict[str, str] = field(default_factory=dict)  # by job; a master that still replays is none
    brain: bool = False


async def read_present(bus: Bus) -> Present:
    """Read it from the buckets."""
    led = {key: read_leader(entry) for key, entry in (await bus.entries(LEADERS, "*")).items()}
    hosts = await bus.entries(PRESENCE, "*")
    return Present(
        hosts={key for key, entry in hosts.items() if entry.expires},
        leaders={job: leader.holder for job, leader in led.items() if leader is not None and leader.term},
        brain=await _has_brain(bus),
    )


async def _has_brain(bus: Bus) -> bool:
    """Whether a Brain leads. A tenant's account does not say it: there it is taken for granted."""
    return bus.tenant != DEFAULT_TENANT or read_leader(await bus.get(LEADERS, BRAIN_KEY)) is not None


async def read_registered(bus: Bus, hosts: Iterable[str]) -> dict[str, HostRegistered]:
    """Return what the daemon of each host said last when it registered.

    What cannot be believed is left out: `rover doctor` names it.
    """
    found: dict[str, HostRegistered] = {}
    for host in sorted(hosts):
        fact = await last_fact(bus, host_fact(host, HostRegistered.kind()), HostRegistered)
        if fact is not None:
            found[host] = fact
    return found


def hindrance(view: JobRow, state: State | None, present: Present, waiting: int = 0) -> str:
    """Say what a job that has not ended waits for; "" where nothing stands in its way. `state`: what its own log tells.

    `waiting`: facts that its log says had not left.
    """
    if view.ended_ms:
        return ""
    if waiting >= MANY_WAIT:
        return f"trains on, but {waiting} facts of it cannot be stored: is the store full? `rover doctor`"
    if not view.planned:
        return _no_plan(view, present)
    if state is None or view.job not in present.leaders:
        return _no_master(view, state, present)
    if isinstance(state.phase, Searching):
        if not state.phase.asking and not state.seats.wanted and view.withheld:
            return view.withheld  # it was resumed, and waits for room
        return _no_checkpoint(view.job, state.phase)
    if exact := [rule for rule, off in state.rules_off.items() if off.exact and state.paused]:
        off = state.rules_off[exact[0]]
        return f"paused: rule {exact[0]!r} of {off.release} failed three times ({off.why}): `rover resume {view.job}` tries again"
    if state.paused:
        return f"paused: `rover resume {view.job}`"
    if state.seats.plan == 0 and state.plans.waiting is not None:
        return f"plan {state.plans.waiting.plan} waits for a person: `rover plan approve {view.job}`"
    if isinstance(state.phase, Starting) and not state.seats.wanted and view.withheld:
        return view.withheld  # its start was withdrawn
    return (
        _missing_members(state, present.hosts)
        or _held_workers(state)
        or _slow_to_join(view.job, state)
        or (str(view.checkpoints) if isinstance(state.phase, Training) else "")
        or _unfit_hosts(state)
        or rules_off(view)
    )


def _no_checkpoint(job: str, search: Searching) -> str:
    if not search.asking:
        return f"looks for a checkpoint to go back to, on host {search.host}"
    first = f" ({search.problems[0]})" if search.problems else ""
    return (
        f"none of its checkpoints can be restored{first}: `rover resume {job} --from-nothing`, or `--checkpoint N`; "
        f"`rover events {job} -k checkpoint.none_usable` has all reasons"
    )


def rules_off(view: JobRow) -> str:
    """Say which rules are left out of a job's ticks, and why; "" for none."""
    said = [
        f"rule {rule!r} is switched off, it failed three times: {why}" for rule, why in view.rules_off.items()
    ]
    return "; ".join(said)


def _no_plan(view: JobRow, present: Present) -> str:
    if not present.hosts:
        return "no host is there: `rover up`"
    if not present.brain:
        return "no Brain leads, so there is no plan: `rover doctor`"
    return view.withheld or "waits for the Brain's first plan"


def _no_master(view: JobRow, state: State | None, present: Present) -> str:
    seats = state.seats.masters if state is not None else []
    hosts = sorted({seat.host for seat in seats} or set(view.master_hosts))
    gone = [host for host in hosts if host not in present.hosts]
    if gone != hosts:
        return "no master leads yet"
    where = (
        f"its masters' host {gone[0]} is" if len(gone) == 1 else f"its masters' hosts {', '.join(gone)} are"
    )
    return f"no master leads: {where} silent: {UP_AGAIN}"


def _unfit_hosts(state: State) -> str:
    """Hosts on which the job's program does not start, while its workers run elsewhere."""
    return (
        f"its program does not start, and no worker is placed, on {_why_unfit(state)}"
        if state.seats.hosts.unfit
        else ""
    )


def _held_workers(state: State) -> str:
    """Workers that wait on such hosts, because no other one can take them."""
    held = [
        str(each.member)
        for name, each in sorted(state.seats.wanted.items())
        if name not in state.seats.admitted
        and each.member.role == "worker"
        and each.host in state.seats.hosts.unfit
    ]
    if not held:
        return ""
    return f"{', '.join(held)} cannot start, the program does not on {_why_unfit(state)}; it is tried again by itself"


def _slow_to_join(job: str, state: State) -> str:
    """Members without which nothing is trained: a program that runs and never joins looks like one that is about to."""
    absent = [
        each.member for name, each in sorted(state.seats.wanted.items()) if name not in state.seats.admitted
    ]
    works = isinstance(state.phase, Training) and bool(state.seats.workers())
    if works or not absent or not isinstance(state.phase, Starting | Training):
        return ""
    names = ", ".join(map(str, absent[:MOST_NAMED])) + (", ..." if len(absent) > MOST_NAMED else "")
    return f"waits for {names} to join; where that takes long, `rover logs {job} {absent[-1].name}` says why"


def _why_unfit(state: State) -> str:
    return "; ".join(
        f"host {host}: {unfit.problem}" for host, unfit in sorted(state.seats.hosts.unfit.items())
    )


def _missing_members(state: State, hosts: Collection[str]) -> str:
    """Members that were named for a host that is not there, and never came."""
    waiting = [each for name, each in sorted(state.seats.wanted.items()) if name not in state.seats.admitted]
    gone = sorted({each.host for each in waiting if each.host not in hosts})
    if not gone:
        return ""
    members = ", ".join(str(each.member) for each in waiting if each.host in gone)
    return f"{members} cannot start: host {', '.join(gone)} is silent: {UP_AGAIN}"
