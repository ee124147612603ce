"""The model on tables that somebody measured; skipped where they are not at hand (`bench/fit.py` prints the whole story)."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from rover_bus.brain.fitting import GroupFit, choose_and_predict, fit_and_predict, split_table
from rover_bus.brain.models.forms import ASYNCHRONOUS
from rover_bus.brain.models.samples import Configurations, NotEnough, Observations
from rover_bus.brain.models.throughput import fit_throughput
from rover_bus.brain.tables import Table

DATA = Path(__file__).parents[4] / "shared" / "data" / "throughput"
MODELS = ("dssm", "resnet-50", "seq2seq", "vgg-16")
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the measured tables are not beside this checkout")


def rows_of(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((DATA / name).read_text().splitlines()))


def table(model: str) -> Table:
    rows = [
        r
        for r in rows_of("ps_worker_speeds.csv")
        if r["model"] == model and float(r["steps_per_second_total"]) > 0
    ]
    columns = [
        [float(row[name]) for row in rows]
        for name in ("workers", "ps", "total_batch_size", "steps_per_second_total")
    ]
    at = Configurations.of(columns[0], columns[1], batch_size=columns[2])
    return Table("speeds", "steps", at, np.array(columns[3]), ("",) * len(rows), (None,) * len(rows))


def fits(model: str, samples: int, seeds: range) -> list[GroupFit]:
    return [fit_and_predict(*split_table(table(model), samples, seed))[0] for seed in seeds]


@needs_data
@pytest.mark.parametrize("model", MODELS)
def test_ten_random_rows_predict_the_others_within_ten_per_cent(model: str) -> None:
    found = fits(model, 10, range(15))
    assert np.median([np.median(fit.errors()) for fit in found]) <= 0.10
    assert np.mean([fit.covered().mean() for fit in found]) >= 0.80


@needs_data
@pytest.mark.parametrize("model", MODELS)
def test_ten_rows_that_the_model_chooses_predict_the_others_within_eight_per_cent(model: str) -> None:
    known = table(model)
    speeds = {
        (int(c.workers), int(c.ps)): s for c, s in zip(known.configurations, known.throughput, strict=True)
    }
    probes, fit = choose_and_predict(known, 10, lambda w, p: float(speeds[w, p]))
    measured = {(probe.workers, probe.ps) for probe in probes}
    assert fit.prediction is not None
    pairs = [(c.workers, c.ps) for c in fit.rows.configurations]
    errors = [
        abs(said / speeds[pair] - 1)
        for pair, said in zip(pairs, fit.prediction.throughput, strict=True)
        if pair not in measured
    ]
    assert np.median(errors) <= 0.08


@needs_data
def test_the_published_panels_are_predicted_row_by_row_from_the_others() -> None:
    panels: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for row in rows_of("dlrover_rm_fig6_top.csv"):
        panels[row["panel"]].append(
            (
                float(row["fixed_value"]),
                float(row["varied_value"]),
                float(row["throughput_1e5_samples_per_s"]),
            )
        )
    for panel, values in panels.items():
        ps, varied, speed = np.array(values).T
        sixteen = np.full(len(ps), 16.0)
        at = Configurations.of(
            varied if panel.endswith("_w") else sixteen,
            ps,
            varied if panel.endswith("_lw") else 1.0,
            varied if panel.endswith("_lp") else 1.0,
        )
        errors = []
        for i in range(len(ps)):
            model = fit_throughput(Observations.of(at, speed).take(np.arange(len(ps)) != i), ASYNCHRONOUS)
            assert not isinstance(model, NotEnough)
            errors.append(abs(float(model.predict(at.take([i])).throughput[0]) / speed[i] - 1))
        assert np.mean(errors) <= 0.08
        assert np.median(errors) <= 0.045
