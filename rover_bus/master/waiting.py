"""Lease requests that the master holds because nothing can be granted now: the end of an epoch, servers that start, a dry stream.

Fed by the decider with requests that leasing.py gave a Hold, asked by it after every decision which of them to look at again. A
decision that changes nothing for those that wait costs one comparison, however many they are: what could change it is a mark of
the state, work that is free, or a lease that was cancelled. Nothing of this is logged: a master that ends drops what it held, and
workers ask its successor (P7).

Idle workers (they hold no lease) come before those that only want their next lease early.
"""

from __future__ import annotations

from collections.abc import Iterator

from rover_bus.events.identity import Member
from rover_bus.events.requests import LeaseRequest
from rover_bus.master.leasing import LateLease, may_grant
from rover_bus.master.ledger import Ledger
from rover_bus.master.state import Seats, State
from rover_bus.master.watch import Liveness


class HeldRequests:
    """Held requests by member, the longest held first; `some`: whether there is any. Times are seconds of the decider's clock."""

    def __init__(self) -> None:
        self.some = False
        self._idle: dict[Member, tuple[LeaseRequest, float]] = {}
        self._busy: dict[Member, tuple[LeaseRequest, float]] = {}
        self._gone: list[Member] = []
        self._mark: object = None
        self._seen = (-1, 0)  # the epoch, and how many of its cancelled leases were looked at
        self._ticked: float | None = None

    def __contains__(self, member: Member) -> bool:
        return member in self._idle or member in self._busy

    def hold(self, request: LeaseRequest, state: State, now: float) -> None:
        """Keep a request, behind those that are held already."""
        if not self.some:
            self._mark, self.some = _mark(state), True
        ledger = state.ledger
        busy = ledger is not None and ledger.holders[request.member.index].leases
        (self._busy if busy else self._idle)[request.member] = (request, now)

    def drop(self, member: Member) -> LeaseRequest | None:
        """Forget a request and return it; None when none was held."""
        held = self._idle.pop(member, None) or self._busy.pop(member, None)
        self.some = bool(self._idle or self._busy)
        return held[0] if held is not None else None

    def newest(self, member: Member) -> int:
        """Return the number of the request that a member has here, 0 for none."""
        held = self._idle.get(member) or self._busy.get(member)
        return held[0].request if held is not None else 0

    def leave(self, member: Member) -> None:
        """A member is gone: whatever it asked is to be refused."""
        if member in self:
            self._gone.append(member)

    def due(self, state: State, *, ticked: bool) -> Iterator[LeaseRequest]:
        """Yield those that may be answered otherwise than before. Grants in between are taken into account."""
        mark, ledger = _mark(state), state.ledger
        gone, self._gone = self._gone, []
        if mark != self._mark:
            self._mark = mark
            yield from self._all()
            return
        yield from self._of(gone)
        if ledger is None or not may_grant(state) or ledger.lockstep is not None:
            return  # a synchronous job's: what it waits for is part of the mark
        yield from self._of(self._cancelled(state.seats, ledger))
        for line in (self._idle, self._busy if ticked else {}):
            if ledger.unassigned:
                for request, _ in list(line.values()):
                    yield request
                    if not ledger.unassigned:
                        return

    def _cancelled(self, seats: Seats, ledger: Ledger) -> list[Member]:
        """Return the workers that have lost a lease to another's commit since the last look."""
        seen, self._seen = self._seen, (ledger.epoch, len(ledger.cancelled))
        if seen == self._seen:
            return []
        fresh = sorted(set(ledger.cancelled[seen[1] if seen[0] == ledger.epoch else 0 :]))
        admitted = [seats.admitted.get(f"worker-{index}") for index in fresh]
        return [each.member for each in admitted if each is not None]

    def expired(self, interval_s: float, now: float) -> Iterator[LeaseRequest]:
        """Yield, on a tick, those that would be held for more than one heartbeat if they were not answered before the next tick."""
        gap = now - self._ticked if self._ticked is not None else 0.0
        self._ticked = now
        for line in (self._idle, self._busy):
            for request, since in list(line.values()):
                if now + gap < since + interval_s:
                    break
                yield request

    def late(self, state: State, watch: Liveness, now: float) -> Iterator[tuple[LeaseRequest, LateLease]]:
        """Yield the leases of the tail that idle workers shall take too, each with its worker's request: the fastest the largest.

        The one walk over all leases, on ticks. A lease that the fastest of the idle would not do sooner goes to none of them.
        """
        ledger = state.ledger
        if not self._idle or ledger is None or ledger.unassigned or not may_grant(state):
            return
        if ledger.lockstep is not None:
            return  # all wait for the slowest anyway
        idle = sorted((request for request, _ in self._idle.values()), key=lambda r: -r.rate)
        found = [
            (
                lease.end - lease.first,
                watch.rate_to_beat(worker, lease.end - lease.first, now),
                LateLease(worker, token),
            )
            for worker, token, lease in ledger.held_alone()
        ]
        found = sorted((each for each in found if each[1] < idle[0].rate), key=lambda each: -each[0])
        for request in idle:
            at = next((at for at, each in enumerate(found) if each[1] < request.rate), None)
            if at is None:
                return
            _, _, late = found.pop(at)
            yield request, late

    def _all(self) -> list[LeaseRequest]:
        return [request for line in (self._idle, self._busy) for request, _ in line.values()]

    def _of(self, members: list[Member]) -> list[LeaseRequest]:
        held = [self._idle.get(member) or self._busy.get(member) for member in members]
        return [each[0] for each in held if each is not None]


def _mark(state: State) -> object:
    """What the answers to all requests that wait depend on, besides work that is free."""
    ledger = state.ledger
    if ledger is None:
        return state.generation
    over = state.ending.stop == "finish" and not ledger.outstanding
    return (
        state.generation,
        state.phase,
        state.ending.stop,
        state.seats.plan,
        ledger.epoch,
        ledger.complete,
        over,
        ledger.lockstep and ledger.lockstep.mark,
    )
