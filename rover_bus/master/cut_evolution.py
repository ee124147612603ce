"""How records of cuts change the state: the part of `evolution` that concerns them. Replay and live are this same code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rover_bus.events import checkpoint_facts, log
from rover_bus.events.log import Record
from rover_bus.master import recovery
from rover_bus.master.cut import Cut, found_cut, identity_of, position
from rover_bus.master.state import Search, State, Tried

READY_KEPT, MOST_READY_KEPT = (
    2,
    8,
)  # in the master's memory; storage may keep more, by its own rule: `searching`
SMOOTHING = 0.5


def _cut(state: State, number: int) -> Cut:
    cut = state.cuts.get(number)
    if cut is None:
        raise ValueError(f"a record of cut {number}, which is over: this log does not belong to a job")
    return cut


def _ask_for_one(state: State, record: log.CutAsked) -> None:
    state.asked = record.cause


def _open(state: State, record: checkpoint_facts.CheckpointOpened) -> None:
    ledger = state.ledger
    if ledger is None:
        raise ValueError("a cut before the data set was fixed: this log does not belong to a job")
    state.last_cut = record.cut
    place = position(ledger)
    state.cuts[record.cut] = Cut(
        record.cut,
        state.generation,
        max(ledger.epoch, 0),
        ledger.samples_done()[0],
        place,
        identity_of(place),
        settled=ledger.settled,
        requested=bool(state.asked),
    )
    state.asked = ""
    _forget_over(state)
    keep_spans(state)


def _take(state: State, record: checkpoint_facts.PartStaged) -> None:
    cut = _cut(state, record.cut)
    index = record.place.index
    if index in cut.parts and record.place.part in cut.digested:
        cut.digested.remove(record.place.part)  # another round: these digests are of what was overwritten
    cut.parts[index], cut.taken[index] = record.place, record.round
    cut.cost_s = max(cut.cost_s, record.blocked_s)


def _ask(state: State, record: log.PartAsked) -> None:
    _cut(state, record.cut).rounds[record.index] = record.round


def _stage(state: State, record: checkpoint_facts.CheckpointStaged) -> None:
    cut = _cut(state, record.cut)
    cut.state = "staged"
    state.failed_cuts = 0
    known = state.cut_cost_s or cut.cost_s
    _forget_over(state)
    state.cut_cost_s = (1 - SMOOTHING) * known + SMOOTHING * cut.cost_s


def _order(state: State, record: checkpoint_facts.CheckpointPersistOrdered) -> None:
    _cut(state, record.cut).ordered = True


def _store(state: State, record: log.PartStored) -> None:
    _cut(state, record.cut).stored[record.stored.index] = record.stored


def _copy(state: State, record: log.PartCopied) -> None:
    _cut(state, record.cut).copied.setdefault(record.part, []).append(record.holder)
    _forget_over(state)


def _digest(state: State, record: log.PartDigested) -> None:
    _cut(state, record.cut).digested.append(record.part)
    _forget_over(state)


def _forget_over(state: State) -> None:
    """A cut that had ended by name goes when a newer one is as safe: a source if it was (P12), redundant if it was (P13).

    Not before a still newer one opens, whose parts are staged in its place: until then it is the cut before in memory, and what is
    left when the newest one turns out damaged.
    """
    if all(cut.state != "open" for cut in state.cuts.values()):
        return
    done = [cut for cut in state.cuts.values() if cut.state != "open"]
    for older in [cut for cut in done if cut.over]:
        if any(newer.number > older.number and newer.is_as_safe_as(older) for newer in done):
            _forget(state, older.number)


def _write(state: State, record: log.ManifestOrdered) -> None:
    _cut(state, record.cut).writer = record.host


def _ready(state: State, record: checkpoint_facts.CheckpointReady) -> None:
    cut = _cut(state, record.cut)
    cut.state, cut.path = "ready", record.path
    state.last_ready = max(state.last_ready, record.cut)
    keep = state.spec.checkpoint.keep if state.spec is not None and state.spec.checkpoint is not None else 0
    ready = sorted(number for number, each in state.cuts.items() if each.state == "ready")
    for number in ready[: -min(max(keep, READY_KEPT), MOST_READY_KEPT)]:
        _forget(state, number)


def _fail(state: State, record: checkpoint_facts.CheckpointFailed) -> None:
    if record.restoring:
        state.tried.append(Tried(record.generation, record.cut, record.reason))
    elif record.cut in state.cuts and state.cuts[record.cut].state == "open":
        state.failed_cuts += 1
    _end(state, record)


def _end(
    state: State, record: checkpoint_facts.CheckpointSuperseded | checkpoint_facts.CheckpointFailed
) -> None:
    if record.usable and record.cut in state.cuts:
        state.cuts[record.cut].over = True
    else:
        _forget(state, record.cut)


def _forget(state: State, number: int) -> None:
    state.cuts.pop(number, None)
    keep_spans(state)


def _restore(state: State, record: checkpoint_facts.ServerRestored) -> None:
    state.going_back.pop(record.member.index, None)
    if not state.going_back:
        state.restoring, state.tried = None, []
        for cut in state.cuts.values():
            cut.found = False  # from here on it is one of this job's own past


def _search(state: State, record: checkpoint_facts.CheckpointSearchOrdered) -> None:
    """The same search goes on, or a new one begins."""
    tries = state.search.tries if state.search is not None and not state.search.asking else 0
    state.searches, state.phase = record.search, "searching"
    state.search = Search(record.search, record.host, record.reason, record.wanted, tries + 1)
    if record.anew:
        state.tried = []


def _find(state: State, record: log.CheckpointFound) -> None:
    """The one cut that the job knows is this."""
    state.cuts = {record.found.cut: found_cut(record)}
    state.last_ready = max(state.last_ready, record.found.cut)


def _find_none(state: State, record: checkpoint_facts.CheckpointNoneUsable) -> None:
    """A person is waited for, if the job file says so; the servers of now come again then."""
    if state.search is not None and record.choice == "ask":
        state.search.asking, state.search.problems = True, record.problems
        state.search.servers = [each for each in state.planned.values() if each.member.role == "ps"]


def rewind(state: State, record: log.Rewound) -> None:
    """The ledger goes back; servers that are not named keep what they hold under the new generation (P11)."""
    cut = state.cuts.get(record.cut)
    state.samples_again = record.samples_again + (state.samples_again if state.going_back else 0)
    state.restoring = recovery.restore_order(state, cut) if cut is not None else None
    state.going_back = dict.fromkeys(record.servers, record.cut) if record.cut else {}
    state.search = None
    state.failed_cuts = 0  # they were not to blame, or another server tries now
    if not record.cut:
        state.cuts.clear()
        state.tried, state.not_before, state.last_ready = [], record.generation, 0
        state.owners = []  # everybody begins anew, with an even share
    for life in state.servers():
        back = life.member.index in state.going_back
        life.state = f"cut:{record.cut}" if back else f"kept at generation {record.generation}"


def keep_spans(state: State) -> None:
    """A stream keeps the spans that its oldest cut may need again."""
    if state.ledger is None or state.ledger.streams is None:
        return
    state.ledger.streams.keep_from(min((cut.settled for cut in state.cuts.values()), default=-1))


def _nothing(state: State, record: Record) -> None:
    """Published for others; the state does not depend on it."""


EVOLUTIONS: dict[type[Record], Callable[[State, Any], None]] = {
    log.CutAsked: _ask_for_one,
    checkpoint_facts.CheckpointDeclined: _nothing,
    checkpoint_facts.CheckpointRedundant: _nothing,
    checkpoint_facts.CheckpointOpened: _open,
    checkpoint_facts.PartStaged: _take,
    log.PartAsked: _ask,
    checkpoint_facts.CheckpointStaged: _stage,
    checkpoint_facts.CheckpointPersistOrdered: _order,
    log.PartStored: _store,
    log.PartCopied: _copy,
    log.PartDigested: _digest,
    log.ManifestOrdered: _write,
    checkpoint_facts.CheckpointReady: _ready,
    checkpoint_facts.CheckpointSuperseded: _end,
    checkpoint_facts.CheckpointFailed: _fail,
    checkpoint_facts.ServerRestored: _restore,
    checkpoint_facts.CheckpointSearchOrdered: _search,
    log.CheckpointFound: _find,
    checkpoint_facts.CheckpointNoneUsable: _find_none,
}
