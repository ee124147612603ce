"""Sizes and durations as people write them: "2GiB", "30ms". Read by job_file.py and by options of commands.

Kubernetes writes 2Gi for 2GiB: both are read.
"""

from __future__ import annotations

import re

from rover_bus.events.errors import InputError

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_BYTES = {"B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", start=1)
    for suffix, base in (("iB", 1024), ("i", 1024), ("B", 1000))
}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


MOST_DIGITS = 18  # below 2^63


def number_in(text: str) -> int:
    """Return the number that a few ASCII digits write; -1 for other text ("²" is a digit to `str.isdigit`, but not to `int`)."""
    is_number = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
    return int(text) if is_number else -1


def is_text(name: str) -> bool:
    """Whether a name from the file system can stand in an event or in JSON: a name that is not UTF-8 comes with lone surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def require_text(name: str, what: str) -> None:
    """Raise InputError where a name is not UTF-8. `what` names the thing in the error."""
    if not is_text(name):
        shown = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise InputError(f"{what} {shown}: the name is not UTF-8, so no event can hold it; rename it")


def parse_bytes(value: object, what: str) -> int:
    """Return a size in bytes: "2GiB", "500MB", or a whole number of bytes. `what` names it in errors."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return int(_parse(value, _BYTES, what, "a size like '2GiB' or '500MB'"))


def parse_seconds(value: object, what: str) -> float:
    """Return a duration in seconds: "30ms", "10s", "2m", or a number of seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return float(value)
    return _parse(value, _SECONDS, what, "a duration like '30ms' or '10s'")


def _parse(value: object, units: dict[str, float] | dict[str, int], what: str, wanted: str) -> float:
    found = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    by_name = {name.lower(): factor for name, factor in units.items()}
    factor = by_name.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise InputError(f"{what} must be {wanted}, not {value!r} (units: {', '.join(units)})")
    if (number := float(found[1]) * factor) >= 2**63:
        raise InputError(f"{what}: {value!r} does not fit into 64 bits")
    return number
