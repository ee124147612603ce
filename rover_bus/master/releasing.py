"""A pause that takes the servers away too: once no worker is left a checkpoint is taken, and when it is on storage they leave.

Asked on ticks; begun by `proposals.pause`, ended by a resume. The job is rewound to that checkpoint as the servers leave: no sample
is trained again, since nothing was committed after it opened. So they come back by the way that lost servers take (recovery.py), in
whatever master leads then, and what a worker had pushed beyond its last commit is pushed again (P9, P11). Until the checkpoint is
on storage, and for as long as none can be stored, they stay.
"""

from __future__ import annotations

from collections.abc import Generator

from rover_bus.events import causes, log
from rover_bus.events.facts import MemberLeft
from rover_bus.events.log import Record
from rover_bus.master import lifecycle, withdrawing
from rover_bus.master.cut import Cut, identity_of, position, rewound
from rover_bus.master.ledger import Ledger
from rover_bus.master.phases import Starting, Training
from rover_bus.master.planning import present_servers, release_members
from rover_bus.master.state import State

Consequences = Generator[Record, None, None]
ASK_AGAIN_S = 30.0  # for a checkpoint, where the one before was not stored


class ReleaseClock:
    """What a master remembers of a release but never logs: when it last asked for a checkpoint."""

    def __init__(self) -> None:
        self._asked_s = float("-inf")

    def may_ask(self, now: float) -> bool:
        """Whether one may be asked for now; from then on it was."""
        if now - self._asked_s < ASK_AGAIN_S:
            return False
        self._asked_s = now
        return True


def tick(state: State, clock: ReleaseClock, now: float) -> Consequences:
    """Go a step further: wait for the workers, then for a checkpoint of all that they committed, then let the servers go."""
    if not state.release or not present_servers(state) or state.seats.workers() or state.ending.stop:
        return
    cause = causes.timer("release", causes.job(state.job.uid))
    if isinstance(state.phase, Starting):
        if not state.slots.owners or _all_go_back(state):  # none of them holds anything yet
            yield from _let_go(state, "suspended", cause)
    elif isinstance(state.phase, Training) and state.ledger is not None and state.slots.rollout is None:
        yield from _release(state, state.ledger, clock, cause, now)


def _release(state: State, ledger: Ledger, clock: ReleaseClock, cause: str, now: float) -> Consequences:
    if ledger.samples_done() == (0, 0):
        yield from _go_back(state, None, cause)
        return
    here = identity_of(position(ledger))
    cuts = [cut for cut in state.cuts.known.values() if cut.identity == here and not cut.over]
    stored = next((cut for cut in cuts if cut.state == "ready"), None)
    if stored is not None:
        yield from _go_back(state, stored, cause)
        return
    under_way = any(cut.state == "open" or cut.storing for cut in state.cuts.known.values())
    if not under_way and not state.cuts.asked and clock.may_ask(now):
        yield log.CutAsked(reason="the job is suspended: its servers leave when it is stored", cause=cause)


def _all_go_back(state: State) -> bool:
    """Whether every server begins with a checkpoint, so that none holds what no other place has."""
    return {index for index, _, _ in state.slots.owners} <= set(state.cuts.back.servers)


def _go_back(state: State, cut: Cut | None, cause: str) -> Consequences:
    """The job lies at this cut; None: at the beginning, nothing was trained."""
    if cut is not None:
        ledger: Ledger | None = rewound(cut, state.ledger, state.generation + 1)
        why = f"suspended at cut {cut.number}"
    else:
        ledger, why = lifecycle.empty_ledger(state), "suspended before anything was trained"
    then = f"{why}: all servers leave, and begin from there when it is resumed"
    yield from withdrawing.go_back(state, cut, ledger, then, cause)
    yield from _let_go(state, why, cause)


def _let_go(state: State, why: str, cause: str) -> Consequences:
    seated = [each.member for each in state.seats.servers()]
    yield release_members(state, cause, f"{why}: its servers are released")
    for member in seated:
        yield MemberLeft(member=member, reason="released: the job is suspended", cause=cause)
