"""Invalid values cannot be constructed: checks that msgspec makes when decoding, made at construction as well.

Fed by the type annotations of a Struct (`Annotated[int, Meta(ge=0)]`), used by `Checked` as base of every event that
people or programs build by hand. Hot records (log.py, requests.py) leave it out: one decider builds them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, Self

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
Bytes = Annotated[int, msgspec.Meta(ge=0, description="bytes, never MiB")]
Told = Annotated[
    int, msgspec.Meta(ge=0, le=1 << 40, description="what a peer counts; sums of it must fit a log")
]
Members = Annotated[
    int, msgspec.Meta(ge=0, le=10_000, description="members of one role: a plan names each of them")
]
Cores = Annotated[float, msgspec.Meta(ge=0, description="cores, never millicores")]
Seconds = Annotated[float, msgspec.Meta(ge=0, description="seconds")]
Uid = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{12,64}$", description="random, of one run of a job")]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]


_NEVER = float("-inf")  # no end of a range
_WHOLE, _NUMBERS = (int,), (int, float)


class Bounds(NamedTuple):
    """What the annotation of a numeric field allows: `low`..`high`, above `above`, of these types."""

    name: str
    low: float
    high: float
    above: float
    types: tuple[type, ...]


@cache
def _bounds(cls: type) -> tuple[Callable[[Any], tuple[Any, ...]], tuple[Bounds, ...]]:
    """Return what reads the bounded fields of a class, and their bounds, in the same order."""
    found: list[Bounds] = []
    for field in msgspec.inspect.type_info(cls).fields:  # type: ignore[attr-defined]
        kind = field.type
        if isinstance(kind, msgspec.inspect.Metadata):  # an annotation with a description
            kind = kind.type
        if isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType):
            low, high, above = (_NEVER if end is None else end for end in (kind.ge, kind.le, kind.gt))
            if (low, high, above) != (_NEVER, _NEVER, _NEVER):
                types = _WHOLE if isinstance(kind, msgspec.inspect.IntType) else _NUMBERS
                found.append(Bounds(field.name, low, -high if high == _NEVER else high, above, types))
    names = [each.name for each in found]
    if len(names) > 1:
        return attrgetter(*names), tuple(found)
    return (lambda value: tuple(getattr(value, name) for name in names)), tuple(found)


def between(low: float, high: float, reason: str) -> Any:
    """Annotate a field that an operator may set: its range, and why its default is what it is."""
    return msgspec.Meta(ge=low, le=high, description=reason, extra={"setting": True})


def among(reason: str) -> Any:
    """Annotate a choice of words (a Literal) that an operator may set, and why its default is what it is."""
    return msgspec.Meta(description=reason, extra={"setting": True})


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """Base of Structs whose numeric bounds hold from construction on. Raises ValueError naming the field."""

    def __post_init__(self) -> None:
        read, bounds = _bounds(type(self))
        for value, (_, low, high, above, types) in zip(read(self), bounds, strict=True):
            if type(value) not in types or not (low <= value <= high and value > above):
                break
        else:
            return  # nearly always, and hundreds of thousands of times a minute in a Brain
        for each in bounds:
            self._check(*each)

    def _check(self, name: str, low: float, high: float, above: float, types: tuple[type, ...]) -> None:
        value = getattr(self, name)
        if type(value) not in types:
            value = self._plain(name, types)
        is_number = isinstance(value, types) and value == value
        if not is_number:
            number = "a whole number" if types is _WHOLE else "a number"
            raise ValueError(f"{type(self).__name__}.{name} must be {number}, not {value!r}")
        if not low <= value <= high:
            ends = (None if abs(end) == -_NEVER else end for end in (low, high))
            raise ValueError(f"{type(self).__name__}.{name} is {value}, outside {'..'.join(map(str, ends))}")
        if not (value > above or above == _NEVER):
            raise ValueError(f"{type(self).__name__}.{name} is {value}, not above {above}")

    def _plain(self, name: str, types: tuple[type, ...]) -> Any:
        """A field's value; a number of another library (numpy's) becomes Python's own, which alone can be encoded, and one without
        a fraction a whole one where that is asked for.
        """
        value = getattr(self, name)
        if not hasattr(value, "__float__"):
            return value
        plain = int(value) if hasattr(value, "__index__") else float(value)
        if types is _WHOLE and isinstance(plain, float) and plain.is_integer():
            plain = int(plain)
        msgspec.structs.force_setattr(self, name, plain)
        return plain

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, checked again."""
        return msgspec.structs.replace(self, **changes)
