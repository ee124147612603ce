"""`rover fit` behind its command: fit measured throughput, predict the rest, choose probes; useful on its own.

Fed by `tables` and, for chosen probes, by a callable that runs the user's measurement; feeds the command in `cli` and
`bench/fit.py`. Errors are relative and unsigned, as fractions: |predicted / measured - 1|.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from rover_bus.brain.doubts import beyond, contradictions, leave_out
from rover_bus.brain.models.forms import SYNCHRONOUS, Form, Mode, forms_of
from rover_bus.brain.models.probing import next_probe
from rover_bus.brain.models.samples import Configurations, FloatArray, IntArray, NotEnough, Observations
from rover_bus.brain.models.selection import Selection, fit_best, select_form
from rover_bus.brain.models.throughput import BEYOND, Prediction, ThroughputModel
from rover_bus.brain.tables import LeftOut, Table
from rover_bus.events.errors import InputError

MOST_NAMED = 1000  # rows that were left out
# Beyond these, squares and products of throughput leave what a float can hold: it is fitted as a multiple of its geometric mean.
_LEAST_SPEED, _MOST_SPEED = 1e-9, 1e15

# CMD WORKERS PS: runs the user's measurement and returns the throughput that it printed (nan when it failed).
Measure = Callable[[int, int], float]


class Probe(msgspec.Struct, frozen=True):
    """One measurement that the model asked for; `order` counts from 1."""

    order: int
    workers: int
    ps: int
    throughput: float


@dataclass(frozen=True, eq=False)
class GroupFit:
    """One group: what was fitted on how many samples, and what it says of the other rows.

    `model` is None when the samples were not enough; `answer` then says why. `prediction` is in the unit of the table. `doubts`
    names rows that were left out, rows that contradict one another, and predictions beyond what was measured.
    """

    group: str
    samples: int
    model: ThroughputModel | None
    answer: str
    rows: Table
    prediction: Prediction | None
    doubts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the form, or why there is none."""
        return self.model.form.name if self.model else f"not enough: {self.answer}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Where the model says of itself that it should not be believed."""
        return (*self.doubts, *(self.model.warnings if self.model else (self.answer,)))

    def errors(self) -> FloatArray:
        """Relative errors of the predicted rows that were measured."""
        if self.prediction is None:
            return np.empty(0)
        known = np.isfinite(self.rows.throughput)
        return np.abs(self.prediction.throughput[known] / self.rows.throughput[known] - 1.0)

    def covered(self) -> FloatArray:
        """Return 1.0 for each measured row inside its 90 % interval, else 0.0."""
        if self.prediction is None:
            return np.empty(0)
        known = np.isfinite(self.rows.throughput)
        measured = self.rows.throughput[known]
        low, high = self.prediction.low_90[known], self.prediction.high_90[known]
        return np.asarray((low <= measured) & (measured <= high), dtype=np.float64)


def split_table(table: Table, samples: int, seed: int) -> tuple[Table, Table]:
    """Draw `samples` rows of every group at random; the rest is unseen. The same seed draws the same rows."""
    if samples < 1:
        raise InputError(f"--samples is {samples}; at least 1 row is needed to fit anything")
    drawn: list[int] = []
    for number, group in enumerate(dict.fromkeys(table.groups)):
        rows = np.array([i for i, name in enumerate(table.groups) if name == group])
        drawn += np.random.default_rng([seed, number]).permutation(rows)[:samples].tolist()
    unseen = np.setdiff1d(np.arange(len(table)), drawn)
    return table.take(sorted(drawn)), table.take(unseen)


def fit_and_predict(train: Table, test: Table) -> list[GroupFit]:
    """Fit every group of `train` and predict its rows in `test`. A group of `test` that was never measured is refused."""
    if not len(train):
        raise InputError(f"{train.path}: no usable row to fit")
    unknown = set(test.groups) - set(train.groups)
    if unknown:
        raise InputError(
            f"{test.path}: group {sorted(unknown)[0]!r} is not in {train.path}; nothing is known of it"
        )
    tests = dict(test.by_group())
    empty = test.take([])
    return [_fit_group(group, rows, tests.get(group, empty)) for group, rows in train.by_group()]


