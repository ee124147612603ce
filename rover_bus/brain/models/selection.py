"""Which form describes this job: leave-out errors decide, and the winner is named.

Fed by observations, feeds `rover fit` and the Brain when a job does not state its mode. Cross-validation runs on the cheap
line (no process), where forms differ most.
"""

from __future__ import annotations

import msgspec
import numpy as np

from rover_bus.brain.models.forms import ASYNCHRONOUS, SYNCHRONOUS, Form, Mode, forms_of
from rover_bus.brain.models.samples import FloatArray, IntArray, NotEnough, Observations
from rover_bus.brain.models.statistics import Statistics, fit_line
from rover_bus.brain.models.throughput import LEAST_CONFIGURATIONS, ThroughputModel, fit_throughput

_MOST_FOLDS = 20
# A few samples compare forms with much noise: a rival of the main form of its mode must be better by this ratio.
_MARGIN = 1.15
_MAIN = (ASYNCHRONOUS.name, SYNCHRONOUS.name)


# One wild extrapolation must not outvote all others.
_WORST = 1.0


class Selection(msgspec.Struct, frozen=True):
    """The form chosen and every rival's cross-validated mean absolute log error, best first."""

    chosen: str
    errors: dict[str, float]


def cross_validated_error(observations: Observations, form: Form, most: FloatArray | None = None) -> float:
    """Mean absolute log error of configurations left out, in at most 20 folds of whole configurations.

    `most` (n,): samples a second that each row cannot pass whatever the form says (`core_use`).
    """
    at = observations.configurations
    design, seconds = form.design(at), form.seconds(at, observations.throughput)
    fold = _folds(observations)
    predicted = np.empty(len(seconds))
    for left_out in range(fold.max() + 1):
        out = fold == left_out
        line = fit_line(Statistics.of(design[~out], seconds[~out]))
        if isinstance(line, NotEnough):
            return float("inf")
        predicted[out] = np.maximum(line.seconds(design[out]), 1e-300)
    if most is not None:
        predicted = np.maximum(predicted, form.samples(at) / most)
    return float(np.minimum(np.abs(np.log(seconds / predicted)), _WORST).mean())


def select_form(observations: Observations, mode: Mode | None = None) -> Selection | NotEnough:
    """Choose among the forms of a mode, or among all. Needs four different configurations when there is a choice."""
    distinct = observations.configurations.distinct()
    if distinct <= LEAST_CONFIGURATIONS:
        missing = LEAST_CONFIGURATIONS + 1 - distinct
        return NotEnough(
            f"{distinct} different configurations cannot tell forms apart; four are the least", missing
        )
    errors = {form.name: cross_validated_error(observations, form) for form in forms_of(mode)}
    chosen = min(errors, key=lambda name: errors[name] * (1.0 if name in _MAIN else _MARGIN))
    return Selection(chosen, dict(sorted(errors.items(), key=lambda item: item[1])))


def fit_best(
    observations: Observations, mode: Mode | None = None
) -> tuple[ThroughputModel, Selection] | NotEnough:
    """Select a form and fit it."""
    selection = select_form(observations, mode)
    if isinstance(selection, NotEnough):
        return selection
    form = next(form for form in forms_of(mode) if form.name == selection.chosen)
    model = fit_throughput(observations, form)
    return model if isinstance(model, NotEnough) else (model, selection)


def _folds(observations: Observations) -> IntArray:
    """Fold of each row. Repeats of one configuration share a fold: they would answer for each other."""
    rows: FloatArray = np.stack(observations.configurations.columns(), axis=1)
    _, which = np.unique(rows, axis=0, return_inverse=True)
    return np.asarray(which.ravel() % min(_MOST_FOLDS, int(which.max()) + 1), dtype=np.int64)
