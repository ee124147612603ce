"""`rover fit` behind its command: tables in, predictions out, faults named by row."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rover_bus.brain.fitting import (
    Probe,
    choose_and_predict,
    fit_and_predict,
    json_line,
    left_out_text,
    plot_predictions,
    split_table,
    write_predictions,
)
from rover_bus.brain.tables import CANDIDATES, LeftOut, read_table
from rover_bus.events.errors import InputError


def speed(workers: int, ps: int) -> float:
    """Steps a second of a synchronous job, batch 64."""
    return 1 / (0.3 / workers + 0.01 + 0.02 * workers / ps + 0.001 * workers + 0.01 / ps)


def write(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\r\n".join([header, *rows]) + "\r\n")
    return path


@pytest.fixture
def speeds(tmp_path: Path) -> Path:
    pairs = [(w, p) for w in range(1, 13) for p in range(1, 6)]
    rows = [
        f"{group},{w},{p},{speed(w, p) * scale:.6f},64"
        for group, scale in (("a", 1), ("b", 3))
        for w, p in pairs
    ]
    return write(tmp_path / "speeds.csv", "group,workers,ps,throughput,batch_size", *rows)


def test_a_split_by_seed_fits_each_group_and_predicts_its_unseen_rows(speeds: Path) -> None:
    table = read_table(speeds)
    train, test = split_table(table, 12, seed=3)
    fits = fit_and_predict(train, test)
    assert [(fit.group, fit.samples, len(fit.errors())) for fit in fits] == [("a", 12, 48), ("b", 12, 48)]
    assert all(np.median(fit.errors()) < 0.03 for fit in fits)
    again, _ = split_table(table, 12, seed=3)
    assert list(again.configurations) == list(train.configurations)
    other, _ = split_table(table, 12, seed=4)
    assert list(other.configurations) != list(train.configurations)


def test_the_json_line_holds_what_the_issue_names(speeds: Path) -> None:
    fits = fit_and_predict(*split_table(read_table(speeds), 10, seed=0))
    groups = json.loads(json_line(fits))["groups"]
    names = [
        "group",
        "model",
        "samples",
        "unseen",
        "median_error",
        "p90_error",
        "coverage_90",
        "guesses",
        "warnings",
    ]
    assert [list(group) for group in groups] == [names, names]
    assert groups[0]["samples"] == 10
    assert 0 <= groups[0]["median_error"] <= groups[0]["p90_error"]
    assert 0.5 <= groups[0]["coverage_90"] <= 1


def test_one_file_is_fitted_and_the_other_predicted_without_its_throughput(
    speeds: Path, tmp_path: Path
) -> None:
    test = read_table(
        write(tmp_path / "test.csv", "group,workers,ps,batch_size", "a,20,4,64", "b,2,2,64"), measured=False
    )
    out = tmp_path / "out.csv"
    write_predictions(out, fit_and_predict(read_table(speeds), test))
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [(row["group"], row["workers"], row["ps"]) for row in rows] == [("a", "20", "4"), ("b", "2", "2")]
    for row, truth in zip(rows, (speed(20, 4), 3 * speed(2, 2)), strict=True):
        assert float(row["predicted"]) == pytest.approx(truth, rel=0.1)
        assert float(row["low_90"]) < float(row["predicted"]) < float(row["high_90"])


def test_steps_and_samples_of_one_job_give_the_same_prediction(tmp_path: Path) -> None:
    pairs = [(w, p) for w in (1, 2, 4, 8, 12) for p in (1, 2, 4)]
    header = "workers,ps,throughput,batch_size,mode"
    steps = write(tmp_path / "a.csv", header, *(f"{w},{p},{speed(w, p)},64,sync" for w, p in pairs))
    samples = write(tmp_path / "b.csv", header, *(f"{w},{p},{64 * speed(w, p)},64,sync" for w, p in pairs))
    first = read_table(steps)
    second = read_table(samples, unit="samples")
    one, two = (fit_and_predict(table, table)[0].prediction for table in (first, second))
    assert one is not None
    assert two is not None
    np.testing.assert_allclose(two.throughput, 64 * one.throughput, rtol=1e-5)


@pytest.mark.parametrize("seed", [0, 5])
def test_the_model_chooses_its_own_probes_and_reads_only_workers_and_servers(
    tmp_path: Path, seed: int
) -> None:
    rows = [f"{w},{p},12345" for w in range(1, 21) for p in range(1, 11)]
    table = read_table(write(tmp_path / "candidates.csv", "workers,ps,throughput", *rows), measured=False)
    asked: list[tuple[int, int]] = []
    told: list[Probe] = []

    def measure(workers: int, ps: int) -> float:
        asked.append((workers, ps))
        return speed(workers, ps)

    probes, fit = choose_and_predict(table, 10, measure, seed=seed, on_probe=told.append)
    assert probes == told
    assert [(probe.workers, probe.ps) for probe in probes] == asked
    assert len(set(asked)) == 10
    assert fit.prediction is not None
    truth = np.array([speed(w, p) for w in range(1, 21) for p in range(1, 11)])
    assert np.median(np.abs(fit.prediction.throughput / truth - 1)) < 0.03


def test_a_probe_that_fails_counts_is_named_and_is_not_repeated(tmp_path: Path) -> None:
    rows = [f"{w},{p}" for w in range(1, 9) for p in range(1, 5)]
    table = read_table(write(tmp_path / "candidates.csv", "workers,ps", *rows), measured=False)
    probes, fit = choose_and_predict(table, 9, lambda w, p: 0.0 if w > 6 else speed(w, p))
    assert len({(probe.workers, probe.ps) for probe in probes}) == 9
    failed = [probe for probe in probes if np.isnan(probe.throughput)]
    assert failed
    assert all(probe.workers > 6 for probe in failed)
    assert fit.samples == 9 - len(failed)


def test_rows_without_a_throughput_above_zero_are_named_and_left_out(tmp_path: Path) -> None:
    rows = ["1,1,5", "2,1,0.0", "3,1,nan", "4,1,", "5,1,-3", "6,1,inf", "7,1,n/a", "8,1,9"]
    table = read_table(write(tmp_path / "x.csv", "workers,ps,throughput", *rows))
    assert len(table) == 2
    assert [row.row for row in table.left_out] == [2, 3, 4, 5, 6, 7]
    assert left_out_text("x.csv", table.left_out)[0] == "x.csv, row 2: left out, throughput is 0.0"


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("workers,ps,throughput", "two,1,5", r"row 1: workers is 'two', not a number above 0"),
        ("workers,ps,throughput", "2.5,1,5", r"row 1: workers is 2.5, not a whole number"),
        ("workers,ps,throughput", "0,1,5", r"row 1: workers is '0', not a number above 0"),
        ("workers,ps,throughput,ps_cores", "2,1,5,", r"row 1: ps_cores is '', not a number above 0"),
        ("workers,ps,throughput,mode", "2,1,5,maybe", r"row 1: mode is 'maybe'; write sync or async"),
        ("workers,ps,throughput", "2,1,5,7", r"row 1: 4 fields where the header has 3"),
        (
            "worker,ps,throughput",
            "2,1,5",
            r"no column 'workers' among worker, ps, throughput; is it 'worker'\?",
        ),
        ("workers,ps,throughput,ps", "2,1,5,1", r"column 'ps' stands twice"),
    ],
)
def test_a_faulty_table_is_refused_by_row_and_column(
    tmp_path: Path, header: str, row: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_table(write(tmp_path / "x.csv", header, row))


def test_missing_empty_and_binary_files_are_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    for name in ("missing.csv", "empty.csv", "binary.csv", "."):
        with pytest.raises(InputError):
            read_table(tmp_path / name)


def test_too_few_rows_are_said_to_be_not_enough_and_not_guessed(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "x.csv", "workers,ps,throughput", "1,1,5", "2,1,9"))
    fit = fit_and_predict(table, table)[0]
    assert fit.prediction is None
    assert fit.name.startswith("not enough")
    assert json.loads(json_line([fit]))["groups"][0]["median_error"] is None


def test_a_group_that_was_never_measured_is_refused(speeds: Path, tmp_path: Path) -> None:
    test = read_table(write(tmp_path / "test.csv", "group,workers,ps", "c,20,4"), measured=False)
    with pytest.raises(InputError, match="group 'c' is not in"):
        fit_and_predict(read_table(speeds), test)


def test_a_group_that_mixes_modes_is_refused(tmp_path: Path) -> None:
    rows = [f"{w},1,5,{'sync' if w % 2 else 'async'}" for w in range(1, 9)]
    table = read_table(write(tmp_path / "x.csv", "workers,ps,throughput,mode", *rows))
    with pytest.raises(InputError, match="mixes sync and async"):
        fit_and_predict(table, table)


def test_the_plot_is_a_picture(speeds: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_predictions(tmp_path / "out.png", fit_and_predict(*split_table(read_table(speeds), 10, seed=0)))
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "text",
    [
        "workers;ps;throughput\n1;1;5,5\n2;1;9\n",
        "workers\tps\tthroughput\n1\t1\t5.5\n2\t1\t9\n",
        " Workers ,PS,Throughput\n1,1,5.5\n2,1,9\n",
        "\ufeffworkers,ps,throughput\r\n1,1,5.5\r\n\r\n2,1,9\r\n",
        "workers,ps,throughput\r1,1,5.5\r2,1,9",
    ],
    ids=["semicolons", "tabs", "capitals", "mark and CRLF", "CR"],
)
def test_a_table_reads_the_same_however_its_tool_writes_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.csv").write_bytes(text.encode())
    table = read_table(tmp_path / "x.csv")
    assert table.throughput.tolist() == [5.5, 9.0]
    assert table.configurations.workers.tolist() == [1.0, 2.0]


def test_of_candidates_nothing_but_workers_and_servers_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", "workers,ps,throughput,batch_size,mode", "1,1,nan,0,maybe", "2,1,,,")
    table = read_table(path, measured=False, columns=CANDIDATES)
    assert table.configurations.workers.tolist() == [1.0, 2.0]
    assert table.left_out == ()


def test_a_table_without_names_says_what_its_first_line_must_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the first line must name the columns"):
        read_table(write(tmp_path / "x.csv", "1,1,5.5", "2,1,9"))


def test_a_cell_is_repeated_without_what_a_terminal_would_obey(tmp_path: Path) -> None:
    table = read_table(
        write(tmp_path / "x.csv", "workers,ps,throughput", "1,1,\x1b[2Jfast", f"2,1,{'9x' * 500}")
    )
    said = [row.reason for row in table.left_out]
    assert said[0] == r"throughput is '\x1b[2Jfast'"
    assert len(said[1]) < 80


def test_of_very_many_rows_that_are_left_out_the_first_are_named_and_the_others_counted() -> None:
    said = left_out_text("x.csv", [LeftOut(row, "throughput is 0") for row in range(1, 1502)])
    assert len(said) == 1001
    assert said[-1] == "x.csv: 501 rows more are left out"


@pytest.mark.parametrize("scale", [1e-290, 1e290])
def test_astronomic_throughput_is_predicted_as_well_as_any(speeds: Path, scale: float) -> None:
    usual = read_table(speeds)
    scaled = replace(usual, throughput=usual.throughput * scale)
    ours = fit_and_predict(*split_table(scaled, 12, seed=3))[0]
    theirs = fit_and_predict(*split_table(usual, 12, seed=3))[0]
    assert ours.prediction is not None
    assert theirs.prediction is not None
    assert ours.prediction.throughput / scale == pytest.approx(theirs.prediction.throughput, rel=1e-6)


def test_files_that_cannot_be_written_are_one_clear_error(speeds: Path, tmp_path: Path) -> None:
    fits = fit_and_predict(*split_table(read_table(speeds), 10, seed=0))
    with pytest.raises(InputError, match="No such file or directory; name a file that can be written"):
        write_predictions(tmp_path / "nowhere" / "out.csv", fits)


def test_a_picture_of_no_known_format_is_one_clear_error(speeds: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    fits = fit_and_predict(*split_table(read_table(speeds), 10, seed=0))
    with pytest.raises(InputError, match="'foo' is not supported"):
        plot_predictions(tmp_path / "out.foo", fits)
