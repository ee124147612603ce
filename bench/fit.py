"""How well the throughput model predicts what it has not seen: measured tables, a published figure, a queueing network.

    python -m bench.fit [DATA_DIRECTORY] [--seeds 15] [--jobs 240] [--json]

DATA_DIRECTORY holds ps_worker_speeds.csv (model, mode, total_batch_size, ps, workers, steps_per_second_total) and
dlrover_rm_fig6_top.csv (panel, fixed, fixed_value, varied, varied_value, throughput_1e5_samples_per_s); either may be
missing. Errors are medians over the unseen rows of |predicted / measured - 1|, then medians over the seeds.

Panels of the figure and the collapsed forms (algorithms.md §1): what was fixed besides the panel's two quantities is not
published, so it is any constant and disappears into the coefficients. a_top_w varies (w, p): T = c0 + c1*w/p + c2/p.
b_top_lw varies (lw, p): T = c0/lw + c1/p + c2. c_top_lp varies (lp, p): T = c0/(p*lp) + c1/p + c2.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from bench.queueing import BATCH, measured_table
from rover_bus.brain.fitting import GroupFit, choose_and_predict, fit_and_predict, split_table
from rover_bus.brain.models.forms import ASYNCHRONOUS, SYNCHRONOUS
from rover_bus.brain.models.samples import Configurations, NotEnough, Observations
from rover_bus.brain.models.statistics import Statistics, fit_line
from rover_bus.brain.models.throughput import fit_throughput
from rover_bus.brain.tables import Table

Row = dict[str, object]


def read_speeds(path: Path) -> dict[str, Table]:
    """One table a model; rows without a speed are named and left out."""
    rows: dict[str, list[list[float]]] = defaultdict(list)
    with path.open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 1):
            speed = float(row["steps_per_second_total"])
            if speed > 0:
                rows[row["model"]].append(
                    [float(row["workers"]), float(row["ps"]), float(row["total_batch_size"]), speed]
                )
            else:
                print(
                    f"{path.name}, row {number}: left out, {row['model']} has speed {speed}", file=sys.stderr
                )
    return {model: speeds_table(str(path), np.array(values)) for model, values in sorted(rows.items())}


def speeds_table(path: str, rows: np.ndarray) -> Table:
    """Table of (workers, ps, batch, steps a second) rows of one group, its mode unknown: cross-validation decides."""
    at = Configurations.of(rows[:, 0], rows[:, 1], batch_size=rows[:, 2])
    return Table(path, "steps", at, rows[:, 3], ("",) * len(rows), (None,) * len(rows))


def random_rows(table: Table, samples: int, seeds: int) -> Iterator[GroupFit]:
    """Fit rows drawn at random, one fit a seed."""
    for seed in range(seeds):
        yield fit_and_predict(*split_table(table, samples, seed))[0]


def chosen_rows(table: Table, samples: int, seeds: int) -> Iterator[tuple[float, float]]:
    """Let the model choose its rows, one run a seed: (median error, coverage) of the rows it did not measure."""
    speeds = {
        (int(w), int(p)): s
        for w, p, s in zip(*table.configurations.columns()[:2], table.throughput, strict=True)
    }
    for seed in range(seeds):
        probes, fit = choose_and_predict(table, samples, lambda w, p: float(speeds[w, p]), seed=seed)
        measured = {(probe.workers, probe.ps) for probe in probes}
        assert fit.prediction is not None
        pairs = [(int(w), int(p)) for w, p in zip(*fit.rows.configurations.columns()[:2], strict=True)]
        unseen = np.array([pair not in measured for pair in pairs])
        truth = np.array([speeds[pair] for pair in pairs])[unseen]
        said = fit.prediction
        inside = (said.low_90[unseen] <= truth) & (truth <= said.high_90[unseen])
        yield float(np.median(np.abs(said.throughput[unseen] / truth - 1))), float(inside.mean())


def measure_tables(tables: dict[str, Table], seeds: int) -> list[Row]:
    """Errors and coverage a model, for 10 and 20 random rows and 10 chosen ones."""
    found: list[Row] = []
    for samples in (10, 20):
        for model, table in tables.items():
            fits = list(random_rows(table, samples, seeds))
            error = statistics.median(float(np.median(fit.errors())) for fit in fits)
            covered = float(np.mean([fit.covered().mean() for fit in fits]))
            found.append(
                {"rows": f"{samples} random", "table": model, "median_error": error, "coverage_90": covered}
            )
    for model, table in tables.items():
        runs = list(chosen_rows(table, 10, seeds))
        error = statistics.median(run[0] for run in runs)
        covered = statistics.fmean(run[1] for run in runs)
        first = {"deterministic_start": runs[0][0]}
        found.append(
            {"rows": "10 chosen", "table": model, "median_error": error, "coverage_90": covered} | first
        )
    return found


def measure_queueing(seeds: int) -> list[Row]:
    """Errors and coverage over W1: four quantities varied, 5 % noise on what is fitted and on what is judged. `seeds`: jobs.

    The jobs of W1 differ so much that forty of them tell a coverage to some 3 points only.
    """
    found: list[Row] = []
    for samples in (8, 10, 20):
        errors, covered = [], []
        for seed in range(seeds):
            grid, speed = measured_table(seed, 200 + samples)
            observed = Observations.of(
                Configurations.of(grid[:, 0], grid[:, 1], grid[:, 2], grid[:, 3], BATCH), speed
            )
            model = fit_throughput(observed.take(np.arange(samples)), ASYNCHRONOUS)
            assert not isinstance(model, NotEnough)
            unseen = observed.take(np.arange(samples, len(observed)))
            said = model.predict(unseen.configurations)
            errors.append(float(np.median(np.abs(said.throughput / unseen.throughput - 1))))
            covered.append(np.mean((said.low_90 <= unseen.throughput) & (unseen.throughput <= said.high_90)))
        found.append(
            {
                "rows": f"{samples} random",
                "table": "W1",
                "median_error": statistics.median(errors),
                "coverage_90": float(np.mean(covered)),
            }
        )
    return found


def read_panels(path: Path) -> dict[str, Observations]:
    """The figure's panels as observations; what was fixed and is not published stands as 16 workers of 1 core."""
    rows: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            speed = 1e5 * float(row["throughput_1e5_samples_per_s"])
            rows[row["panel"]].append((float(row["fixed_value"]), float(row["varied_value"]), speed))
    panels = {}
    for panel, values in rows.items():
        ps, varied, speed = np.array(values).T
        at = {
            "w": lambda p=ps, v=varied: Configurations.of(v, p),
            "lw": lambda p=ps, v=varied: Configurations.of(16, p, worker_cores=v),
            "lp": lambda p=ps, v=varied: Configurations.of(16, p, ps_cores=v),
        }[panel.rsplit("_", 1)[1]]()
        panels[panel] = Observations.of(at, speed)
    return panels


