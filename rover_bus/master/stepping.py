"""Decisions on the steps of a synchronous job: how many batches each worker is granted, what a failed step is charged to.

Asked by `leasing` for grants and by the decider after each input; the state is `lockstep`. Design: docs/design/0043.

- A group is formed of all workers that are there when none of them holds a lease: at the end of a step that all have taken. Where
  others are missing, those that come within seconds of one another join together (`Gathering`).
- Leases are granted in rounds: the first worker to ask opens one, and each of the others gets as many batches in it. Where an epoch
  has fewer left than the group has members, the others take the last batch along with its worker: servers apply it once (P2).
- A group breaks when a member is lost or fails before its steps are done. What the others' programs then raise follows from it: it
  is judged when all of them have ended, and charged to the loss, where there was one from outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial

from rover_bus.events import causes
from rover_bus.events.facts import GroupBroken, GroupFormed, WorkerFailed
from rover_bus.events.identity import Member
from rover_bus.events.job import LeaseSpec
from rover_bus.events.log import REPEATED, Granted, Record
from rover_bus.events.requests import LeaseRequest, StepGroup
from rover_bus.master import failing, lifecycle
from rover_bus.master.ledger import Ledger
from rover_bus.master.lockstep import STEP_BROKEN, Lockstep
from rover_bus.master.phases import Ended, Training
from rover_bus.master.state import State
from rover_bus.master.watch import is_known

ROUND_S = 2.0  # a round lasts no longer: a change of the group waits for its end
FIRST_STEPS = 2  # of a round, before a rate is known
JOIN_S = 10.0  # after the last arrival, for others to come that join with it
LEAVE_S = 3.0  # where a group stands still because a member left it, for others that are about to come
BREAK_PATIENCE_S = (
    10.0  # for the others to end after a broken step; then they are ended: their barrier did not break
)
BREAK_INTERVALS = 5  # heartbeats, where these are longer: a silent loss is known after three

Steps = Generator[Record, None, None]
# Whether no other worker is waited for: a walk over all of them, asked only where a group may change.
Gathered = Callable[[], bool]


@dataclass(slots=True)
class StepClock:
    """How long something lasts already, never logged (P19): a broken step that not all have ended of, a worker that is missing."""

    number: tuple[str, int] = ("", 0)
    since: float = 0.0

    def waited(self, what: str, number: int, now: float) -> float:
        """Return the seconds since this was first asked of this group."""
        if self.number != (what, number):
            self.number, self.since = (what, number), now
        return now - self.since


@dataclass(slots=True)
class Gathering:
    """Since when the same workers are there, and the present group stands still or goes on. Never logged (P19)."""

    seen: tuple[tuple[Member, ...], bool] = ((), False)
    since: float = 0.0

    def is_over(self, state: State, ledger: Ledger, now: float) -> bool:
        """Whether the next group is formed without those that are missing: nothing came for a while."""
        lockstep = ledger.lockstep
        if lockstep is None or not _is_missing(state):
            self.seen = (), False
            return True
        stopped = bool(lockstep.members) and not all(_stays(state, member) for member in lockstep.members)
        seen = tuple(_present(state)), stopped
        if seen != self.seen:
            self.seen, self.since = seen, now
        return now - self.since >= (LEAVE_S if stopped else JOIN_S)


# -- grants ------------------------------------------------------------------------------------------------------------


def owes(state: State, ledger: Ledger, member: Member) -> bool:
    """Whether a worker is still to be granted what the others of its group have: also when nothing new is."""
    lockstep = ledger.lockstep
    if lockstep is None or lockstep.broken or not isinstance(state.phase, Training):
        return False
    return lockstep.has(member) and lockstep.owes(member.index) > 0


def grant(
    state: State, ledger: Ledger, lockstep: Lockstep, request: LeaseRequest, opens: bool, gathered: Gathered
) -> Generator[Record, None, list[int]]:
    """Grant what is due to a worker of the group. `opens`: it may open the next round, unless others have gathered."""
    member = request.member
    if lockstep.broken or not lockstep.has(member):
        return []
    due = lockstep.owes(member.index)
    if not due and opens and not request.retiring and _goes_on(state, lockstep, gathered):
        due = _round(ledger, lockstep, state.job.spec.leases, request.rate)
    if not due:
        return []
    first_token = ledger.next_token
    firsts, counts = ledger.propose_batches(due)
    if firsts:
        yield _granted(ledger, request, firsts, counts, 0)
    if missing := due - sum(counts):
        yield _granted(ledger, request, [lockstep.last] * missing, [1] * missing, REPEATED)
    return list(range(first_token, ledger.next_token))


def group_of(state: State, ledger: Ledger, request: LeaseRequest, tokens: list[int]) -> StepGroup | None:
    """Return the group to a worker with what it is granted first in it."""
    lockstep = ledger.lockstep
    if lockstep is None or not tokens:
        return None
    leases = ledger.holders[request.member.index].leases
    granted = sum(leases[token].end - leases[token].first for token in tokens)
    if lockstep.steps.get(request.member.index, 0) > granted:
        return None
    known = state.seats.admitted
    hosts = [known[each.name].host if each.name in known else "" for each in lockstep.members]
    return StepGroup(number=lockstep.number, members=lockstep.members, hosts=hosts)


def _granted(
    ledger: Ledger, request: LeaseRequest, firsts: list[int], counts: list[int], peer: int
) -> Granted:
    return Granted(
        worker=request.member.index,
        incarnation=request.member.incarnation,
        request=request.request,
        first_token=ledger.next_token,
        firsts=firsts,
        counts=counts,
        peer=peer,
    )


def _round(ledger: Ledger, lockstep: Lockstep, spec: LeaseSpec, rate: float) -> int:
    """Return the batches that each member gets in the next round; 0 when all is granted, or others wait for theirs of this one.

    So what is free suffices for all, or is the last, of one step: a worker never has one batch twice.
    """
    free = ledger.unassigned
    if not free or lockstep.owed:
        return 0
    by_rate = round(rate * min(spec.target_s, ROUND_S)) if is_known(rate) else FIRST_STEPS
    return max(1, min(by_rate, free // len(lockstep.members), spec.max_batches))


# -- groups ------------------------------------------------------------------------------------------------------------


def form(state: State, ledger: Ledger, cause: str, gathered: Gathered) -> Steps:
    """Form the next group when the present one has taken its steps, others are there, and no more are waited for."""
    lockstep = ledger.lockstep
    if lockstep is None or lockstep.broken or ledger.outstanding or lockstep.owed or not gathered():
        return
    present = _present(state)
    if present and present != lockstep.members:
        yield GroupFormed(number=lockstep.number + 1, members=present, cause=cause)


def _present(state: State) -> list[Member]:
    return sorted(each.member for each in state.seats.workers() if _stays(state, each.member))


def _is_missing(state: State) -> bool:
    """Whether a wanted worker is not there, nor its former."""
    wanted = (each.member for each in state.seats.wanted.values() if each.member.role == "worker")
    return any(not state.seats.has(member) and not state.seats.has_former(member.name) for member in wanted)


def _stays(state: State, member: Member) -> bool:
    """Whether a worker is there, and not to leave."""
    known = state.seats.admitted.get(member.name)
    return known is not None and known.member == member and not state.seats.drops(known)


def _goes_on(state: State, lockstep: Lockstep, gathered: Gathered) -> bool:
    """Whether the present group may take further steps: all its members stay, and no other one waits for it to end."""
    if not all(_stays(state, member) for member in lockstep.members):
        return False
    return len(_present(state)) == len(lockstep.members) or not gathered()


# -- broken steps ------------------------------------------------------------------------------------------------------


def follow(state: State, ledger: Ledger, clock: StepClock, gathering: Gathering, now: float) -> Steps:
    """See to what the present state of the group implies: a broken one is judged, and the next one is formed."""
    lockstep = ledger.lockstep
    if lockstep is None or isinstance(state.phase, Ended):
        return
    cause = causes.group(lockstep.number) if lockstep.number else causes.job(state.job.uid)
    if lockstep.broken:
        yield from _end_broken(state, ledger, lockstep, clock, now, cause)
    if not isinstance(state.phase, Training) or state.ending.stop:
        return
    yield from form(state, ledger, cause, partial(gathering.is_over, state, ledger, now))


def _end_broken(
    state: State, ledger: Ledger, lockstep: Lockstep, clock: StepClock, now: float, cause: str
) -> Steps:
    left = [member for member in lockstep.members if _is_in_step(state, ledger, lockstep, member)]
    interval_s = state.job.spec.leases.heartbeat_s
    patience_s = 0.0 if lockstep.rewound else max(BREAK_PATIENCE_S, BREAK_INTERVALS * interval_s)
    if left and not lockstep.rewound and clock.waited("break", lockstep.number, now) < patience_s:
        return
    if left:
        yield from lifecycle.lose_together(state, left, STEP_BROKEN, lockstep.broken, cause)
    if not isinstance(state.phase, Ended):
        yield from _judge(state, lockstep, cause)


def _is_in_step(state: State, ledger: Ledger, lockstep: Lockstep, member: Member) -> bool:
    """Whether a member of a broken group may still wait at its barrier, or is about to end."""
    if not state.seats.has(member):
        return False
    return lockstep.rewound or lockstep.failed(member) or bool(ledger.holders[member.index].leases)


def _judge(state: State, lockstep: Lockstep, cause: str) -> Steps:
    charged = (
        [] if lockstep.outside or state.ending.stop else culprits(lockstep.failures, len(lockstep.members))
    )
    yield GroupBroken(
        number=lockstep.number,
        reason=lockstep.broken,
        outside=lockstep.outside,
        failed=[each.member for each in lockstep.failures],
        charged=[each.member for each in charged],
        cause=cause,
    )
    for failure in charged:
        yield from failing.weigh(state, failure, cause)


def culprits(failures: list[WorkerFailed], members: int) -> list[WorkerFailed]:
    """Return the failures of one broken step that count. `members`: of its group.

    One member raises its own error, the others that of a barrier that broke: the error that the fewest have counts, the first of
    equals. Where all have the same, each counts: the same error on every worker at the same step (S28).
    """
    count = Counter(each.fingerprint for each in failures)
    if len(count) == 1 and len(failures) >= members:
        return failures
    rarest = min((each.fingerprint for each in failures), key=lambda name: count[name], default="")
    return [each for each in failures if each.fingerprint == rarest][:1]
