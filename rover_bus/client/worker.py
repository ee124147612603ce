"""A worker's side of the protocol as a state machine without I/O: what to ask the master next, and what to train next.

Fed from two sides, which need not know each other: the training side takes batches and says which are done; the conversation side
(session.py) asks `next_request`, sends it until it is answered, and hands the answer to `receive`. Requests are strictly one after
the other, and a request that was not answered is repeated in the same bytes: so a report of progress is answered before the
next one is made, and no skipped row is lost or counted twice (P6, P7). Time comes in as `now`, seconds of one clock.

A lease request that reports nothing may be held by the master until it can grant something. A worker that has more to say meanwhile
(`interrupts`) gives it up, says it, and repeats the request under its number: a number is used until it brought leases, so that
a grant whose answer went unheard is the one that the repetition gets.

    joining --joined--> registering --registered--> training --closed | draining--> leaving --left--> over
       ^------------- stale generation or timeline (P8): all leases are dropped -----------|
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, TypedDict

from rover_bus import __version__
from rover_bus.client.lease import NO_REMARK, Assigned, HeldLease, Work
from rover_bus.client.pace import Pace
from rover_bus.client.spans import HighWater, cut
from rover_bus.events.errors import Refused
from rover_bus.events.formats import FORMAT
from rover_bus.events.identity import Member
from rover_bus.events.job import Dataset
from rover_bus.events.requests import (
    EARLY,
    OK,
    FailureReply,
    FailureRequest,
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaseReply,
    LeaseRequest,
    LeaveReply,
    LeaveRequest,
    Progress,
    RefusedReply,
    RegisterReply,
    RegisterRequest,
    Reply,
    Request,
    RoutingTable,
    StepGroup,
)
from rover_bus.ps.routing import is_newer

LEAST_PAUSE_S = 0.05
ROUTING_PAUSE_S = 0.1  # between heartbeats that ask for a routing table
ANY_PLACE = Member("worker", -1, 0)
NO_PROGRESS = Progress()


class Who(TypedDict):
    """What every request bears."""

    member: Member
    timeline: int
    generation: int


@dataclass(slots=True)
class _Told:
    """What the next report of progress stands on. `retrained`: samples of reports that committed nothing."""

    servers: list[int] = field(default_factory=list)  # the incarnations that acknowledged
    unsettled: Progress | None = None  # the report on its way: repeated unchanged until it is answered
    retrained: int = 0


@dataclass(slots=True)
class _Turn:
    """When it is our turn to speak, in seconds of the caller's clock."""

    not_before: float = 0.0  # no request at all
    news: bool = False  # the master is to hear something that the lease request on its way does not say
    heartbeat_due: float = 0.0
    heartbeat_sent: float = 0.0


