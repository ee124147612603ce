"""The decider of the local platform: absolute desired state and observed processes in, starts and stops out (protocol P18, P23).

Fed by the daemon with facts of the FACTS stream (what shall run, by job) and with what the platform observes (what runs);
its actions go back to the platform. The rules, each in one place:

- A desired state of another run of the job, or lower in (term, plan, position), is stale: counted, and nothing changes.
- At most one life of a place: a new one starts only when the former is proven dead. A life that ended is never repeated.
- `restart=True` (masters): the platform counts incarnations itself, and starts the next one after a short backoff.
- `plan.proposed` names the hosts of the masters, so that leader and standby run before any master exists. From the first
  `members.desired` that names them on, the job's own log says where they are: a lost host's go elsewhere. When no host with one is
  heard any more, `members.unheard` names a stand-in: it leads, and says where they are from then on.
- `job.ended` ends everything of the job. What no desired state names is drained.
- A worker is started only after its program was tried on this host, and starts (programs.py). What is refused is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from rover_bus.events.facts import (
    Fact,
    JobEnded,
    JobFact,
    JobForgotten,
    JobSubmitted,
    MembersDesired,
    MembersUnheard,
    PlanProposed,
)
from rover_bus.events.identity import (
    FAULTS_OF_THE_PROGRAM,
    DesiredMember,
    MasterSeat,
    Member,
)
from rover_bus.events.programs import ProgramReply, ProgramRequest
from rover_bus.node.affinity import assign_cpus
from rover_bus.node.port import (
    Action,
    Adjust,
    Adjusted,
    Ended,
    Erase,
    Forget,
    Key,
    Life,
    Observation,
    Running,
    Spawned,
    Start,
    Stop,
    Told,
    Tried,
    Try,
)
from rover_bus.node.programs import UNTRIED, Trial

BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.1, 5.0
MOST_DOUBLINGS = 16  # of the backoff: far above its maximum
HEALTHY_S = 10.0  # a life that lasted this long clears the backoff
MASTER_GRACE_S = 5.0

Fence = tuple[int, int, int, int]
MasterCommand = Callable[[str, int], list[str]]
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the bus says of one job, as far as this host is concerned."""

    uid: str = ""
    fence: Fence = (-1, -1, -1, -1)
    members: Mapping[str, DesiredMember] = field(default_factory=dict)
    plan: tuple[int, int] = (-1, -1)  # (Brain term, number)
    masters: Mapping[int, int] = field(default_factory=dict)  # of this host: index -> first incarnation here
    seated: bool = False  # a master said where masters run: plans only say it while there is none
    ended: bool = False
    forgotten: bool = False  # ended, and nothing of it is to be kept
    program: ProgramRequest | None = None  # of its workers, as submitted; None: nothing is known of it
    trial: Trial = UNTRIED


@dataclass(frozen=True, slots=True)
class Past:
    """What is over at a place: the last incarnation, how often in a row it ended early, and when it may start again."""

    uid: str
    incarnation: int
    failures: int = 0
    not_before_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Platform:
    """The whole state. `allowed` are the CPUs for members; `stale` counts refused desired states."""

    host: str
    allowed: tuple[int, ...]
    jobs: Mapping[str, Wanted] = field(default_factory=dict)
    lives: Mapping[Key, Life] = field(default_factory=dict)
    past: Mapping[Key, Past] = field(default_factory=dict)
    stale: int = 0


# -- evolve ------------------------------------------------------------------------------------------------------------


def _with(mapping: Mapping[K, V], key: K, value: V) -> Mapping[K, V]:
    return MappingProxyType({**mapping, key: value})


def _without(mapping: Mapping[K, V], gone: Callable[[K], bool]) -> Mapping[K, V]:
    return MappingProxyType({key: value for key, value in mapping.items() if not gone(key)})