def measure_panels(panels: dict[str, Observations]) -> list[Row]:
    """Leave-one-out errors a panel: mean (MAPE) and median."""
    found: list[Row] = []
    for panel, observed in panels.items():
        errors = []
        for i in range(len(observed)):
            model = fit_throughput(observed.take(np.arange(len(observed)) != i), ASYNCHRONOUS)
            assert not isinstance(model, NotEnough)
            left_out = observed.take([i])
            errors.append(
                abs(float(model.predict(left_out.configurations).throughput[0] / left_out.throughput[0]) - 1)
            )
        found.append(
            {
                "rows": "all but one",
                "table": panel,
                "mean_error": statistics.fmean(errors),
                "median_error": statistics.median(errors),
            }
        )
    return found


def refit_ms(repeats: int = 300) -> float:
    """Median milliseconds to take one sample into a job's statistics and fit again."""
    at = Configurations.of(np.arange(1, 21), np.arange(1, 21) % 5 + 1)
    design, seconds = SYNCHRONOUS.design(at), 0.1 + 1 / np.arange(1, 21)
    kept, taken = Statistics.of(design, seconds), []
    for _ in range(repeats):
        start = time.perf_counter()
        fit_line(kept.observe(design[3], float(seconds[3]), 0.98))
        taken.append(time.perf_counter() - start)
    return 1e3 * statistics.median(taken)


def print_table(rows: list[Row]) -> None:
    """Print what was measured, a line a case."""
    for row in rows:
        figures = "  ".join(
            f"{k} {100 * float(str(v)):5.1f} %" for k, v in row.items() if k not in ("rows", "table")
        )
        print(f"{row['rows']!s:<12} {row['table']!s:<12} {figures}")


@click.command(help=__doc__)
@click.argument("data", default=".", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--seeds", default=15, show_default=True)
@click.option("--jobs", default=240, show_default=True, help="Of W1.")
@click.option("--json", "as_json", is_flag=True, help="Print one last line of JSON.")
def main(data: Path, seeds: int, jobs: int, as_json: bool) -> None:
    rows: list[Row] = []
    if (data / "ps_worker_speeds.csv").exists():
        rows += measure_tables(read_speeds(data / "ps_worker_speeds.csv"), seeds)
    if (data / "dlrover_rm_fig6_top.csv").exists():
        rows += measure_panels(read_panels(data / "dlrover_rm_fig6_top.csv"))
    rows += measure_queueing(jobs)
    print_table(rows)
    refit = refit_ms()
    print(f"refit of one job: {refit:.3f} ms")
    if as_json:
        print(json.dumps({"fits": rows, "refit_ms": refit}))


if __name__ == "__main__":
    main()