def choose_and_predict(
    candidates: Table,
    samples: int,
    measure: Measure,
    mode: Mode | None = None,
    seed: int = 0,
    on_probe: Callable[[Probe], None] | None = None,
) -> tuple[list[Probe], GroupFit]:
    """Measure `samples` configurations that the model chooses one after another, then predict all candidates.

    Reads only (workers, ps) of the candidates. Seed 0 starts at the most informative candidate, any other seed at a random
    one. A probe that fails counts, is named by its nan, and is not tried again.
    """
    pairs = _distinct_pairs(candidates.configurations)
    if not len(pairs):
        raise InputError(f"{candidates.path}: no candidate to choose from")
    at, probes, tried = Configurations.of(*pairs.T), list[Probe](), list[int]()
    for order in range(1, min(samples, len(pairs)) + 1):
        index = _next_index(at, tried, probes, mode, seed)
        workers, ps = int(pairs[index, 0]), int(pairs[index, 1])
        throughput = measure(workers, ps)
        probe = Probe(
            order, workers, ps, throughput if np.isfinite(throughput) and throughput > 0 else float("nan")
        )
        tried.append(index)
        probes.append(probe)
        if on_probe is not None:
            on_probe(probe)
    rows = _pair_table(candidates, at, np.full(len(pairs), np.nan))
    measured = rows.take(tried)
    speeds = np.array([probe.throughput for probe in probes])
    good = np.flatnonzero(np.isfinite(speeds))
    trained = _pair_table(candidates, measured.configurations.take(good), speeds[good], mode)
    return probes, _fit_group("", trained, rows)


def json_line(fits: Sequence[GroupFit]) -> str:
    """Return the one last line of `-o json`: a group's name, model, counts, errors and coverage as fractions."""
    return msgspec.json.encode({"groups": [_summary(fit) for fit in fits]}).decode()


def write_predictions(path: str | Path, fits: Sequence[GroupFit]) -> None:
    """Write `group, workers, ps, predicted, low_90, high_90, guess`, in the unit of the table."""
    with _written(path), open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["group", "workers", "ps", "predicted", "low_90", "high_90", "guess"])
        for fit in fits:
            if fit.prediction is None:
                continue
            at, said = fit.rows.configurations, fit.prediction
            rows = zip(at.workers, at.ps, said.throughput, said.low_90, said.high_90, said.guess, strict=True)
            out.writerows(
                [fit.group, int(w), int(p), *(f"{x:.6g}" for x in values), "yes" if guess else "no"]
                for w, p, *values, guess in rows
            )


