"""Decisions on what a search of storage found: go back to it, look again, or do what the job file wants when nothing is usable.

Fed by `noticing` with daemons' answers, by ticks, and by `proposals` with a person's word. Storage is tried newest first, one
checkpoint at a time: a server that cannot restore it says so (`lifecycle.give_up_cut`), and the search goes on behind it. A job
that asks a person holds nothing, and looks at storage again now and then (docs/design/0083).
"""

from __future__ import annotations

from collections.abc import Generator

from rover_bus.events import causes
from rover_bus.events.checkpoint_facts import CheckpointFailed, CheckpointNoneUsable, HostStorageSearched
from rover_bus.events.checkpoints import StoredCheckpoint
from rover_bus.events.facts import JobPaused, JobResumed, JobResumeRequested
from rover_bus.events.log import CheckpointFound, Record
from rover_bus.master import lifecycle, recovery, searching
from rover_bus.master.cut import lacks_spans, ledger_in
from rover_bus.master.phases import Searching
from rover_bus.master.planning import release_members, revive_members, waits_for_room
from rover_bus.master.searching import PATIENCE_S, TRIES, SearchClock
from rover_bus.master.state import State

Consequences = Generator[Record, None, None]
MOST_SAID = 10  # reasons in one line; the fact has all of them


def tick(state: State, clock: SearchClock, now: float) -> Consequences:
    """Ask another daemon when the one that was asked says nothing; look again while a person is asked."""
    search = state.phase
    if not isinstance(search, Searching):
        return
    if search.asking:
        if _may_look(state, search) and clock.may_look(search, now):
            yield searching.order(
                state, search.detail, causes.timer("search", causes.host(search.host)), look=True
            )
    elif not state.seats.wanted:
        clock.wait(search, now)  # for room: it may be a member's own agent that reaches storage
    elif clock.since_s(search, now) > PATIENCE_S:
        cause = causes.timer("search", causes.host(search.host))
        yield from _look_again(state, search, f"host {search.host} does not answer", cause)


def _may_look(state: State, search: Searching) -> bool:
    """Whether a job that asks a person goes on by itself with a checkpoint that is found. Not where a person had named one."""
    return not search.wanted and not state.ending.stop


def answer(state: State, fact: HostStorageSearched, cause: str) -> Consequences:
    """A daemon looked at storage. What answers no present question changes nothing (P17)."""
    search = state.phase
    if not isinstance(search, Searching) or (fact.uid, fact.search) != (state.job.uid, search.open):
        return
    if search.asking:
        if _may_look(state, search):
            yield from _see_again(state, search, fact, cause)
        return
    if fact.problem:
        yield from _look_again(state, search, f"host {fact.host}: {fact.problem}", cause)
    elif fact.found is not None:
        yield from _try(state, search, fact, fact.found, cause)
    elif fact.there or state.cuts.last_ready or search.wanted:
        yield from _give_up(state, search, fact.refused, cause, fact.there)
    else:
        yield from lifecycle.begin_anew(state, search.detail, cause)


def _see_again(state: State, search: Searching, fact: HostStorageSearched, cause: str) -> Consequences:
    """Go on with what was not tried; or try all again where more lies there than when none was usable: storage had been away."""
    if fact.found is not None:
        yield from _try(state, search, fact, fact.found, cause)
    elif fact.there > search.there:
        yield searching.order(state, search.detail, cause, retry=True, look=True)


def _try(
    state: State,
    search: Searching,
    fact: HostStorageSearched,
    found: StoredCheckpoint,
    cause: str,
) -> Consequences:
    ledger = ledger_in(found.ledger)
    if ledger is None or lacks_spans(ledger, state.ledger):
        why = (
            "its place in the data cannot be read"
            if ledger is None
            else "the stream's batches since then are unknown"
        )
        yield CheckpointFailed(
            cut=found.cut,
            generation=found.generation,
            reason=why,
            restoring=True,
            path=found.path,
            cause=cause,
        )
        if search.wanted:
            yield from _give_up(state, search, fact.refused, cause, fact.there)
        elif not search.asking:
            yield searching.order(state, search.detail, cause)
        return
    if search.asking:
        yield from _come_again(state, search, cause)
    yield CheckpointFound(
        search=fact.search,
        found=found,
        epoch=max(ledger.epoch, 0),
        samples=ledger.samples_done()[0],
        settled=ledger.settled if ledger is not None else 0,
        refused=fact.refused,
        cause=cause,
    )
    yield from recovery.go_back_to_found(state, state.cuts.known[found.cut], search.detail, cause)
    yield from lifecycle.consequences(state, cause)


def _look_again(state: State, search: Searching, problem: str, cause: str) -> Consequences:
    if search.tries < TRIES:
        yield searching.order(state, search.detail, cause, search.wanted)
    else:
        yield from _give_up(state, search, [f"storage cannot be searched: {problem}"], cause)


def _give_up(
    state: State, search: Searching, problems: list[str], cause: str, there: int = 0
) -> Consequences:
    """Nothing that lies on storage can be restored: go back to what the log knows, where hosts have it or storage was not reached;
    else do as the job file says. Nothing is trained in silence.
    """
    if not search.wanted and recovery.can_go_back(state, None):
        why = "; ".join((search.detail, *problems[:1]))
        yield from recovery.go_back(state, None, why, cause)
        yield from lifecycle.consequences(state, cause)
        return
    lines = [*(f"cut {each.cut}: {each.reason}" for each in state.cuts.tried), *problems]
    if search.wanted:
        lines = [f"cut {search.wanted} cannot be restored", *lines]
    choice = state.job.spec.on_no_usable_checkpoint
    yield CheckpointNoneUsable(search=search.number, choice=choice, problems=lines, there=there, cause=cause)
    detail = f"{search.detail}; no checkpoint can be restored: {'; '.join(lines[:MOST_SAID]) or 'storage is empty'}"
    if choice == "fail":
        yield from lifecycle.end(state, "failed", "no_usable_checkpoint", detail, cause)
    elif choice == "restart":
        yield from lifecycle.begin_anew(state, detail, cause)
    else:
        workers = sum(desired.member.role == "worker" for desired in state.seats.wanted.values())
        yield JobPaused(workers=workers, reason=detail, release=True, cause=cause)
        yield release_members(state, cause, "no checkpoint can be restored: a person decides")


def resume(state: State, search: Searching, fact: JobResumeRequested, cause: str) -> Consequences:
    """A person decides on a job whose checkpoints cannot be restored: from nothing, from one of them, or all are tried again."""
    yield from _come_again(state, search, cause, fact.by)
    by = fact.by or "a person"
    if fact.from_nothing:
        yield from lifecycle.begin_anew(state, f"{by} wants it so", cause)
    else:
        detail = (
            f"{by} wants {f'cut {fact.checkpoint}' if fact.checkpoint else 'all checkpoints tried again'}"
        )
        yield searching.order(state, detail, cause, fact.checkpoint, retry=not fact.checkpoint)


def _come_again(state: State, search: Searching, cause: str, by: str = "") -> Consequences:
    """What was released comes again: by a plan of the Brain, since others may have its room; at once where no Brain plans."""
    if waits_for_room(state):
        yield JobResumed(by=by, cause=cause)
        return
    record = revive_members(state, search.servers, cause, "resumed")
    yield JobResumed(workers=record.count("worker"), by=by, cause=cause)
    yield record
