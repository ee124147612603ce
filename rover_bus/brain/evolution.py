"""`evolve(state, record)`: how each record of the Brain's log changes what it knows. Replay and live are this same function.

Pure. Windows are where measurements enter; everything that decisions rest on is computed here from windows and facts, so that
the same log gives the same state bit for bit (P22).
"""

from __future__ import annotations

import msgspec

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.stragglers import SLOW_WINDOWS, was_well
from rover_bus.brain.evolution_of_hosts import (
    lose_host,
    note_freeze,
    note_word,
    offer_again,
    see_host,
    turn_freezes,
)
from rover_bus.brain.evolution_of_windows import measure, return_to
from rover_bus.brain.families import note_scales, remember, usual_scales, usual_use
from rover_bus.brain.learning_hosts import forget_job, note_hosts
from rover_bus.brain.loads import recount, release, reserve, shares_hosts
from rover_bus.brain.log import (
    BrainRecord,
    BrainRuleSwitched,
    BrainTermBegun,
    ClusterObserved,
    FactObserved,
    FreezeObserved,
    FreezesTurned,
    HostGone,
    HostSeen,
    JobGone,
    JobSeen,
    MembersSeen,
    ObservedFact,
    OfOneJob,
    RoundAdvanced,
    RoundBegun,
    WindowClosed,
    WindowsStretched,
)
from rover_bus.brain.state import BrainRuleOff, BrainState, Ceiling, Change, KnownJob
from rover_bus.brain.totals import follow
from rover_bus.events.facts import (
    IncidentClosed,
    IncidentOpened,
    JobForecast,
    JobPaused,
    JobResumed,
    JobStopRequested,
    MembersUnheard,
    PlanApplied,
    PlanChecked,
    PlanKept,
    PlanMeasured,
    PlanModeSet,
    PlanProposed,
    PlanRefused,
    PlanRolledBack,
    PlanSettled,
    PlanWithheld,
    RuleSwitchedOff,
    RuleSwitchedOn,
    Size,
    SlotsMoveRequested,
    StragglerFound,
    StragglerRecovered,
)
from rover_bus.events.host_facts import HostMemberStalled, HostRecovered, HostSlow
from rover_bus.events.identity import MasterSeat
from rover_bus.events.job import JobSpec
from rover_bus.events.log import Record, SnapshotChunk
from rover_bus.events.plan_facts import TRIAL

MOST_PAST = 200
NEVER_S = float("inf")


def evolve(state: BrainState, record: Record) -> None:
    """Apply one record. Raises ValueError for one that this log does not hold."""
    _take_in(state, record)
    follow(state, record)


def _take_in(state: BrainState, record: Record) -> None:
    if not isinstance(record, BrainRecord):
        raise ValueError(
            f"{type(record).__name__} is no record of the Brain's log (brain/log.py, BrainDecided)"
        )
    match record:
        case BrainTermBegun(term=term, timeline=timeline, resumed_from=sequence):
            state.term, state.timeline, state.resumed_from = term, timeline, sequence
            state.started_mode, state.started_quotas = record.mode, record.quotas
            state.slow_memory_s, state.fair_share = record.slow_memory_s, record.fair_share
        case ClusterObserved(fact=fact):
            note_word(state, fact)
        case FreezeObserved():
            note_freeze(state, record)
        case FreezesTurned():
            turn_freezes(state, record)
        case HostSeen():
            see_host(state, record)
        case HostGone():
            lose_host(state, record)
        case HostSlow(host=host):
            state.slow_hosts[host] = state.clock_s
        case HostRecovered(host=host):
            state.slow_hosts.pop(host, None)
        case JobSeen(job=job, uid=uid, spec=spec):
            _forget(state, job)  # a former run whose end was not received
            state.jobs[job] = _begin_to_know(state, uid, spec)
        case WindowsStretched(stretch=stretch):
            state.stretch = stretch
        case RoundBegun(jobs=jobs):
            state.round_left = jobs
        case RoundAdvanced(done=done):
            state.round_left = state.round_left[done:]
        case BrainRuleSwitched(rule=rule, off=False):
            state.rules_off.pop(rule, None)
        case BrainRuleSwitched(rule=rule):
            state.rules_off[rule] = BrainRuleOff(record.release, record.why, record.job)
        case JobGone():
            _let_go(state, record)
        case FactObserved(fact=fact):
            _observe(state.jobs[fact.job], fact, record.took_s, record.cause)
            _let_others_have(state, state.jobs[fact.job])
            if record.took_s:
                note_scales(state, state.jobs[fact.job])
            if isinstance(fact, PlanApplied | PlanRefused | PlanSettled):
                recount(state, state.jobs[fact.job])
        case _:
            _evolve_job(state, record)


