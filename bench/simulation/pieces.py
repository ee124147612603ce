"""A report from pieces: cells that were run one seed at a time, some policies on more seeds than others.

Fed by `kept`, feeds `report`. Every policy is compared on exactly the seeds that it and ours were run on: policies that share their
seeds share a cell, and the cell says how many there are.
"""

from __future__ import annotations

import json
from typing import Any

from bench.simulation.experiment import BOUND, OURS, Figures
from bench.simulation.kept import Kept
from bench.simulation.report import Cells


def label_of(world: str, load: float, conditions: dict[str, Any]) -> str:
    """What a cell is called."""
    said = [f"{world} load {load:g}"]
    said += ["calm"] * conditions["calm"]
    said += [conditions["arrivals"]] * (conditions["arrivals"] != "uniform")
    said += [f"restart {conditions['restart_s']:g} s"] * (conditions["restart_s"] != 660)
    return " ".join(said)


def collect(kept: Kept, former: bool = False) -> Cells:
    """Every cell of a file: ours, the policies that were run on the same seeds, and the bound; most seeds first.

    `former`: also policies as they were before they were changed.
    """
    cells: Cells = {}
    for (world, load, conditions), by_seed in sorted(kept.groups(former).items()):
        label = label_of(world, load, dict(json.loads(conditions)))
        for seeds, policies in _groups(by_seed):
            cells[f"{label}, {len(seeds)} seeds"] = [
                {name: by_seed[seed][name] for name in policies} for seed in seeds
            ]
    return cells


def _groups(by_seed: dict[int, dict[str, Figures]]) -> list[tuple[list[int], list[str]]]:
    """Seeds and policies of each cell; without ours where no seed has it yet, without the bound where a seed lacks it."""
    ours = {seed for seed, cell in by_seed.items() if OURS in cell} or set(by_seed)
    names = dict.fromkeys(name for cell in by_seed.values() for name in cell if name not in (OURS, BOUND))
    shared: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        seeds = tuple(sorted(seed for seed in ours if name in by_seed[seed]))
        if seeds:
            shared.setdefault(seeds, []).append(name)
    most_first = sorted(shared.items(), key=lambda item: -len(item[0]))
    return [
        (list(seeds), [*policies, *(n for n in (OURS, BOUND) if all(n in by_seed[seed] for seed in seeds))])
        for seeds, policies in most_first
    ]
