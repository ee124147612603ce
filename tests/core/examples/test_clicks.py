"""The generator of click logs: Criteo's shape and skew, a planted signal, the same file for the same seed."""

import json

import clicks
import numpy as np

from rover_bus.client.data import ClickLog, Schema


def test_the_files_are_raw_criteo_and_every_row_can_be_used(tmp_path):
    clicks.write(tmp_path / "log.tsv", 10_000, seed=3)
    lines = (tmp_path / "log.tsv").read_text().splitlines()
    assert len(lines) == 10_000
    assert {line.count("\t") for line in lines} == {39}
    log = ClickLog(tmp_path / "log.tsv", Schema(format="criteo"))
    columns, _, skipped = log.read(np.arange(log.records))
    assert (len(columns), skipped) == (10_000, ())
    assert 0.1 < columns.values_missing / columns.dense.size < 0.3
    assert 0.15 < columns.labels.mean() < 0.4


def test_text_holds_exactly_the_drawn_values():
    drawn = clicks.draw(500, seed=1)
    rows = [line.split("\t") for line in clicks.encode(drawn, seed=1).decode().splitlines()]
    assert [int(row[0]) for row in rows] == drawn.labels.tolist()
    for row, counts, empty, ranks in zip(rows, drawn.counts, drawn.empty, drawn.ranks, strict=True):
        assert row[1:14] == ["" if gone else str(count) for count, gone in zip(counts, empty, strict=True)]
        assert [len(value) for value in row[14:]] == [0 if rank < 0 else 8 for rank in ranks]
        assert all(set(value) <= set("0123456789abcdef") for value in row[14:])
    assert (drawn.counts < 0).any()


def test_ids_are_skewed_and_frequent_ones_recur():
    ranks = clicks.draw(20_000, seed=1).ranks[:, -1]
    ids, counts = np.unique(ranks[ranks >= 0], return_counts=True)
    assert counts.max() / counts.sum() > 0.02
    assert len(ids) > 2000


def test_the_signal_is_planted_and_its_best_auc_is_known(tmp_path):
    best = clicks.write(tmp_path / "log.tsv", 20_000, seed=5)
    assert 0.75 < best < 0.95


def test_a_seed_fixes_the_file_and_streams_share_a_world(tmp_path):
    paths = [tmp_path / name for name in ("a", "b", "other", "eval")]
    for path, seed, stream in zip(paths, (1, 1, 2, 1), (0, 0, 0, 1), strict=True):
        clicks.write(path, 3000, seed, stream)
    a, b, other, evaluation = (path.read_bytes() for path in paths)
    assert a == b
    assert len({a, other, evaluation}) == 3
    ids = [{line.split(b"\t")[14] for line in text.splitlines()} for text in (a, evaluation, other)]
    assert ids[0] == ids[1]
    assert len(ids[0] & ids[2]) <= 1  # only the empty one


def test_the_command_writes_both_files_and_says_what_they_are(tmp_path, capsys):
    train, evaluate = str(tmp_path / "train.tsv"), str(tmp_path / "eval.tsv")
    clicks.main([train, evaluate, "--rows", "9000", "--eval-rows", "500", "--seed", "2"])
    made = json.loads(capsys.readouterr().out)
    assert (made["train"]["rows"], made["evaluate"]["rows"]) == (9000, 500)
    assert ClickLog(train, Schema(format="criteo")).records == 9000
    assert ClickLog(evaluate, Schema(format="criteo")).records == 500
