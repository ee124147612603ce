"""The decider of a host's members: absolute desired state and observed members in; starts, stops, changes out (protocol P18, P23).

Fed by the daemon, which carries its effects to the platform. The rules of this half, each in one place:

- At most one incarnation of a member: a new one starts only when the former is proven dead. One that ended is never repeated.
- `restart=True` (masters): the platform counts incarnations itself, and starts the next one after a short backoff. What its memory
  limit kills as soon as it starts is started again after such a backoff too.
- A worker is started only after its program was tried on this host, and starts (programs.py). What is refused is tried again.
- A member that may be pinned gets its cores from what others left (affinity.py).
- A worker is what a spare that fits becomes, where one is ready; spares have only the room that members leave (spares.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from rover_bus.events.deciding import Turn, TurnDecider, WakeAt
from rover_bus.events.identity import DesiredMember, Member, Resources
from rover_bus.events.programs import ProgramRequest
from rover_bus.node.affinity import assign_cpus
from rover_bus.node.members import (
    DesiredJob,
    Happening,
    HostMembers,
    ObservedMember,
    evolve,
    is_worker,
    same_run,
    without,
)
from rover_bus.node.port import Incarnation, Key, SpareKey
from rover_bus.node.spares import Drop, Prepare, RoomLeft, SpareWish, decide_spares

MASTER_GRACE_S = 5.0


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """`spare`: the number of the one that becomes it; 0: none."""

    incarnation: Incarnation
    spare: int = 0


@dataclass(frozen=True, slots=True)
class Stop:
    """`hurried`: it was lost, its successor waits, and its messages are refused."""

    incarnation: Incarnation
    hurried: bool = False


@dataclass(frozen=True, slots=True)
class Adjust:
    incarnation: Incarnation
    resources: Resources
    cpus: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing of this ended job is left: its records may go."""

    job: str
    uid: str


@dataclass(frozen=True, slots=True)
class Erase:
    """This run of a job is forgotten: its logs, records and parts of its model may go."""

    job: str
    uid: str


@dataclass(frozen=True, slots=True)
class TryProgram:
    """Find out whether the program of a job starts here. `anew`: nothing remembered counts. `for_start`: a worker waits for it."""

    job: str
    uid: str
    program: ProgramRequest
    anew: bool = False
    for_start: bool = False


Input = Happening | Turn
Effect = Start | Stop | Adjust | Forget | Erase | TryProgram | Prepare | Drop | WakeAt


class MembersDecider(TurnDecider[HostMembers, Happening, Effect]):
    """The daemon's decider."""

    def __init__(self, state: HostMembers) -> None:
        super().__init__(state, evolve, decide)


# -- decide ------------------------------------------------------------------------------------------------------------


def decide(state: HostMembers, now_s: float, leave_out: Collection[str] = ()) -> list[Effect]:
    """Return what is to be done now. Asked at every Turn; asked twice it answers the same.

    leave_out: jobs on which nothing is decided.
    """
    state = without(state, leave_out) if leave_out else state
    effects: list[Effect] = []
    loads = _loads(state)
    desired = {(job, name): member for job in state.jobs for name, member in desired_here(state, job).items()}
    for key, known in state.observed.items():
        wanted, uid = desired.get(key), _uid(state, key[0])
        hurried = _is_lost(known, wanted, uid)
        stays = _is_desired(known, wanted, uid) or _is_former(state, known)
        if not stays and (not known.stopping or hurried > known.hurried):
            effects.append(Stop(known.incarnation, hurried))
    held: set[str] = set()  # jobs with a worker that waits for a trial of its program
    used: set[SpareKey] = set()  # spares that become members now
    for key, member in desired.items():
        if key not in state.observed and is_worker(member) and not _lets_start(state.jobs[key[0]], now_s):
            held.add(key[0])
        else:
            for effect in _realise(state, key, member, loads, now_s):
                effects.append(_warmed(state, effect, used) if isinstance(effect, Start) else effect)
    effects += _trials(state, held, now_s)
    effects += decide_spares(state.spares, _wishes(state, desired), _room(state, desired), used, now_s)
    for job, about in state.jobs.items():
        if about.ended and any(key[0] == job for key in state.past) and not _lives(state, job):
            effects.append(Forget(job, about.uid))
        elif about.forgotten and not _lives(state, job):
            effects.append(Erase(job, about.uid))
    return effects + _wake(state, now_s)


def desired_here(state: HostMembers, job: str) -> dict[str, DesiredMember]:
    """Return what shall run here of a job, by member name; incarnations of restarting members are still the lowest allowed."""
    about = state.jobs.get(job)
    if about is None or about.ended:
        return {}
    masters = {
        f"master-{index}": DesiredMember(
            member=Member("master", index, first), host=state.host, grace_s=MASTER_GRACE_S, restart=True
        )
        for index, first in about.masters.items()
        if "master" in state.roles
    }
    return {**masters, **about.members}


def overtaken(state: HostMembers) -> list[tuple[str, str, DesiredMember, int]]:
    """Return the members that are desired here although this incarnation, or a later one, has ended: (job, uid, member, the last).

    Soon after an end the log does not contain it yet. Where it stays so, the log lost its tail in a power cut (P21) and waits
    for an incarnation that never comes.
    """
    found = []
    for job, about in state.jobs.items():
        for name, desired in about.members.items():
            past = state.past.get((job, name))
            if past is None or (job, name) in state.observed or desired.restart:
                continue
            if same_run(past.uid, about.uid) and past.incarnation >= desired.member.incarnation:
                found.append((job, about.uid, desired, past.incarnation))
    return found


