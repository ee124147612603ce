"""The master's decider: `decide(state, input, now)` yields records and returns a reply; `evolve` applies each record at once.

Fed by the shell, through events/inputs.py. A decision is a generator: every record that it yields has
been evolved before it goes on, so that consequences (an epoch closes, a member is replaced) are decided on the true state.
It has no await, no clock, no random and makes no id. What is never logged (who was heard when) lives in `watch`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Self, assert_never

from rover_bus.events import causes
from rover_bus.events.deciding import Decision, Hold
from rover_bus.events.facts import (
    CommitRefused,
    Fact,
    JobFact,
    JobReported,
    MasterElected,
    MemberLeft,
    MemberLost,
    SlotsMoveRequested,
)
from rover_bus.events.identity import Member
from rover_bus.events.inputs import (
    BusLost,
    BusRegained,
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
    hosts,
    leasing,
    lifecycle,
    noticing,
    publishing,
    recovery,
    rollout,
    searching,
)
from rover_bus.master.evolution import evolve
from rover_bus.master.fences import fence
from rover_bus.master.guarding import (
    CUTS,
    GAPS,
    HELD,
    REPORT,
    ROLLOUT,
    SEARCH,
    SILENCE,
    TAKE_OVER,
    UNFIT,
    guard,
    switch_rules,
)
from rover_bus.master.rollout import Patience, Telemetry
from rover_bus.master.state import Rollout, State
from rover_bus.master.waiting import Waiting
from rover_bus.master.watch import Watch

Steps = Generator[Record, None, Reply | Hold | None]


class MasterDecider:
    """One job's deciding, and the state it decides on."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.state = State()
        self.watch = Watch(1.0)
        self.patience, self.telemetry = Patience(), Telemetry()
        self.pace = cutting.Pace()
        self.waiting = Waiting()
        self._released: list[tuple[Member, Reply | None]] = []
        self.search_clock = searching.SearchClock()

    @property
    def history(self) -> int:
        """Part of every id, drawn once a job and anew after a restore from a backup (P21)."""
        return self.state.history

    def anew(self) -> Self:
        """Return a decider of the same job that knows nothing."""
        return type(self)(self.job)

    def dump(self) -> bytes:
        """Return the state as a snapshot holds it."""
        return self.state.dump()

    def restore(self, body: bytes) -> None:
        """Replace the state by a snapshot's."""
        self.state = State.load(body)

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
        evolve(self.state, record)
        if isinstance(record, MemberLost | MemberLeft):
            self.watch.forget(record.member)
            self.waiting.leave(record.member)
        if self.state.spec is not None:
            self.watch.interval_s = self.state.spec.leases.heartbeat_s

    def decide(self, input: Input, now: float) -> Decision[Record]:
        """Decide one input, and on every held request that it changes something for."""
        records: list[Record] = []
        self._released = []
        steps = self._with_consequences(input, now)
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

    def _with_consequences(self, input: Input, now: float) -> Steps:
        """Whatever happened may be what a rollout waited for, and what held requests wait for."""
        before = self.state.rollout
        reply = yield from self._steps(input, now)
        yield from guard(self.state, ROLLOUT, self._advance(before))
        if self.waiting.some:
            yield from guard(self.state, HELD, self._release(isinstance(input, Ticked), now))
        return reply

    def _advance(self, before: Rollout | None) -> Generator[Record, None, None]:
        cause = causes.rollout(self.state.rollouts)
        yield from rollout.advance(self.state, self.telemetry, cause)
        if before is not None and self.state.rollout is None:
            yield from lifecycle.consequences(self.state, cause)

    def _release(self, ticked: bool, now: float) -> Generator[Record, None, None]:
        """Answer the held requests that there is something to say to. On a tick also those that are late, and those held long."""
        state, waiting, watch = self.state, self.waiting, self.watch
        for request in waiting.due(state, ticked=ticked):
            reply = yield from leasing.lease_again(state, request, watch, now)
            self._let_go(request.member, reply)
        if not ticked:
            return
        for request, worker, token in waiting.late(state, watch, now):
            reply = yield from leasing.speculate(state, request, worker, token, watch, now)
            self._let_go(request.member, reply)
        for request in waiting.expired(watch.interval_s, now):
            self._let_go(request.member, leasing.leased(state, request, [], []))

    def _let_go(self, member: Member, reply: Reply | Hold | None) -> None:
        if not isinstance(reply, Hold):
            self.waiting.drop(member)
            self._released.append((member, reply))

    def _steps(self, input: Input, now: float) -> Steps:
        match input:
            case Observed(SlotsMoveRequested() as wish, cause):
                return rollout.request_move(self.state, wish, self.telemetry, cause)
            case Requested(request):
                return self._answer(request, now)
            case Observed(fact, cause):
                return noticing.notice(self.state, fact, cause)
            case Ticked():
                return self._tick(now)
            case TookOver():
                return self._take_over(input, now)
            case BusLost():
                self.watch.lose_bus(now)
            case BusRegained():
                self.watch.regain_bus(now)
            case Sampled():
                pass  # a master follows no samples
            case _:
                assert_never(input)
        return _nothing()

    def _answer(self, request: AnyRequest, now: float) -> Steps:
        state = self.state
        if isinstance(request, JoinRequest):
            reply = yield from admitting.join(state, request)
            if isinstance(reply, JoinReply):  # the admitted life, not whoever asks for its place
                self.watch.hear(reply.member, now)
            return reply
        refused = fence(state, request)
        if refused is not None:
            yield from _record_refused_commit(request, refused.code)
            return refused
        self.watch.hear(request.member, now)
        match request:
            case LeaseRequest():
                newest = self._replace(request) if self.waiting.some else 0
                granted = yield from leasing.lease(state, request, self.watch, now)
                return self._hold(request, newest, now) if isinstance(granted, Hold) else granted
            case HeartbeatRequest(member=Member(role="ps")):
                if lifecycle.knows_more(state, request):
                    yield from lifecycle.lose_log(state, request.member)
                    return fence(state, request)
                self.telemetry.hear(request)
                yield from rollout.report(state, request)
                yield from rollout.advance(state, self.telemetry, str(request.member))
                yield from self._hear_server(request)
                return (yield from leasing.heartbeat(state, request, self.watch, now))
            case HeartbeatRequest():
                return (yield from leasing.heartbeat(state, request, self.watch, now))
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
        held = self.waiting.newest(request.member)
        if request.request < held:
            return held
        if self.waiting.drop(request.member) is not None:
            self._released.append((request.member, None))
        return 0

    def _hold(self, request: LeaseRequest, newest: int, now: float) -> Reply | Hold:
        """Nobody waits for a late copy of an older request: it must not take the place of the newest one."""
        if newest:
            return leasing.leased(self.state, request, [], [])
        self.waiting.hold(request, self.state, now)
        return Hold(request.member)

    def _hear_server(self, request: HeartbeatRequest) -> Generator[Record, None, None]:
        state, member, cause = self.state, request.member, str(request.member)
        restored = request.restored
        if restored is not None and restored.problem:
            yield from lifecycle.give_up_cut(state, member, restored, cause)
            return
        yield from recovery.report(state, member, restored, cause)
        yield from cutting.report(state, member, request.staged, cause)

    def _tick(self, now: float) -> Steps:
        """Whatever time brings, each rule apart: one that fails takes none of the others with it."""
        state = self.state
        yield from guard(state, SILENCE, self._miss(now))
        yield from guard(state, ROLLOUT, rollout.tick(state, self.patience, self.telemetry, now))
        yield from guard(state, GAPS, lifecycle.fill_gaps(state))
        yield from guard(state, UNFIT, hosts.tick(state))
        yield from guard(state, CUTS, cutting.tick(state, self.pace, now))
        yield from guard(state, SEARCH, finding.tick(state, self.search_clock, now))
        yield from guard(state, REPORT, self._report(now))
        return None

    def _miss(self, now: float) -> Generator[Record, None, None]:
        """Hosts and members that are silent are dead (P19)."""
        self.watch.look(now)
        for host in hosts.lost_with(self.state, self.watch.silent(now)):
            silence = causes.timer("silence", causes.host(host))
            yield from hosts.lose(self.state, host, "silent", silence)
        yield from lifecycle.lose_together(
            self.state, self.watch.silent(now), "silent", "three heartbeats missed", ""
        )

    def _report(self, now: float) -> Generator[Record, None, None]:
        ledger = self.state.ledger
        if ledger is None or self.state.phase != "training":
            return
        committed, dead = ledger.samples_done()
        rate = self.watch.progress(committed + dead, now)
        if rate is not None:
            yield JobReported(
                epoch=ledger.epoch,
                committed=committed,
                dead_lettered=dead,
                total=ledger.samples_total,
                samples_per_second=round(rate, 1),
                cause=causes.timer("report", causes.job(self.state.uid)),
            )

    def _take_over(self, input: TookOver, now: float) -> Steps:
        yield MasterElected(
            term=input.term,
            holder=input.holder,
            replayed_records=input.replayed_records,
            cause=causes.named(input.holder),
        )
        self.watch = Watch(self.watch.interval_s)
        self.patience = Patience()
        self.pace = cutting.Pace()
        self.waiting = Waiting()
        self.search_clock = searching.SearchClock()
        for life in self.state.lives.values():
            self.watch.hear(life.member, now)
        yield from switch_rules(self.state, input.failing, input.release)
        yield from guard(self.state, TAKE_OVER, self._go_on(input))
        return None

    def _go_on(self, input: TookOver) -> Generator[Record, None, None]:
        """What the state that was read implies."""
        if input.log_lost:
            yield from lifecycle.lose_state(
                self.state, "log_lost", "the log lost its tail", causes.term(input.term)
            )
        yield from lifecycle.consequences(self.state, causes.term(input.term))


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
