"""Why a plan: its one-line reason, the rivals that lost, predicted against measured. In words.

Fed by plans.py; read by `rover explain` and by the demo, which must say the same of one plan.
"""

from __future__ import annotations

from rover_bus.cli.views.plans import Judged, PlanView, change_text
from rover_bus.events import facts
from rover_bus.events.facts import LosingPlan, Size

MOST_RIVALS = 4
WHY_NOT = {
    "less_gain": "cheaper, but the step beyond it still pays",
    "too_dear": "faster, but its last step does not pay",
    "lower_score": "a lower score",
    "dominated": "another is cheaper and faster",
    "uncertain": "a guess: not measured near enough",
    "no_capacity": "no room",
}


def headline(plan: facts.PlanProposed) -> str:
    """Return a plan in one line: what it changes, for what, and what is expected."""
    kinds = {
        "probe": "a probe",
        "rollback": "a revert",
        "asked": f"asked by {plan.by or 'a person'}",
        "start": "the start",
    }
    kind = kinds.get(plan.step, plan.constant.replace("_", " "))
    expected = ""
    if plan.predicted:
        low, high = plan.predicted_low_90, plan.predicted_high_90
        spread = f" ({low:,.0f} to {high:,.0f})" if low < high else ""
        expected = f"; {plan.measured:,.0f} samples/s now, {plan.predicted:,.0f}{spread} predicted"
    return f"plan {plan.plan}, {kind}: {change_text(plan.held, plan.size)}{expected}"


def rivals(plan: facts.PlanProposed) -> list[str]:
    """Return the alternatives that lost, each with what it was believed to reach and why it was not taken."""
    return [rival(loser, plan.held) for loser in plan.losers[:MOST_RIVALS]]


def rival(loser: LosingPlan, held: Size | None) -> str:
    """Return one alternative in words."""
    kept = held is not None and loser.size == held
    what = "as it is" if kept else change_text(held, loser.size)
    reached = f", {loser.throughput:,.0f} samples/s" if loser.throughput else ""
    return f"{what}{reached}: {WHY_NOT.get(loser.reason, loser.reason.replace('_', ' '))}"


def error_text(predicted: float, measured: float) -> str:
    """Return how far a prediction was off, as people say it."""
    return f"{100 * (measured - predicted) / predicted:+.0f} %" if predicted else "nothing was predicted"


def judgement(judged: Judged) -> str:
    """Return predicted against measured."""
    figures = f"{judged.before:,.0f} -> {judged.after:,.0f} samples/s measured"
    if not judged.predicted:
        return f"{figures}, nothing was predicted"
    return f"{figures}, {judged.predicted:,.0f} predicted ({error_text(judged.predicted, judged.after)})"


def outcome(view: PlanView) -> str:
    """Return what became of a plan, in words."""
    words: str = view.state
    if view.person:
        words += f", by the word of {view.person}"
    if view.undone_by:
        words += f" by plan {view.undone_by}"
    return f"{words}{f' ({view.why})' if view.why else ''}"


def forecast_text(forecast: facts.JobForecast) -> str:
    """Return when a job will have reached what its `stop` asks for, with the interval; or that it will not."""
    now = (
        f"{forecast.metric} {forecast.value:.4g} now, {forecast.target:.4g} wanted"
        if forecast.target
        else forecast.constant
    )
    if forecast.eta_s < 0:
        return f"{now}: out of reach by what is known ({forecast.constant})"
    high = f"{forecast.high_90_s:,.0f} s" if forecast.high_90_s >= 0 else "never"
    return f"{now}: in {forecast.eta_s:,.0f} s ({max(forecast.low_90_s, 0):,.0f} s to {high})"
