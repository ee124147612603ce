"""Which spares a host holds: processes made ready for workers that the log may name later (docs/design/0042). Pure.

Fed through members.py with what the platform observes of workers and spares; asked by decider.py with the jobs that may have some
and the room that members leave. The rules, each in one place:

- Only where a start is worth it: a worker of the job ran here, and took WORTH_S or more until it joined.
- Spares have what members leave, and go when members need it, or when the host's memory is pressed. One is made at a time.
- One that fits no start any more (another run, command, size) is dropped. One that ended by itself is followed after a pause.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from rover_bus.events import causes
from rover_bus.events.deciding import WakeAt
from rover_bus.events.host_facts import HostSpareFailed, HostSpareMended
from rover_bus.events.identity import DesiredMember, Resources
from rover_bus.node.port import (
    Observation,
    Spare,
    SpareGone,
    SpareKey,
    SpareObservation,
    SpareReady,
    SpareSpawned,
    WorkerLoaded,
)

WORTH_S = 1.0  # of a start: a shorter one gains less than a spare costs
CALM_S = 3.0  # after a worker joined or a spare was taken: imports compete with no start
MOST_LOADING_S = 120.0  # a spare that is not ready by then keeps others from being made
PAUSE_S = 30.0  # after a spare that ended by itself, doubled for each one in a row
MOST_DOUBLINGS = 7
PRESSED_FROM, PRESSED_TO = (
    0.85,
    0.75,
)  # of the host's memory in use: no spares from the one on until below the other


@dataclass(frozen=True, slots=True)
class MemoryPressed:
    """The host's memory is nearly used up, or is so no longer."""

    pressed: bool


def is_pressed(before: bool, used_bytes: float, capacity_bytes: float) -> bool:
    """Whether a host's memory is pressed, given whether it was."""
    return used_bytes > (PRESSED_TO if before else PRESSED_FROM) * capacity_bytes


# -- state -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Warmth:
    """What is known of starts of a job here. `failures`: spares that ended by themselves, in a row."""

    uid: str = ""
    start_s: float = 0.0
    not_before_s: float = 0.0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class HeldSpare:
    spare: Spare
    since_s: float
    ready: bool = False


@dataclass(frozen=True, slots=True)
class Spares:
    """All spares of a host. `begun`: how many there ever were, which numbers the next one."""

    warm: Mapping[str, Warmth] = field(default_factory=dict)
    held: Mapping[SpareKey, HeldSpare] = field(default_factory=dict)
    begun: int = 0
    pressed: bool = False

    def fitting(self, job: str, uid: str, desired: DesiredMember, used: Collection[SpareKey]) -> int:
        """Return the number of a spare that is ready to be this worker, 0 for none. `used`: those that others become."""
        for key, held in self.held.items():
            if held.ready and key not in used and key[0] == job and _fits(held.spare, uid, desired):
                return key[1]
        return 0

    def without(self, job: str) -> Spares:
        """Return what is left once the records of a job are forgotten."""
        kept = {known: each for known, each in self.warm.items() if known != job}
        return replace(self, warm=MappingProxyType(kept))


NO_SPARES = Spares()


def evolve_spares(state: Spares, seen: SpareObservation | MemoryPressed) -> Spares:
    """Return the state after an observation. What concerns a spare that is not held changes nothing."""
    match seen:
        case WorkerLoaded((job, _), uid, start_s, at_s):
            known = state.warm.get(job, Warmth())
            failures = known.failures if known.uid == uid else 0
            return _warm(state, job, Warmth(uid, start_s, max(known.not_before_s, at_s + CALM_S), failures))
        case SpareSpawned(spare, at_s):
            held = {**state.held, spare.key: HeldSpare(spare, at_s)}
            return replace(state, held=MappingProxyType(held), begun=max(state.begun, spare.number))
        case SpareReady(key) if key in state.held:
            held = {**state.held, key: replace(state.held[key], ready=True)}
            return replace(state, held=MappingProxyType(held))
        case SpareGone(key, how, at_s) if key in state.held:
            if (
                how == "dropped"
                and at_s >= state.held[key].since_s + MOST_LOADING_S
                and not state.held[key].ready
            ):
                how = "ended"  # it is followed no sooner than one that failed
            held = {other: each for other, each in state.held.items() if other != key}
            state = replace(state, held=MappingProxyType(held))
            known = state.warm.get(key[0], Warmth())
            failures = known.failures + 1 if how == "ended" else 0 if how == "used" else known.failures
            pause_s = PAUSE_S * 2.0 ** min(known.failures, MOST_DOUBLINGS) if how == "ended" else CALM_S
            later_s = max(known.not_before_s, at_s + pause_s) if how != "dropped" else known.not_before_s
            return _warm(state, key[0], replace(known, not_before_s=later_s, failures=failures))
        case MemoryPressed(pressed):
            return replace(state, pressed=pressed)
        case SpareReady() | SpareGone():
            return state


