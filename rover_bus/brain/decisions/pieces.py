"""Work that is done in pieces: one choice for thousands of jobs must not hold up what its caller listens to.

Fed by the choice across jobs (`knapsack`, `rounds`), feeds the rounds of the decider, which stop between two pieces. What a piece
took is counted, never timed, so that a replay stops at the same places. Pure.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")
# Yields what each piece took, in units of about a millisecond of a slow core.
Pieces = Generator[float, None, Result]


def finish(pieces: Pieces[Result]) -> Result:
    """Do all of it at once."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            result: Result = done.value
            return result
