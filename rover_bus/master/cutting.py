"""Decisions on cuts: when one opens, which parts are staged, what becomes of each (P9, P10, P12, P14; S23). Generators of records.

Fed by servers' heartbeats, by daemons' facts and by ticks; feeds orders to servers on heartbeats' answers, and facts. No
member waits: a cut is a note in the log, and parts arrive when they arrive. See docs/design/0014.
"""

from __future__ import annotations

from collections.abc import Generator

from rover_bus.events import causes, log
from rover_bus.events.checkpoint_facts import (
    CheckpointDeclined,
    CheckpointOpened,
    CheckpointPersistOrdered,
    CheckpointReady,
    CheckpointRedundant,
    CheckpointStaged,
    HostManifestWritten,
    HostPartDigested,
    HostPartFact,
    HostPartFailed,
    HostPartMirrored,
    HostPartPersisted,
    PartStaged,
)
from rover_bus.events.checkpoints import CutOrder, PartPlace, PartReport, StoredPart, part_name
from rover_bus.events.identity import Member
from rover_bus.events.job import CheckpointSpec
from rover_bus.events.log import Record
from rover_bus.master.cut import SLOTS, Cut
from rover_bus.master.ledger import Ledger
from rover_bus.master.pacing import backoff_s, interval_s, mean_time_between_losses_s
from rover_bus.master.phases import Ended, Starting, Training
from rover_bus.master.state import Cuts, State

Consequences = Generator[Record, None, None]
MOST_LEDGER_BYTES = 6 << 20  # in an order to write a manifest, which also names every file of every part
DIGEST_PATIENCE_S = 15.0  # a daemon that starts again makes them within it
PARITY_PATIENCE_S = (
    15.0  # longer than the loss of a host is hidden: after it the next cut is taken all the same
)