def _begin_to_know(state: BrainState, uid: str, spec: JobSpec) -> KnownJob:
    """Return a job as the Brain knows it before its first window: by what is usual for jobs like it."""
    return KnownJob(
        uid,
        spec,
        cores_bind=state.cores_bind,
        cores_used=usual_use(state, spec),
        usual_scales=usual_scales(state, spec),
    )


def _let_go(state: BrainState, gone: JobGone) -> None:
    """A job is over: what it showed stays, and what it held is room for starts that were withdrawn."""
    known = state.jobs.get(gone.job)
    if known is not None:
        remember(state, known)
    _forget(state, gone.job)
    if known is not None and known.held is not None:
        offer_again(state)
    state.rules_off = {rule: off for rule, off in state.rules_off.items() if off.job != gone.job}
    members = len(known.members) if known is not None else 0
    state.losses = state.losses.watch(members, gone.watched_s, gone.lost)
    if gone.past is not None:
        state.past = [*state.past, gone.past][-MOST_PAST:]


def _forget(state: BrainState, name: str) -> None:
    if name in state.jobs:
        forget_job(state, name)
        release(state, state.jobs[name])
        del state.jobs[name]


def _evolve_job(state: BrainState, record: OfOneJob) -> None:
    match record:
        case PlanProposed(job=job):
            _propose(state.jobs[job], record)
            reserve(state, state.jobs[job], record)
        case MembersSeen(job=job):
            _see_members(state.jobs[job], record)
            _hold_again(state.jobs[job])
            _let_others_have(state, state.jobs[job])
            recount(state, state.jobs[job])
        case WindowClosed(job=job):
            # First its hosts: they are compared with what was usual before this window.
            note_hosts(state, state.jobs[job], record)
            measure(state.jobs[job], record)
            members = len(state.jobs[job].members)
            state.losses = state.losses.watch(members, record.watched_s, record.lost)
            if shares_hosts(state.jobs[job].held):
                recount(state, state.jobs[job])
        case PlanKept(job=job) | PlanRolledBack(job=job):
            _judge(state.jobs[job], record)
        case MembersUnheard(job=job, stand_in=seat):
            state.jobs[job].seats = [seat] if seat is not None else state.jobs[job].seats
        case PlanWithheld(asked_by=by) if by:
            pass  # a person's request left all as it was
        case PlanWithheld(job=job):
            known = state.jobs[job]
            wanted = f"{record.wanted.workers}/{record.wanted.servers}" if record.wanted else ""
            known.said, known.waits_for = (record.constant, wanted), record.waits_for
            known.again_s = record.again_s
        case StragglerFound(job=job, member=member, constant=remedy):
            _note_straggler(state.jobs[job], member.index, remedy)
        case StragglerRecovered(job=job, member=member):
            _note_straggler(state.jobs[job], member.index, "")
        case SlotsMoveRequested(job=job):
            state.jobs[job].moved_s, state.jobs[job].server_loads = state.jobs[job].clock_s, []
        case IncidentOpened(job=job) | IncidentClosed(job=job):
            _note_incident(state.jobs[job], record)
        case JobStopRequested(job=job):
            state.jobs[job].stopping = True
        case PlanMeasured() | JobForecast() | RuleSwitchedOff() | RuleSwitchedOn() | SnapshotChunk():
            pass  # no decision rests on these


