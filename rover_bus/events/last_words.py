"""What a process left behind when it ended: its signal or status in words, and the end of what it wrote to stderr.

Fed by daemons (members), by supervisors (services) and by the embedded broker; feeds the events that say how a process ended.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

LINES = 50
BYTES = 4096
LOOKED_AT_LINES, LOOKED_AT_BYTES = 800, 64 << 10  # for the first line of a fault


def read_tail(path: Path, *, begin: int = 0, lines: int = LINES, size_bytes: int = BYTES) -> str:
    """Return the last words of a file, as `end_of`, at most `size_bytes` in UTF-8; "" when it cannot be read.

    begin: the offset at which the process began to write, so that a former one's lines are not taken for its own.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            first = max(begin, end - max(size_bytes, LOOKED_AT_BYTES))
            file.seek(first)
            text = file.read(end - first).decode(errors="replace")
    except OSError:
        return ""
    return end_of(text, lines, size_bytes)


def end_of(text: str, lines: int = LINES, size_bytes: int = BYTES) -> str:
    """Return the last lines of a text, at most `lines` and `size_bytes` in UTF-8.

    What Python's fault handler says first is kept before them: the frames of all threads that follow are often more.
    """
    said, fatal = text.strip().splitlines(), _fatal_error(text)
    kept = _cut(said[-lines:], size_bytes)
    if not fatal or any(line.strip() == fatal for line in kept):
        return "\n".join(kept)
    rest = _cut(said[-lines + 1 :], size_bytes - len(fatal.encode()) - 1)
    return "\n".join([fatal, *rest])


def _cut(lines: list[str], size_bytes: int) -> list[str]:
    """Leave out what is more than so many bytes, from the front."""
    kept = list(lines)
    while kept and len("\n".join(kept).encode()) > size_bytes:
        kept[0] = kept[0][len(kept[0]) // 2 + 1 :]
        kept = kept if kept[0] else kept[1:]
    return kept


def last_line(text: str) -> str:
    """Return the last line that says something."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def said_last(text: str) -> str:
    """Return what a process that ended said of it: its fault, or the last line that says something."""
    return _fatal_error(text) or last_line(text)


def _fatal_error(text: str) -> str:
    """Return what Python's fault handler says first; its last lines are the outermost frames."""
    found = [line.strip() for line in text.splitlines() if line.startswith("Fatal Python error")]
    return found[-1] if found else ""


def name_signal(number: int) -> str:
    """Return `SIGBUS` for 7; a number without a name is told as one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_ending(status: int | None, number: int | None, text: str = "") -> str:
    """Return how a process ended, in one line: `SIGBUS`, or `status 3`, and the last line that it wrote."""
    how = name_signal(number) if number is not None else f"status {status}" if status is not None else ""
    said = said_last(text)
    return f"{how}: {said}" if how and said else how or said
