"""The members of a host: what the bus wants of each job, what was observed of each member, and how both change (P18, P23).

Fed by the daemon with facts of the FACTS stream (what shall run) and with what the platform observes (what runs).
Read by decider.py. The rules of this half, each in one place:

- A desired state of another run of the job, or lower in (term, plan, position), is stale: counted, and nothing changes.
- `plan.proposed` names the hosts of the masters, so that leader and standby run before any master exists. From the first
  `members.desired` that names them on, the job's own log decides where they are: a lost host's go elsewhere. When every host
  with one is silent, `members.unheard` names a stand-in: it leads, and decides where they are from then on.
- `job.ended` ends everything of the job. What no desired state names is drained. What it names as `former` is kept, and never
  started: its successor is desired elsewhere, and has not come yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from rover_bus.events.facts import (
    JobEnded,
    JobForgotten,
    JobSubmitted,
    MembersDesired,
    MembersUnheard,
    PlanProposed,
)
from rover_bus.events.identity import (
    FAULTS_OF_THE_PROGRAM,
    DesiredMember,
    HostCapacity,
    MasterSeat,
    Resources,
    Role,
)
from rover_bus.events.programs import ProgramReply, ProgramRequest
from rover_bus.events.settings import DEFAULTS, RestartSettings
from rover_bus.node.port import (
    EVERY_ROLE,
    Adjusted,
    AdjustRefused,
    Exited,
    Incarnation,
    Key,
    Leaving,
    Observation,
    Running,
    SpareGone,
    SpareReady,
    SpareSpawned,
    Spawned,
    Stalled,
    TakenAway,
    WorkerLoaded,
)
from rover_bus.node.programs import UNTRIED, Trial
from rover_bus.node.spares import NO_SPARES, MemoryPressed, Spares, evolve_spares

MOST_DOUBLINGS = 16  # of the pause between restarts: far above its maximum

Fence = tuple[int, int, int, int]
K = TypeVar("K")
V = TypeVar("V")


# -- state -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DesiredJob:
    """What is desired of one job, as far as this host is concerned."""

    uid: str = ""
    fence: Fence = (-1, -1, -1, -1)
    members: Mapping[str, DesiredMember] = field(default_factory=dict)
    former: Mapping[str, DesiredMember] = field(default_factory=dict)  # stay until their successors come
    plan: tuple[int, int] = (-1, -1)  # (Brain term, number)
    masters: Mapping[int, int] = field(default_factory=dict)  # of this host: index -> first incarnation here
    seated: bool = False  # a master decided where masters run: plans do only while there is none
    ended: bool = False
    forgotten: bool = False  # ended, and nothing of it is to be kept
    program: ProgramRequest | None = None  # of its workers, as submitted; None: nothing is known of it
    trial: Trial = UNTRIED
    spares: int = 0  # of its workers, as submitted: at most so many here


@dataclass(frozen=True, slots=True)
class ObservedMember:
    """A member whose incarnation is here. `running`: it runs itself, under `pid` where the platform shows one.

    `refused`: resources that it cannot be given where it runs.
    """

    incarnation: Incarnation
    running: bool = False
    pid: int = 0
    stopping: bool = False
    hurried: bool = False
    refused: Resources | None = None

    @property
    def job(self) -> str:
        return self.incarnation.job

    @property
    def desired(self) -> DesiredMember:
        return self.incarnation.desired


@dataclass(frozen=True, slots=True)
class Past:
    """What has ended of a member: its last incarnation, how often in a row it ended early, and when it may start again."""

    uid: str
    incarnation: int
    failures: int = 0
    not_before_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HostMembers:
    """The whole state. `cpus`: those that members may be pinned to. `roles`: those run here. `stale`: refused desired states.

    `capacity`: what all members together may be given; None: it bounds no spares.
    """

    host: str
    cpus: tuple[int, ...] = ()
    roles: frozenset[Role] = EVERY_ROLE
    jobs: Mapping[str, DesiredJob] = field(default_factory=dict)
    observed: Mapping[Key, ObservedMember] = field(default_factory=dict)
    past: Mapping[Key, Past] = field(default_factory=dict)
    stale: int = 0
    restarts: RestartSettings = DEFAULTS.members
    capacity: HostCapacity | None = None
    spares: Spares = NO_SPARES


# -- what is taken in ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProgramTried:
    """Whether the program of a job starts here; None: the question was put (`for_start` of a worker), the answer comes later."""

    job: str
    uid: str
    reply: ProgramReply | None = None
    at_s: float = 0.0
    for_start: bool = False


@dataclass(frozen=True, slots=True)
class HistoryLost:
    """The broker has forgotten what it stored: numbers begin again, so none is stale any more (P21)."""


@dataclass(frozen=True, slots=True)
class PublishedLost:
    """The broker may have forgotten what this host published: refused programs are tried, and published, again."""


@dataclass(frozen=True, slots=True)
class RecordsForgotten:
    """The platform dropped what has ended of a job: its end stays known, its members do not."""

    job: str


@dataclass(frozen=True, slots=True)
class RunErased:
    """The platform removed everything of a job that was forgotten."""

    job: str


FollowedFact = JobSubmitted | PlanProposed | MembersDesired | MembersUnheard | JobEnded | JobForgotten
Loss = HistoryLost | PublishedLost
Happening = FollowedFact | Observation | ProgramTried | Loss | RecordsForgotten | RunErased | MemoryPressed


# -- evolve ------------------------------------------------------------------------------------------------------------


def _with(mapping: Mapping[K, V], key: K, value: V) -> Mapping[K, V]:
    return MappingProxyType({**mapping, key: value})


def _without(mapping: Mapping[K, V], gone: Callable[[K], bool]) -> Mapping[K, V]:
    return MappingProxyType({key: value for key, value in mapping.items() if not gone(key)})


def evolve(state: HostMembers, input: Happening) -> HostMembers:
    """Return the state after a fact of the bus or an observation of this host. Stale and foreign facts change nothing else."""
    match input:
        case Spawned() | Running() | Leaving() | Adjusted() | AdjustRefused():
            return _evolve_observed(state, input)
        case Stalled() | TakenAway():
            return state  # what follows from it is for the job's log to say
        case Exited():
            return _evolve_ended(state, input)
        case WorkerLoaded() | SpareSpawned() | SpareReady() | SpareGone() | MemoryPressed():
            return replace(state, spares=evolve_spares(state.spares, input))
        case ProgramTried(job, uid, reply, at_s, for_start):
            return _evolve_trial(
                state, job, uid, lambda trial: trial.answer(reply, at_s) if reply else trial.begin(for_start)
            )
        case HistoryLost():
            jobs = {
                job: replace(it, fence=DesiredJob().fence, plan=DesiredJob().plan)
                for job, it in state.jobs.items()
            }
            return evolve(replace(state, jobs=MappingProxyType(jobs)), PublishedLost())
        case PublishedLost():
            tried = {job: replace(it, trial=it.trial.forget_published()) for job, it in state.jobs.items()}
            return replace(state, jobs=MappingProxyType(tried))
        case RecordsForgotten(job):
            state = replace(state, spares=state.spares.without(job))
            return replace(state, past=_without(state.past, lambda key: key[0] == job))
        case RunErased(job):
            state = replace(state, past=_without(state.past, lambda key: key[0] == job))
            return replace(state, jobs=_without(state.jobs, lambda known: known == job))
        case (
            JobSubmitted()
            | PlanProposed()
            | MembersDesired()
            | MembersUnheard()
            | JobEnded()
            | JobForgotten()
        ):
            return _evolve_job(state, input)


def _evolve_observed(
    state: HostMembers, seen: Spawned | Running | Leaving | Adjusted | AdjustRefused
) -> HostMembers:
    """An observation of an incarnation that has ended changes nothing."""
    match seen:
        case Spawned(incarnation):
            known = ObservedMember(incarnation)
            state = replace(state, observed=_with(state.observed, incarnation.key, known))
            if is_worker(incarnation.desired):
                return _evolve_trial(state, incarnation.job, incarnation.uid, Trial.use)
            return state
        case Running(key) | Leaving(key) | Adjusted(key) | AdjustRefused(key) if key not in state.observed:
            return state
        case Running(key, pid):
            known = replace(state.observed[key], running=True, pid=pid)
        case Leaving(key, hurried):
            known = state.observed[key]
            known = replace(known, stopping=True, hurried=known.hurried or hurried)
        case Adjusted(key, resources, cpus):
            known = state.observed[key]
            desired = known.desired.replace(resources=resources)
            known = replace(
                known, incarnation=replace(known.incarnation, desired=desired, cpus=cpus), refused=None
            )
        case AdjustRefused(key, resources):
            known = replace(state.observed[key], refused=resources)
    return replace(state, observed=_with(state.observed, key, known))


def _evolve_trial(state: HostMembers, job: str, uid: str, change: Callable[[Trial], Trial]) -> HostMembers:
    """What concerns another run of the job, or one that has ended, changes nothing."""
    known = state.jobs.get(job)
    if known is None or known.program is None or not same_run(uid, known.uid):
        return state
    return replace(state, jobs=_with(state.jobs, job, replace(known, trial=change(known.trial))))


def _evolve_job(state: HostMembers, fact: FollowedFact) -> HostMembers:
    known = state.jobs.get(fact.job, DesiredJob())
    match fact:
        case JobSubmitted():
            changed = _submit(known, fact)
        case PlanProposed():
            if (fact.brain_term, fact.plan) < known.plan and fact.masters and not known.ended:
                return replace(state, stale=state.stale + 1)
            changed = _plan(known, fact, state.host)
        case MembersDesired():
            fence = (fact.term, fact.plan, *(fact.position or (0, 0)))
            if not same_run(fact.uid, known.uid) or known.ended or fence < known.fence:
                return replace(state, stale=state.stale + 1)
            changed = _desire(known, fact, fence, state.host)
        case MembersUnheard(stand_in=MasterSeat(host=state.host, first=first)) if not known.ended:
            changed = replace(known, masters={0: first}, seated=True)
        case JobEnded():
            changed = replace(
                known, ended=True, members={}, former={}, masters={}, program=None, trial=UNTRIED
            )
        case JobForgotten(uid=uid) if same_run(uid, known.uid) and (known.ended or not known.uid):
            changed = DesiredJob(uid=uid, ended=True, forgotten=True)
        case MembersUnheard() | JobForgotten():
            return state  # of another host; of a run that lives, or of another
    return state if changed is known else replace(state, jobs=_with(state.jobs, fact.job, changed))


def _submit(known: DesiredJob, fact: JobSubmitted) -> DesiredJob:
    """A plan may be published before the submission: that was forgotten, and is handed in again (P21)."""
    if fact.uid == known.uid and (known.program is not None or known.ended):
        return known
    fresh = DesiredJob(uid=fact.uid) if known.uid not in ("", fact.uid) else replace(known, uid=fact.uid)
    return replace(fresh, program=_program(fact), trial=UNTRIED, spares=fact.spec.workers.spares)


def _plan(known: DesiredJob, fact: PlanProposed, host: str) -> DesiredJob:
    if not fact.masters or known.ended:
        return known
    here = {index: 1 for index, each in enumerate(fact.masters) if each == host}
    return replace(known, plan=(fact.brain_term, fact.plan), masters=known.masters if known.seated else here)


def _desire(known: DesiredJob, fact: MembersDesired, fence: Fence, host: str) -> DesiredJob:
    here = [each for each in fact.members if each.host == host]
    members = {each.member.name: each for each in here if each.member.role == "ps" or each.command}
    former = {each.member.name: each for each in fact.former if each.host == host}
    changed = replace(known, uid=known.uid or fact.uid, fence=fence, members=members, former=former)
    if not fact.masters:
        return changed
    seats = {index: seat.first for index, seat in enumerate(fact.masters) if seat.host == host}
    return replace(changed, masters=seats, seated=True)


def _program(fact: JobSubmitted) -> ProgramRequest | None:
    spec = fact.spec
    if not spec.program:
        return None
    return ProgramRequest(program=spec.program, directory=spec.directory, environment=spec.environment)


def wants_the_same(before: HostMembers, after: HostMembers, job: str) -> bool:
    """Say whether a fact of a job left what is desired here as it was, in its order: only how new that is has changed."""
    was, now = before.jobs.get(job, DesiredJob()), after.jobs.get(job, DesiredJob())
    if [*was.members] != [*now.members] or [*was.masters] != [*now.masters]:
        return False  # members begin in this order, and the first has its choice of processors
    return replace(was, fence=now.fence, plan=now.plan) == now


def same_run(uid: str, other: str) -> bool:
    """Say whether two uids can be of one run of a job; a side that does not know its uid ("") is believed."""
    return not uid or not other or uid == other


def is_worker(desired: DesiredMember) -> bool:
    return desired.member.role == "worker"


def _evolve_ended(state: HostMembers, event: Exited) -> HostMembers:
    key = event.job, event.member.name
    known, past = state.observed.get(key), state.past.get(key)
    if known and same_run(known.incarnation.uid, event.uid) and known.desired.member == event.member:
        state = replace(state, observed=_without(state.observed, lambda other: other == key))
        if is_worker(known.desired) and _is_early_fault(event, state.restarts):
            state = _evolve_trial(state, event.job, event.uid, Trial.doubt)
    same = past is not None and same_run(past.uid, event.uid)
    if past and same and past.incarnation >= event.member.incarnation:
        return state
    early = past.failures + 1 if past and same and event.exit.reason != "killed" else 1
    pause = state.restarts
    failures = early if event.ran_s < pause.healthy_after_s and _pauses(event) else 0
    doubled_s = pause.restart_pause_s * 2.0 ** min(failures - 1, MOST_DOUBLINGS)
    delay_s = min(doubled_s, pause.most_restart_pause_s) if failures else 0.0
    ended = Past(event.uid, event.member.incarnation, failures, event.at_s + delay_s)
    return replace(state, past=_with(state.past, key, ended))


def _pauses(event: Exited) -> bool:
    """Whether a member that ends like this again and again is started ever more slowly: masters, which nothing else counts, and
    what its memory limit kills, which is no fault that its job counts. Other members are charged to a budget.
    """
    return event.member.role == "master" or event.exit.reason == "out_of_memory"


def _is_early_fault(event: Exited, restarts: RestartSettings) -> bool:
    faulty = event.exit.reason == "never_started" or event.exit.reason in FAULTS_OF_THE_PROGRAM
    return faulty and event.ran_s < restarts.healthy_after_s


def without(state: HostMembers, jobs: Collection[str]) -> HostMembers:
    """Return the state without what is desired and what is observed of some jobs: nothing is decided on them."""
    return replace(
        state,
        jobs=_without(state.jobs, lambda job: job in jobs),
        observed=_without(state.observed, lambda key: key[0] in jobs),
    )
