"""What `rover fit` does not believe, in words that name the row: corrupt rows, contradictions, sizes beyond what was measured.

Fed by tables and by models/influence.py; feeds fitting.py. It is apart from the models because only here rows have names.
"""

from __future__ import annotations

import math

import numpy as np

from rover_bus.brain.models.forms import ASYNCHRONOUS, SYNCHRONOUS, Form, Mode
from rover_bus.brain.models.influence import find_doubts, find_repeats, find_suspects
from rover_bus.brain.models.throughput import ThroughputModel
from rover_bus.brain.tables import Table

MOST_NAMED = 3
NEAR = math.log(1.25)  # a quarter beyond the last measurement is still near


def leave_out(table: Table, mode: Mode | None) -> tuple[Table, tuple[str, ...]]:
    """Return the rows that may be believed, and a line for each other: what was measured there, against what the others say."""
    observations = table.observations(_typical(table))
    forms = [form for form in (SYNCHRONOUS, ASYNCHRONOUS) if mode in (None, form.mode)]
    found = [{suspect.row: suspect for suspect in find_suspects(observations, form)} for form in forms]
    suspects = [suspect for row, suspect in found[0].items() if all(row in other for other in found)]
    said = tuple(
        f"{table.name(index)} is left out: {table.throughput[index]:g} {table.unit}/s is {_times(factor)} what the other rows "
        "predict there: correct it, or measure beside it (a cliff?)"
        for index, factor in suspects
    )
    kept = np.setdiff1d(np.arange(len(table)), [suspect.row for suspect in suspects])
    return (table.take(kept) if suspects else table), said


def contradictions(table: Table, form: Form) -> list[str]:
    """Return a line for each size whose measurements contradict one another, and for the rows that the others miss twofold."""
    observations = table.observations(_typical(table))
    said = [
        f"{table.name(slow)} and {table.name(fast)} are one size, measured {ratio:.3g} times apart: no model explains both"
        for slow, fast, ratio in find_repeats(observations)[:MOST_NAMED]
    ]
    doubts = find_doubts(observations, form)
    said += [
        f"{table.name(index)} is {_times(factor)} what the other rows predict there: a cliff near it? measure beside it"
        for index, factor in doubts[:MOST_NAMED]
    ]
    more = len(doubts) - MOST_NAMED
    return (
        [*said, f"{more} rows more are missed twofold by the others: the form does not fit"]
        if more > 0
        else said
    )


def beyond(model: ThroughputModel, rows: Table) -> list[str]:
    """Return a line when predictions lie beyond what was measured: there the form is extrapolated, and intervals are guesses."""
    outside = np.flatnonzero(model.beyond(rows.configurations) > NEAR)
    if not len(outside):
        return []
    at, measured = rows.configurations, model.measured
    ranges = [
        f"{name} {known.min():g} to {known.max():g}"
        for name, known, asked in (("workers", measured.workers, at.workers), ("ps", measured.ps, at.ps))
        if asked[outside].max() > known.max() or asked[outside].min() < known.min()
    ]
    where = f" (measured: {', '.join(ranges)})" if ranges else ""
    return [
        f"{len(outside)} of {len(rows)} predictions lie beyond what was measured{where}: measure there before acting"
    ]


def _typical(table: Table) -> float:
    """The middle speed, so that the figures of one corrupt row leave those of the others in a float's reach."""
    return float(np.median(table.throughput))


def _times(factor: float) -> str:
    return f"{factor:.3g} times" if factor >= 1 else f"1/{1 / factor:.3g} of"