class CutPace:
    """What a master remembers of cuts but never logs: since when. All times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._seen: tuple[int, float] = (0, 0.0)  # the newest cut, and when we first saw it
        self._ordered: tuple[int, float] = (0, 0.0)
        self._looked: float | None = None
        self.trained_s = 0.0

    def look(self, state: State, now: float) -> None:
        """Note what is new. Training time is counted between looks."""
        if self._looked is not None and isinstance(state.phase, Training):
            self.trained_s += min(now - self._looked, 1.0)
        self._looked = now
        if state.cuts.last != self._seen[0]:
            self._seen = state.cuts.last, now
        ordered = max((cut.number for cut in state.cuts.known.values() if cut.storing), default=0)
        if ordered != self._ordered[0]:
            self._ordered = ordered, now

    def since_opened_s(self, now: float) -> float:
        return now - self._seen[1]

    def persisting_s(self, now: float) -> float:
        return now - self._ordered[1]


# -- when --------------------------------------------------------------------------------------------------------------


def tick(state: State, pace: CutPace, now: float) -> Consequences:
    """Open a cut when one is due; give up what took too long.

    A job without [checkpoint] has one taken when it is asked for, and when a host of it leaves.
    """
    pace.look(state, now)
    patient = state.job.spec.checkpoint or CheckpointSpec()
    opened = state.cuts.newest("open")
    if opened is not None and pace.since_opened_s(now) > patient.stage_patience_s:
        absent = sorted(
            seated.member.name for seated in state.seats.servers() if opened.wants(seated.member.index)
        )
        yield opened.failed(
            f"{', '.join(absent) or 'a part'} did not stage in time: their logs say why",
            causes.timer("staging", causes.cut(opened.number)),
        )
    persisting = next((cut for cut in state.cuts.known.values() if cut.storing), None)
    if persisting is not None and pace.persisting_s(now) > patient.store_patience_s:
        yield from fail(
            state,
            persisting.number,
            "it was not stored in time",
            causes.timer("storing", causes.cut(persisting.number)),
        )
    if state.ledger is not None and _is_due(state, state.ledger, pace, now):
        cause = state.cuts.asked or causes.timer("checkpoint", causes.job(state.job.uid))
        yield _opened(state, state.ledger, cause)


def _opened(state: State, ledger: Ledger, cause: str) -> CheckpointOpened:
    return CheckpointOpened(
        cut=state.cuts.last + 1,
        generation=state.generation,
        epoch=max(ledger.epoch, 0),
        samples_committed=ledger.samples_done()[0],
        requested=bool(state.cuts.asked),
        cause=cause,
    )


def request(state: State, reason: str, cause: str) -> Consequences:
    """A cut is asked for now. Asked twice before it opens it is still one."""
    samples = state.ledger.samples_done()[0] if state.ledger is not None else 0
    if not state.job.spec.has_servers:
        yield CheckpointDeclined(
            reason="no servers: its model is the program's own", samples=samples, cause=cause
        )
    elif not samples:
        yield CheckpointDeclined(reason="nothing is trained yet", cause=cause)
    elif state.ending.stop or not isinstance(state.phase, Starting | Training):
        why = "the job is on its way to its end"
        yield CheckpointDeclined(reason=why, samples=samples, cause=cause)
    elif not state.cuts.asked:
        yield log.CutAsked(reason=reason, cause=cause)


def _is_due(state: State, ledger: Ledger, pace: CutPace, now: float) -> bool:
    cuts, wanted = state.cuts, state.job.spec.checkpoint
    if not isinstance(state.phase, Training) or state.ending.stop or not state.job.spec.has_servers:
        return False
    if cuts.back.servers or cuts.newest("open") is not None:
        return False
    committed = ledger.samples_done()[0]
    last = cuts.newest()
    if committed and (cuts.asked or _is_left_soon(state)):
        return True
    if wanted is None or not committed:
        return False
    interval = wished_interval_s(state, wanted, pace)
    if cuts.failed:
        return pace.since_opened_s(now) >= max(interval, backoff_s(cuts.failed, wanted))
    if last is not None and last.samples == committed:
        return False
    since_s = pace.since_opened_s(now)
    if since_s < DIGEST_PATIENCE_S and _waits_for_digests(cuts):
        return False
    if since_s < PARITY_PATIENCE_S and wanted.parity and _waits_for_parity(cuts):
        return False
    return last is None or since_s >= interval


def _waits_for_digests(cuts: Cuts) -> bool:
    """Whether the newest cut is no source yet: the next one would be staged in its place, because the one before is kept (P12)."""
    newer = cuts.newest("staged")
    return newer is not None and not newer.proven and not newer.over


def _waits_for_parity(cuts: Cuts) -> bool:
    """Whether the next cut would overwrite parts without which the parity of an older cut is of no use (P13).

    A lost part is rebuilt from the other parts of the same cut, and a server keeps two: as long as the newer one is not redundant
    everywhere, the older one is all that a lost host leaves.
    """
    newer = cuts.newest("staged")
    if newer is None or newer.redundant:
        return False
    return any(cut.redundant for cut in cuts.known.values() if cut.number < newer.number)


def _is_left_soon(state: State) -> bool:
    """Whether a host that gave notice has no worker of ours left, and no cut was opened since (S29)."""
    working = {seated.host for seated in state.seats.workers()}
    return any(
        state.cuts.last == cut and host not in working for host, cut in state.seats.hosts.leaving.items()
    )


def wished_interval_s(state: State, wanted: CheckpointSpec, pace: CutPace) -> float:
    """Return the time between two cuts: the user's, or what cost and losses say."""
    if wanted.every_s:
        return wanted.every_s
    between_s = mean_time_between_losses_s(pace.trained_s, state.counts.servers_lost)
    return interval_s(state.cuts.cost_s, between_s, wanted)


# -- parts -------------------------------------------------------------------------------------------------------------


def order_for(state: State, member: Member) -> CutOrder | None:
    """Return what a server is told with every heartbeat's answer. A cut is called complete when every part of it is a source: only
    then may a server overwrite the one before (P12).
    """
    if state.slots.routing is None or (state.job.spec.checkpoint is None and not state.cuts.known):
        return None
    if all(server.index != member.index for server in state.slots.routing.servers):
        return None  # it holds no slots
    opened = state.cuts.newest("open")
    number = max(
        (cut.number for cut in state.cuts.known.values() if cut.state != "open" and cut.proven), default=0
    )
    if opened is None or not opened.wants(member.index) or member.index in state.cuts.back.servers:
        return CutOrder(cut=opened.number if opened is not None else 0, complete=number, round=-1)
    return CutOrder(
        cut=opened.number,
        identity=opened.identity,
        generation=opened.generation,
        round=opened.rounds.get(member.index, 0),
        complete=number,
    )


