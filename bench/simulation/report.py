"""What people read: the table of every cell, the losses on a page of their own, plots, JSON.

Fed by the cells of an experiment; writes `result.json`, `report.html`, `jct.png`, `use.png` and, where asked,
`docs/where-we-lose.md`. matplotlib is
imported only when plots are drawn.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import numpy as np

from bench.simulation.budget import ITEMS
from bench.simulation.experiment import BOUND, OURS, Figures, bootstrap, change_of, column

COLUMNS = {
    "jct_mean_s": "JCT mean s",
    "jct_median_s": "median",
    "jct_p95_s": "p95",
    "jct_p99_s": "p99",
    "makespan_s": "makespan s",
    "completion": "completed",
    "completion_small": "small",
    "completion_large": "large",
    "cpu_use": "CPU use",
    "memory_use": "memory use",
    "core_hours": "core hours",
    "oom_kills": "OOM kills",
    "samples_lost_share": "lost",
    "rescales": "rescales",
    "stopped_minutes": "stopped min",
    "cpu_s": "CPU s",
}
# Rows that know the truth are no rivals: they cannot be deployed.
UNDEPLOYABLE = ("oracle", "oracle, our mechanisms", "perfect samples", BOUND)
_LOWER_IS_BETTER = (
    "jct_mean_s",
    "jct_median_s",
    "jct_p95_s",
    "jct_p99_s",
    "makespan_s",
    "core_hours",
    "oom_kills",
)
_HIGHER_IS_BETTER = ("completion", "cpu_use", "memory_use")

Cells = dict[str, list[dict[str, Figures]]]  # by "world load", one entry a seed


def table(cells: list[dict[str, Figures]]) -> list[list[str]]:
    """Rows of a cell: policy, every figure's mean over seeds, the interval of the mean JCT, and ours against it."""
    rows = [["policy", *COLUMNS.values(), "95 % of the mean", "ours against it (95 %)"]]
    for policy in cells[0]:
        means = [
            _short(float(np.nanmean(column(cells, policy, name)))) if name in cells[0][policy] else ""
            for name in COLUMNS
        ]
        jct = column(cells, policy, "jct_mean_s")
        _, low, high = bootstrap(jct)
        against = ""
        if OURS in cells[0] and policy != OURS:
            change, worst, best = change_of(column(cells, OURS, "jct_mean_s"), jct)
            against = f"{100 * change:+.1f} % ({100 * worst:+.1f} .. {100 * best:+.1f})"
        rows.append([policy, *means, f"{low:.0f} .. {high:.0f}", against])
    return rows


def budget_table(cells: list[dict[str, Figures]]) -> list[list[str]]:
    """Where the mean completion time of each policy goes, seconds a job (`budget`); the last column is the sum."""
    rows = [["seconds a job", *(item.removesuffix("_s") for item in ITEMS), "sum"]]
    for policy, figures in cells[0].items():
        if f"budget_{ITEMS[0]}" in figures:
            means = [float(np.nanmean(column(cells, policy, f"budget_{item}"))) for item in ITEMS]
            rows.append([policy, *(f"{mean:.0f}" for mean in [*means, sum(means)])])
    return rows


def losses(all_cells: Cells) -> list[tuple[str, str, str, float, float, float]]:
    """Every (cell, rival, figure) in which ours is worse: its value, the rival's, and in how many of the seeds (share)."""
    found = []
    for cell, seeds in all_cells.items():
        if OURS not in seeds[0]:
            continue
        for rival in seeds[0]:
            if rival == OURS or rival.partition("@")[0] in UNDEPLOYABLE:
                continue
            for name in (*_LOWER_IS_BETTER, *_HIGHER_IS_BETTER):
                a, b = np.array(column(seeds, OURS, name)), np.array(column(seeds, rival, name))
                worse = a > b if name in _LOWER_IS_BETTER else a < b
                lost = a.mean() > b.mean() if name in _LOWER_IS_BETTER else a.mean() < b.mean()
                if lost:
                    found.append((cell, rival, name, float(a.mean()), float(b.mean()), float(worse.mean())))
    return found


def losses_page(all_cells: Cells, remarks: dict[str, Any]) -> str:
    """The page of all losses, in Markdown."""
    lines = [
        "# Where we lose",
        "",
        "Every cell of the simulation benchmark in which a policy that could be deployed beats {1+2+3} in the mean",
        "over the seeds, figure by figure. Written by `python -m bench.simulation run`; nothing is left out. What the",
        "rivals pay for it stands in the tables of the report.",
        "",
        *(f"- {name}: {value}" for name, value in remarks.items()),
        "",
        "| cell | rival | figure | ours | theirs | ours worse in |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {cell} | {rival} | {COLUMNS[name]} | {_short(a)} | {_short(b)} | {100 * share:.0f} % of the seeds |"
        for cell, rival, name, a, b, share in losses(all_cells)
    ]
    return "\n".join(lines) + "\n"


def write_report(directory: Path, all_cells: Cells, remarks: dict[str, Any]) -> None:
    """Write JSON, plots and HTML into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "result.json").write_text(json.dumps({"remarks": remarks, "cells": all_cells}, indent=1))
    _plot(directory, all_cells)
    parts = [
        "<!doctype html><meta charset=utf-8><title>Simulation benchmark</title>",
        "<h1>Simulation benchmark</h1>",
    ]
    parts.append("<ul>" + "".join(f"<li>{html.escape(f'{k}: {v}')}" for k, v in remarks.items()) + "</ul>")
    parts += ['<img src="jct.png" width=900>', '<img src="use.png" width=900>']
    for cell, seeds in all_cells.items():
        head, *body = table(seeds)
        parts.append(f"<h2>{html.escape(cell)} ({len(seeds)})</h2><table border=1 cellpadding=3><tr>")
        parts.append("".join(f"<th>{html.escape(name)}" for name in head))
        parts += ["<tr>" + "".join(f"<td>{html.escape(value)}" for value in row) for row in body]
        parts.append("</table>")
    parts.append("<h2>Where we lose</h2><table border=1 cellpadding=3>")
    parts += [
        "<tr>" + "".join(f"<td>{html.escape(str(value))}" for value in loss) for loss in losses(all_cells)
    ]
    (directory / "report.html").write_text("\n".join([*parts, "</table>"]))


def _plot(directory: Path, all_cells: Cells) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    for file, name, title in (
        ("jct", "jct_mean_s", "mean JCT, s"),
        ("use", "cpu_use", "CPU in use / allocated"),
    ):
        figure, axes = pyplot.subplots(1, len(all_cells), figsize=(6 * len(all_cells), 6), squeeze=False)
        for axis, (cell, seeds) in zip(axes[0], all_cells.items(), strict=True):
            policies = [policy for policy in seeds[0] if name in seeds[0][policy]]
            stats = [bootstrap(column(seeds, policy, name)) for policy in policies]
            means = [mean for mean, _, _ in stats]
            axis.barh(
                policies, means, xerr=[[m - low for m, low, _ in stats], [high - m for m, _, high in stats]]
            )
            axis.set_title(f"{cell}: {title}")
            axis.invert_yaxis()
        figure.tight_layout()
        figure.savefig(directory / f"{file}.png", dpi=80)
        pyplot.close(figure)


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