def _wake(state: HostMembers, now_s: float) -> list[Effect]:
    """When the first backoff ends."""
    waiting = [
        past.not_before_s
        for (job, name), past in state.past.items()
        if past.not_before_s > now_s
        and (job, name) not in state.observed
        and (desired := desired_here(state, job).get(name))
        and (desired.restart or desired.member.incarnation > past.incarnation)
    ]
    waiting += [
        about.trial.not_before_s
        for about in state.jobs.values()
        if about.program is not None and about.trial.state == "refused" and about.trial.not_before_s > now_s
    ]
    return [WakeAt(min(waiting))] if waiting else []


def _lets_start(about: DesiredJob, now_s: float) -> bool:
    return about.program is None or about.trial.lets_start(now_s)


def _trials(state: HostMembers, held: Collection[str], now_s: float) -> list[TryProgram]:
    """The programs to be tried now, those first for which a worker waits."""
    due = [
        TryProgram(job, about.uid, about.program, about.trial.anew, job in held)
        for job, about in state.jobs.items()
        if about.program is not None and about.trial.is_due(job in held, now_s)
    ]
    return sorted(due, key=lambda each: not each.for_start)


def _realise(
    state: HostMembers, key: Key, desired: DesiredMember, loads: dict[int, float], now_s: float
) -> list[Effect]:
    known, uid = state.observed.get(key), _uid(state, key[0])
    if known is not None:
        return _change(state, known, desired, loads)
    past = state.past.get(key)
    if past and same_run(past.uid, uid):
        if not desired.restart and desired.member.incarnation <= past.incarnation:
            return []
        if now_s < past.not_before_s:
            return []
        if desired.restart:
            number = max(desired.member.incarnation, past.incarnation + 1)
            desired = desired.replace(member=Member(desired.member.role, desired.member.index, number))
    cpus = assign_cpus(state.cpus, loads, desired.resources.cores)
    _take(loads, cpus, {})
    return [Start(Incarnation(key[0], uid, desired, cpus))]


def _warmed(state: HostMembers, start: Start, used: set[SpareKey]) -> Start:
    """The start of a worker by a spare that is ready and fits, where there is one that no other start takes."""
    run = start.incarnation
    number = state.spares.fitting(run.job, run.uid, run.desired, used) if is_worker(run.desired) else 0
    if number:
        used.add((run.job, number))
    return replace(start, spare=number)


def _wishes(state: HostMembers, desired: Mapping[Key, DesiredMember]) -> list[SpareWish]:
    """The jobs that may have spares here: those with a worker here, like the newest of which they are made.

    One that was just lost counts: its master is about to want its next incarnation.
    """
    newest: dict[str, DesiredMember] = {}
    for key, member in desired.items():
        if is_worker(member):
            newest[key[0]] = max(member, newest.get(key[0], member), key=lambda each: each.member.index)
    return [
        SpareWish(job, about.uid, newest[job], about.spares)
        for job, about in state.jobs.items()
        if job in newest and about.spares and about.program is not None
    ]


def _room(state: HostMembers, desired: Mapping[Key, DesiredMember]) -> RoomLeft:
    """What this host has beyond all that members were promised."""
    if state.capacity is None:
        return RoomLeft(math.inf, math.inf)
    promised = {key: each.desired.resources for key, each in state.observed.items()}
    promised |= {key: each.resources for key, each in desired.items()}
    cores = state.capacity.cores - sum(each.cores for each in promised.values())
    return RoomLeft(cores, state.capacity.memory_bytes - sum(each.memory_bytes for each in promised.values()))


def _change(
    state: HostMembers, known: ObservedMember, desired: DesiredMember, loads: dict[int, float]
) -> list[Effect]:
    """Give a running member the resources that it shall have."""
    same = desired.resources in (known.desired.resources, known.refused)
    if known.stopping or same or not _is_desired(known, desired, _uid(state, known.job)):
        return []
    free = {cpu: load - known.incarnation.cpus.get(cpu, 0.0) for cpu, load in loads.items()}
    cpus = assign_cpus(state.cpus, free, desired.resources.cores)
    _take(loads, cpus, known.incarnation.cpus)
    return [Adjust(known.incarnation, desired.resources, cpus)]


def _is_desired(known: ObservedMember, desired: DesiredMember | None, uid: str) -> bool:
    if desired is None or not same_run(known.incarnation.uid, uid):
        return False
    return known.desired.member.incarnation == desired.member.incarnation or (
        desired.restart and known.desired.member.incarnation > desired.member.incarnation
    )


def _is_former(state: HostMembers, known: ObservedMember) -> bool:
    """Whether this incarnation trains on here until its successor comes elsewhere."""
    about, run = state.jobs.get(known.job), known.incarnation
    former = about.former.get(run.member.name) if about is not None else None
    return (
        about is not None
        and former is not None
        and former.member == run.member
        and same_run(run.uid, about.uid)
    )


def _is_lost(known: ObservedMember, desired: DesiredMember | None, uid: str) -> bool:
    """Whether another incarnation shall run in its stead because this one was lost."""
    if desired is None or not desired.after_loss or not same_run(known.incarnation.uid, uid):
        return False
    return known.desired.member.incarnation < desired.member.incarnation


def _uid(state: HostMembers, job: str) -> str:
    return state.jobs[job].uid if job in state.jobs else ""


def _lives(state: HostMembers, job: str) -> bool:
    return any(each.job == job for each in state.observed.values())


def _loads(state: HostMembers) -> dict[int, float]:
    loads: dict[int, float] = {}
    for each in state.observed.values():
        _take(loads, each.incarnation.cpus, {})
    return loads


def _take(loads: dict[int, float], taken: Mapping[int, float], given_back: Mapping[int, float]) -> None:
    for cpu, share in taken.items():
        loads[cpu] = loads.get(cpu, 0.0) + share
    for cpu, share in given_back.items():
        loads[cpu] = loads.get(cpu, 0.0) - share
