"""Decisions on the search for a checkpoint: which daemon is asked to look at storage, and when another one is (P14). Generators.

Begun by `lifecycle` when no cut that the log knows can be restored; the answers go to `finding`. While the search is on the job's
phase is `searching`: no lease is granted, and servers that come up wait to be told what they begin with. See docs/design/0021.
"""

from __future__ import annotations

from collections.abc import Generator

from rover_bus.events.checkpoint_facts import CheckpointSearchOrdered
from rover_bus.events.facts import MemberLeft
from rover_bus.events.log import Record
from rover_bus.master import cutting
from rover_bus.master.phases import Searching
from rover_bus.master.planning import begin_again
from rover_bus.master.state import State

Consequences = Generator[Record, None, None]
PATIENCE_S = 10.0  # for an answer: a daemon that starts again is there within it
TRIES = 3  # daemons asked in turn, before storage counts as out of reach
LOOK_S = 60.0  # between looks while a person is asked: each is one listing of storage


class SearchClock:
    """What a master remembers of a search but never logs: since when it waits for an answer."""

    def __init__(self) -> None:
        self._seen: tuple[int, float] = (0, 0.0)
        self._look: tuple[int, float] = (0, 0.0)  # the search that asks, and when to look again

    def since_s(self, search: Searching, now: float) -> float:
        if self._seen[0] != search.number:
            self._seen = search.number, now
        return now - self._seen[1]

    def wait(self, search: Searching, now: float) -> None:
        """Its patience begins now."""
        self._seen = search.number, now

    def may_look(self, search: Searching, now: float) -> bool:
        """Whether it is time to look again for what a person is asked about; from then on it was."""
        number, due = self._look
        if number == search.number and now < due:
            return False
        self._look = search.number, now + LOOK_S
        return number == search.number


def is_worthwhile(state: State) -> bool:
    """Whether checkpoints of this job may lie on storage."""
    wanted = state.job.spec.checkpoint
    return wanted is not None and wanted.persist


def begin(state: State, detail: str, cause: str) -> Consequences:
    """Ask what lies on storage. All servers are replaced meanwhile: what they hold is not needed, whatever is found."""
    yield from cutting.end_all(state, cause, "it cannot be restored: storage is searched")
    yield order(state, detail, cause)
    servers = [desired.member for desired in state.seats.wanted.values() if desired.member.role == "ps"]
    yield begin_again(state, servers, cause, f"{detail}: storage is searched for a checkpoint")
    for seated in state.seats.servers():
        yield MemberLeft(
            member=seated.member, reason="replaced: storage is searched for a checkpoint", cause=cause
        )


def order(
    state: State, detail: str, cause: str, wanted: int = 0, retry: bool = False, look: bool = False
) -> CheckpointSearchOrdered:
    """Return the record that asks the next daemon in turn."""
    hosts = (
        [host for host in state.seats.hosts.named if host not in state.seats.hosts.away]
        or state.seats.hosts.named
        or ["local"]
    )
    host = hosts[state.cuts.last_search % len(hosts)]
    spec = state.job.spec.checkpoint
    return CheckpointSearchOrdered(
        search=state.cuts.last_search + 1,
        host=host,
        path=spec.path if spec is not None else "",
        skip=[] if retry else [(each.generation, each.cut) for each in state.cuts.tried if each.stored],
        not_before=state.cuts.not_before,
        wanted=wanted,
        reason=detail,
        former=state.job.former,
        retry=retry,
        look=look,
        cause=cause,
    )
