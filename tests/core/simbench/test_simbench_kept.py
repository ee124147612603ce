"""Finished cells are kept, believed only of the same worlds, policies and conditions, and survive a broken last line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench.simulation import kept as kept_module
from bench.simulation import sources
from bench.simulation.experiment import BOUND, OURS, POLICIES
from bench.simulation.kept import Kept, ground_digest, policy_digest
from bench.simulation.pieces import collect
from bench.simulation.worlds import DATA_VARIABLE

CONDITIONS = {"calm": False, "restart_s": 660.0, "arrivals": "uniform"}
A, B, C = "well-tuned static", "elastic scheduler", "static user"
FOREIGN, PACKAGED = "somebodys_world:Mine", "package.worlds.mine:Mine"
WORLD = """
import json
from pathlib import Path
import {other}
from bench.simulation.world import World

class Mine(World):
    def files(self):
        return [Path("{data}")]
"""


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a foreign module, which imports one beside it, a package whose world imports from another folder, and data."""
    folder = tmp_path / "theirs"
    for within in ("", "package", "package/worlds", "package/laws", "package/whole"):
        (folder / within).mkdir()
    (folder / "somebodys_world.py").write_text(WORLD.format(other="somebodys_curves", data=folder / "data"))
    (folder / "somebodys_curves.py").write_text("SLOPE = 1\n")
    inner = WORLD.format(other="package.laws.curve", data=folder / "data")
    (folder / "package/worlds/mine.py").write_text(inner)
    (folder / "package/whole/__init__.py").write_text(inner)
    (folder / "package/laws/curve.py").write_text("SLOPE = 1\n")
    (folder / "data").write_text("1")
    monkeypatch.syspath_prepend(str(folder))
    forget()
    return folder


def forget() -> None:
    """As another process would find it."""
    for name in [name for name in sys.modules if name.startswith(("somebodys", "package"))]:
        del sys.modules[name]
    for cached in (sources._file, sources._sources, kept_module.ground_digest, kept_module.policy_digest):
        cached.cache_clear()


