"""Service logs as `event key=value ...`, over the standard library's logging.

Fed by every service; feeds whatever logging is configured to (serve.py: one line a record on stderr). Apart because a structured
logger from a library costs each of a job's many small processes more to import than it will ever write.
"""

from __future__ import annotations

import logging


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

    def _say(self, level: int, event: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(
                level, "%s", " ".join([event, *(f"{key}={value!r}" for key, value in fields.items())])
            )


def get_logger(name: str) -> Log:
    """Return the logger of a part of the system, `rover.<part>`."""
    return Log(name)