def _note_straggler(job: KnownJob, index: int, remedy: str) -> None:
    """Note a remedy in force, "" for none any more. The windows that showed a worker to be slow tell nothing of the size."""
    if remedy and not job.stragglers and not job.slowed:
        job.recent, job.slowed = job.recent[:-SLOW_WINDOWS], job.recent[-SLOW_WINDOWS:]
    job.stragglers.pop(index, None)
    if remedy:
        job.stragglers[index] = remedy
    elif not job.stragglers:
        job.slowed = []


def _see_members(job: KnownJob, record: MembersSeen) -> None:
    """A new incarnation has no past: how slow its predecessor was does not count against it."""
    former = {member.index: member for member in job.members if member.role == "worker"}
    now = {member.index: member for member in record.members if member.role == "worker"}
    job.paces = {index: pace for index, pace in job.paces.items() if former.get(index) == now.get(index)}
    job.stragglers = {i: remedy for i, remedy in job.stragglers.items() if former.get(i) == now.get(i)}
    job.slowed = job.slowed if job.stragglers else []
    job.members_plan, job.members = record.members_plan, record.members
    job.stalled = [member for member in job.stalled if member in record.members]
    job.where = {member.name: host for member, host in zip(record.members, record.hosts, strict=False)}
    job.former = list(zip(record.former, record.former_hosts, strict=True))
    job.seats = record.masters or job.seats
    job.log_sequence = max(job.log_sequence, record.log_sequence)


def _propose(job: KnownJob, plan: PlanProposed) -> None:
    job.plan = plan.plan
    job.probes += plan.step == "probe"
    job.waits_for, job.said = [], ("", "")
    leaves = plan.constant in (Reason.HOST_SLOW, Reason.SLOWEST_REPLACE)
    job.left_s = job.clock_s if leaves else job.left_s
    if plan.constant == Reason.STRAGGLER_REPLACE:
        for member in plan.replaces:
            pace, often = job.paces.get(member.index), job.replaced.get(member.index, 0)
            job.replaced[member.index] = 1 if pace is not None and was_well(pace) else often + 1
    first, job.hosts = not job.hosts, plan.hosts or job.hosts
    if first:
        job.masters = plan.masters
        job.seats = [MasterSeat(host=host) for host in plan.masters]
        job.cold = plan.constant == "cold_start"
    job.probe = None
    job.began_with = (job.samples, job.committed) if plan.step == "start" else job.began_with
    by_person = plan.step == "asked"
    job.change = Change(
        plan=plan.plan,
        step="scale" if by_person and plan.predicted else plan.step,  # a trial is judged like ours
        before=job.held or plan.size,
        after=plan.size,
        predicted=plan.predicted,
        low_90=plan.predicted_low_90,
        constant=plan.constant,
        since_s=job.clock_s,
        base=list(job.recent),
        members_plan=plan.members_plan,
        by_person=by_person,
        rolls_back=plan.rolls_back,
    )


def _observe(job: KnownJob, fact: ObservedFact, took_s: float, cause: str) -> None:
    match fact:
        case HostMemberStalled(member=member, reason=reason, why=why):
            job.stalled = [*job.stalled, member]
            job.stalled_by, job.stalled_cause = f"{reason}: {why}", cause
        case PlanApplied(size=size):
            if size is not None:  # none: a repair, of the size that was
                _apply(job, fact, size)
        case PlanChecked(plan=plan, outcome=outcome):
            if job.change and job.change.plan == plan:
                _note_check(job, job.change, outcome)
        case PlanRefused(plan=plan, constant=constant):
            job.plan = max(job.plan, plan)
            if job.change and job.change.plan == plan:
                _refuse(job, job.change, constant)
        case PlanSettled(plan=plan):
            _note_times(job, plan, took_s)
            job.settled_s, job.stalled = job.clock_s, []
            job.withdrawn = 0 if job.held is not None else job.withdrawn
            _count_servers(job, plan)
            if job.change and job.change.plan == plan:
                if job.change.before.shape != job.change.after.shape:
                    _forget_pasts(job)
                # The tables were spread over other servers, at a start over fewer: earlier points tell nothing of growth.
                if job.change.step == "start" or job.change.before.servers != job.change.after.servers:
                    job.memory = {}
                job.change.settled = True
                job.change.windows = []
                if job.change.step in ("start", "replace", "relief", "room", "trim"):
                    job.change = None  # nothing was promised: nothing is judged
        case PlanModeSet(mode=mode):
            job.mode = mode
        case JobPaused(release=release):
            job.paused, job.recent = True, []
            job.releases = release
            job.change = job.change if _begins(job) else None
        case JobResumed():
            job.paused, job.again_s = False, 0.0
            if job.held is not None and not job.members:  # it was suspended under a Brain of before
                _hold_nothing(job)
            if job.change is not None:
                job.change.since_s = job.clock_s  # its members come from here on
        case JobStopRequested():
            job.stopping = True