def evolve(state: Platform, event: Fact | Observation) -> Platform:
    """Return the state after a fact of the bus or an observation of this host. Stale and foreign facts change nothing else."""
    if isinstance(event, JobFact):
        return _evolve_wanted(state, event)
    match event:
        case Spawned(life):
            state = replace(state, lives=_with(state.lives, life.key, life))
            return _evolve_trial(state, life.job, life.uid, Trial.use) if _is_worker(life.desired) else state
        case Running(key, pid) if key in state.lives:
            return replace(state, lives=_with(state.lives, key, replace(state.lives[key], pid=pid)))
        case Told(key, hurried) if key in state.lives:
            life = state.lives[key]
            life = replace(life, stopping=True, hurried=life.hurried or hurried)
            return replace(state, lives=_with(state.lives, key, life))
        case Adjusted(key, resources, cpus) if key in state.lives:
            life = state.lives[key]
            life = replace(life, desired=life.desired.replace(resources=resources), cpus=cpus)
            return replace(state, lives=_with(state.lives, key, life))
        case Ended():
            return _evolve_ended(state, event)
        case Tried(job, uid, None):
            return _evolve_trial(state, job, uid, lambda trial: trial.begin(event.for_start))
        case Tried(job, uid, ProgramReply() as reply):
            return _evolve_trial(state, job, uid, lambda trial: trial.answer(reply, event.at_s))
        case Running() | Told() | Adjusted() | Tried() | Fact():
            return state  # of a life or a job that is over


def _evolve_trial(state: Platform, job: str, uid: str, change: Callable[[Trial], Trial]) -> Platform:
    """What concerns another run of the job, or one that is over, changes nothing."""
    known = state.jobs.get(job)
    if known is None or known.program is None or not same_run(uid, known.uid):
        return state
    return replace(state, jobs=_with(state.jobs, job, replace(known, trial=change(known.trial))))


def _evolve_wanted(state: Platform, fact: JobFact) -> Platform:
    known = state.jobs.get(fact.job, Wanted())
    match fact:
        case JobSubmitted(uid=uid) if uid != known.uid or (known.program is None and not known.ended):
            # A plan may be told before the submission: that was forgotten, and is handed in again (P21).
            wanted = Wanted(uid=uid) if known.uid not in ("", uid) else replace(known, uid=uid)
            wanted = replace(wanted, program=_program(fact), trial=UNTRIED)
        case PlanProposed(masters=masters) if masters and not known.ended:
            plan = (fact.brain_term, fact.plan)
            if plan < known.plan:
                return replace(state, stale=state.stale + 1)
            mine = {index: 1 for index, host in enumerate(masters) if host == state.host}
            wanted = replace(known, plan=plan, masters=known.masters if known.seated else mine)
        case MembersDesired():
            fence = (fact.term, fact.plan, *(fact.position or (0, 0)))
            if not same_run(fact.uid, known.uid) or known.ended or fence < known.fence:
                return replace(state, stale=state.stale + 1)
            here = [each for each in fact.members if each.host == state.host]
            mine_now = {each.member.place: each for each in here if each.member.role == "ps" or each.command}
            wanted = replace(known, uid=known.uid or fact.uid, fence=fence, members=mine_now)
            if fact.masters:
                wanted = replace(wanted, masters=_seats_here(fact, state.host), seated=True)
        case MembersUnheard(stand_in=MasterSeat(host=state.host, first=first)) if not known.ended:
            wanted = replace(known, masters={0: first}, seated=True)
        case JobEnded():
            wanted = replace(known, ended=True, members={}, masters={}, program=None, trial=UNTRIED)
        case JobForgotten(uid=uid) if same_run(uid, known.uid) and (known.ended or not known.uid):
            wanted = Wanted(uid=uid, ended=True, forgotten=True)
        case _:
            return state
    return replace(state, jobs=_with(state.jobs, fact.job, wanted))


def _program(fact: JobSubmitted) -> ProgramRequest | None:
    spec = fact.spec
    if not spec.program:
        return None
    return ProgramRequest(program=spec.program, directory=spec.directory, environment=spec.environment)


def _seats_here(fact: MembersDesired, host: str) -> dict[int, int]:
    return {index: seat.first for index, seat in enumerate(fact.masters) if seat.host == host}


def same_run(uid: str, other: str) -> bool:
    """Say whether two uids can be of one run of a job; who does not know his uid ("") is believed."""
    return not uid or not other or uid == other


