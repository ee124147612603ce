"""`evolve(state, record) -> state`: how each record of the log changes the state. Replay and live are this same function.

No clock, no random, no id; a record that does not fit raises ValueError, because then the log is not this job's.
The state is changed in place and returned: it has one owner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from rover_bus.events import facts, log
from rover_bus.events.identity import Member
from rover_bus.events.log import Record
from rover_bus.events.requests import RoutingTable
from rover_bus.master import cut_evolution
from rover_bus.master.ledger import Ledger
from rover_bus.master.state import Life, Move, Part, Rollout, RuleOff, State, Task, Unfit


def evolve(state: State, record: Record) -> State:
    """Apply one record."""
    _EVOLUTIONS[type(record)](state, record)
    return state


def _ledger(state: State) -> Ledger:
    if state.ledger is None:
        raise ValueError("a ledger record before the data set was fixed: this log does not belong to a job")
    return state.ledger


def _begin_term(state: State, record: facts.MasterElected) -> None:
    state.term = record.term
    state.counts.masters_elected += 1


def _take_job(state: State, record: facts.JobOpened) -> None:
    state.spec, state.uid, state.history = record.spec, record.uid, record.history


def _fix_dataset(state: State, record: facts.DatasetRegistered) -> None:
    state.dataset = record.dataset
    state.ledger = Ledger(record.dataset, state.generation)
    for life in state.workers():
        state.ledger.admit(life.member.index, life.member.incarnation)


def _plan(state: State, record: facts.MembersDesired) -> None:
    state.plan = record.plan
    state.masters = record.masters or state.masters
    state.hosts = record.hosts or state.hosts
    if record.proposal:
        state.proposal = state.settling = record.proposal
        state.waiting = None
        state.heard = max(state.heard, record.proposal)
    former = {} if record.proposal else {**state.dropped, **state.planned}
    lives = {place: desired.member for place, desired in state.planned.items()}
    state.planned = {desired.member.place: desired for desired in record.members}
    _note_repairs(state, lives, repair=not record.proposal)
    state.dropped = {place: desired for place, desired in former.items() if place not in state.planned}
    for place, desired in state.planned.items():
        state.incarnations[place] = max(state.incarnations.get(place, 0), desired.member.incarnation)
    if state.phase == "waiting":
        state.phase = "starting"


def _note_repairs(state: State, lives: dict[str, Member], *, repair: bool) -> None:
    now = {place: desired.member for place, desired in state.planned.items()}
    new = [place for place, member in now.items() if place in lives and lives[place] != member]
    state.gaps = [place for place in state.gaps if place in now and place not in new]
    waiting = [place for place in state.repairing if place in now and place not in new]
    state.repairing = waiting + (new if repair else [])


def _check_plan(state: State, record: facts.PlanChecked) -> None:
    state.heard = max(state.heard, record.plan)
    state.brain_term = max(state.brain_term, record.brain_term)
    if record.outcome != "waits":
        state.waiting = None


def _defer_plan(state: State, record: log.PlanDeferred) -> None:
    """A plan that came before the job is known was not checked: what it says of the Brain is noted here."""
    state.heard = max(state.heard, record.proposal.plan)
    state.brain_term = max(state.brain_term, record.proposal.brain_term)
    state.waiting = record.proposal


def _refuse_plan(state: State, record: facts.PlanRefused) -> None:
    state.heard = max(state.heard, record.plan)
    if state.waiting is not None and state.waiting.plan == record.plan:
        state.waiting = None


def _settle(state: State, record: facts.PlanSettled) -> None:
    state.settling = 0


def _fix_mode(state: State, record: log.ModeFixed) -> None:
    state.mode = record.mode


def _pause(state: State, record: facts.JobPaused) -> None:
    state.paused = True


def _resume(state: State, record: facts.JobResumed) -> None:
    state.paused = False


def _switch_rule_off(state: State, record: facts.RuleSwitchedOff) -> None:
    state.rules_off[record.rule] = RuleOff(record.release, record.why, record.exact)


def _switch_rule_on(state: State, record: facts.RuleSwitchedOn) -> None:
    state.rules_off.pop(record.rule, None)


def _admit(state: State, record: facts.MemberAdmitted) -> None:
    member = record.member
    place = member.place
    state.repairing = [other for other in state.repairing if other != place]
    state.incarnations[place] = max(state.incarnations.get(place, 0), member.incarnation)
    planned = place in state.planned and state.planned[place].member == member
    state.lives[place] = Life(
        member, record.nonce, record.host, record.pid, record.addresses, planned, record.state
    )
    if member.role == "worker" and state.ledger is not None:
        state.ledger.admit(member.index, member.incarnation)


def _remove(state: State, record: facts.MemberLost | facts.MemberLeft) -> None:
    member = record.member
    life = state.lives.get(member.place)
    if life is not None and life.member == member:
        del state.lives[member.place]
        if member.role == "worker" and state.ledger is not None:
            state.ledger.release(member.index)
    for task in state.tasks.values():
        if task.member == member and not task.done:
            task.member = None


def _leave(state: State, record: facts.MemberLeft) -> None:
    planned = state.planned.get(record.member.place)
    wanted = planned.member == record.member if planned else not _was_planned(state, record.member)
    life = state.lives.get(record.member.place)
    told = life is not None and life.host in state.leaving  # it left because its host does (S29)
    if (
        record.member.role == "worker"
        and state.phase == "training"
        and not state.stop
        and wanted
        and not told
    ):
        state.charges.relaunches += 1  # a program that leaves early would else be started for ever
    _remove(state, record)


def _was_planned(state: State, member: Member) -> bool:
    life = state.lives.get(member.place)
    return life is not None and life.planned


def _lose(state: State, record: facts.MemberLost) -> None:
    _remove(state, record)
    if record.last:
        place = record.member.place
        state.incarnations[place] = max(state.incarnations.get(place, 0), record.last)
    if record.member.role == "worker":
        planned = state.planned.get(record.member.place)
        if planned is not None and planned.member == record.member:
            state.gaps.append(record.member.place)
        state.counts.workers_lost += 1
        if record.reason in ("failed", "crashed"):
            state.charges.relaunches += 1
        else:
            state.charges.preemptions += 1
    elif record.member.role == "ps":
        state.counts.servers_lost += 1


def _notice_host(state: State, record: log.HostNoticed) -> None:
    if record.unheard:
        state.unheard.append(record.host)
    else:
        state.leaving[record.host] = state.last_cut


def _lose_host(state: State, record: facts.MembersDisplaced) -> None:
    if record.host not in state.away:
        state.away.append(record.host)


def _regain_host(state: State, record: log.HostReturned) -> None:
    state.unheard = [host for host in state.unheard if host != record.host]
    state.away = [host for host in state.away if host != record.host]
    state.leaving.pop(record.host, None)


def _find_unfit(state: State, record: log.HostUnfit) -> None:
    state.unfit[record.host] = Unfit(record.daemon, record.problem)


def _find_fit(state: State, record: log.HostFit) -> None:
    state.unfit.pop(record.host, None)


def _route(state: State, record: facts.RoutingChanged) -> None:
    state.routing = RoutingTable(
        history=state.history,
        generation=record.generation,
        epoch=record.epoch,
        owners=record.owners,
        servers=record.servers,
    )
    acking = [server.incarnation for server in record.servers]
    if acking not in state.acking:
        state.acking.append(acking)
    state.owners = record.owners
    if state.phase == "starting":
        state.phase = "training"


def _begin_rollout(state: State, record: facts.RolloutOpened) -> None:
    state.rollouts = record.rollout
    state.interrupted = None
    state.rollout = Rollout(
        record.rollout,
        record.goal,
        [member.index for member in record.joins],
        [member.index for member in record.drops],
        reason=record.reason,
        by=record.by,
        proposal=record.plan,
        again=record.again,
    )


def _begin_move(state: State, record: log.MoveBegun) -> None:
    state.moves = record.move
    if state.rollout is None:
        raise ValueError("a move without a rollout: this log does not belong to a job")
    state.rollout.move = Move(record.move, record.source, record.target, record.slots)


def _end_move(state: State, record: facts.SlotsMoved | facts.MoveFailed) -> None:
    if state.rollout is None:
        raise ValueError("a move without a rollout: this log does not belong to a job")
    state.rollout.move = None
    if isinstance(record, facts.SlotsMoved):
        state.rollout.moved += 1
        state.counts.moves += 1
    else:
        state.rollout.failures += 1


def _end_rollout(state: State, record: facts.RolloutClosed) -> None:
    state.interrupted = state.rollout if record.outcome == "interrupted" else None
    state.rollout = None


def _commit(state: State, record: log.Committed) -> None:
    _ledger(state).commit(record)
    if record.tokens:
        state.charges.commit()


def _speculate(state: State, record: facts.LeaseSpeculated) -> None:
    state.counts.speculated += 1


def _bury(state: State, record: facts.BatchDeadLettered) -> None:
    _ledger(state).bury(record)
    state.counts.batches_dead_lettered += 1


def _end_epoch(state: State, record: facts.EpochClosed) -> None:
    state.charges.close_epoch(record.epoch)
    dataset = _ledger(state).dataset
    if dataset.epochs and record.epoch + 1 >= dataset.epochs and state.phase == "training":
        state.phase = "closed"


def _seal(state: State, record: log.Sealed) -> None:
    streams = _ledger(state).streams
    if streams is not None:
        streams.seal(record.partition, record.end_offset)


def _rewound_ledger(dump: dict[str, Any], generation: int, state: State) -> Ledger:
    ledger = Ledger.load({**dump, "generation": generation})
    ledger.next_token = Ledger(ledger.dataset, generation).next_token
    ledger.forget_holders()
    for life in state.workers():
        ledger.admit(life.member.index, life.member.incarnation)
    return ledger


def _rewind(state: State, record: log.Rewound) -> None:
    state.generation = record.generation
    cut_evolution.rewind(state, record)
    dump = msgspec.msgpack.decode(record.ledger)
    state.ledger = None if dump is None else _rewound_ledger(dump, record.generation, state)
    if state.dataset is None and state.ledger is not None:
        state.dataset = state.ledger.dataset  # the log has lost it; the checkpoint knows it (P21)
    state.routing = None
    state.acking = []
    state.rollout = None
    state.parts.clear()
    state.tasks.clear()
    cut_evolution.keep_spans(state)
    state.phase = "starting"
    state.counts.rewinds += 1


def _charge(state: State, record: facts.WorkerFailed) -> None:
    state.charges.add(record)


def _refuse(state: State, record: facts.CommitRefused) -> None:
    state.counts.commits_refused += 1


def _ask_stop(state: State, record: log.StopAsked) -> None:
    state.stop, state.stop_reason = record.mode, record.reason


def _give_task(state: State, record: log.TaskGiven) -> None:
    state.tasks[record.task] = Task(record.member)


def _finish_task(state: State, record: facts.ResultReported) -> None:
    state.tasks[record.task] = Task(record.member, True, record.values)


def _finish_server(state: State, record: log.ServerFinished) -> None:
    state.parts[record.member.index] = Part(record.member, record.path, record.size_bytes, record.statistics)


def _begin_finish(state: State, record: log.FinishBegun) -> None:
    state.phase = "finishing"


def _end(state: State, record: facts.JobEnded) -> None:
    state.phase = "ended"
    state.rollout = state.interrupted = None
    state.end = (record.state, record.reason, record.detail)


def _nothing(state: State, record: Record) -> None:
    """Recorded for people; the state does not depend on it."""


_EVOLUTIONS: dict[type[Record], Callable[[State, Any], None]] = {
    facts.MasterElected: _begin_term,
    facts.JobOpened: _take_job,
    facts.DatasetRegistered: _fix_dataset,
    facts.DatasetRefused: _nothing,
    log.StopAsked: _ask_stop,
    log.TaskGiven: _give_task,
    facts.ResultReported: _finish_task,
    facts.JobReported: _nothing,
    log.FinishBegun: _begin_finish,
    log.ServerFinished: _finish_server,
    facts.JobEnded: _end,
    facts.MembersDesired: _plan,
    facts.PlanRefused: _refuse_plan,
    facts.PlanChecked: _check_plan,
    facts.PlanSettled: _settle,
    log.ModeFixed: _fix_mode,
    facts.PlanApplied: _nothing,
    log.PlanDeferred: _defer_plan,
    facts.JobPaused: _pause,
    facts.JobResumed: _resume,
    facts.RuleSwitchedOff: _switch_rule_off,
    facts.RuleSwitchedOn: _switch_rule_on,
    facts.MemberAdmitted: _admit,
    facts.MemberLost: _lose,
    facts.MemberLeft: _leave,
    log.HostNoticed: _notice_host,
    facts.MembersDisplaced: _lose_host,
    log.HostReturned: _regain_host,
    log.HostUnfit: _find_unfit,
    log.HostFit: _find_fit,
    facts.RoutingChanged: _route,
    facts.RolloutOpened: _begin_rollout,
    log.MoveBegun: _begin_move,
    facts.SlotsMoved: _end_move,
    facts.MoveFailed: _end_move,
    facts.MoveRefused: _nothing,
    facts.RolloutClosed: _end_rollout,
    log.Granted: lambda state, record: _ledger(state).grant(record),
    facts.LeaseSpeculated: _speculate,
    log.Committed: _commit,
    log.Returned: lambda state, record: _ledger(state).give_back(record),
    facts.CommitRefused: _refuse,
    facts.WorkerFailed: _charge,
    facts.BatchDeadLettered: _bury,
    facts.EpochOpened: lambda state, record: _ledger(state).begin_epoch(record),
    facts.EpochClosed: _end_epoch,
    log.Sealed: _seal,
    log.Rewound: _rewind,
    log.SnapshotChunk: _nothing,
    **cut_evolution.EVOLUTIONS,
}
assert _EVOLUTIONS.keys() == set(log.RECORDS), "a record has no evolution, or is none of this log"