class Worker:
    """One process's part in a job. `external`: started by the user, so it may join again, as another incarnation, after a loss.

    Public fields are read by the training side; only methods change them.
    """

    def __init__(
        self,
        member: Member,
        nonce: str,
        *,
        host: str = "",
        pid: int = 0,
        external: bool = False,
        cores_held: bool | None = None,
    ) -> None:
        self.member = member
        self.external = external
        self.timeline = 0
        self.generation = 0
        self.uid = ""
        self.seed = 0
        self.spec: dict[str, Any] = {}
        self.heartbeat_s = 1.0
        self.joined = False
        self.routing: RoutingTable | None = None
        self.dataset: Dataset | None = None
        self.known: Dataset | None = None  # what others had registered when we joined
        self.registered = False
        self.closed = False  # no epoch is left
        self._saw_the_end = False  # `closed`, at any time: the job may have gone back since
        self.draining = False  # finish the batch in hand, leave
        self.retiring = False  # take the steps that others of the group wait for, then drain
        self.group: StepGroup | None = None  # the last one that we were granted something in
        self.over = False  # nothing more will be said
        self.end: Refused | None = None  # why, when it was not our own wish
        self.incarnations = 1
        self._nonce, self._host, self._pid = nonce, host, pid
        self._cores_held = cores_held
        self._leases: dict[int, HeldLease] = {}
        self._waiting: deque[HeldLease] = deque()  # those with batches not handed out
        self._pace = Pace()
        self._request = 0
        self._seen = HighWater({}, [])
        self._told = _Told()
        self._file = ""
        self._farewell: list[Request] = []
        self._turn = _Turn()
        self._asking = False  # a lease request is on its way
        self._retired = False  # nothing more is granted to us
        self._granted = True  # the last request number brought leases: the next request bears a new one

    # -- the training side -------------------------------------------------------------------------------------------------

    def want(self, dataset: Dataset, file: str = "") -> None:
        """State the data set that the program reads; `file` names it where rows are skipped. Batches follow."""
        if dataset != self.dataset:
            self.registered, self.closed = False, False
        self.dataset, self._file = dataset, file

    def see(self, seen: HighWater) -> bool:
        """Note what is readable of a stream: the next lease request tells it. True when the one on its way is out of date by it."""
        grown, self._seen = seen != self._seen, seen
        self._turn.news |= grown and self._asking
        return grown and self._asking

    @property
    def resting(self) -> bool:
        """No batch will come any more: training is over, or this worker leaves."""
        return self.closed or self.draining or self.over or (self._retired and not self._waiting)

    @property
    def hungry(self) -> bool:
        """Less than one lease of work lies ahead: a lease request is due."""
        if self._asking or self.resting or self._retired or not self.registered:
            return False
        waiting = self._waiting
        return not waiting or (len(waiting) == 1 and not waiting[0].untouched)

    def holds(self, assigned: Assigned) -> bool:
        """Whether the work on a batch is still wanted from this worker."""
        return assigned.token in self._leases  # tokens bear their generation

    def take(self) -> Assigned | None:
        """Hand out the next batch; None when there is none now (ask again after an answer) or at all (`resting`)."""
        if self.resting or not self._waiting:
            return None
        lease = self._waiting[0]
        number = lease.take()
        if lease.next == lease.end:
            self._waiting.popleft()
        records = cut(lease.spans, number, self.dataset.batch_size) if self.dataset else None
        return Assigned(self.generation, lease.token, lease.epoch, number, records, lease.group)

    def finish(
        self, assigned: Assigned, now: float, work: Work = NO_REMARK, servers: tuple[int, ...] | None = None
    ) -> bool:
        """Note that every server holds a batch's update. `servers`: the incarnations that acked, None where there are none.

        Returns True when it was the last one in our hands: then the master is told at once, because an epoch may end with it. A
        batch of a lease that is no longer ours changes nothing: the servers hold it, whichever worker commits it (P2).
        """
        lease = self._leases.get(assigned.token)
        if lease is None:
            return False
        if servers is not None:
            self._told.servers = list(servers)
        lease.finish(assigned.number, work)
        self._pace.finish(now)
        if self._waiting or any(held.upto < held.end for held in self._leases.values()):
            return False
        self._turn.news |= self._asking
        return self._asking or self.hungry

    def drain(self) -> None:
        """Take no more work: what is done is committed at leaving, the rest returns.

        A worker of a group takes the steps first that others of it were granted too: they would wait for it at their barrier.
        """
        if self.group is None or self.closed or self.over:
            self._stop()
        elif not self.retiring:
            self.retiring = True
            self._turn.news |= self._asking

    def _stop(self) -> None:
        self.draining = True
        self._waiting.clear()

    def leave(self, reason: str) -> None:
        """Say goodbye as the next and last request. A program that is done before it was told so ended early."""
        if reason == "done" and not (self._saw_the_end or self.draining or self.retiring):
            reason = EARLY
        self._stop()
        if not self.joined:
            self.over = True
        self._farewell.append(LeaveRequest(**self.who(), reason=reason))

    def fail(self, failure: FailureRequest) -> None:
        """Report that user code raised, as the next request; nothing else follows, except that an external worker leaves."""
        self._stop()
        if not self.joined:
            self.over = True
        self._farewell.append(failure)
        if self.external:
            self._farewell.append(LeaveRequest(**self.who(), reason="failed"))

    def newer_routing(self, than: RoutingTable | None) -> RoutingTable | None:
        """Return the routing table that the master gave us, if it replaces another one: a server may have told of a later one."""
        return self.routing if self.routing is not None and is_newer(self.routing, than) else None

    def want_routing(self) -> None:
        """Ask for a newer routing table with the next heartbeat, soon."""
        self._turn.heartbeat_due = min(self._turn.heartbeat_due, self._turn.heartbeat_sent + ROUTING_PAUSE_S)

    def who(self) -> Who:
        """Return what every request of ours bears."""
        return {"member": self.member, "timeline": self.timeline, "generation": self.generation}

    # -- the conversation side: what to say ---------------------------------------------------------------------------------

    def next_request(self, now: float) -> Request | None:
        """Return the request to send now, None when none is due before `wake_s`. It is to be repeated until it is answered."""
        if self.over or now < self._turn.not_before:
            return None
        if not self.joined:
            return self._join()
        if self._farewell:
            return self._goodbye()
        if self.dataset is not None and not self.registered and not self.resting:
            return RegisterRequest(**self.who(), dataset=self.dataset)
        if now >= self._turn.heartbeat_due:
            return self._heartbeat(now)
        return self._ask_for_work() if self.hungry else None

    def wake_s(self) -> float:
        """Return when `next_request` has something to say again if nothing happens until then."""
        return max(self._turn.heartbeat_due, self._turn.not_before)

    def interrupts(self, request: Request, now: float) -> bool:
        """Whether something is to be said that must not wait until the answer to `request` comes.

        Only a lease request that reports nothing is ever given up (`give_up`): any other is repeated until it is answered.
        """
        if not isinstance(request, LeaseRequest) or request.progress.tokens:
            return False
        return bool(self._farewell) or self._turn.news or now >= self._turn.heartbeat_due

    def give_up(self) -> None:
        """Wait for no answer any more: `next_request` says what is more urgent, then repeats the lease request under its number."""
        self._asking = False

    def _join(self) -> JoinRequest:
        return JoinRequest(
            member=self.member,
            nonce=self._nonce,
            host=self._host,
            pid=self._pid,
            release=__version__,
            format=FORMAT,
            cores_held=self._cores_held,
        )

    def _goodbye(self) -> Request:
        """Give the farewell what is known only now: our member name by now, and the last progress."""
        progress, _ = self._report()
        fields = {name: getattr(self._farewell[0], name) for name in self._farewell[0].__struct_fields__}
        return type(self._farewell[0])(**{**fields, **self.who(), "progress": progress})

    def _ask_for_work(self) -> LeaseRequest:
        self._request += self._granted
        self._granted = self._turn.news = False
        self._asking = True
        progress, held = self._report()
        return LeaseRequest(
            **self.who(),
            request=self._request,
            rate=self._pace.rate,
            progress=progress,
            held=held,
            high_water=self._seen.rows,
            # All at once: a master that knew of some seals only could take the epoch for whole before it heard of other partitions.
            sealed=self._seen.sealed if self._seen.final else [],
            retiring=self.retiring,
        )

    def _heartbeat(self, now: float) -> HeartbeatRequest:
        self._turn.heartbeat_sent, self._turn.heartbeat_due = now, now + self.heartbeat_s
        progress, held = self._report()
        return HeartbeatRequest(
            **self.who(),
            request=self._request,
            progress=progress,
            held=held,
            routing_epoch=self.routing.epoch if self.routing is not None else 0,
        )

    def _report(self) -> tuple[Progress, list[int]]:
        """Return what is new, by token, and the other tokens that are held: those not listed anywhere would return (P7)."""
        progress = self._told.unsettled or self._new_progress()
        self._told.unsettled = progress if progress.tokens else None
        return progress, [token for token in self._leases if token not in progress.tokens]

    def _new_progress(self) -> Progress:
        tokens: list[int] = []
        uptos: list[int] = []
        remarks: list[tuple[int, Work]] = []
        file: str | None = None
        for token, lease in self._leases.items():
            if (new := lease.report(file)) is not None:
                tokens.append(token)
                uptos.append(new[0])
                remarks += new[1]
                file = next((work.file for _, work in new[1] if work.skipped), file)
        if not tokens:
            return NO_PROGRESS
        retrained, self._told.retrained = self._told.retrained, 0
        skipped = [row for _, work in remarks for row in work.skipped]
        return Progress(
            tokens=tokens,
            uptos=uptos,
            servers=self._told.servers,
            skipped=skipped,
            skipped_file=(file or self._file) if skipped else "",
            missing=[(number, work.values_missing) for number, work in remarks if work.values_missing],
            samples_retrained=retrained + sum(work.samples_retrained for _, work in remarks),
        )

    # -- the conversation side: what was answered -----------------------------------------------------------------------------

    def receive(self, request: Request, reply: Reply, now: float) -> None:
        """Take in the answer to the request that `next_request` returned last."""
        if isinstance(request, LeaseRequest):
            self._asking = False
        match reply:
            case RefusedReply():
                self._refused(reply, now)
            case JoinReply():
                self._joined(reply, now)
            case RegisterReply():
                self.registered = True
            case LeaseReply() if isinstance(request, LeaseRequest):
                self._settle(request.progress, reply.answers)
                self._cancel(reply.cancelled)
                self._leased(reply, now)
            case HeartbeatReply() if isinstance(request, HeartbeatRequest):
                self._settle(request.progress, reply.answers)
                self._cancel(reply.cancelled)
                self._ordered(reply, now)
            case FailureReply() | LeaveReply() if self._farewell:
                self._farewell.pop(0)
                self._told.unsettled = None
                self.over = not self._farewell

    def _joined(self, reply: JoinReply, now: float) -> None:
        self.joined = True
        self.member, self.uid, self.seed, self.spec = reply.member, reply.uid, reply.seed, reply.spec
        self.timeline, self.generation = reply.timeline, reply.generation
        self.known = reply.dataset
        self.heartbeat_s = reply.heartbeat_s
        self._turn.heartbeat_due = now + reply.heartbeat_s
        self._route(reply.routing, now)

    def _leased(self, reply: LeaseReply, now: float) -> None:
        if reply.outcome == "closed":
            self.closed = self._saw_the_end = True
        elif reply.outcome == "drain":
            self.drain()
            self._retired = True
        self.group = reply.group or self.group
        busy = any(lease.upto < lease.end for lease in self._leases.values())
        if not busy:
            self._pace.resume(now)
        self._granted = bool(reply.tokens)
        for token, first, count in zip(reply.tokens, reply.firsts, reply.counts, strict=True):
            spans = tuple(span for span in reply.spans if span[1] < first + count and first < span[2])
            lease = HeldLease(token, reply.epoch, first, first + count, spans, self.group)
            self._leases[token] = lease
            if not self.draining:
                self._waiting.append(lease)

    def _ordered(self, reply: HeartbeatReply, now: float) -> None:
        self._route(reply.routing, now)
        if reply.order == "drain":
            self.drain()
        elif reply.order == "stop":
            self._finish_for_good("job_ended", "the job is over")

    def _route(self, routing: RoutingTable | None, now: float) -> None:
        if routing is not None and (routing.timeline, routing.generation) == (self.timeline, self.generation):
            self.routing = routing
            self._told.servers = [server.incarnation for server in routing.servers]
        elif self.routing is None:
            self._turn.heartbeat_due = min(
                self._turn.heartbeat_due, now + ROUTING_PAUSE_S
            )  # servers are coming up

    def _settle(self, progress: Progress, answers: list[int]) -> None:
        """A report is answered: forget leases that are done or lost."""
        self._told.unsettled = None
        if answers and OK not in answers:
            self._told.retrained += progress.samples_retrained
        for token, upto, answer in zip(progress.tokens, progress.uptos, answers, strict=False):
            lease = self._leases.get(token)
            if lease is not None and (answer != OK or upto == lease.end):
                self._drop(lease)

    def _cancel(self, tokens: list[int]) -> None:
        for token in tokens:
            if (lease := self._leases.get(token)) is not None:
                self._drop(lease)

    def _drop(self, lease: HeldLease) -> None:
        del self._leases[lease.token]
        if lease.next < lease.end and lease in self._waiting:
            self._waiting.remove(lease)

    # -- refusals -------------------------------------------------------------------------------------------------------------

    def _refused(self, reply: RefusedReply, now: float) -> None:
        code = reply.code
        if reply.retry_s > 0 or code == "stale_term":
            self._turn.not_before = now + max(reply.retry_s, LEAST_PAUSE_S)
        elif code in ("stale_generation", "stale_timeline"):
            self.reset()
        elif code == "not_admitted" and self.external:
            self.reset()
            self.incarnations += 1
            self.member, self._nonce = ANY_PLACE, f"{self._nonce.split('+')[0]}+{self.incarnations}"
        elif code == "not_registered":
            self.registered = False
        else:
            self._finish_for_good(code, reply.message)

    def _finish_for_good(self, code: str, message: str) -> None:
        self._stop()
        self.over = True
        self.end = Refused(message, code)

    def reset(self) -> None:
        """What we hold belongs to the past (P8): drop it, and join again. Request numbers go on, they belong to the incarnation."""
        self._leases.clear()
        self._waiting.clear()
        self.joined = self.registered = self.closed = False
        self.routing = self.group = None
        if self.retiring:
            self._stop()
        self._told.unsettled, self._told.retrained = None, 0
        self._asking, self._granted = False, True
