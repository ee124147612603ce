"""What `rover explain` and `rover what-if` know: a plan's inputs, the fit with its error, the front, and the planner's answer.

Fed by the Brain's state (brain_state.py) and the job's plans (plans.py); the planner is the Brain's own, on a copy. Plain
records, so that the table and the JSON say the same.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from rover_bus.brain.asked import refuse_size
from rover_bus.brain.choosing import choose_sizes
from rover_bus.brain.decisions.lifecycle import check_plan
from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.scaling import Limits, plan_front, what_if
from rover_bus.brain.granting import cores_left_for
from rover_bus.brain.learning_hosts import SLOW, host_share
from rover_bus.brain.models.hosts import slowest
from rover_bus.brain.models.ingest import BoundedModel
from rover_bus.brain.models.samples import Configurations, NotEnough
from rover_bus.brain.predicting import OverruledModel, place_of
from rover_bus.brain.rules import RULES, rules_of
from rover_bus.brain.spaces import space_of
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.brain.totals import totals_of
from rover_bus.brain.wishes import CapacityLeft, limits_of, view_of
from rover_bus.cli.views.brain_state import BrainCopy, read_brain
from rover_bus.cli.views.explanation import outcome, rivals
from rover_bus.cli.views.plans import PlanTable, PlanView, read_plans
from rover_bus.events.bus import Bus
from rover_bus.events.errors import Refused
from rover_bus.events.facts import Size
from rover_bus.events.subjects import qualified

Row = dict[str, Any]


async def read_explanation(bus: Bus, job: str, number: int | None) -> Row:
    """Return why a plan (None: the newest) is what it is, by the logs: also while the Brain is down, and after the job is over."""
    plans, full = await read_plans(bus, job), qualified(bus.tenant, job)
    return explain(plans, await read_brain(bus, full), full, number)


def explain(plans: PlanTable, brain: BrainCopy, full: str, number: int | None) -> Row:
    """Return why a plan (None: the newest) of a job is what it is. `full`: the job as the control account names it."""
    held_back = brain.withheld.get(full)
    left = None if held_back is None else {"constant": held_back.constant, "detail": held_back.reason}
    if number is None and plans.newest is None:
        return {"job": plans.job, "plan": None, "left_as_it_is": left, "paused": None}
    view = plans.find(number)
    explained = explain_plan(view, brain.job_at(full, view.number), brain.state)
    return explained | {"left_as_it_is": left, "paused": _paused(plans), "stop": plans.forecast}


def _paused(plans: PlanTable) -> str | None:
    """Return what a paused job waits for, with what to do about it; None for one that goes on."""
    if not plans.paused or plans.ended:
        return None
    room = ", and holds no room meanwhile" if plans.released else ""
    if not plans.unusable:
        return f"it waits for `rover resume {plans.job}`{room}"
    return (
        f"none of its checkpoints can be restored ({plans.unusable[0]}): it waits for one on storage that can, or for "
        f"`rover resume {plans.job} --from-nothing` or `--checkpoint N`{room}"
    )


def explain_plan(view: PlanView, known: KnownJob | None, state: BrainState) -> Row:
    """Return everything that is known of why a plan is what it is. `known`: the job as the Brain knew it then, if it did."""
    proposed, judged = view.proposed, view.judged
    explained: Row = {
        "job": proposed.job,
        "plan": view.number,
        "step": proposed.step,
        "held": proposed.held,
        "wanted": proposed.size,
        "reason": proposed.reason,
        "constant": proposed.constant,
        "by": proposed.by,
        "outcome": outcome(view),
        "state": view.state,
        "constraints": proposed.constraints,
        "slow_hosts": proposed.slow_hosts,
        "scores": proposed.scores,
        "why_not": rivals(proposed),
        "measured_before": proposed.measured or None,
        "predicted": proposed.predicted or None,
        "predicted_low_90": proposed.predicted_low_90 or None,
        "predicted_high_90": proposed.predicted_high_90 or None,
        "measured_after": judged.after if judged else None,
        "computed_from": {
            "log_sequence": proposed.log_sequence,
            "members_plan": proposed.members_plan,
            "brain_term": proposed.brain_term,
            "resumed_from": proposed.resumed_from,
        },
    }
    if known is None or known.held is None:
        return explained
    return (
        explained
        | {
            "cores_bind": known.cores_bind,
            "cores_loose": loose_cores(state),
            "times": times_of(known, state),
        }
        | inputs_of(known, state)
    )


def loose_cores(state: BrainState) -> list[str]:
    """Return what saw that cores do not bind, of the hosts that there are now (`HostCapacity.cores_seen`); empty: they bind."""
    return sorted({each.cores_seen for each in state.hosts.values() if not each.cores_bind})


def times_of(known: KnownJob, state: BrainState) -> Row:
    """Return the time scales of a job, in seconds, as set or as measured."""
    return {
        "window_s": round(state.stretch * known.window_s, 3),
        "start_s": round(known.start_s, 3),
        "change_s": round(known.change_s, 3),
        "changes_measured": known.settled_moves,
        "cooldown_s": known.spec.plan.cooldown_s,
        "member_lost_every_s": round(1 / state.losses.hazard.failures_per_member_s),
        "members_lost": state.losses.lost,
    }


def slow_hosts_text(state: BrainState) -> list[str]:
    """Say of each slow host how slow it is, which members showed it and what follows from it."""
    said = []
    for host in sorted(state.slow_hosts):
        shown = ", ".join(slowest(state.host_evidence.get(host, {}), SLOW)[:3])
        by = f", as {shown} show" if shown else ""
        said.append(
            f"host {host} is slow: {host_share(state, host):.0%} of what is usual{by}; plans avoid it, jobs leave it where it pays"
        )
    return said


def stretched_text(state: BrainState) -> list[str]:
    """Say that windows are longer than set, and why; nothing while they are not."""
    if state.stretch <= 1:
        return []
    times = f"{state.stretch:g} times as long as set"
    return [
        f"the Brain does not keep up with its jobs: windows are {times}; give it a core of its own, or run fewer jobs"
    ]


def inputs_of(known: KnownJob, state: BrainState) -> Row:
    """Return what was measured, the fit of it with its error, and the front that it leads to."""
    model = StandingModels(state).of(known)
    if isinstance(model, NotEnough):
        return {
            "tried": [_tried(row, None) for row in known.tried],
            "fit": {"not_enough": model.reason},
            "front": [],
        }
    fitted = model.fitted.predict(
        Configurations.from_list([place_of(known, row.size) for row in known.tried])
    )
    tried = [_tried(row, float(said)) for row, said in zip(known.tried, fitted.throughput, strict=True)]
    return {"tried": tried, "fit": _fit(model, tried), "front": _front(known, model, state)}


def _tried(row: Any, fitted: float | None) -> Row:
    return {
        "workers": row.size.workers,
        "servers": row.size.servers,
        **_each(row.size),
        "measured": row.mean,
        "fitted": fitted,
        "error": None if fitted is None else (fitted - row.mean) / row.mean,
        "input_share": row.input_share,
        "passing": row.passing,
    }


def _each(member: Size | Allocation) -> Row:
    """What each member has of a size, by the names of its fields."""
    names = ("worker_cores", "server_cores", "worker_memory_bytes", "server_memory_bytes")
    return {name: getattr(member, name) for name in names}


def _fit(model: OverruledModel, tried: list[Row]) -> Row:
    """Which half limits, what it was fitted to be, and how far it is off where there are measurements."""
    errors = [abs(row["error"]) for row in tried if row["error"] is not None]
    said: Row = {"median_error": median(errors), "worst_error": max(errors), "sizes": len(tried)}
    fitted = model.fitted
    if isinstance(fitted, BoundedModel):
        ingest, compute = fitted.ingest, fitted.compute
        said["ingest_a_worker"] = ingest.samples_per_worker_s if ingest else None
        said["ingest_spread"] = ingest.spread if ingest else None
        said["compute"] = None if compute is None else compute.compute.form.name
        said["warnings"] = [] if compute is None else list(compute.compute.warnings)
    said["taken_back"] = [
        {
            "workers": int(place.workers),
            "servers": int(place.ps),
            "worker_cores": place.worker_cores,
            "server_cores": place.ps_cores,
            "reached": speed,
        }
        for place, speed, _ in model.ceilings
    ]
    return said


def _front(known: KnownJob, model: OverruledModel, state: BrainState) -> list[Row]:
    """The Pareto front of cost against throughput, as far as one change goes."""
    rules = rules_of(known.spec.plan, state.losses.hazard)
    front = plan_front(
        view_of(known), model, space_of(known), rules, limits_of(known, cores_of(known, state))
    )
    columns = zip(front.allocations, front.cost, front.speed, strict=True)
    return [
        {
            "workers": a.workers,
            "servers": a.servers,
            **_each(a),
            "cost": float(cost),
            "throughput": float(speed),
        }
        for a, cost, speed in columns
    ]


def cores_of(known: KnownJob, state: BrainState) -> float:
    """Cores that a job may use; for one that is over, all that there are."""
    for name, job in state.jobs.items():
        if job.uid == known.uid:
            return cores_left_for(name, state, state.quotas)
    return totals_of(state).capacity.cores


def suppose(known: KnownJob, state: BrainState, wanted: Size) -> Row:
    """Return what the planner believes of a size that a person names, beside what is held and what it would choose itself.

    Raises Refused when nothing was measured yet: it does not guess.
    """
    held = known.held
    model = StandingModels(state).of(known)
    if held is None or isinstance(model, NotEnough):
        why = model.reason if isinstance(model, NotEnough) else "it holds nothing yet"
        raise Refused(f"not enough is measured for an answer: {why}", "not_enough_samples")
    pins = Limits(
        workers=known.spec.workers.count,
        servers=known.spec.servers.count,
        max_workers=1 << 30,
        max_servers=1 << 30,
    )
    broken = check_plan(known.charge(wanted), pins) or refuse_size(known, wanted, state)
    name = next((name for name, job in state.jobs.items() if job.uid == known.uid), "")
    wish = (
        choose_sizes([name], state, state.quotas, StandingModels(state))[name]
        if name
        else CapacityLeft(Reason.JOB_IS_OVER)
    )
    return {
        "held": _believed(known, model, held),
        "wanted": _believed(known, model, wanted),
        "would_be_refused": None if broken is None else f"{broken[0]}: {broken[1]}",
        "planner": {"left_as_it_is": wish.constant, "detail": wish.detail}
        if isinstance(wish, CapacityLeft)
        else {"wants": wish.size, "constant": wish.constant},
        "remaining_s_now": None if np.isinf(known.remaining_s) else known.remaining_s,
        "never_measured": _unmeasured(known, wanted),
        "far_from_measured": _far(known, wanted),
    }


def _believed(known: KnownJob, model: OverruledModel, size: Size) -> Row:
    said = what_if(view_of(known), model, known.charge(size), RULES.prices)
    measured = next((row.mean for row in known.tried if row.size.shape == size.shape), None)
    left = said["remaining_s"] if known.total else None
    return {
        "workers": size.workers,
        "servers": size.servers,
        **_each(size),
        "throughput": said["throughput"],
        "low_90": said["low_90"],
        "high_90": said["high_90"],
        "guess": bool(said["guess"]),
        "measured": measured,
        "cost": said["cost"],
        "remaining_s": left,
    }


def _unmeasured(known: KnownJob, wanted: Size) -> list[str]:
    """What was never varied: an answer about it rests on the form alone."""
    names = {"servers": "servers", "worker_cores": "cores a worker", "server_cores": "cores a server"}
    return [
        noun
        for name, noun in names.items()
        if getattr(wanted, name) not in {getattr(row.size, name) for row in known.tried}
    ]


def _far(known: KnownJob, wanted: Size) -> list[str]:
    """What is more than one change away from every size that was measured: a form goes on for ever, a cluster does not."""
    factor, said = RULES.restraint.growth, []
    for name in ("workers", "servers"):
        most = max((getattr(row.size, name) for row in known.tried), default=0)
        if getattr(wanted, name) > factor * most:
            said.append(f"{getattr(wanted, name):,} {name} are far beyond the {most} that were measured")
    return said
