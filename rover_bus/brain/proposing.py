"""From a wish to the plan that leaves: absolute, numbered, with the snapshot it was computed from and what explains it (P22)."""

from __future__ import annotations

import msgspec

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.rooms import may_stay, moving_workers, named_hosts, place
from rover_bus.brain.sizing import pins
from rover_bus.brain.state import BrainState, Change, KnownJob, counted
from rover_bus.brain.totals import totals_of
from rover_bus.brain.wishes import Wish
from rover_bus.events.facts import PlanProposed, Size
from rover_bus.events.identity import Member
from rover_bus.events.job import PlanMode

STRICTNESS: tuple[PlanMode, ...] = ("auto", "approve", "observe")


def propose_first(name: str, job: KnownJob, state: BrainState, wish: Wish) -> PlanProposed:
    """The first plan of a job, or one after its start was withdrawn: where its members live, and once where its masters do."""
    plan = propose(name, job, state, wish)
    order = plan.hosts
    cores = totals_of(state).capacity.cores
    fixed = "as the job asks" if wish.constant == Reason.CONSTRAINED_BY_USER else wish.detail or wish.constant
    return plan.replace(
        masters=job.masters or [order[0], order[1 % len(order)]],
        reason=f"{_counts(wish.size)} on {cores:g} cores of {len(state.hosts)} host(s), {fixed}",
    )


def propose(
    name: str,
    job: KnownJob,
    state: BrainState,
    wish: Wish,
    *,
    replaces: list[Member] | None = None,
    rolls_back: int = 0,
) -> PlanProposed:
    """Any plan. Of the cluster's mode and the job's the stricter one holds."""
    if replaces is None and not job.spec.has_servers:
        replaces = moving_workers(job, wish.size, state)  # a ring starts anew
    places = place(job, wish.size, state, len(replaces or ()))
    avoided = set(places.slow)
    named = named_hosts(job, state, [*places.workers, *places.servers])
    own: PlanMode = job.mode or job.spec.plan.mode  # type: ignore[assignment]
    return PlanProposed(
        job=name,
        plan=job.plan + 1,
        log_sequence=job.log_sequence,
        **msgspec.structs.asdict(wish.size),
        hosts=named,
        slow_hosts=[host for host in named if host in avoided],
        worker_hosts=places.workers,
        server_hosts=places.servers,
        masters=job.masters,
        reason=_sentence(job.held, wish),
        scores=wish.scores,
        step=wish.step,
        mode=max(state.mode, own, key=STRICTNESS.index),
        constant=wish.constant,
        members_plan=job.members_plan,
        resumed_from=state.resumed_from,
        held=job.held,
        losers=wish.losers,
        constraints=pins(job.spec),
        measured=wish.measured,
        predicted=wish.predicted,
        predicted_low_90=wish.low_90,
        predicted_high_90=wish.high_90,
        released_by=job.waits_for,
        replaces=replaces or [],
        stays=may_stay(job, wish.size, replaces or (), places, state),
        rolls_back=rolls_back,
        incident=wish.incident,
    )


def roll_back(
    name: str, job: KnownJob, state: BrainState, change: Change, constant: Reason, after: float
) -> PlanProposed:
    """What was before, again. It needs no approval where the change itself was let pass."""
    said = f"plan {change.plan} brought {after:,.0f} samples/s, {change.predicted:,.0f} were predicted"
    return _back(name, job, state, change, _wish_back(change, constant, said, after))


def end_stalled(
    name: str, job: KnownJob, state: BrainState, change: Change, size: Size, said: str
) -> PlanProposed:
    """What remains of a change whose members cannot start, nothing at all of one that is withdrawn: it holds whatever was repaired
    meanwhile.
    """
    constant = Reason.NEVER_LIVE if size.workers else Reason.BELOW_LEAST
    wish = msgspec.structs.replace(_wish_back(change, constant, said, 0.0), size=size)
    return _back(name, job, state, change, wish).replace(members_plan=0)


def _wish_back(change: Change, constant: Reason, said: str, after: float) -> Wish:
    return Wish(
        size=change.before,
        step="rollback",
        constant=constant,
        detail=said,
        measured=after,
        predicted=change.usual,
    )


def _back(name: str, job: KnownJob, state: BrainState, change: Change, wish: Wish) -> PlanProposed:
    return propose(name, job, state, wish, rolls_back=change.plan).replace(mode="auto")


def shrink(
    name: str, job: KnownJob, state: BrainState, size: Size, constant: Reason, detail: str
) -> PlanProposed:
    """A smaller size that makes room for a job of higher priority; no workers at all is a pause."""
    wish = Wish(size=size, step="room", constant=constant, detail=detail, measured=job.throughput)
    return propose(name, job, state, wish)


def _sentence(held: Size | None, wish: Wish) -> str:
    """One line for the user: from what to what, why, and what is expected."""
    change = _counts(wish.size) if held is None else change_words(held, wish.size)
    why = wish.detail or wish.constant.replace("_", " ")
    expected = f"; {wish.predicted:,.0f} samples/s predicted" if wish.predicted else ""
    return f"{change}: {why}{expected}"


def change_words(held: Size, size: Size) -> str:
    """What differs: counts, then cores; all that is held where nothing of these does."""
    said = []
    if held.workers != size.workers:
        said.append(f"{held.workers} -> {counted(size.workers, 'worker')}")
    if held.servers != size.servers:
        said.append(f"{held.servers} -> {counted(size.servers, 'server')}")
    elif said:
        said.append(counted(size.servers, "server"))
    for now, then, noun in (
        (held.worker_cores, size.worker_cores, "worker"),
        (held.server_cores, size.server_cores, "server"),
    ):
        if now != then:
            said.append(f"{now:g} -> {then:g} cores a {noun}")
    return " and ".join(said) or _counts(size)


def _counts(size: Size) -> str:
    return f"{counted(size.workers, 'worker')} and {counted(size.servers, 'server')}"
