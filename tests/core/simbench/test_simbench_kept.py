"""Finished cells are kept, believed only under the same worlds and conditions, and survive a broken last line."""

from __future__ import annotations

from pathlib import Path

from bench.simulation.experiment import BOUND, OURS
from bench.simulation.kept import Kept
from bench.simulation.pieces import collect

CONDITIONS = {"calm": False, "restart_s": 660.0, "arrivals": "uniform"}


def test_what_was_kept_is_not_run_again_and_what_is_missing_is(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    Kept(path, "digest").add(
        "W1", 1.0, 7, CONDITIONS, {"ours": {"jct_mean_s": 1.0}, BOUND: {"jct_mean_s": 0.5}}
    )
    with path.open("a") as file:
        file.write('{"key": "broken off whi')
    again = Kept(path, "digest")
    assert again.missing("W1", 1.0, 7, CONDITIONS, ["theirs", "ours"]) == ("theirs",)
    assert again.missing("W1", 1.0, 8, CONDITIONS, ["ours"]) == ("ours",)
    again.add("W1", 1.0, 7, CONDITIONS, {"theirs": {"jct_mean_s": 2.0}, BOUND: {"jct_mean_s": 0.5}})
    assert list(again.cell("W1", 1.0, 7, CONDITIONS, ["theirs", "ours"])) == ["theirs", "ours", BOUND]
    assert Kept(path, "digest").missing("W1", 1.0, 7, CONDITIONS, ["theirs", "ours"]) == ()


def test_cells_of_other_worlds_or_conditions_are_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    Kept(path, "digest").add("W1", 1.0, 7, CONDITIONS, {"ours": {}})
    assert Kept(path, "another").missing("W1", 1.0, 7, CONDITIONS, ["ours"]) == ("ours",)
    assert Kept(path, "digest").missing("W1", 1.0, 7, {**CONDITIONS, "calm": True}, ["ours"]) == ("ours",)
    assert Kept(path, "digest").missing("W1", 1.0, 7, CONDITIONS, ["ours"]) == ()


def test_a_report_from_pieces_compares_every_policy_on_the_seeds_that_it_was_run_on(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "cells.jsonl", "digest")
    for seed in (1, 2, 3):
        kept.add("W1", 1.0, seed, CONDITIONS, {OURS: {"jct_mean_s": seed}, "a": {}, BOUND: {}})
    kept.add("W1", 1.0, 2, CONDITIONS, {"b": {}})
    kept.add("W1", 1.0, 4, CONDITIONS, {"a": {}, BOUND: {}})
    kept.add("W1", 1.0, 1, {**CONDITIONS, "calm": True}, {OURS: {}, "a": {}, BOUND: {}})
    cells = collect(Kept(tmp_path / "cells.jsonl", "digest"))
    assert list(cells) == ["W1 load 1, 3 seeds", "W1 load 1, 1 seeds", "W1 load 1 calm, 1 seeds"]
    assert [list(cell) for cell in cells["W1 load 1, 3 seeds"]] == [["a", OURS, BOUND]] * 3
    assert cells["W1 load 1, 1 seeds"] == [{"b": {}, OURS: {"jct_mean_s": 2}, BOUND: {}}]
    assert collect(Kept(tmp_path / "cells.jsonl", "another")) == {}
