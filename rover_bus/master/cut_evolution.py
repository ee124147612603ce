"""How records of cuts change the state: the part of `evolution` that concerns them. Replay and live are this same code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from rover_bus.events import checkpoint_facts, log
from rover_bus.events.log import Record
from rover_bus.events.starts import ServerStart
from rover_bus.master import recovery
from rover_bus.master.cut import Cut, found_cut, identity_of, position
from rover_bus.master.phases import Searching, after
from rover_bus.master.state import Return, State, TriedCheckpoint

READY_KEPT, MOST_READY_KEPT = (
    2,
    8,
)  # in the master's memory; storage may keep more, by its own rule: `searching`
SMOOTHING = 0.5


def _cut(state: State, number: int) -> Cut:
    cut = state.cuts.known.get(number)
    if cut is None:
        raise ValueError(f"a record of cut {number}, which is over: this log does not belong to a job")
    return cut


def _ask_for_one(state: State, record: log.CutAsked) -> None:
    state.cuts.asked = record.cause


def _open(state: State, record: checkpoint_facts.CheckpointOpened) -> None:
    ledger = state.ledger
    if ledger is None:
        raise ValueError("a cut before the data set was fixed: this log does not belong to a job")
    state.cuts.last = record.cut
    place = position(ledger)
    state.cuts.known[record.cut] = Cut(
        record.cut,
        state.generation,
        max(ledger.epoch, 0),
        ledger.samples_done()[0],
        place,
        identity_of(place),
        settled=ledger.settled,
        requested=bool(state.cuts.asked),
    )
    state.cuts.asked = ""
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
    state.cuts.failed = 0
    known = state.cuts.cost_s or cut.cost_s
    _forget_over(state)
    state.cuts.cost_s = (1 - SMOOTHING) * known + SMOOTHING * cut.cost_s


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
    if all(cut.state != "open" for cut in state.cuts.known.values()):
        return
    done = [cut for cut in state.cuts.known.values() if cut.state != "open"]
    for older in [cut for cut in done if cut.over]:
        if any(newer.number > older.number and newer.is_as_safe_as(older) for newer in done):
            _forget(state, older.number)


def _write(state: State, record: log.ManifestOrdered) -> None:
    _cut(state, record.cut).writer = record.host


def _ready(state: State, record: checkpoint_facts.CheckpointReady) -> None:
    cut = _cut(state, record.cut)
    cut.state, cut.path = "ready", record.path
    back = state.cuts.back
    if back.order is not None and (back.order.generation, back.order.cut) == (cut.generation, cut.number):
        back.order = msgspec.structs.replace(back.order, path=record.path)
    state.cuts.last_ready = max(state.cuts.last_ready, record.cut)
    wanted = state.job.spec.checkpoint
    keep = wanted.keep if wanted is not None else 0
    ready = sorted(number for number, each in state.cuts.known.items() if each.state == "ready")
    for number in ready[: -min(max(keep, READY_KEPT), MOST_READY_KEPT)]:
        _forget(state, number)


def _fail(state: State, record: checkpoint_facts.CheckpointFailed) -> None:
    if record.restoring:
        tried = TriedCheckpoint(record.generation, record.cut, record.reason, stored=bool(record.path))
        state.cuts.tried.append(tried)
    elif record.cut in state.cuts.known and state.cuts.known[record.cut].state == "open":
        state.cuts.failed += 1
    _end(state, record)


def _end(
    state: State, record: checkpoint_facts.CheckpointSuperseded | checkpoint_facts.CheckpointFailed
) -> None:
    if record.usable and record.cut in state.cuts.known:
        state.cuts.known[record.cut].over = True
    else:
        _forget(state, record.cut)


def _forget(state: State, number: int) -> None:
    state.cuts.known.pop(number, None)
    keep_spans(state)


def _restore(state: State, record: checkpoint_facts.ServerRestored) -> None:
    state.cuts.back.servers.pop(record.member.index, None)
    if not state.cuts.back.servers:
        state.cuts.back.order, state.cuts.tried = None, []
        for cut in state.cuts.known.values():
            cut.found = False  # from here on it is one of this job's own past


def _search(state: State, record: checkpoint_facts.CheckpointSearchOrdered) -> None:
    """The same search goes on, or a new one begins; or storage is looked at while a person is asked."""
    former = state.phase
    if record.look and isinstance(former, Searching) and former.asking:
        state.cuts.last_search = former.look = record.search
        state.cuts.tried = [] if record.retry else state.cuts.tried
        return
    tries = former.tries if isinstance(former, Searching) and not former.asking else 0
    state.cuts.last_search = record.search
    search = Searching(record.search, record.host, record.reason, record.wanted, tries + 1)
    state.phase = after(former, search)
    if record.retry:
        state.cuts.tried = []


def _find(state: State, record: log.CheckpointFound) -> None:
    """The one cut that the job knows is this."""
    state.cuts.known = {record.found.cut: found_cut(record)}
    state.cuts.last_ready = max(state.cuts.last_ready, record.found.cut)


def _find_none(state: State, record: checkpoint_facts.CheckpointNoneUsable) -> None:
    """A person is waited for, if the job file says so; the servers of now come again then."""
    search = state.phase
    if isinstance(search, Searching) and record.choice == "ask":
        search.asking, search.problems, search.there = True, record.problems, record.there
        search.servers = list(state.seats.wanted_servers().values())


def rewind(state: State, record: log.Rewound) -> None:
    """The ledger goes back; servers that are not named keep what they hold under the new generation (P11)."""
    cuts, cut = state.cuts, state.cuts.known.get(record.cut)
    cuts.back = Return(
        servers=dict.fromkeys(record.servers, record.cut) if record.cut else {},
        order=recovery.restore_order(state, cut) if cut is not None else None,
        samples_again=record.samples_again + (cuts.back.samples_again if cuts.back.servers else 0),
    )
    cuts.failed = 0  # they were not to blame, or another server tries now
    if not record.cut:
        cuts.known.clear()
        cuts.tried, cuts.not_before, cuts.last_ready = [], record.generation, 0
        state.slots.owners = []  # every server begins again, with an even share
    for server in state.seats.servers():
        back = server.member.index in cuts.back.servers
        server.start = (
            ServerStart("cut", cut=record.cut) if back else ServerStart("kept", generation=record.generation)
        )


def keep_spans(state: State) -> None:
    """A stream keeps the spans that its oldest cut may need again."""
    if state.ledger is None or state.ledger.streams is None:
        return
    state.ledger.streams.keep_from(min((cut.settled for cut in state.cuts.known.values()), default=-1))


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
