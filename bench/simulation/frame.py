"""The frame: the cells that are measured once, kept, and held against whatever plans later (design note 36).

Fed by nothing, feeds the command `frame`. What a figure is compared with is decided here, before any of it is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.simulation.cells import USUAL, Piece, Where, missing
from bench.simulation.experiment import FRAME_SEEDS, POLICIES
from bench.simulation.kept import Kept
from bench.simulation.pieces import label_of

_MAIN, _OTHER = FRAME_SEEDS, FRAME_SEEDS[:8]
_STAGES = ("{1}", "{2}", "{3}", "{1+2}")
_ELSEWHERE = tuple(name for name in POLICIES if not name.endswith("over the bus"))
_OUTSIDE = tuple(name for name in _ELSEWHERE if name not in _STAGES)


def _cell(world: str, load: float = 1.0, **conditions: object) -> Where:
    return Where(world, load, {**USUAL, **conditions})


# The main cells first: what is broken off early is still worth reading.
CELLS: tuple[tuple[Where, Sequence[int], tuple[str, ...]], ...] = (
    (_cell("W1"), _MAIN, _ELSEWHERE),
    (_cell("W2"), _MAIN, _ELSEWHERE),
    (_cell("W1", arrivals="bursty"), _OTHER, _OUTSIDE),
    (_cell("W2", arrivals="bursty"), _OTHER, _OUTSIDE),
    (_cell("W1", 0.8), _OTHER, _OUTSIDE),
    (_cell("W2", 0.8), _OTHER, _OUTSIDE),
    (_cell("W1", 1.5), _OTHER, _OUTSIDE),
    (_cell("W2", 1.5), _OTHER, _OUTSIDE),
    (_cell("W1", restart_s=60.0), _OTHER, _OUTSIDE),
    (_cell("W2", restart_s=60.0), _OTHER, _OUTSIDE),
    (_cell("W1", 0.5, calm=True), _OTHER, _OUTSIDE),
    (_cell("W3"), _OTHER, _OUTSIDE),
    (_cell("W4"), _OTHER, _OUTSIDE),
)


LABELS = tuple(label_of(*where) for where, _, _ in CELLS)


def left(kept: Kept, labels: Sequence[str] = LABELS) -> Iterator[Piece]:
    """What of these cells has not been measured, in the order in which it shall be."""
    for label, (where, seeds, policies) in zip(LABELS, CELLS, strict=True):
        if label in labels:
            yield from missing(kept, where, seeds, policies)
