"""The frame is measured by one command that can be broken off, and the gate runs or says that it does not."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from bench.simulation.__main__ import main
from bench.simulation.frame import CELLS


def command(*arguments: str) -> Result:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def test_the_frame_goes_on_where_it_was_broken_off_and_says_that_the_gate_did_not_run(tmp_path: Path) -> None:
    frame = ("frame", "--keep", str(tmp_path / "cells.jsonl"), "--cell", "W4 load 1")
    whole = int(command(*frame, "--list").output.split()[-3])
    first = command(*frame, "--most", "2").output
    assert "W4: the gate did not run: it is tautological" in first
    assert f"{whole - 2} runs of the frame are left" in first
    again = command(*frame, "--most", "1").output
    assert f"{whole - 3} runs of the frame are left" in again
    assert "static user" in first
    assert "static user" not in again, "what was measured is not measured again"


def test_every_cell_of_the_frame_has_each_rival_with_our_mechanisms_too() -> None:
    for _, _, policies in CELLS:
        equipped = [name for name in policies if name.endswith(", our mechanisms") and "oracle" not in name]
        assert len(equipped) == 6
        assert {name.removesuffix(", our mechanisms") for name in equipped} <= set(policies)


def test_a_run_without_a_gate_says_so(tmp_path: Path) -> None:
    said = command(
        "run", "--world", "W4", "--policy", "static user", "--develop", "--seeds", "1", "--no-gate"
    ).output
    assert "W4: the gate did not run: --no-gate" in said
