"""Tables that no form describes, 20 seeds each: the intervals cover four rows in five, or a warning names the reason."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rover_bus.brain.fitting import GroupFit, fit_and_predict, json_line, split_table, write_predictions
from rover_bus.brain.models.forms import SYNCHRONOUS
from rover_bus.brain.models.influence import find_suspects
from rover_bus.brain.models.samples import Configurations
from rover_bus.brain.tables import Table

SEEDS = range(20)
Speed = Callable[[np.ndarray, np.ndarray], np.ndarray]


def steps(workers: np.ndarray, ps: np.ndarray) -> np.ndarray:
    """Steps a second of a synchronous job."""
    return 300 / (0.9 / workers + 0.1 + 0.02 * workers / ps + 0.005 * workers)


def cliff(workers: np.ndarray, ps: np.ndarray) -> np.ndarray:
    """Full speed to 8 workers, 20 beyond it."""
    return np.where(workers <= 8, steps(workers, ps), 20.0)


def table_of(speed: Speed, seed: int, most_workers: int = 16, noise: float = 0.03) -> Table:
    grid = np.array([(w, p) for w in range(1, most_workers + 1) for p in range(1, 7)], float)
    measured = speed(grid[:, 0], grid[:, 1])
    measured = measured * np.exp(noise * np.random.default_rng(seed).normal(size=len(grid)))
    n = len(grid)
    at = Configurations.of(grid[:, 0], grid[:, 1])
    return Table("t.csv", "steps", at, measured, ("",) * n, ("sync",) * n, numbers=tuple(range(1, n + 1)))


def with_speed(table: Table, row: int, speed: float) -> Table:
    throughput = table.throughput.copy()
    throughput[row] = speed
    return Table(
        table.path,
        table.unit,
        table.configurations,
        throughput,
        table.groups,
        table.modes,
        numbers=table.numbers,
    )


def median_error(fit: GroupFit) -> float:
    return float(np.median(fit.errors()))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rows", [10, 20])
def test_a_cliff_is_covered_or_named(seed: int, rows: int) -> None:
    [fit] = fit_and_predict(*split_table(table_of(cliff, seed), rows, seed))
    assert fit.covered().mean() >= 0.8 or fit.warnings


@pytest.mark.parametrize("seed", SEEDS)
def test_sizes_beyond_what_was_measured_are_guesses_by_name(seed: int) -> None:
    table = table_of(steps, seed, most_workers=32)
    workers = table.configurations.workers
    small, large = np.flatnonzero(workers <= 6), np.flatnonzero(workers > 6)
    drawn = np.random.default_rng(seed).permutation(small)[:10]
    [fit] = fit_and_predict(table.take(drawn), table.take(large))
    assert any("beyond what was measured" in warning for warning in fit.warnings)
    assert fit.prediction is not None
    width = np.log(fit.prediction.high_90 / fit.prediction.low_90)
    at = fit.rows.configurations
    assert width[at.workers == 32].min() > width[at.workers == 8].max(), "intervals grow with distance"


def test_far_beyond_what_was_measured_intervals_still_cover() -> None:
    covered = []
    for seed in SEEDS:
        table = table_of(steps, seed, most_workers=32)
        workers = table.configurations.workers
        drawn = np.random.default_rng(seed).permutation(np.flatnonzero(workers <= 6))[:10]
        [fit] = fit_and_predict(table.take(drawn), table.take(np.flatnonzero(workers > 6)))
        covered.append(fit.covered().mean())
    assert np.mean(covered) >= 0.8


@pytest.mark.parametrize("corrupt", [1e12, 1e-6, 3000.0])
def test_a_corrupt_row_is_named_and_costs_at_most_a_point(corrupt: float) -> None:
    costs = []
    for seed in SEEDS:
        train, test = split_table(table_of(steps, seed), 10, seed)
        row = seed % 10
        [clean] = fit_and_predict(train, test)
        [fit] = fit_and_predict(with_speed(train, row, corrupt), test)
        assert any(f"row {train.numbers[row]} (" in warning for warning in fit.warnings), (seed, fit.warnings)
        costs.append(median_error(fit) - median_error(clean))
    assert np.median(costs) <= 0.01


@pytest.mark.parametrize("rows", [4, 5, 6, 7])
@pytest.mark.parametrize("corrupt", [1e12, 1e-6])
def test_a_corrupt_row_among_few_is_named_and_drowns_none_of_the_others(rows: int, corrupt: float) -> None:
    costs = []
    for seed in SEEDS:
        train, test = split_table(table_of(steps, seed), rows, seed)
        row = seed % rows
        [clean] = fit_and_predict(train.take([each for each in range(rows) if each != row]), test)
        [fit] = fit_and_predict(with_speed(train, row, corrupt), test)
        assert any(f"row {train.numbers[row]} (" in warning for warning in fit.warnings), (seed, fit.warnings)
        if rows > 4:  # of four the others are too few for a model
            costs.append(median_error(fit) - median_error(clean))
    assert not np.any(costs), "the others are fitted as if it had never been measured"


@pytest.mark.parametrize("mode", ["sync", None])
def test_two_corrupt_rows_in_ten_are_named(mode: str | None) -> None:
    for seed in SEEDS:
        train, test = split_table(table_of(steps, seed), 10, seed)
        train = dataclasses.replace(with_speed(with_speed(train, 3, 1e12), 7, 1e12), modes=(mode,) * 10)
        [fit] = fit_and_predict(train, test)
        for row in (3, 7):
            named = f"row {train.numbers[row]} ("
            assert any(named in warning and "left out" in warning for warning in fit.warnings), seed
        assert median_error(fit) < 0.3


@pytest.mark.parametrize(
    "speeds", [(100.0, 1e12), (100.0, 190.0, 1e12), (100.0, 190.0, 1e12, 2e12), (1e3,), (5.0,) * 6]
)
def test_no_row_of_a_table_is_absurd_where_it_cannot_be_told_which(speeds: tuple[float, ...]) -> None:
    table = with_speeds(speeds)
    assert [suspect.row for suspect in find_suspects(table.observations(64.0), SYNCHRONOUS)] == []


def test_a_row_of_next_to_nothing_is_named() -> None:
    speeds = (100.0, 190.0, 1e-310, 340.0, 400.0)
    [row] = find_suspects(with_speeds(speeds).observations(64.0), SYNCHRONOUS)
    [fit] = fit_and_predict(with_speeds(speeds), with_speeds(speeds))
    assert row.row == 2
    assert any("left out" in warning for warning in fit.warnings)


def with_speeds(speeds: tuple[float, ...]) -> Table:
    n = len(speeds)
    at = Configurations.of(np.arange(1.0, n + 1), np.ones(n))
    numbers = tuple(range(1, n + 1))
    return Table("t.csv", "steps", at, np.array(speeds), ("",) * n, ("sync",) * n, numbers=numbers)


def test_a_corrupt_row_of_a_long_table_is_named_wherever_it_stands() -> None:
    table = table_of(steps, 1, most_workers=100, noise=0.02)
    n, at = len(table), np.arange(len(table))
    judged = np.unique(np.linspace(0, n - 1, 400).astype(int))
    unjudged = np.setdiff1d(at, judged)
    for row in (int(judged[37]), int(unjudged[5])):
        observations = with_speed(table, row, 12 * table.throughput[row]).observations(64.0)
        assert [suspect.row for suspect in find_suspects(observations, SYNCHRONOUS)] == [row]


@pytest.mark.parametrize("seed", SEEDS)
def test_one_size_measured_twice_threefold_apart_is_named(seed: int) -> None:
    table = table_of(steps, seed)
    train, test = split_table(table, 10, seed)
    twice = train.take([*range(10), 0])
    [fit] = fit_and_predict(with_speed(twice, 10, 3 * twice.throughput[0]), test)
    assert fit.covered().mean() >= 0.8 or any("one size" in warning for warning in fit.warnings)
    name = f"row {train.numbers[0]} ("
    assert any(name in warning for warning in fit.warnings)


def test_a_table_that_the_form_describes_is_not_doubted() -> None:
    doubted = 0
    for seed in SEEDS:
        [fit] = fit_and_predict(*split_table(table_of(steps, seed), 12, seed))
        doubted += any("left out" in warning for warning in fit.warnings)
        assert median_error(fit) <= 0.1
    assert doubted == 0


def test_guesses_stand_in_the_predictions_and_in_the_json_line(tmp_path: Path) -> None:
    table = table_of(steps, 1)
    far = Table(
        "far.csv",
        "steps",
        Configurations.of([4.0, 4000.0], [2.0, 2.0]),
        np.full(2, np.nan),
        ("", ""),
        (None,) * 2,
    )
    fits = fit_and_predict(table.take(range(0, 90, 9)), far)
    write_predictions(tmp_path / "out.csv", fits)
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["guess"] for row in rows] == ["no", "yes"]
    assert '"guesses":1' in json_line(fits)
    assert "beyond what was measured" in json_line(fits)