def report(state: State, member: Member, staged: PartReport | None, cause: str) -> Consequences:
    """A server says what it staged last; the cut is complete when its parts cover every slot (P10)."""
    opened = state.cuts.newest("open")
    if opened is None or staged is None:
        return
    if (staged.cut, staged.identity) != (opened.number, opened.identity):
        return
    if staged.problem:
        if not staged.again:
            reason, wanted_bytes = _why_not_staged(state, member, staged)
            yield opened.failed(reason, cause, wanted_bytes=wanted_bytes)
        return
    if not opened.wants(member.index) or staged.round != opened.rounds.get(member.index, 0):
        return
    place = PartPlace(
        part=part_name(member.index),
        index=member.index,
        incarnation=member.incarnation,
        host=state.seats.admitted[member.name].keeper,
        slots=staged.slots,
        size_bytes=staged.size_bytes,
        generation=opened.generation,
    )
    yield PartStaged(
        cut=opened.number,
        generation=opened.generation,
        place=place,
        round=staged.round,
        copied_bytes=staged.copied_bytes,
        blocked_s=staged.blocked_s,
        cause=causes.cut(opened.number),
    )
    yield from _complete(state, opened, cause)


def _why_not_staged(state: State, member: Member, staged: PartReport) -> tuple[str, int]:
    """Return the reason, with the shared memory that would do for all servers of its host: their parts are alike."""
    if not staged.wanted_bytes:
        return f"{member}: {staged.problem}", 0
    host = state.seats.admitted[member.name].host
    servers = sum(seated.host == host for seated in state.seats.servers())
    wanted_bytes = servers * staged.wanted_bytes
    on = f" on {host}" if host else ""
    size = f"{-(-wanted_bytes // (1 << 20)):,} MiB"
    where = "its server" if servers == 1 else f"its {servers} servers"
    return f"{member}: {staged.problem}. The job needs {size} of shared memory{on} for {where}", wanted_bytes


def _complete(state: State, cut: Cut, cause: str) -> Consequences:
    missing = cut.missing(range(SLOTS))
    if missing:
        yield from _ask_again(state, cut, missing, cause)
        return
    yield CheckpointStaged(cut=cut.number, generation=cut.generation, parts=cut.places, cause=cause)
    if cut.redundant:  # copies may have been quicker than the last part's report
        yield _redundant(cut, cause)
    for older in sorted(state.cuts.known):
        waits = state.cuts.known[older].state == "staged" and not state.cuts.known[older].ordered
        if older < cut.number and waits and not state.cuts.known[older].over:
            usable = state.cuts.known[older].proven or state.cuts.known[older].redundant
            yield state.cuts.known[older].superseded(cut.number, "", cause, usable=usable)
    yield from persist_next(state, cause)


def _redundant(cut: Cut, cause: str) -> CheckpointRedundant:
    """What is held twice, all of it (P13)."""
    holders = sorted({holder for held in cut.copied.values() for holder in held})
    return CheckpointRedundant(cut=cut.number, generation=cut.generation, holders=holders, cause=cause)


def _ask_again(state: State, cut: Cut, missing: set[int], cause: str) -> Consequences:
    """Slots went from one that had not staged to one that had: their present owner is asked once more (P10)."""
    routing = state.slots.routing
    if routing is None or any(cut.wants(server.index) for server in routing.servers):
        return
    for server in routing.servers:
        mine = {slot for i, first, end in routing.owners if i == server.index for slot in range(first, end)}
        if mine & missing:
            yield log.PartAsked(
                cut=cut.number, index=server.index, round=cut.rounds.get(server.index, 0) + 1, cause=cause
            )


# -- storage -----------------------------------------------------------------------------------------------------------


