"""`evolve(state, record) -> state`: how each record of the log changes the state. Replay and live are this same function.

No clock, no random, no id; a record that does not fit raises ValueError, because then the log is not this job's.
The state is changed in place and returned: it has one owner. Only the record that opens the job makes another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from rover_bus.events import data_facts, facts, log
from rover_bus.events.job import is_synchronous
from rover_bus.events.log import Record
from rover_bus.master import cut_evolution, member_evolution, slot_evolution
from rover_bus.master.ledger import Ledger, first_token
from rover_bus.master.lockstep import Lockstep
from rover_bus.master.phases import (
    Closed,
    Ended,
    Finishing,
    Phase,
    Starting,
    Training,
    Waiting,
    WrittenPart,
    after,
)
from rover_bus.master.state import AnyState, OpenedJob, RuleOff, State, Task, Unopened

ERASED_GENERATIONS = 1000  # more than a job rewinds between two backups


def evolve(state: AnyState, record: Record) -> AnyState:
    """Apply one record."""
    if isinstance(state, Unopened):
        return _before_the_job(state, record)
    _EVOLUTIONS[type(record)](state, record)
    return state


def enter(state: State, phase: Phase) -> None:
    """Go on to another phase. Raises ValueError where no edge leads to it."""
    state.phase = after(state.phase, phase)


# -- before the job is known ---------------------------------------------------------------------------------------------


def _before_the_job(state: Unopened, record: Record) -> AnyState:
    match record:
        case facts.JobOpened(spec=spec, uid=uid, timeline=timeline):
            return State(job=OpenedJob(spec, uid, timeline), **msgspec.structs.asdict(state))
        case log.SnapshotChunk():
            pass
        case _ if type(record) in _BEFORE:
            _BEFORE[type(record)](state, record)
        case _:
            raise ValueError(
                f"{type(record).__name__} before the job was opened: this log does not belong to a job"
            )
    return state


def _begin_term(state: AnyState, record: facts.MasterElected) -> None:
    state.term = record.term
    state.counts.masters_elected += 1


def _defer_plan(state: AnyState, record: log.PlanDeferred) -> None:
    """A plan that came before the job is known was not checked: what it says of the Brain is noted here."""
    state.plans.seen = max(state.plans.seen, record.proposal.plan)
    state.plans.brain_term = max(state.plans.brain_term, record.proposal.brain_term)
    state.plans.waiting = record.proposal


def _fix_mode(state: AnyState, record: log.ModeFixed) -> None:
    state.plans.mode = record.mode


def _ask_stop(state: AnyState, record: log.StopAsked) -> None:
    state.ending.stop, state.ending.reason = record.mode, record.reason


def _switch_rule_off(state: AnyState, record: facts.RuleSwitchedOff) -> None:
    state.rules_off[record.rule] = RuleOff(record.release, record.why, record.exact)


def _switch_rule_on(state: AnyState, record: facts.RuleSwitchedOn) -> None:
    state.rules_off.pop(record.rule, None)


_BEFORE: dict[type[Record], Callable[[AnyState, Any], None]] = {
    facts.MasterElected: _begin_term,
    facts.RuleSwitchedOff: _switch_rule_off,
    facts.RuleSwitchedOn: _switch_rule_on,
    log.PlanDeferred: _defer_plan,
    log.ModeFixed: _fix_mode,
    log.StopAsked: _ask_stop,
    facts.JobRestored: lambda state, record: None,  # noqa: ARG005 - a job that no log knew has lost nothing
}


def _restore(state: State, record: facts.JobRestored) -> None:
    """What comes from here on is newer than all that was erased, also where only (generation, cut) is compared.

    A job that had no data yet has nothing to go back from.
    """
    job = state.job
    for cut in state.cuts.known.values():
        cut.timeline = cut.timeline or job.timeline
    state.job = OpenedJob(job.spec, job.uid, record.timeline, [*job.former, job.timeline])
    state.generation += ERASED_GENERATIONS
    state.erased = state.ledger is not None


def _open_again(state: State, record: facts.JobOpened) -> None:
    raise ValueError(
        f"job.opened for run {record.uid}, but run {state.job.uid} is open: the log does not belong to this job"
    )


# -- plans -------------------------------------------------------------------------------------------------------------


def _check_plan(state: State, record: facts.PlanChecked) -> None:
    plans = state.plans
    plans.seen = max(plans.seen, record.plan)
    plans.brain_term = max(plans.brain_term, record.brain_term)
    if record.outcome != "waits":
        plans.waiting = None


def _refuse_plan(state: State, record: facts.PlanRefused) -> None:
    plans = state.plans
    plans.seen = max(plans.seen, record.plan)
    if plans.waiting is not None and plans.waiting.plan == record.plan:
        plans.waiting = None


def _want_members(state: State, record: facts.MembersDesired) -> None:
    if record.proposal:
        plans = state.plans
        plans.applied = plans.settling = record.proposal
        plans.waiting = None
        plans.seen = max(plans.seen, record.proposal)
    member_evolution.want(state, record)
    if isinstance(state.phase, Waiting):
        enter(state, Starting())


def _settle(state: State, _record: facts.PlanSettled) -> None:
    state.plans.settling = 0


def _pause(state: State, record: facts.JobPaused) -> None:
    state.paused, state.release = True, record.release


def _resume(state: State, _record: facts.JobResumed) -> None:
    state.paused = state.release = False


# -- the ledger ----------------------------------------------------------------------------------------------------------


def _ledger(state: State) -> Ledger:
    if state.ledger is None:
        raise ValueError("a ledger record before the data set was fixed: this log does not belong to a job")
    return state.ledger


def _fix_dataset(state: State, record: data_facts.DatasetRegistered) -> None:
    state.ledger = Ledger.new(record.dataset, state.generation, synchronous=is_synchronous(state.job.spec))
    _admit_workers(state, state.ledger)


def _admit_workers(state: State, ledger: Ledger) -> None:
    for worker in state.seats.workers():
        ledger.admit(worker.member.index, worker.member.incarnation)


def _commit(state: State, record: log.Committed) -> None:
    _ledger(state).commit(record)
    if record.tokens:
        state.charges.commit()


def _speculate(state: State, _record: data_facts.LeaseSpeculated) -> None:
    state.counts.speculated += 1


def _dead_letter(state: State, record: data_facts.BatchDeadLettered) -> None:
    _ledger(state).dead_letter(record)


def _close_epoch(state: State, record: data_facts.EpochClosed) -> None:
    state.charges.close_epoch(record.epoch)
    dataset = _ledger(state).dataset
    if dataset.epochs and record.epoch + 1 >= dataset.epochs and isinstance(state.phase, Training):
        enter(state, Closed())


def _seal(state: State, record: log.Sealed) -> None:
    streams = _ledger(state).streams
    if streams is not None:
        streams.seal(record.partition, record.end_offset)


def _refuse_commit(state: State, _record: data_facts.CommitRefused) -> None:
    state.counts.commits_refused += 1


def _charge(state: State, record: facts.WorkerFailed) -> None:
    lockstep = state.ledger.lockstep if state.ledger is not None else None
    if record.group and lockstep is not None:
        lockstep.fail(record)
    else:
        state.charges.add(record)


def _rewind(state: State, record: log.Rewound) -> None:
    state.generation = record.generation
    state.erased = False
    cut_evolution.rewind(state, record)
    ledger = msgspec.msgpack.decode(record.ledger, type=Ledger | None)
    if ledger is not None:
        ledger.generation, ledger.next_token = record.generation, first_token(record.generation)
        ledger.forget_holders()
        _keep_lockstep(state, ledger)
        _admit_workers(state, ledger)
    state.ledger = ledger
    slot_evolution.rewind(state)
    state.ending.tasks.clear()
    cut_evolution.keep_spans(state)
    enter(state, Starting())
    state.counts.rewinds += 1


def _keep_lockstep(state: State, ledger: Ledger) -> None:
    """Groups are counted on over a rewind: programs tell them apart by their number."""
    if is_synchronous(state.job.spec):
        ledger.lockstep = (state.ledger and state.ledger.lockstep) or Lockstep()
        ledger.lockstep.rewind()


# -- the end -----------------------------------------------------------------------------------------------------------


def _give_task(state: State, record: log.TaskGiven) -> None:
    state.ending.tasks[record.task] = Task(record.member)


def _finish_task(state: State, record: facts.ResultReported) -> None:
    state.ending.tasks[record.task] = Task(record.member, True, record.values)


def _route(state: State, record: facts.RoutingChanged) -> None:
    slot_evolution.route(state, record)
    if isinstance(state.phase, Starting):
        enter(state, Training())


def _begin_finish(state: State, _record: log.FinishBegun) -> None:
    enter(state, Finishing())


def _finish_server(state: State, record: log.ServerFinished) -> None:
    if not isinstance(state.phase, Finishing):
        raise ValueError("a written part of a job that does not finish: the log does not belong to this job")
    part = WrittenPart(record.member, record.path, record.size_bytes, record.statistics)
    state.phase.parts[record.member.index] = part


def _end(state: State, record: facts.JobEnded) -> None:
    enter(state, Ended(record.state, record.reason, record.detail))
    state.slots.rollout = state.slots.interrupted = None


def _nothing(state: State, record: Record) -> None:
    """Recorded for people; the state does not depend on it."""


_EVOLUTIONS: dict[type[Record], Callable[[State, Any], None]] = {
    **_BEFORE,
    facts.JobOpened: _open_again,
    facts.JobRestored: _restore,
    data_facts.DatasetRegistered: _fix_dataset,
    data_facts.DatasetRefused: _nothing,
    log.TaskGiven: _give_task,
    facts.ResultReported: _finish_task,
    facts.JobReported: _nothing,
    log.FinishBegun: _begin_finish,
    log.ServerFinished: _finish_server,
    facts.JobEnded: _end,
    facts.MembersDesired: _want_members,
    facts.PlanRefused: _refuse_plan,
    facts.PlanChecked: _check_plan,
    facts.PlanSettled: _settle,
    facts.PlanApplied: _nothing,
    facts.JobPaused: _pause,
    facts.JobResumed: _resume,
    facts.RoutingChanged: _route,
    facts.MoveRefused: _nothing,
    log.Granted: lambda state, record: _ledger(state).grant(record),
    data_facts.LeaseSpeculated: _speculate,
    log.Committed: _commit,
    log.Returned: lambda state, record: _ledger(state).give_back(record),
    data_facts.CommitRefused: _refuse_commit,
    facts.WorkerFailed: _charge,
    data_facts.BatchDeadLettered: _dead_letter,
    data_facts.EpochOpened: lambda state, record: _ledger(state).begin_epoch(record),
    data_facts.EpochClosed: _close_epoch,
    log.Sealed: _seal,
    log.Rewound: _rewind,
    log.SnapshotChunk: _nothing,
    **member_evolution.EVOLUTIONS,
    **slot_evolution.EVOLUTIONS,
    **cut_evolution.EVOLUTIONS,
}
if wrong := _EVOLUTIONS.keys() ^ set(log.RECORDS):
    names = ", ".join(sorted(each.__name__ for each in wrong))
    raise AssertionError(
        f"{names}: a record needs a line in _EVOLUTIONS, and what has one must be in log.RECORDS"
    )