def test_what_was_kept_is_not_run_again_and_what_is_missing_is(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    Kept(path).add("W1", 1.0, 7, CONDITIONS, {A: {"jct_mean_s": 1.0}, BOUND: {"jct_mean_s": 0.5}})
    with path.open("a") as file:
        file.write('{"key": "broken off whi')
    again = Kept(path)
    assert again.missing("W1", 1.0, 7, CONDITIONS, [B, A, BOUND]) == (B,)
    assert again.missing("W1", 1.0, 8, CONDITIONS, [A]) == (A,)
    again.add("W1", 1.0, 7, CONDITIONS, {B: {"jct_mean_s": 2.0}})
    assert list(again.figures("W1", 1.0, 7, CONDITIONS, [B, A, BOUND])) == [B, A, BOUND]
    assert Kept(path).missing("W1", 1.0, 7, CONDITIONS, [B, A]) == ()


def test_cells_of_other_conditions_are_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    Kept(path).add("W1", 1.0, 7, CONDITIONS, {A: {}})
    assert Kept(path).missing("W1", 1.0, 7, {**CONDITIONS, "calm": True}, [A]) == (A,)
    assert Kept(path).missing("W1", 1.0, 7, CONDITIONS, [A]) == ()


@pytest.mark.parametrize(
    ("world", "file"),
    [
        (FOREIGN, "somebodys_world.py"),
        (FOREIGN, "somebodys_curves.py"),
        (FOREIGN, "data"),
        (PACKAGED, "package/laws/curve.py"),
        ("package.whole:Mine", "package/laws/curve.py"),
    ],
)
def test_cells_of_somebodys_world_are_run_again_when_it_what_it_imports_or_what_it_reads_was_edited(
    tmp_path: Path, foreign: Path, world: str, file: str
) -> None:
    path = tmp_path / "cells.jsonl"
    Kept(path).add(world, 1.0, 7, CONDITIONS, {A: {}})
    forget()
    assert Kept(path).missing(world, 1.0, 7, CONDITIONS, [A]) == ()
    (foreign / file).write_text((foreign / file).read_text() + "# edited\n")
    forget()
    assert Kept(path).missing(world, 1.0, 7, CONDITIONS, [A]) == (A,)
    assert Kept(path).groups() == {}


def test_cells_of_a_world_that_inherits_w2_are_run_again_when_its_speeds_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bent, path, speeds = (
        "bench.simulation.bent_world:Bent",
        tmp_path / "cells",
        tmp_path / "ps_worker_speeds.csv",
    )
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    speeds.write_text("model\n")
    forget()
    Kept(path).add(bent, 1.0, 7, CONDITIONS, {A: {}})
    speeds.write_text("other\n")
    forget()
    assert Kept(path).missing(bent, 1.0, 7, CONDITIONS, [A]) == (A,)


def test_cells_of_worlds_that_are_gone_are_passed_over(tmp_path: Path, foreign: Path) -> None:
    path = tmp_path / "cells"
    for world in ("W9", "nowhere:Mine", "somebodys_world:Gone"):
        key = json.dumps(["0" * 16, world, 1.0, 7, []])
        path.write_text(json.dumps({"key": key, "cell": {A: {}}}) + "\n")
        assert ground_digest(world) == "absent"
        assert Kept(path).groups() == {}


def test_an_edited_policy_is_run_again_and_its_rivals_are_not(tmp_path: Path, foreign: Path) -> None:
    path = tmp_path / "cells.jsonl"
    Kept(path).add("W1", 1.0, 7, CONDITIONS, {A: {}, FOREIGN: {"jct_mean_s": 3.0}})
    (foreign / "somebodys_world.py").write_text("# another policy\n")
    forget()
    assert Kept(path).missing("W1", 1.0, 7, CONDITIONS, [A, FOREIGN]) == (FOREIGN,)
    ((seeds,),) = [Kept(path).groups().values()]
    assert list(seeds[7]) == [A]
    ((former,),) = [Kept(path).groups(former=True).values()]
    assert [name.partition("@")[0] for name in former[7]] == [A, FOREIGN], "the frame stays readable"


def test_a_policy_that_calls_no_rule_of_the_brain_does_not_grow_old_with_the_brain() -> None:
    files = {name: sources._sources(module, sources._file(module)) for name, module in MODULES.items()}  # type: ignore[arg-type]
    rounds = next(file for file in files[OURS] if file.name == "rounds.py")
    assert rounds not in files[A]
    digests = [policy_digest(name) for name in POLICIES]
    assert len(set(digests)) == len(digests), "two policies of one class differ by what they are made with"


MODULES = {A: "bench.simulation.policies.static", OURS: "bench.simulation.policies.live"}


def test_the_measured_speeds_are_part_of_w2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    for row in ("", "more"):
        (tmp_path / "ps_worker_speeds.csv").write_text(row)
        monkeypatch.setenv("ROVER_THROUGHPUT_DATA", str(tmp_path))
        forget()
        digests.add(ground_digest("W2"))
    forget()
    assert len(digests) == 2


def test_a_report_from_pieces_compares_every_policy_on_the_seeds_that_it_was_run_on(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "cells.jsonl")
    for seed in (1, 2, 3):
        kept.add("W1", 1.0, seed, CONDITIONS, {OURS: {"jct_mean_s": seed}, A: {}, BOUND: {}})
    kept.add("W1", 1.0, 2, CONDITIONS, {B: {}})
    kept.add("W1", 1.0, 4, CONDITIONS, {A: {}, BOUND: {}})
    kept.add("W1", 1.0, 1, {**CONDITIONS, "calm": True}, {OURS: {}, A: {}, BOUND: {}})
    cells = collect(Kept(tmp_path / "cells.jsonl"))
    assert list(cells) == ["W1 load 1, 3 seeds", "W1 load 1, 1 seeds", "W1 load 1 calm, 1 seeds"]
    assert [list(cell) for cell in cells["W1 load 1, 3 seeds"]] == [[A, OURS, BOUND]] * 3
    assert cells["W1 load 1, 1 seeds"] == [{B: {}, OURS: {"jct_mean_s": 2}, BOUND: {}}]
    broken = [json.loads(line) for line in (tmp_path / "cells.jsonl").read_text().splitlines()]
    assert all("@" in name for line in broken for name in line["cell"] if name != BOUND)


def test_a_report_of_a_frame_that_was_broken_off_shows_what_there_is(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "cells.jsonl")
    kept.add("W1", 1.0, 1, CONDITIONS, {A: {"jct_mean_s": 1.0}, B: {"jct_mean_s": 2.0}})
    ((cell,),) = collect(Kept(tmp_path / "cells.jsonl")).values()
    assert list(cell) == [A, B], "neither ours nor the bound has been run"
    kept.add("W1", 1.0, 1, CONDITIONS, {OURS: {"jct_mean_s": 1.5}})
    ((cell,),) = collect(Kept(tmp_path / "cells.jsonl")).values()
    assert list(cell) == [A, B, OURS]