def _evolve_ended(state: Platform, event: Ended) -> Platform:
    key = event.job, event.member.place
    life, past = state.lives.get(key), state.past.get(key)
    if life and same_run(life.uid, event.uid) and life.desired.member == event.member:
        state = replace(state, lives=_without(state.lives, lambda other: other == key))
        if _is_worker(life.desired) and _is_early_fault(event):
            state = _evolve_trial(state, event.job, event.uid, Trial.doubt)
    same = past is not None and same_run(past.uid, event.uid)
    if past and same and past.incarnation >= event.member.incarnation:
        return state
    early = past.failures + 1 if past and same and event.exit.reason != "killed" else 1
    failures = 0 if event.ran_s >= HEALTHY_S else early
    delay_s = (
        min(BACKOFF_FIRST_S * 2.0 ** min(failures - 1, MOST_DOUBLINGS), BACKOFF_MAX_S) if failures else 0.0
    )
    over = Past(event.uid, event.member.incarnation, failures, event.at_s + delay_s)
    return replace(state, past=_with(state.past, key, over))


# -- decide ------------------------------------------------------------------------------------------------------------


def desired_here(state: Platform, job: str, master_command: MasterCommand) -> dict[str, DesiredMember]:
    """Return what shall run here of a job, by place; incarnations of restarting members are still the lowest allowed."""
    wanted = state.jobs.get(job)
    if wanted is None or wanted.ended:
        return {}
    masters = {
        f"master-{index}": DesiredMember(
            member=Member("master", index, first),
            host=state.host,
            command=command,
            grace_s=MASTER_GRACE_S,
            restart=True,
        )
        for index, first in wanted.masters.items()
        if (command := master_command(job, index))
    }
    return {**masters, **wanted.members}


def decide(state: Platform, master_command: MasterCommand, now_s: float) -> list[Action]:
    """Return what is to be done now. Asked after every event and at `next_wake_s`; asked twice it answers the same."""
    actions: list[Action] = []
    loads = _loads(state)
    wanted = {
        (job, place): desired
        for job in state.jobs
        for place, desired in desired_here(state, job, master_command).items()
    }
    for key, life in state.lives.items():
        desired, uid = wanted.get(key), _uid(state, key[0])
        hurried = _is_lost(life, desired, uid)
        if not _is_wanted(life, desired, uid) and (not life.stopping or hurried > life.hurried):
            actions.append(Stop(life, hurried))
    held: set[str] = (
        set()
    )  # jobs that have a worker to start here, and no answer yet whether their program starts
    for key, desired in wanted.items():
        if key not in state.lives and _is_worker(desired) and not _lets_start(state.jobs[key[0]], now_s):
            held.add(key[0])
        else:
            actions += _place(state, key, desired, loads, now_s)
    actions += _tries(state, held, now_s)
    for job, known in state.jobs.items():
        if known.ended and any(key[0] == job for key in state.past) and not _lives_of(state, job):
            actions.append(Forget(job, known.uid))
        elif known.forgotten and not _lives_of(state, job):
            actions.append(Erase(job, known.uid))
    return actions


def overtaken(state: Platform) -> list[tuple[str, str, DesiredMember, int]]:
    """Return whom the bus wants here although this life, or a later one of the place, is over: (job, uid, who, the last one over).

    Soon after an end the log has not heard of it yet. Where it stays so, the log lost its tail in a power cut (P21) and waits for a
    life that never comes.
    """
    found = []
    for job, known in state.jobs.items():
        for place, desired in known.members.items():
            past = state.past.get((job, place))
            if past is None or (job, place) in state.lives or desired.restart:
                continue
            if same_run(past.uid, known.uid) and past.incarnation >= desired.member.incarnation:
                found.append((job, known.uid, desired, past.incarnation))
    return found


def lose_history(state: Platform) -> Platform:
    """Return the state when the broker has forgotten what it told: numbers begin again, so none is stale any more (P21)."""
    jobs = {
        job: replace(known, fence=Wanted().fence, plan=Wanted().plan) for job, known in state.jobs.items()
    }
    return lose_told(replace(state, jobs=MappingProxyType(jobs)))


def lose_told(state: Platform) -> Platform:
    """Return the state when the broker may have forgotten what this host published: refused programs are tried, and told, anew."""
    jobs = {job: replace(known, trial=known.trial.forget_told()) for job, known in state.jobs.items()}
    return replace(state, jobs=MappingProxyType(jobs))


def forget(state: Platform, job: str) -> Platform:
    """Return the state without what is over of a job: its end stays known, its places do not."""
    return replace(state, past=_without(state.past, lambda key: key[0] == job))


def erase(state: Platform, job: str) -> Platform:
    """Return the state without a job that was forgotten."""
    return replace(forget(state, job), jobs=_without(state.jobs, lambda known: known == job))


