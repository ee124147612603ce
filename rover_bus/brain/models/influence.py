"""Which measurements the others contradict: leave-one-out influence, by row.

Fed by observations, feeds `rover fit`. It is apart because it judges rows before any model is believed: one corrupt row (1e12 among
300s) has a relative weight that drowns all others, so no fit on all rows can find it. Each row is left out in turn instead; the row
without which the rest agrees best, and which the rest contradicts, is a suspect. All of it runs on the cheap line [ours].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rover_bus.brain.models.forms import Form
from rover_bus.brain.models.samples import FloatArray, NotEnough, Observations
from rover_bus.brain.models.statistics import Statistics, fit_line

LEAST_ROWS = 6  # fewer do not say which of them is the wrong one
MOST_SHARE = 8  # at most one row in so many is left out: beyond that the form is wrong, not the rows
ABSURD = 1e4  # times the middle speed of a table, or as much below it: no size of a job is, whatever the form
_FINE_SHARE = 0.75  # of a table's rows, at least: else it is not told which are the absurd ones
_LEAST_FACTOR = math.log(3.0)  # measured against predicted by the rest, log units
_FEW_FACTOR = math.log(30.0)  # the same below `MOST_SHARE` rows, of which a form goes through nearly any five
_SIGMAS = 8.0
_MOST_ROWS = 400  # of longer tables so many rows, evenly taken, judge one another, and then all others
Rows = np.ndarray[tuple[int], np.dtype[np.int64]]
DOUBT = math.log(2.0)  # a row that the others miss by more is worth a word
REPEATS = 1.5  # the same size, measured so many times apart


class Suspect(NamedTuple):
    """A row by its place, and how many times what the others predict was measured there."""

    row: int
    factor: float


def find_suspects(observations: Observations, form: Form) -> list[Suspect]:
    """Return the rows to leave out: those with an absurd speed, then those that the others contradict threefold and by far, the
    worst first.
    """
    believed, absurd = _sorted_out(observations.throughput)
    some = believed[_evenly(len(believed))]
    design, seconds = _columns(observations.take(some), form)
    kept, found = list(range(len(some))), list[Suspect]()
    least = _LEAST_FACTOR if len(some) >= MOST_SHARE else _FEW_FACTOR
    while len(kept) >= LEAST_ROWS and len(found) < max(len(some) // MOST_SHARE, 1):
        misses = [_left_out(design, seconds, kept, row) for row in kept]
        wrong = [
            (rest, -abs(miss), place)
            for place, (miss, rest) in enumerate(misses)
            if abs(miss) > max(least, _SIGMAS * 1.4826 * rest)
        ]
        if not wrong:
            break
        best = min(wrong)[-1]
        found.append(Suspect(int(some[kept[best]]), _factor(misses[best][0])))
        del kept[best]
    judges = some[kept]
    by, _ = _missed(observations, form, judges, absurd)
    if not by.any():  # the others are too few for a line: their middle speed says as much
        by = np.log(np.median(observations.throughput[believed]) / observations.throughput[absurd])
    first = [Suspect(int(row), _factor(miss)) for row, miss in zip(absurd, by, strict=True)]
    return [*first, *found, *_contradicted(observations, form, judges, np.setdiff1d(believed, some))]


def _sorted_out(speeds: FloatArray) -> tuple[Rows, Rows]:
    """The rows whose speed may be, and those whose speed is absurd beside the middle of all; none where many would be."""
    usual = np.median(speeds) if len(speeds) else 1.0
    fine = (speeds < usual * ABSURD) & (speeds > usual / ABSURD)
    if fine.sum() < _FINE_SHARE * len(speeds):
        fine = np.ones(len(speeds), dtype=np.bool_)
    return np.flatnonzero(fine), np.flatnonzero(~fine)


def _missed(observations: Observations, form: Form, judges: Rows, others: Rows) -> tuple[FloatArray, float]:
    """Log misses of rows by the line through others, which judge them, and the median miss of these."""
    design, seconds = _columns(observations.take(np.concatenate([judges, others])), form)
    misses = _misses(design, seconds, list(range(len(judges))), list(range(len(seconds))))
    return misses[len(judges) :], float(np.median(np.abs(misses[: len(judges)]))) if len(judges) else 0.0


def _contradicted(observations: Observations, form: Form, judges: Rows, others: Rows) -> list[Suspect]:
    """The rows of a long table, beyond those that judged one another, that these contradict."""
    misses, rest = _missed(observations, form, judges, others)
    far = np.flatnonzero(np.abs(misses) > max(_LEAST_FACTOR, _SIGMAS * 1.4826 * rest))
    if len(far) > len(others) // MOST_SHARE:
        return []
    worst_first = far[np.argsort(-np.abs(misses[far]))]
    return [Suspect(int(others[i]), _factor(misses[i])) for i in worst_first]


def _factor(miss: float) -> float:
    """How many times what was predicted was measured: of speeds, where a miss is of seconds."""
    return math.exp(max(min(-miss, 700.0), -700.0))


def find_doubts(observations: Observations, form: Form) -> list[Suspect]:
    """Return the rows that the others, fitted without them, miss by more than twofold, the worst first."""
    some = _evenly(len(observations))
    design, seconds = _columns(observations.take(some), form)
    rows = list(range(len(some)))
    if len(rows) < LEAST_ROWS:
        return []
    misses = np.array([_left_out(design, seconds, rows, row)[0] for row in rows])
    order = np.argsort(-np.abs(misses))
    return [Suspect(int(some[i]), float(np.exp(-misses[i]))) for i in order if abs(misses[i]) > DOUBT]


def find_repeats(observations: Observations) -> list[tuple[int, int, float]]:
    """Return (row, row, ratio) for each size that was measured more than once, too far apart: the slowest and the fastest."""
    at = np.stack(observations.configurations.columns(), axis=1)
    _, which = np.unique(at, axis=0, return_inverse=True)
    found = []
    for size in range(int(which.max(initial=-1)) + 1):
        rows = np.flatnonzero(which.ravel() == size)
        speeds = observations.throughput[rows]
        ratio = float(speeds.max() / speeds.min())
        if ratio > REPEATS:
            found.append((int(rows[np.argmin(speeds)]), int(rows[np.argmax(speeds)]), ratio))
    return sorted(found, key=lambda each: -each[2])


def _evenly(rows: int) -> Rows:
    return np.unique(np.linspace(0, rows - 1, min(rows, _MOST_ROWS)).astype(np.int64))


def _columns(observations: Observations, form: Form) -> tuple[FloatArray, FloatArray]:
    at = observations.configurations
    with np.errstate(over="ignore"):  # a speed of next to nothing takes for ever
        return form.design(at), form.seconds(at, observations.throughput)


def _left_out(design: FloatArray, seconds: FloatArray, kept: list[int], row: int) -> tuple[float, float]:
    """Log miss of a row by the line through the others, and the median miss of the others; log(measured / predicted seconds)."""
    others = [other for other in kept if other != row]
    misses = _misses(design, seconds, others, kept)
    place = kept.index(row)
    return float(misses[place]), float(np.median(np.abs(np.delete(misses, place))))


def _misses(design: FloatArray, seconds: FloatArray, fitted: list[int], judged: list[int]) -> FloatArray:
    line = fit_line(Statistics.of(design[fitted], seconds[fitted]))
    if isinstance(line, NotEnough):
        return np.zeros(len(judged))
    predicted = np.maximum(line.seconds(design[judged]), 1e-300)
    return np.asarray(np.log(seconds[judged] / predicted))
