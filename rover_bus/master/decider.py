"""The master's decider: `decide(state, input, now)` yields records and returns a reply; `evolve` applies each record at once.

Fed by the shell, through events/inputs.py. A decision is a generator: every record that it yields has
been evolved before it goes on, so that consequences (an epoch closes, a member is replaced) are decided on the true state.
It has no await, no clock, no random and makes no id. What is never logged (when a member was observed) is kept in `watch`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Self, assert_never

from rover_bus.events import causes
from rover_bus.events.data_facts import CommitRefused
from rover_bus.events.deciding import Decision, Hold
from rover_bus.events.facts import (
    Fact,
    JobFact,
    JobReported,
    MasterElected,
    MemberLeft,
    MemberLost,
    SlotsMoveRequested,
)
from rover_bus.events.host_facts import HostAdjustRefused
from rover_bus.events.identity import Member
from rover_bus.events.inputs import (
    BusLost,
    BusRegained,
    Continued,
    Input,
    Observed,
    Requested,
    Sampled,
    Ticked,
    TookOver,
)
from rover_bus.events.log import Record
from rover_bus.events.outbox import Outgoing
from rover_bus.events.requests import (
    AnyRequest,
    ElectRequest,
    FailureRequest,
    FinishedRequest,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaseRequest,
    LeaveRequest,
    RegisterRequest,
    Reply,
    Request,
)
from rover_bus.master import (
    admitting,
    concluding,
    cutting,
    failing,
    finding,
    first_servers,
    hosts,
    leasing,
    lifecycle,
    noticing,
    opening,
    publishing,
    recovery,
    refitting,
    releasing,
    relieving,
    restored,
    rollout,
    stepping,
)
from rover_bus.master.evolution import evolve
from rover_bus.master.fences import fence
from rover_bus.master.guarding import (
    CUTS,
    FIRST,
    FORMERS,
    GAPS,
    HELD,
    RELEASE,
    REPORT,
    ROLLOUT,
    SEARCH,
    SILENCE,
    STEPS,
    TAKE_OVER,
    UNFIT,
    guard,
    switch_rules,
)
from rover_bus.master.phases import Training
from rover_bus.master.state import AnyState, Rollout, State, Unopened, dump, load
from rover_bus.master.unlogged import Unlogged

Steps = Generator[Record, None, Reply | Hold | None]


class MasterDecider:
    """One job's deciding, the state it decides on, and what it remembers beside the log."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.state: AnyState = Unopened()
        self.unlogged = Unlogged()
        self._released: list[tuple[Member, Reply | None]] = []

    @property
    def timeline(self) -> int:
        """Part of every id, drawn once a job and again after a restore from a backup (P21). 0: the job is not known."""
        return self.state.job.timeline if isinstance(self.state, State) else 0

    def anew(self) -> Self:
        """Return a decider of the same job that knows nothing."""
        return type(self)(self.job)

    def dump(self) -> bytes:
        """Return the state as a snapshot holds it."""
        return dump(self.state)

    def restore(self, body: bytes) -> None:
        """Replace the state by a snapshot's."""
        self.state = load(body)

    def outgoing(self, record: Record, position: tuple[int, int], term: int) -> list[Outgoing]:
        """Return what leaves because of a record that was just evolved (P18)."""
        return publishing.outgoing(self.job, record, position, self.state, term)

    def position_of(self, fact: Fact) -> tuple[int, int] | None:
        """Return where in this job's log a fact came from, None for the facts of others."""
        return fact.position if isinstance(fact, JobFact) else None

    def standing(self) -> list[Outgoing]:
        """Return the absolute values that a new leader writes again."""
        return publishing.standing(self.job, self.state)

    def evolve(self, record: Record) -> None:
        """Apply one record of the log: the same function live and in replay."""
        gone = (
            record.member
            if isinstance(record, MemberLost | MemberLeft) and self._has(record.member)
            else None
        )
        self.state = evolve(self.state, record)
        if gone is not None:
            self.unlogged.watch.forget(gone)
            self.unlogged.held.leave(gone)
        if isinstance(self.state, State):
            self.unlogged.watch.interval_s = self.state.job.spec.leases.heartbeat_s

    def _has(self, member: Member) -> bool:
        """Whether this very incarnation is there: what is remembered of its index may be its former's."""
        return isinstance(self.state, State) and self.state.seats.has(member)

    def decide(self, input: Input, now: float) -> Decision[Record]:
        """Decide one input, and on every held request that it changes something for."""
        records: list[Record] = []
        self._released = []
        steps = self._steps(input, now)
        try:
            while True:
                record = next(steps)
                records.append(record)
                try:
                    self.evolve(record)
                except Exception as error:  # noqa: BLE001 - raised again where the record was yielded: that rule is to blame
                    steps.throw(error)
        except StopIteration as end:
            return Decision(records, end.value, self._released)

    def _steps(self, input: Input, now: float) -> Steps:
        match input:
            case TookOver():
                yield from self._begin_term(input, now)
            case BusLost():
                self.unlogged.watch.lose_bus(now)
            case BusRegained():
                self.unlogged.watch.regain_bus(now)
            case Requested() | Observed() | Ticked() | Continued() | Sampled():
                pass  # decided on below, once the job is known
            case _:
                assert_never(input)
        if isinstance(self.state, Unopened):
            reply = yield from opening.decide(self.state, input)
            if isinstance(self.state, State):
                yield from opening.begin(self.state, input.id if isinstance(input, Observed) else "")
            return reply
        return (yield from self._with_consequences(self.state, input, now))

    def _with_consequences(self, state: State, input: Input, now: float) -> Steps:
        """Whatever happened may be what a rollout waited for, and what held requests wait for."""
        before = state.slots.rollout
        reply = yield from self._decide_on(state, input, now)
        yield from guard(state, ROLLOUT, self._advance(state, before))
        if state.ledger is not None and state.ledger.lockstep is not None:
            mine = self.unlogged
            follow = stepping.follow(state, state.ledger, mine.steps, mine.gathering, now)
            yield from guard(state, STEPS, follow)
        if self.unlogged.held.some:
            yield from guard(state, HELD, self._release(state, isinstance(input, Ticked), now))
        return reply

    def _decide_on(self, state: State, input: Input, now: float) -> Steps:
        match input:
            case Requested(request):
                return self._answer(state, request, now)
            case Observed(SlotsMoveRequested() as wish, cause):
                return rollout.request_move(state, wish, self.unlogged.telemetry, cause)
            case Observed(fact, cause):
                if isinstance(fact, HostAdjustRefused):
                    self.unlogged.refits.note(state, fact, cause)
                return noticing.notice(state, fact, cause)
            case Ticked():
                return self._tick(state, now)
            case TookOver():
                return guard(state, TAKE_OVER, self._go_on(state, input))
            case Sampled() | Continued() | BusLost() | BusRegained():
                return _nothing()

    def _advance(self, state: State, before: Rollout | None) -> Generator[Record, None, None]:
        cause = causes.rollout(state.slots.last_rollout)
        yield from rollout.advance(state, self.unlogged.telemetry, cause)
        if before is not None and state.slots.rollout is None:
            yield from lifecycle.consequences(state, cause)

    def _release(self, state: State, ticked: bool, now: float) -> Generator[Record, None, None]:
        """Answer the held requests that there is something to say to. On a tick also those that are late, and those held long."""
        held, watch = self.unlogged.held, self.unlogged.watch
        for request in held.due(state, ticked=ticked):
            reply = yield from leasing.lease_again(state, request, watch, self.unlogged.gathering, now)
            self._let_go(request.member, reply)
        if not ticked or state.ledger is None:
            return
        for request, late in held.late(state, watch, now):
            reply = yield from leasing.speculate(state, state.ledger, request, late, watch, now)
            self._let_go(request.member, reply)
        for request in held.expired(watch.interval_s, now):
            self._let_go(request.member, leasing.leased(state, state.ledger, request, [], []))

    def _let_go(self, member: Member, reply: Reply | Hold | None) -> None:
        if not isinstance(reply, Hold):
            self.unlogged.held.drop(member)
            self._released.append((member, reply))

    def _answer(self, state: State, request: AnyRequest, now: float) -> Steps:
        if isinstance(request, JoinRequest):
            reply = yield from admitting.join(state, request, self.unlogged.successors, now)
            if isinstance(reply, JoinReply):  # the admitted incarnation, not whatever asks for its name
                self.unlogged.watch.observe(reply.member, now)
            return reply
        refused = fence(state, request)
        if refused is not None:
            yield from _record_refused_commit(request, refused.code)
            return refused
        watch, held = self.unlogged.watch, self.unlogged.held
        watch.observe(request.member, now)
        match request:
            case LeaseRequest():
                newest = self._replace(request) if held.some else 0
                granted = yield from leasing.lease(state, request, watch, self.unlogged.gathering, now)
                return self._hold(state, request, newest, now) if isinstance(granted, Hold) else granted
            case HeartbeatRequest(member=Member(role="ps")):
                if lifecycle.knows_more(state, request):
                    yield from lifecycle.lose_log(state, request.member)
                    return fence(state, request)
                yield from self._observe_server(state, request)
                return (yield from leasing.heartbeat(state, request, watch, now))
            case HeartbeatRequest():
                return (yield from leasing.heartbeat(state, request, watch, now))
            case RegisterRequest():
                return (yield from admitting.register(state, request))
            case LeaveRequest():
                return (yield from concluding.leave(state, request))
            case FailureRequest():
                return (yield from failing.failure(state, request))
            case ElectRequest():
                return (yield from concluding.elect(state, request))
            case FinishedRequest():
                return (yield from concluding.finished(state, request))

    def _replace(self, request: LeaseRequest) -> int:
        """Make room for a newer copy of a held request. Return the number of the one that is still held, 0 where none is."""
        held = self.unlogged.held.newest(request.member)
        if request.request < held:
            return held
        if self.unlogged.held.drop(request.member) is not None:
            self._released.append((request.member, None))
        return 0

    def _hold(self, state: State, request: LeaseRequest, newest: int, now: float) -> Reply | Hold:
        """A late copy of an older request is answered at once: it must not take the place of the newest one."""
        if newest and state.ledger is not None:
            return leasing.leased(state, state.ledger, request, [], [])
        self.unlogged.held.hold(request, state, now)
        return Hold(request.member)

    def _observe_server(self, state: State, request: HeartbeatRequest) -> Generator[Record, None, None]:
        member, cause, telemetry = request.member, str(request.member), self.unlogged.telemetry
        telemetry.observe(request)
        yield from rollout.report(state, request)
        yield from rollout.advance(state, telemetry, cause)
        restored = request.restored
        if restored is not None and restored.problem:
            yield from lifecycle.give_up_cut(state, member, restored, cause)
            return
        yield from recovery.report(state, member, restored, cause)
        yield from cutting.report(state, member, request.staged, cause)

    def _tick(self, state: State, now: float) -> Steps:
        """Whatever time brings, each rule apart: one that fails takes none of the others with it."""
        mine = self.unlogged
        yield from guard(state, SILENCE, self._miss(state, now))
        yield from guard(state, ROLLOUT, rollout.tick(state, mine.patience, mine.telemetry, now))
        yield from guard(state, ROLLOUT, refitting.tick(state, mine.refits))
        yield from guard(state, GAPS, lifecycle.fill_gaps(state))
        yield from guard(state, FORMERS, relieving.tick(state, mine.successors, now))
        yield from guard(state, FIRST, first_servers.tick(state, mine.first_servers, now))
        yield from guard(state, UNFIT, hosts.tick(state))
        yield from guard(state, CUTS, cutting.tick(state, mine.pace, now))
        yield from guard(state, RELEASE, releasing.tick(state, mine.release, now))
        yield from guard(state, SEARCH, finding.tick(state, mine.search_clock, now))
        yield from guard(state, REPORT, self._report(state, now))
        return None

    def _miss(self, state: State, now: float) -> Generator[Record, None, None]:
        """Hosts and members that are silent are dead (P19)."""
        watch = self.unlogged.watch
        watch.look(now)
        for host in hosts.lost_with(state.seats, watch.silent(now)):
            silence = causes.timer("silence", causes.host(host))
            yield from hosts.lose(state, host, "silent", silence)
        yield from lifecycle.lose_together(state, watch.silent(now), "silent", "three heartbeats missed", "")

    def _report(self, state: State, now: float) -> Generator[Record, None, None]:
        ledger = state.ledger
        if ledger is None or not isinstance(state.phase, Training):
            return
        committed, dead = ledger.samples_done()
        rate = self.unlogged.watch.progress(committed + dead, now)
        if rate is not None:
            yield JobReported(
                epoch=ledger.epoch,
                committed=committed,
                dead_lettered=dead,
                total=ledger.samples_total,
                samples_per_second=round(rate, 1),
                total_grows=ledger.streams is not None and not ledger.streams.finished,
                cause=causes.timer("report", causes.job(state.job.uid)),
            )

    def _begin_term(self, input: TookOver, now: float) -> Generator[Record, None, None]:
        yield MasterElected(
            term=input.term,
            holder=input.holder,
            replayed_records=input.replayed_records,
            cause=causes.named(input.holder),
        )
        former, self.unlogged = self.unlogged, Unlogged()
        self.unlogged.watch.interval_s = former.watch.interval_s
        self.unlogged.telemetry = former.telemetry
        if isinstance(self.state, State):
            for each in self.state.seats.admitted.values():
                self.unlogged.watch.observe(each.member, now)
        yield from switch_rules(self.state, input.failing, input.release)

    def _go_on(self, state: State, input: TookOver) -> Generator[Record, None, None]:
        """What the state that was read implies."""
        cause = causes.term(input.term)
        if state.erased:
            yield from restored.forget_erased(state, "the log was restored from a backup", cause)
        elif input.log_lost:
            yield from lifecycle.lose_state(state, "log_lost", "the log lost its tail", cause)
        yield from lifecycle.consequences(state, cause)


def _record_refused_commit(request: Request, code: str) -> Generator[Record, None, None]:
    """A commit that a fence stopped is refused and recorded (S3): one record a request."""
    progress = getattr(request, "progress", None)
    if progress is not None and progress.tokens:
        yield CommitRefused(
            member=request.member,
            token=progress.tokens[0],
            reason=code,
            cause=str(request.member),
        )


def _nothing() -> Steps:
    return None
    yield
