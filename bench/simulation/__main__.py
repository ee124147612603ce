"""The command: the gate first, then the cells, then the report.

    ROVER_THROUGHPUT_DATA=DIRECTORY python -m bench.simulation run --world W1 --load 1.0 --seeds 20 --out report/

`--world` and `--policy` may be repeated and take built-in names or MODULE:CLASS (`port`). Test seeds are 3000..3019;
`--develop` takes 0..19 instead. `frame --keep FILE` measures all that later planners are held against, on seeds 2000..2019.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.simulation import report
from bench.simulation.cells import Piece, Where, finish, pass_gate, run_pieces
from bench.simulation.experiment import DEVELOPMENT_SEEDS, OURS, POLICIES, TEST_SEEDS, Figures
from bench.simulation.frame import LABELS, left
from bench.simulation.gate import TARGETS, GateClosed
from bench.simulation.kept import Kept, frozen
from bench.simulation.lives import Lost, longer_beside, told, watch
from bench.simulation.pieces import collect, label_of
from bench.simulation.warm import measure_warm_starts

SHOWN_S = 150.0  # of an item of a budget, to be said


@click.group(help=__doc__)
def main() -> None:
    """The simulation benchmark."""


@main.command()
@click.option("--world", "worlds", multiple=True, default=("W1",))
@click.option("--seeds", default=20, show_default=True)
@click.option("--processes", default=1, show_default=True)
@click.option("--keep", type=click.Path(path_type=Path), default=None)
def gate(worlds: tuple[str, ...], seeds: int, processes: int, keep: Path | None) -> None:
    """Check that "static user" reproduces what production published."""
    with multiprocessing.Pool(processes) as pool:
        _pass_gate(pool, Kept(keep), worlds, seeds)


@main.command()
@click.option("--world", "worlds", multiple=True, default=("W1",))
@click.option("--policy", "policies", multiple=True, help="All by default.")
@click.option("--load", "loads", multiple=True, type=float, default=(1.0,))
@click.option("--arrivals", type=click.Choice(["uniform", "poisson", "bursty"]), default="uniform")
@click.option("--seeds", default=20, show_default=True)
@click.option("--seed", "only", multiple=True, type=int, help="These seeds instead, one by one.")
@click.option("--develop", is_flag=True, help="Development seeds.")
@click.option("--calm", is_flag=True, help="No failures, stragglers, hot servers or drift.")
@click.option("--restart-s", default=660.0, show_default=True, help="What a restart costs the baselines.")
@click.option("--processes", default=1, show_default=True)
@click.option("--gate/--no-gate", "with_gate", default=True, help="Refuse to run behind a closed gate.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, help="Directory for HTML, PNG and JSON."
)
@click.option(
    "--losses", type=click.Path(path_type=Path), default=None, help="Write the page of losses here."
)
@click.option(
    "--keep", type=click.Path(path_type=Path), default=None, help="File of finished cells, to go on from."
)
@click.option("--budget", is_flag=True, help="Also print where the time of the jobs goes.")
@click.option("--json", "as_json", is_flag=True, help="Print one last line of JSON.")
def run(
    worlds: tuple[str, ...],
    policies: tuple[str, ...],
    loads: tuple[float, ...],
    seeds: int,
    only: tuple[int, ...],
    develop: bool,
    processes: int,
    with_gate: bool,
    out: Path | None,
    losses: Path | None,
    keep: Path | None,
    budget: bool,
    as_json: bool,
    **conditions: Any,
) -> None:
    """Run cells and report."""
    chosen = only or (DEVELOPMENT_SEEDS if develop else TEST_SEEDS)[:seeds]
    names = policies or tuple(POLICIES)
    kept, cells = Kept(keep), report.Cells()
    with multiprocessing.Pool(processes) as pool:
        if with_gate:
            _pass_gate(pool, kept, worlds)
        else:
            click.echo(f"{', '.join(worlds)}: the gate did not run: --no-gate")
        for world, load in itertools.product(worlds, loads):
            label = label_of(world, load, conditions)
            cells[label] = finish(pool, kept, Where(world, load, conditions), chosen, names)
            _print(label, cells[label], budget)
    remarks: dict[str, Any] = {**frozen(), "seeds": f"{chosen[0]}..{chosen[-1]}"}
    remarks["restart of the baselines, s"] = conditions["restart_s"]
    _write(cells, remarks, out, losses, as_json)


@main.command()
@click.option(
    "--keep", type=click.Path(path_type=Path), required=True, help="File of what has been measured."
)
@click.option(
    "--cell", "labels", multiple=True, type=click.Choice(LABELS), help="Only these cells; all by default."
)
@click.option("--most", default=0, help="Stop after so many runs; 0: after the last.")
@click.option("--processes", default=1, show_default=True)
@click.option("--list", "only_list", is_flag=True, help="Say what is left and run nothing.")
def frame(keep: Path, labels: tuple[str, ...], most: int, processes: int, only_list: bool) -> None:
    """Measure and keep all cells of the frame (design note 36); run again, it goes on where it was."""
    kept = Kept(keep)
    pieces = list(left(kept, labels or LABELS))
    if only_list:
        for where, count in Counter(label_of(*piece.where) for piece in pieces).items():
            click.echo(f"{where}: {count} runs left")
        return
    with multiprocessing.Pool(processes) as pool:
        _pass_gate(pool, kept, tuple(dict.fromkeys(piece.where.world for piece in pieces)))
        todo = pieces[:most] if most else pieces
        numbers = itertools.count(1)

        def done(piece: Piece, figures: Figures) -> None:
            label, took = label_of(*piece.where), figures.get("cpu_s", 0.0)
            click.echo(
                f"{next(numbers)}/{len(todo)} {label} seed {piece.seed} {piece.policy:<44} {took:6.1f} s"
                f"   JCT {figures['jct_mean_s']:.0f} s"
            )

        run_pieces(pool, kept, todo, done)
    click.echo(f"{len(pieces) - len(todo)} runs of the frame are left")


@main.command("report")
@click.option("--keep", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--out", type=click.Path(path_type=Path), default=None)
@click.option("--losses", type=click.Path(path_type=Path), default=None)
@click.option("--budget", is_flag=True)
@click.option("--json", "as_json", is_flag=True)
@click.option("--former", is_flag=True, help="Also policies as they were before they were changed.")
def from_pieces(
    keep: Path, out: Path | None, losses: Path | None, budget: bool, as_json: bool, former: bool
) -> None:
    """Report what `run --keep` and `frame` have finished so far, every policy on the seeds that it was run on."""
    cells = collect(Kept(keep), former)
    if not cells:
        raise click.ClickException(
            f"{keep} holds nothing of worlds and policies as they are now: run cells, or try --former"
        )
    for label, seeds in cells.items():
        _print(label, seeds, budget)
    _write(cells, dict(frozen()), out, losses, as_json)


def _pass_gate(pool: Any, kept: Kept, worlds: Sequence[str], seeds: int = len(DEVELOPMENT_SEEDS)) -> None:
    """Hold every world against published production, or say why that does not happen."""
    for name in worlds:
        try:
            measured = pass_gate(pool, kept, name, seeds)
        except GateClosed as off:
            raise click.ClickException(f"{name}: the gate is closed: {off}") from off
        if isinstance(measured, str):
            click.echo(f"{name}: the gate did not run: {measured}")
            continue
        for figure, (wanted, near) in TARGETS.items():
            click.echo(f"{name} {figure:<20} {measured[figure]:.3f}   published {wanted:.2f} +- {near:.2f}")


def _write(
    cells: report.Cells, remarks: dict[str, Any], out: Path | None, losses: Path | None, as_json: bool
) -> None:
    """Everything that comes after the last cell."""
    if out:
        report.write_report(out, cells, remarks)
    if losses:
        losses.write_text(report.losses_page(cells, remarks))
    if any(OURS in seeds[0] for seeds in cells.values()):
        click.echo("where we lose:")
        for cell, rival, figure, ours, theirs, share in report.losses(cells):
            click.echo(f"  {cell:<16} {rival:<44} {figure:<14} {ours:10.4g} {theirs:10.4g}  {share:.0%}")
    if as_json:
        means = {
            label: {p: {f: float(np.nanmean([s[p][f] for s in c])) for f in c[0][p]} for p in c[0]}
            for label, c in cells.items()
        }
        click.echo(json.dumps({"remarks": remarks, "means": means}))


@main.command()
@click.option("--families", default=10, show_default=True)
@click.option("--runs", default=11, show_default=True)
@click.option("--develop", is_flag=True)
def warm(families: int, runs: int, develop: bool) -> None:
    """Recurring families, 5 % drift a run: how near a warm start is after ten runs, and how soon it is at full speed."""
    first = DEVELOPMENT_SEEDS[0] if develop else TEST_SEEDS[0]
    for name, value in measure_warm_starts(range(first, first + families), runs).items():
        click.echo(f"{name:<44} {value:.4g}")


@main.command()
@click.option("--world", default="W1", show_default=True)
@click.option("--policy", default=OURS, show_default=True)
@click.option("--load", default=1.0, show_default=True)
@click.option("--arrivals", type=click.Choice(["uniform", "poisson", "bursty"]), default="uniform")
@click.option("--seed", default=0, show_default=True)
@click.option("--job", "jobs", multiple=True, help="These jobs, by name.")
@click.option("--most", default=3, show_default=True, help="Else those that lost most by their sizes.")
def lives(world: str, policy: str, seed: int, jobs: tuple[str, ...], most: int, **conditions: Any) -> None:
    """Tell what became of single jobs of one cell: sizes, how fast they were in truth, where their time went."""
    cluster, watched = watch(world, policy, seed, **conditions)
    if unknown := set(jobs) - cluster.jobs.keys():
        raise click.ClickException(f"seed {seed} has no job {', '.join(sorted(unknown))}")
    cluster.run()
    for line in told(cluster, watched, jobs, most):
        click.echo(line)


@main.command()
@click.option("--world", default="W1", show_default=True)
@click.option("--policy", default=OURS, show_default=True)
@click.option("--beside", default="oracle, our mechanisms", show_default=True)
@click.option("--load", default=1.0, show_default=True)
@click.option("--arrivals", type=click.Choice(["uniform", "poisson", "bursty"]), default="uniform")
@click.option("--seed", "seeds", type=int, multiple=True, default=(0,), show_default=True)
@click.option("--most", default=10, show_default=True, help="So many jobs.")
def losses(
    world: str, policy: str, beside: str, seeds: tuple[int, ...], most: int, **conditions: Any
) -> None:
    """Tell which jobs take longest beside what they take under another policy: means hide those that stand still."""
    found = list[tuple[int, Lost]]()
    for seed in seeds:
        cells = [watch(world, name, seed, **conditions)[0] for name in (policy, beside)]
        for cell in cells:
            cell.run()
        found += [(seed, each) for each in longer_beside(*cells)]
    found.sort(key=lambda each: -each[1].seconds)
    total = sum(each.seconds for _, each in found)
    click.echo(f"{len(found)} jobs, {total / len(found):,.0f} s longer in the mean than under {beside}")
    for (seed, each), so_far in zip(
        found[:most], itertools.accumulate(each.seconds for _, each in found), strict=False
    ):
        where = ", ".join(
            f"{item} {seconds:,.0f}" for item, seconds in each.items.items() if abs(seconds) > SHOWN_S
        )
        share = f"{so_far / total:.0%}" if total > 0 else ""
        click.echo(f"seed {seed} {each.job}: {each.seconds:,.0f} s ({share} up to here): {where}")


def _print(label: str, cells: list[dict[str, Figures]], budget: bool) -> None:
    click.echo(f"\n{label}" + ("" if label.endswith("seeds") else f", {len(cells)} seeds"))
    for row in report.table(cells):
        click.echo(f"{row[0]:<44} " + " ".join(f"{value:>11}" for value in row[1:]))
    for row in report.budget_table(cells) if budget else []:
        click.echo(f"{row[0]:<44} " + " ".join(f"{value:>11}" for value in row[1:]))


if __name__ == "__main__":
    main()