def plot_predictions(path: str | Path, fits: Sequence[GroupFit]) -> None:
    """Draw measured against predicted with the 90 % intervals, a colour a group. Needs matplotlib (extra `plot`)."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("--plot needs matplotlib; install rover-bus[plot]") from error
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    for fit in fits:
        known = np.isfinite(fit.rows.throughput)
        if fit.prediction is None or not known.any():
            continue
        middle, measured = fit.prediction.throughput[known], fit.rows.throughput[known]
        reach = np.abs(np.stack([fit.prediction.low_90[known], fit.prediction.high_90[known]]) - middle)
        axes.errorbar(
            measured, middle, yerr=reach, fmt="o", markersize=3, elinewidth=0.5, label=fit.group or fit.name
        )
        axes.axline((measured[0], measured[0]), slope=1, color="grey", linewidth=0.8)
    unit = fits[0].rows.unit if fits else "steps"
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=f"measured, {unit}/s",
        ylabel=f"predicted, {unit}/s, with 90 % interval",
    )
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    with _written(path):
        figure.savefig(str(path))


@contextmanager
def _written(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; name a file that can be written") from error
    except ValueError as error:  # a picture's name that ends in no format
        raise InputError(f"{path}: {error}") from error


def left_out_text(path: str, left_out: Sequence[LeftOut]) -> list[str]:
    """Name the rows that were not used, one line each; of very many the first ones."""
    named = [f"{path}, row {row.row}: left out, {row.reason}" for row in left_out[:MOST_NAMED]]
    more = len(left_out) - len(named)
    return [*named, f"{path}: {more} rows more are left out"] if more > 0 else named


def _fit_group(group: str, train: Table, rows: Table) -> GroupFit:
    if not len(train):
        return GroupFit(group, 0, None, "no usable sample", rows, None)
    mode = train.mode()
    train, said = leave_out(train, mode)
    unit_of_speed = _unit_of_speed(train)
    fitted = fit_best(train.observations(unit_of_speed), mode)
    if isinstance(fitted, NotEnough):
        return GroupFit(group, len(train), None, fitted.reason, rows, None, said)
    model, _ = fitted
    predicted = model.predict(rows.configurations, BEYOND)
    per_unit = rows.samples_per_unit() / unit_of_speed
    in_unit = Prediction(
        predicted.throughput / per_unit,
        predicted.low_90 / per_unit,
        predicted.high_90 / per_unit,
        predicted.guess,
    )
    doubts = (*said, *contradictions(train, model.form), *beyond(model, rows))
    return GroupFit(group, len(train), model, "", rows, in_unit, doubts)


def _unit_of_speed(train: Table) -> float:
    """What throughput is counted in while it is fitted: 1, unless its figures are astronomic."""
    speeds = train.throughput
    if speeds.min() >= _LEAST_SPEED and speeds.max() <= _MOST_SPEED:
        return 1.0
    return float(np.exp(np.log(speeds).mean()))


def _summary(fit: GroupFit) -> dict[str, object]:
    errors, covered = fit.errors(), fit.covered()
    known = len(errors) > 0
    return {
        "group": fit.group,
        "model": fit.name,
        "samples": fit.samples,
        "unseen": len(errors),
        "median_error": float(np.median(errors)) if known else None,
        "p90_error": float(np.quantile(errors, 0.9)) if known else None,
        "coverage_90": float(covered.mean()) if known else None,
        "guesses": int(fit.prediction.guess.sum()) if fit.prediction is not None else 0,
        "warnings": list(fit.warnings),
    }


def _distinct_pairs(at: Configurations) -> FloatArray:
    pairs = np.stack([at.workers, at.ps], axis=1)
    return pairs[np.sort(np.unique(pairs, axis=0, return_index=True)[1])]


def _next_index(
    at: Configurations, tried: list[int], probes: list[Probe], mode: Mode | None, seed: int
) -> int:
    if not tried and seed:
        return int(np.random.default_rng(seed).integers(len(at)))
    good = [i for i, probe in zip(tried, probes, strict=True) if np.isfinite(probe.throughput)]
    if not good:
        pool: IntArray = np.setdiff1d(np.arange(len(at)), tried)
        return int(pool[next_probe(at.take(pool), _form(None, mode))])
    speeds = [probe.throughput for probe in probes if np.isfinite(probe.throughput)]
    measured = Observations.of(at.take(good), speeds)
    pool = np.setdiff1d(np.arange(len(at)), np.setdiff1d(tried, good))
    return int(pool[next_probe(at.take(pool), _form(measured, mode), measured)])


def _form(measured: Observations | None, mode: Mode | None) -> Form:
    """Form to design with: the one that fits best so far; until one can tell, the richest of the mode."""
    selection = select_form(measured, mode) if measured is not None else None
    if isinstance(selection, Selection):
        return next(form for form in forms_of(mode) if form.name == selection.chosen)
    return SYNCHRONOUS if mode is None else forms_of(mode)[0]


def _pair_table(like: Table, at: Configurations, throughput: FloatArray, mode: Mode | None = None) -> Table:
    n = len(at)
    return Table(like.path, like.unit, at, throughput, ("",) * n, (mode,) * n)