def without(state: Platform, jobs: Collection[str]) -> Platform:
    """Return the state without what is wanted and what lives of some jobs: nothing is decided on them."""
    return replace(
        state,
        jobs=_without(state.jobs, lambda job: job in jobs),
        lives=_without(state.lives, lambda key: key[0] in jobs),
    )


def next_wake_s(state: Platform, master_command: MasterCommand, now_s: float) -> float | None:
    """Return the monotonic second at which a backoff ends, None when nothing waits for time."""
    waiting = [
        past.not_before_s
        for (job, place), past in state.past.items()
        if past.not_before_s > now_s
        and (job, place) not in state.lives
        and (desired := desired_here(state, job, master_command).get(place))
        and desired.restart
    ]
    waiting += [
        known.trial.not_before_s
        for known in state.jobs.values()
        if known.program is not None and known.trial.state == "refused" and known.trial.not_before_s > now_s
    ]
    return min(waiting, default=None)


def _is_worker(desired: DesiredMember) -> bool:
    return desired.member.role == "worker"


def _lets_start(known: Wanted, now_s: float) -> bool:
    return known.program is None or known.trial.lets_start(now_s)


def _is_early_fault(event: Ended) -> bool:
    faulty = event.exit.reason == "never_started" or event.exit.reason in FAULTS_OF_THE_PROGRAM
    return faulty and event.ran_s < HEALTHY_S


def _tries(state: Platform, held: Collection[str], now_s: float) -> list[Action]:
    """The programs to be tried now, those first for which a worker waits."""
    due: list[Action] = [
        Try(job, known.uid, known.program, known.trial.anew, job in held)
        for job, known in state.jobs.items()
        if known.program is not None and known.trial.is_due(job in held, now_s)
    ]
    return sorted(due, key=lambda each: isinstance(each, Try) and not each.for_start)


def _place(
    state: Platform, key: Key, desired: DesiredMember, loads: dict[int, float], now_s: float
) -> list[Action]:
    life, uid = state.lives.get(key), _uid(state, key[0])
    if life is not None:
        if life.stopping or not _is_wanted(life, desired, uid) or life.desired.resources == desired.resources:
            return []
        free = {cpu: load - life.cpus.get(cpu, 0.0) for cpu, load in loads.items()}
        cpus = assign_cpus(state.allowed, free, desired.resources.cores)
        _take(loads, cpus, life.cpus)
        return [Adjust(life, desired.resources, cpus)]
    past = state.past.get(key)
    if past and same_run(past.uid, uid):
        if not desired.restart and desired.member.incarnation <= past.incarnation:
            return []
        if desired.restart and now_s < past.not_before_s:
            return []
        if desired.restart:
            number = max(desired.member.incarnation, past.incarnation + 1)
            desired = desired.replace(member=Member(desired.member.role, desired.member.index, number))
    cpus = assign_cpus(state.allowed, loads, desired.resources.cores)
    _take(loads, cpus, {})
    return [Start(Life(key[0], uid, desired, cpus))]


def _is_wanted(life: Life, desired: DesiredMember | None, uid: str) -> bool:
    if desired is None or not same_run(life.uid, uid):
        return False
    return life.desired.member.incarnation == desired.member.incarnation or (
        desired.restart and life.desired.member.incarnation > desired.member.incarnation
    )


def _is_lost(life: Life, desired: DesiredMember | None, uid: str) -> bool:
    """Whether somebody else shall run in its place because this one was lost."""
    if desired is None or not desired.after_loss or not same_run(life.uid, uid):
        return False
    return life.desired.member.incarnation < desired.member.incarnation


def _uid(state: Platform, job: str) -> str:
    return state.jobs[job].uid if job in state.jobs else ""


def _lives_of(state: Platform, job: str) -> list[Life]:
    return [life for life in state.lives.values() if life.job == job]


def _loads(state: Platform) -> dict[int, float]:
    loads: dict[int, float] = {}
    for life in state.lives.values():
        _take(loads, life.cpus, {})
    return loads


def _take(loads: dict[int, float], taken: Mapping[int, float], given_back: Mapping[int, float]) -> None:
    for cpu, share in taken.items():
        loads[cpu] = loads.get(cpu, 0.0) + share
    for cpu, share in given_back.items():
        loads[cpu] = loads.get(cpu, 0.0) - share