def _let_others_have(state: BrainState, job: KnownJob) -> None:
    """A suspended job whose last member has left holds nothing from there on: its room is free for others (docs/design/0079)."""
    if job.paused and job.releases and not job.members and job.held is not None:
        _hold_nothing(job)
        offer_again(state)


def _hold_again(job: KnownJob) -> None:
    """A master of before brings the members of a suspended job back by itself: it holds again what it did."""
    if job.released is not None and job.held is None and job.members and job.change is None:
        job.held, job.released = job.released, None


def _hold_nothing(job: KnownJob) -> None:
    assert job.held is not None
    job.released = job.rest or (job.held if job.held.workers else job.held.replace(workers=1))
    job.held = job.rest = job.change = None
    job.said = ("", "")  # what it waits for from now on is something else


def _begins(job: KnownJob) -> bool:
    """Whether a start, or what is left of one that has trained nothing, is not live: it is one after a pause too."""
    change = job.change
    if change is None or change.settled:
        return False
    return change.step == "start" or (change.step == "rollback" and not job.has_trained)


def _refuse(job: KnownJob, change: Change, constant: str) -> None:
    if constant in ("rejected", "servers_fixed", "job_is_ending"):
        _decline(job)
    job.change = None
    if (
        constant == "paused" and change.rolls_back and not job.has_trained
    ):  # what it was to take back is still there
        was = change.before
        job.change = Change(change.rolls_back, "start", was, was, 0.0, job.clock_s, applied=True)
    job.again_s = NEVER_S if job.waits else job.again_s  # it would be refused again


def _note_check(job: KnownJob, change: Change, outcome: str) -> None:
    if outcome == "waits":
        change.waits = True
    elif outcome == "observed":
        _decline(job)


def _note_times(job: KnownJob, plan: int, took_s: float) -> None:
    """How long members of this job take to arrive, which is longer for other reasons where servers are in motion; and what a change
    cost: what windows missed, and where it stops the job, the time that no window covered.
    """
    change = job.change
    if change is None or change.plan != plan or not change.applied:
        return
    first, same_servers = change.step == "start", change.after.servers == change.before.servers
    if first or (change.after.workers > change.before.workers and same_servers):
        job.slowest_start_s = max(job.slowest_start_s, took_s or job.clock_s - change.since_s)
    if took_s and not first and change.base and change.before.shape != change.after.shape:
        unseen_s = max(took_s - change.watched_s, 0.0) if _stops(job, change) else 0.0
        job.lost_s, job.settled_moves = round(job.lost_s + unseen_s, 3), job.settled_moves + 1


def _stops(job: KnownJob, change: Change) -> bool:
    """Whether the members that stay cannot go on meanwhile: slots move between servers, a ring is built again."""
    return change.before.servers != change.after.servers or not job.spec.has_servers


def _count_servers(job: KnownJob, plan: int) -> None:
    """A rollout may have been given up (S14): what the members are now is held, whatever the plan said."""
    present = sum(member.role == "ps" for member in job.members)
    if job.held is None or not present or present == job.held.servers:
        return
    if job.change is not None and job.change.plan == plan:
        _decline(job)
    job.held, job.recent = job.held.replace(servers=present), []