def spare_fact(
    before: Spares, after: Spares, seen: Observation, host: str, daemon: str
) -> HostSpareFailed | HostSpareMended | None:
    """Return what an observation says to people: a spare failed, or one is ready where some had failed; None for anything else."""
    if not isinstance(seen, SpareGone | SpareReady) or seen.key not in before.held:
        return None
    (job, number), uid = seen.key, before.held[seen.key].spare.uid
    known, failures = after.warm.get(job, Warmth()), before.warm.get(job, Warmth()).failures
    cause = causes.timer("spare", causes.job(uid))
    if isinstance(seen, SpareReady):
        mended = HostSpareMended(host=host, job=job, uid=uid, number=number, cause=cause)
        return mended if failures else None
    if known.failures <= failures:
        return None
    late = f"not ready after {MOST_LOADING_S:g} s" if seen.how == "dropped" else "it ended by itself"
    return HostSpareFailed(
        host=host,
        job=job,
        uid=uid,
        daemon=daemon,
        number=number,
        failures=known.failures,
        why=f"{late}: {seen.why}" if seen.why else late,
        again_s=round(known.not_before_s - seen.at_s, 1),
        cause=cause,
    )


def _warm(state: Spares, job: str, known: Warmth) -> Spares:
    return replace(state, warm=MappingProxyType({**state.warm, job: known}))


def _fits(spare: Spare, uid: str, desired: DesiredMember) -> bool:
    return spare.uid == uid and _shape(spare.desired) == _shape(desired)


def _shape(desired: DesiredMember) -> tuple[object, ...]:
    """What a process is started with, whichever worker it becomes."""
    return (
        desired.command,
        desired.environment,
        desired.directory,
        desired.resources,
        desired.grace_s,
    )


# -- decide ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepare:
    spare: Spare


@dataclass(frozen=True, slots=True)
class Drop:
    spare: Spare


@dataclass(frozen=True, slots=True)
class SpareWish:
    """A job that may have spares here, at most so many: like `desired`."""

    job: str
    uid: str
    desired: DesiredMember
    most: int


@dataclass(frozen=True, slots=True)
class RoomLeft:
    """Cores and bytes that no member was promised; below zero where a host is promised beyond what it has."""

    cores: float
    memory_bytes: float

    def holds(self, wanted: Resources) -> bool:
        """What asks for no limit asks for no room: the pressure on memory bounds it."""
        return (not wanted.cores or wanted.cores <= self.cores + 1e-9) and (
            not wanted.memory_bytes or wanted.memory_bytes <= self.memory_bytes
        )

    def less(self, taken: Resources) -> RoomLeft:
        return RoomLeft(self.cores - taken.cores, self.memory_bytes - taken.memory_bytes)


def decide_spares(
    state: Spares, wishes: Sequence[SpareWish], room: RoomLeft, used: Collection[SpareKey], now_s: float
) -> list[Prepare | Drop | WakeAt]:
    """Return what is to be done about spares now. `used`: those that become members in this turn, which are left alone."""
    effects: list[Prepare | Drop | WakeAt] = []
    kept: list[HeldSpare] = []
    wish_of = {each.job: each for each in wishes}
    for key, held in sorted(state.held.items(), key=lambda item: (not item[1].ready, item[0])):
        wish = wish_of.get(key[0])
        many = sum(each.spare.job == key[0] for each in kept)
        if key in used:
            continue
        late = not held.ready and now_s >= held.since_s + MOST_LOADING_S
        if wish is None or many >= wish.most or late or not _is_kept(state, held.spare, wish, room):
            effects.append(Drop(held.spare))
        else:
            kept.append(held)
            room = room.less(held.spare.desired.resources)
    loading = [each.since_s for each in kept if not each.ready]
    if loading:
        effects.append(WakeAt(min(loading) + MOST_LOADING_S))
    elif not effects and not used:
        effects += _next_one(state, wishes, [each.spare for each in kept], room, now_s)
    return effects


def _is_kept(state: Spares, spare: Spare, wish: SpareWish, room: RoomLeft) -> bool:
    return not state.pressed and _fits(spare, wish.uid, wish.desired) and room.holds(spare.desired.resources)


def _next_one(
    state: Spares, wishes: Sequence[SpareWish], kept: Sequence[Spare], room: RoomLeft, now_s: float
) -> list[Prepare | Drop | WakeAt]:
    """The spare to be made now, else when to look again: first of jobs that have fewest."""
    lacking = []
    for wish in wishes:
        known, many = state.warm.get(wish.job), sum(each.job == wish.job for each in kept)
        if known is None or known.uid != wish.uid or known.start_s < WORTH_S or many >= wish.most:
            continue
        if not state.pressed and room.holds(wish.desired.resources):
            lacking.append((known.not_before_s, many, wish))
    due = [(many, wish.job, wish) for not_before_s, many, wish in lacking if not_before_s <= now_s]
    if due:
        wish = min(due)[2]
        return [Prepare(Spare(wish.job, wish.uid, state.begun + 1, wish.desired))]
    return [WakeAt(min(each[0] for each in lacking))] if lacking else []
