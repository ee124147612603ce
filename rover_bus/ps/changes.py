"""Changes that must not stop half way: rows, indexes and applied sets change together (P3, docs/design/0023).

Used by `core`, `tables` and the stores. Before a change everything is checked and all memory is had: what is refused has changed
nothing. What still raises after the first change leaves a state that is neither the old one nor the new one, and must never
answer again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")


class HalfChanged(Exception):
    """A change stopped half way: the server must end. Not a RoverError: no handler of those may go on from it."""


def indivisible(what: str) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Mark a function as a change: whatever it raises becomes HalfChanged.

    A decorator, not a context manager: after the last line of the function nothing is left to do that could fail.
    """

    def mark(function: Callable[P, Result]) -> Callable[P, Result]:
        @wraps(function)
        def change(*arguments: P.args, **named: P.kwargs) -> Result:
            try:
                return function(*arguments, **named)
            except HalfChanged:
                raise
            except BaseException as error:
                text = (
                    f"{what} stopped half way ({type(error).__name__}: {error}): this state must not be used"
                )
                raise HalfChanged(text) from error

        return change

    return mark