def persist_next(state: State, cause: str, gone: str = "") -> Consequences:
    """Order the newest staged cut to be stored, one at a time; not one with a part on a host that is lost, or `gone` just now."""
    wanted = state.job.spec.checkpoint
    cut = state.cuts.newest("staged")
    if cut is None or cut.over or not (cut.requested or wanted is None or wanted.persist):
        return
    without = {gone, *state.seats.hosts.away} - {
        host for host in state.seats.hosts.leaving if host != gone
    }  # a leaving host stores first (S29)
    if any(place.host in without for place in cut.parts.values()):
        return
    if any(other.storing for other in state.cuts.known.values()):
        return
    yield CheckpointPersistOrdered(
        cut=cut.number,
        generation=cut.generation,
        parts=cut.places,
        path=wanted.path if wanted else "",
        cause=cause,
    )


def notice(state: State, fact: HostPartFact, cause: str) -> Consequences:
    """A daemon did something with a part of a cut. What concerns no cut of ours in progress changes nothing (P17)."""
    cut = state.cuts.known.get(fact.cut)
    if (
        cut is None
        or fact.uid != state.job.uid
        or fact.generation != cut.generation
        or isinstance(state.phase, Ended)
    ):
        return
    match fact:
        case HostPartFailed(host=host, part=part) if not cut.is_from(part, host):
            return  # of a part that another host keeps: it can neither be stored nor given up there
        case HostPartDigested(host=host, part=part) if part not in cut.digested and cut.is_from(part, host):
            yield log.PartDigested(cut=cut.number, part=part, cause=cause)
        case HostPartFailed(step="digest", reason=reason) if cut.state != "ready" and not cut.proven:
            yield from fail(state, cut.number, reason, cause, usable=False)
        case HostPartMirrored(host=holder, part=part) if holder not in cut.copied.get(part, []):
            was_redundant = cut.redundant
            yield log.PartCopied(cut=cut.number, part=part, holder=holder, cause=cause)
            if cut.redundant and not was_redundant and cut.state != "open":  # storage may have been quicker
                yield _redundant(cut, cause)
        case HostPartPersisted() if cut.storing:
            yield from _store(state, cut, fact, cause)
        case HostManifestWritten(host=host, path=path, size_bytes=size) if cut.writer == host and cut.storing:
            yield CheckpointReady(
                cut=cut.number, generation=cut.generation, path=path, size_bytes=size, cause=cause
            )
            yield from persist_next(state, cause)
        case HostPartFailed(step=step, reason=reason) if step not in ("mirror", "parity") and cut.storing:
            yield from fail(state, cut.number, reason, cause)


def _store(state: State, cut: Cut, fact: HostPartPersisted, cause: str) -> Consequences:
    place = next((place for place in cut.parts.values() if place.part == fact.part), None)
    if place is None or place.host != fact.host or place.index in cut.stored:
        return
    yield log.PartStored(
        cut=cut.number,
        stored=StoredPart(part=fact.part, index=place.index, slots=place.slots, files=fact.files),
        cause=cause,
    )
    if set(cut.stored) != set(cut.parts):
        return
    if len(cut.ledger) > MOST_LEDGER_BYTES:
        size = f"{len(cut.ledger) / 2**20:,.1f} MiB"
        why = f"its place in the data takes {size}, and no message to the host that writes its manifest holds it"
        yield from fail(state, cut.number, why, cause)
        return
    yield log.ManifestOrdered(cut=cut.number, host=fact.host, cause=cause)


def fail(
    state: State, number: int, reason: str, cause: str, gone: str = "", usable: bool = True
) -> Consequences:
    """End a cut, and go on with the next one that waits. `usable`: it is still good for going back to."""
    yield state.cuts.known[number].failed(reason, cause, usable=usable)
    yield from persist_next(state, cause, gone)


def lose_host(state: State, host: str, reason: str, cause: str) -> Consequences:
    """A daemon is gone: what it was persisting is over (P14). One that starts again rescans, and serves the next order."""
    for number in sorted(state.cuts.known):
        cut = state.cuts.known[number]
        waiting = {place.host for index, place in cut.parts.items() if index not in cut.stored}
        if cut.storing and (host in waiting or cut.writer == host):
            yield from fail(state, number, f"{host} {reason} while it was storing its parts", cause, host)


def end_all(state: State, cause: str, why: str) -> Consequences:
    """Every cut that is still on its way ends by name (S23): the job is over, or begins again."""
    for number in sorted(state.cuts.known):
        if state.cuts.known[number].state != "ready" and not state.cuts.known[number].over:
            yield state.cuts.known[number].superseded(0, why, cause)
