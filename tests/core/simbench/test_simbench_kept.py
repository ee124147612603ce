"""Finished cells are kept, believed only under the same worlds and conditions, and survive a broken last line."""

from __future__ import annotations

from pathlib import Path

from bench.simulation.experiment import BOUND
from bench.simulation.kept import Kept

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
