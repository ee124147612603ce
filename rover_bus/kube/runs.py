"""What the facts of a job say of its run: the half of an object's status that the bus knows.

Fed by FACTS, from the first fact that is kept; read by objects.py (what is to be asked) and conditions.py (what is shown). Pure: a
run is changed by `take` alone, and a fact of a job's log that comes twice changes nothing (P18).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rover_bus.events import facts
from rover_bus.events.checkpoint_facts import CheckpointFailed, CheckpointNoneUsable, CheckpointReady
from rover_bus.events.data_facts import BatchDeadLettered, EpochOpened, LedgerRewound
from rover_bus.events.fact import JobFact, MasterFact, Position
from rover_bus.events.host_facts import HostMemberStalled
from rover_bus.events.identity import DesiredMember, Member
from rover_bus.events.job import JobSpec

FOLLOWED: tuple[type[JobFact], ...] = (
    facts.JobSubmitted,
    facts.JobOpened,
    facts.JobStopRequested,
    facts.JobEnded,
    facts.JobRestored,
    facts.JobForgotten,
    facts.JobReported,
    facts.JobPauseRequested,
    facts.JobResumeRequested,
    facts.JobPaused,
    facts.JobResumed,
    facts.MembersDesired,
    facts.MemberAdmitted,
    facts.MemberLost,
    facts.MemberLeft,
    facts.RoutingChanged,
    facts.WorkerFailed,
    facts.RuleSwitchedOff,
    facts.RuleSwitchedOn,
    facts.PlanProposed,
    facts.PlanChecked,
    facts.PlanApproved,
    facts.PlanRejected,
    facts.PlanRefused,
    facts.PlanWithheld,
    facts.PlanApplied,
    facts.PlanSettled,
    facts.PlanKept,
    facts.PlanRolledBack,
    EpochOpened,
    BatchDeadLettered,
    LedgerRewound,
    CheckpointReady,
    CheckpointFailed,
    CheckpointNoneUsable,
)
FactOfJob = JobFact | HostMemberStalled  # what is followed: by its job, a master's or a host's
ASKED = "asked"  # the reason of an end that was asked for: its state says more
MASTER = "master"  # in `by`: a rule of exactness failed there
MOST_NEWS = 50  # facts of a run that wait to be shown as Events


@dataclass(frozen=True, slots=True)
class HeardFact:
    """A fact of a job, where FACTS has it, and when the broker stored it (Unix milliseconds)."""

    fact: FactOfJob
    sequence: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class LastPlan:
    """The last plan, and what became of it: proposed, waits, observed, applied, settled, kept, rolled_back, refused."""

    number: int
    workers: int
    servers: int
    constant: str = ""
    words: str = ""
    state: str = "proposed"


@dataclass(frozen=True, slots=True)
class PlanWord:
    """What a person said of a plan that waited, by whom, where it stands in FACTS."""

    yes: bool
    by: str
    sequence: int


@dataclass(frozen=True, slots=True)
class PauseWord:
    """The last request to pause or to resume: `away`, whether servers leave too, by whom, where it stands in FACTS."""

    away: bool
    release: bool
    by: str
    sequence: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class PauseState:
    """Why no worker shall run. `by` "": the master waits for a person's decision; `plan`: the Brain made room by this plan;
    `release`: servers leave too.
    """

    by: str
    reason: str
    plan: int = 0
    release: bool = False

    @property
    def is_asked(self) -> bool:
        """Whether a person or an object asked for it, so that an object may end it."""
        return self.by not in ("", MASTER) and not self.plan


@dataclass(frozen=True, slots=True)
class StopWord:
    mode: str
    reason: str
    by: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class LastReady:
    number: int
    time_ms: int
    location: str


@dataclass(frozen=True, slots=True)
class RunEnd:
    """`state`: completed, failed, stopped or cancelled; `reason`: a constant, "" where the state says all."""

    state: str
    reason: str
    detail: str
    time_ms: int
    summary: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunSeat:
    """A member, where it is, and whether it takes part. `leaving`: it does, and is wanted no more.

    `stalled`: why it cannot start, in a constant and words of the cluster.
    """

    member: Member
    host: str
    present: bool = False
    leaving: bool = False
    stalled: str = ""


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """One run of a job. All is empty until its facts say so; `newest`: the newest fact that was taken in."""

    job: str
    uid: str = ""
    by: str = ""
    spec: JobSpec | None = None
    position: Position = (0, 0)
    newest: int = 0
    seats: Mapping[str, RunSeat] = field(default_factory=dict)
    plan: LastPlan | None = None
    answers: Mapping[int, PlanWord] = field(default_factory=dict)  # by plan: the first word while it waited
    withheld: str = ""  # why the Brain plans nothing, as it last said
    routed: bool = False  # servers hold the model, or none is needed: batches may be leased
    paused: PauseState | None = None
    word: PauseWord | None = None
    stop: StopWord | None = None
    began_ms: int = 0  # its first member took part, since it was handed in or resumed
    epoch: int = 0
    committed: int = 0
    dead_lettered: int = 0
    total: int = 0
    rate: float | None = None
    checkpoint: LastReady | None = None
    failed_checkpoint: str = ""  # why none was stored since the last ready one
    unusable: tuple[str, ...] = ()  # why no checkpoint can be restored: a person is asked
    rules_off: Mapping[str, str] = field(default_factory=dict)
    restored_ms: int = 0  # its log was put back from a backup, the last time
    end: RunEnd | None = None
    news: tuple[HeardFact, ...] = ()

    def count(self, role: str) -> int:
        """Return how many members of a role take part."""
        return sum(seat.present and seat.member.role == role for seat in self.seats.values())

    @property
    def missing(self) -> list[Member]:
        """The members that are wanted and take no part."""
        return [seat.member for seat in self.seats.values() if not seat.present]

    @property
    def stalled(self) -> str:
        """Why a member that is wanted cannot start, with its name; "" where none is known."""
        found = (f"{each.member}: {each.stalled}" for each in self.seats.values() if each.stalled)
        return next(found, "")

    @property
    def is_planned(self) -> bool:
        """Whether any member is wanted."""
        return any(not seat.leaving for seat in self.seats.values())


def take(run: FollowedRun, heard: HeardFact) -> FollowedRun:
    """Return a run after one more of its facts."""
    fact = heard.fact
    if isinstance(fact, facts.JobSubmitted) and fact.uid != run.uid:
        run = FollowedRun(run.job, uid=fact.uid, by=fact.by, spec=fact.spec, news=())
    elif isinstance(fact, HostMemberStalled) and fact.uid != run.uid:
        return run
    elif isinstance(fact, facts.JobOpened):
        run = replace(run, position=(0, 0))  # another timeline counts from the start
    if isinstance(fact, MasterFact) and fact.position is not None:
        if fact.position <= run.position:
            return run
        run = replace(run, position=fact.position)
    run = _members(_life(_plan(_data(run, heard), heard), heard), fact)
    news = run.news if isinstance(fact, facts.JobReported) else (*run.news, heard)[-MOST_NEWS:]
    return replace(run, newest=heard.sequence, news=news)


def shown(run: FollowedRun, sequence: int) -> FollowedRun:
    """Return a run without the news that its object shows."""
    return replace(run, news=tuple(each for each in run.news if each.sequence > sequence))


def _life(run: FollowedRun, heard: HeardFact) -> FollowedRun:
    match heard.fact:
        case facts.JobStopRequested(mode=mode, reason=reason, by=by):
            return replace(run, stop=StopWord(mode, reason, by, heard.time_ms))
        case facts.JobPauseRequested(by=by, release=release):
            return replace(run, word=PauseWord(True, release, by, heard.sequence, heard.time_ms))
        case facts.JobResumeRequested(by=by):
            return replace(run, word=PauseWord(False, False, by, heard.sequence, heard.time_ms))
        case facts.JobPaused(by=by, reason=reason, plan=plan, release=release):
            pause = PauseState(by, reason, plan, release)
            return replace(run, paused=pause, began_ms=0 if pause.is_asked else run.began_ms)
        case facts.JobResumed():
            return replace(run, paused=None, unusable=())
        case facts.JobRestored():
            return replace(run, restored_ms=heard.time_ms)
        case facts.RuleSwitchedOff(rule=rule, why=why):
            return replace(run, rules_off={**run.rules_off, rule: why})
        case facts.RuleSwitchedOn(rule=rule):
            return replace(run, rules_off={key: why for key, why in run.rules_off.items() if key != rule})
        case facts.JobEnded(state=state, reason=reason, detail=detail, summary=summary):
            ended = replace(
                run, end=RunEnd(state, reason, detail, heard.time_ms, summary), rate=None, seats={}
            )
            return replace(
                ended,
                committed=_figure(summary, "samples_committed", run.committed),
                dead_lettered=_figure(summary, "samples_dead_lettered", run.dead_lettered),
                total=_figure(summary, "samples_total", run.total),
            )
        case facts.MemberAdmitted() if not run.began_ms and not (run.paused and run.paused.is_asked):
            return replace(run, began_ms=heard.time_ms)
        case _:
            return run  # it concerns other fields


def _figure(summary: Mapping[str, Any], key: str, known: int) -> int:
    value = summary.get(key)
    return value if isinstance(value, int) else known


def _data(run: FollowedRun, heard: HeardFact) -> FollowedRun:
    match heard.fact:
        case facts.JobReported() as said:
            return replace(
                run,
                epoch=said.epoch,
                committed=said.committed,
                dead_lettered=said.dead_lettered,
                total=said.total,
                rate=said.samples_per_second,
            )
        case EpochOpened(epoch=epoch):
            return replace(run, epoch=epoch)
        case CheckpointReady(cut=cut, path=path):
            return replace(run, checkpoint=LastReady(cut, heard.time_ms, path), failed_checkpoint="")
        case CheckpointFailed(cut=cut, reason=reason):
            return replace(run, failed_checkpoint=f"checkpoint {cut}: {reason}")
        case CheckpointNoneUsable(choice="ask", problems=problems):
            return replace(run, unusable=tuple(problems) or ("storage is empty",))
        case facts.RoutingChanged():
            return replace(run, routed=True)
        case LedgerRewound():
            return replace(run, routed=False)  # until the servers that go back serve again
        case _:
            return run  # it concerns other fields


def _plan(run: FollowedRun, heard: HeardFact) -> FollowedRun:
    match heard.fact:
        case facts.PlanProposed(plan=number, workers=workers, servers=servers) as fact:
            plan = LastPlan(number, workers, servers, fact.constant or fact.step, fact.reason)
            answers = {each: word for each, word in run.answers.items() if each != number}
            return replace(run, plan=plan, answers=answers, withheld="")
        case facts.PlanApproved(plan=number, by=by) | facts.PlanRejected(plan=number, by=by):
            waits = run.plan is not None and (run.plan.number, run.plan.state) == (number, "waits")
            if not waits or number in run.answers:
                return run
            word = PlanWord(isinstance(heard.fact, facts.PlanApproved), by, heard.sequence)
            return replace(run, answers={**run.answers, number: word})
        case facts.PlanChecked(plan=number, outcome="waits" | "observed" as outcome):
            return _became(run, number, outcome)
        case facts.PlanApplied(plan=number):
            return _became(run, number, "applied")
        case facts.PlanRefused(plan=number, constant=constant, reason=reason):
            return _became(run, number, "refused", constant, reason)
        case facts.PlanSettled(plan=number):
            return _became(run, number, "settled")
        case facts.PlanKept(plan=number):
            return _became(run, number, "kept")
        case facts.PlanRolledBack(plan=number, constant=constant):
            return _became(run, number, "rolled_back", constant)
        case facts.PlanWithheld(reason=reason, constant=constant, asked_by=""):
            return replace(run, withheld=reason or constant.replace("_", " "))
        case _:
            return run  # it concerns other fields


def _became(run: FollowedRun, number: int, state: str, constant: str = "", words: str = "") -> FollowedRun:
    """What became of a plan: only of the last one."""
    if run.plan is None or run.plan.number != number:
        return run
    plan = replace(
        run.plan, state=state, constant=constant or run.plan.constant, words=words or run.plan.words
    )
    return replace(run, plan=plan)


def _members(run: FollowedRun, fact: FactOfJob) -> FollowedRun:
    match fact:
        case HostMemberStalled(member=member, reason=reason, why=why):
            seat = run.seats.get(member.name)
            if seat is None or seat.member != member or seat.present:
                return run
            waits = replace(seat, stalled=f"{reason}: {why}")
            return replace(run, seats={**run.seats, member.name: waits})
        case facts.MembersDesired(members=members):
            return replace(run, seats=_seats(run, members))
        case facts.MemberAdmitted(member=member, host=host) if member.name in run.seats:
            seat = RunSeat(member, host or run.seats[member.name].host, present=True)
            return replace(run, seats={**run.seats, member.name: seat})
        case facts.MemberLost(member=member):
            return _without(run, member, done=False)
        case facts.MemberLeft(member=member, reason=reason):
            return _without(run, member, done=reason == "done")
        case _:
            return run  # it concerns other fields


def _seats(run: FollowedRun, members: list[DesiredMember]) -> dict[str, RunSeat]:
    """Those that are wanted now, and those that still leave."""
    made = {name: replace(seat, leaving=True) for name, seat in run.seats.items() if seat.present}
    for each in members:
        known = run.seats.get(each.member.name)
        same = known is not None and known.member == each.member
        made[each.member.name] = (
            replace(known, leaving=False) if known and same else RunSeat(each.member, each.host)
        )
    return made


def _without(run: FollowedRun, member: Member, *, done: bool) -> FollowedRun:
    """A member is gone. Its seat goes with it where no successor is missed: it was to leave, or its work is done."""
    known = run.seats.get(member.name)
    if known is None or known.member != member:
        return run
    if known.leaving or done:
        return replace(run, seats={name: seat for name, seat in run.seats.items() if name != member.name})
    return replace(run, seats={**run.seats, member.name: replace(known, present=False)})
