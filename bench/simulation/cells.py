"""Cells as they are run: one seed and one policy at a time, over processes, each kept as soon as it has finished.

Fed by the command line, feeds `kept`. The unit is as small as it can be, so that what is broken off loses one run at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from bench.simulation.experiment import BOUND, DEVELOPMENT_SEEDS, Figures, load_world, run_cell
from bench.simulation.gate import check_gate, measure_gate
from bench.simulation.kept import Kept

USUAL: dict[str, Any] = {"calm": False, "restart_s": 660.0, "arrivals": "uniform"}
_GATED_BY = "static user"


class Where(NamedTuple):
    """A cell: world, load, and the conditions of `USUAL` under which its seeds are run."""

    world: str
    load: float
    conditions: dict[str, Any]


class Piece(NamedTuple):
    """What one process runs at a time."""

    where: Where
    seed: int
    policy: str


def missing(kept: Kept, where: Where, seeds: Sequence[int], policies: Sequence[str]) -> Iterator[Piece]:
    """What of a cell has not been run: all policies of a seed before the next seed, the bound with them."""
    for seed in seeds:
        for name in kept.missing(where.world, where.load, seed, where.conditions, (*policies, BOUND)):
            yield Piece(where, seed, name)


def run_pieces(
    pool: Any, kept: Kept, pieces: Sequence[Piece], done: Callable[[Piece, Figures], None] | None = None
) -> None:
    """Run pieces and keep each; `done` is called after each."""
    for piece, figures in pool.imap_unordered(_run, pieces):
        kept.add(
            piece.where.world, piece.where.load, piece.seed, piece.where.conditions, {piece.policy: figures}
        )
        if done is not None:
            done(piece, figures)


def finish(
    pool: Any, kept: Kept, where: Where, seeds: Sequence[int], policies: Sequence[str]
) -> list[dict[str, Figures]]:
    """The whole cell, seed by seed: what is kept, and the rest run now."""
    run_pieces(pool, kept, list(missing(kept, where, seeds, policies)))
    return [
        kept.figures(where.world, where.load, seed, where.conditions, (*policies, BOUND)) for seed in seeds
    ]


def pass_gate(
    pool: Any, kept: Kept, world: str, seeds: int = len(DEVELOPMENT_SEEDS)
) -> dict[str, float] | str:
    """The gate's figures of a world, or why it is not held against published production. Raises GateClosed."""
    why_not = load_world(world).ungated
    if why_not:
        return why_not
    where, chosen = Where(world, 1.0, USUAL), DEVELOPMENT_SEEDS[:seeds]
    pieces = [piece for piece in missing(kept, where, chosen, [_GATED_BY]) if piece.policy == _GATED_BY]
    run_pieces(pool, kept, pieces)
    measured = measure_gate(
        [
            kept.figures(where.world, where.load, seed, where.conditions, [_GATED_BY])[_GATED_BY]
            for seed in chosen
        ]
    )
    check_gate(measured)
    return measured


def _run(piece: Piece) -> tuple[Piece, Figures]:
    world, load, conditions = piece.where
    return piece, run_cell(load_world(world), load, piece.seed, [piece.policy], **conditions)[piece.policy]
