"""Service logs as `event key=value ...`, over the standard library's logging, with what is bound: the job, the cause.

Fed by every service; feeds whatever logging is configured to (cli/log_lines.py: text for people, JSON in pods and units). Apart
because a structured logger from a library costs each of a job's many small processes more to import than it will ever write.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar, Token
from types import TracebackType

Fields = dict[str, object]
_BOUND: ContextVar[Fields] = ContextVar("rover_bound", default={})  # noqa: B039 - never changed, only replaced


class Bound:
    """Binds fields to every line that is logged while the body runs: `with Bound(cause="ROVER_FACTS:17"): ...`."""

    __slots__ = ("_fields", "_token")

    def __init__(self, **fields: object) -> None:
        self._fields = fields

    def __enter__(self) -> None:
        self._token: Token[Fields] = _BOUND.set({**_BOUND.get(), **self._fields})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _BOUND.reset(self._token)


def bind(**fields: object) -> None:
    """Bind fields to every line that this task, and what it starts, logs from now on."""
    _BOUND.set({**_BOUND.get(), **fields})


def bound() -> Fields:
    """Return what is bound here."""
    return _BOUND.get()


class Log:
    """A logger whose methods take what happened, and what belongs to it by name."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: object) -> None:
        self._say(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._say(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._say(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._say(logging.ERROR, event, fields)

    def _say(self, level: int, event: str, fields: Fields) -> None:
        if self._logger.isEnabledFor(level):
            said = " ".join([event, *(f"{key}={value!r}" for key, value in fields.items())])
            self._logger.log(level, "%s", said, extra={"rover_event": event, "rover_fields": fields})


def get_logger(name: str) -> Log:
    """Return the logger of a part of the system, `rover.<part>`."""
    return Log(name)