def _decline(job: KnownJob) -> None:
    if job.change is not None:
        job.declined = [*job.declined, (job.change.after, job.clock_s)][-8:]
    job.change = None


def _apply(job: KnownJob, fact: PlanApplied, size: Size) -> None:
    plan = fact.plan
    if fact.constant == Reason.BELOW_LEAST and not size.workers:
        _withdraw(job, plan)
        return
    if job.change is None or job.change.plan != plan:  # a person's plan, or one from before our log
        job.change = _asked(job, fact, size)
    job.rest = _rest(job, size)
    if (
        not size.workers and job.held is not None
    ):  # a plan that no Brain made does not say how big each of them is
        each = job.held
        size = size.replace(worker_cores=each.worker_cores, worker_memory_bytes=each.worker_memory_bytes)
    if job.change.waits:
        job.change.base, job.change.since_s = (
            list(job.recent),
            job.clock_s,
        )  # not from the question, from the answer
    job.change.applied, job.change.waits = True, False
    job.plan = max(job.plan, plan)
    if job.held is None or job.held.shape != size.shape:
        job.moves += bool(job.held and job.held.workers)
        job.recent = []
        _forget_pasts(job)
        return_to(job, size)
    job.held, job.released = size, None


def _withdraw(job: KnownJob, plan: int) -> None:
    """It holds nothing, as before its first plan. What never ran has taught nothing: no size is declined, no change taken back."""
    job.plan, job.withdrawn = max(job.plan, plan), job.withdrawn + 1
    job.released = job.held if job.tried else None  # what it trained with before: it asks for that again
    job.held = job.rest = job.change = None
    job.rollbacks, job.recent, job.declined = 0, [], []


def _forget_pasts(job: KnownJob) -> None:
    """What a worker did at another size says nothing of what is usual at this one: one that has no peers to be compared with would
    be called slow for what the change cost it.
    """
    job.paces = {index: msgspec.structs.replace(pace, past=0.0) for index, pace in job.paces.items()}


def _rest(job: KnownJob, size: Size) -> Size | None:
    """What a job had before others took workers from it: it goes back there, unless it was given another size meanwhile."""
    if job.change is None or job.held is None or (job.change.step != "room" and size.workers):
        return None
    rest = job.rest or job.held
    return rest if size.workers < rest.workers else None


def _asked(job: KnownJob, fact: PlanApplied, size: Size) -> Change:
    """A person's plan. One on trial is judged like ours; perfect scaling is assumed until tried (`algorithms.md §7`)."""
    before, trial = job.held or size, fact.constant == TRIAL and bool(job.recent)
    predicted = job.throughput * size.workers / max(before.workers, 1) if trial else 0.0
    step = "scale" if trial else "asked"
    return Change(
        fact.plan, step, before, size, predicted, job.clock_s, base=list(job.recent), by_person=True
    )


# -- verdicts ----------------------------------------------------------------------------------------------------------


def _judge(job: KnownJob, record: PlanKept | PlanRolledBack) -> None:
    change = job.change
    if change is None or change.plan != record.plan:
        return
    kept = isinstance(record, PlanKept)
    if not kept:
        job.rollbacks += 1
    if record.constant == Reason.NEVER_LIVE:
        job.declined = [*job.declined, (change.after, job.clock_s)][-8:]
    elif not kept:
        job.ceilings = [*job.ceilings, Ceiling(change.after, record.after, job.clock_s, change.before)][-8:]
    elif change.step == "scale":
        job.rollbacks = 0
    job.probe = change if kept and change.step == "probe" and job.is_less(change) else None
    job.change = None


def _note_incident(job: KnownJob, record: IncidentOpened | IncidentClosed) -> None:
    name = record.member.name
    if isinstance(record, IncidentOpened):
        if name not in job.incidents:
            job.incidents_made += 1
        job.incidents[name] = record.incident
    else:
        job.incidents.pop(name, None)
