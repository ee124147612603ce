"""How a service's log lines look: text for people, JSON for what collects logs. Used by serve.py, once a process.

JSON in a pod, in the journal of a unit, and where $ROVER_LOG_FORMAT says so; text everywhere else. Both have what is bound
(events/logs.py): the job, the cause of what is being done, and the trace that it is part of, where traces are on.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

from rover_bus.events import traces
from rover_bus.events.errors import InputError
from rover_bus.events.logs import bound

VARIABLE = "ROVER_LOG_FORMAT"
LogForm = Literal["json", "text"]


def configure_logs(role: str, environment: Mapping[str, str], descriptor: int = 2) -> None:
    """Write this process's log lines to stderr. Raises InputError for a form that there is not."""
    form = form_of(environment, descriptor)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(role) if form == "json" else TextLines(role))
    level = environment.get("ROVER_LOG_LEVEL", "INFO").upper()
    logging.basicConfig(level=level, handlers=[handler], force=True)


def form_of(environment: Mapping[str, str], descriptor: int) -> LogForm:
    """Return how lines are to look. `descriptor`: where they go."""
    match environment.get(VARIABLE, ""):
        case "json" | "text" as named:
            return named
        case "":
            pass
        case other:
            raise InputError(f"${VARIABLE}={other}: write json or text")
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "json"
    with suppress(OSError):
        state = os.fstat(descriptor)
        if environment.get("JOURNAL_STREAM") == f"{state.st_dev}:{state.st_ino}":
            return "json"
    return "text"


def _around() -> dict[str, object]:
    """What is bound, and the trace that what is done here is part of."""
    return {**traces.named(traces.current()), **bound()}


class TextLines(logging.Formatter):
    """One line for people: time, role, level, part, what happened, what is bound."""

    def __init__(self, role: str) -> None:
        super().__init__(f"%(asctime)s {role} %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        said: Mapping[str, object] = getattr(record, "rover_fields", {})
        more = [f"{key}={value!r}" for key, value in _around().items() if key not in said]
        return " ".join([super().formatMessage(record), *more])


class JsonLines(logging.Formatter):
    """One object a line."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "role": self._role,
            "part": record.name,
            "event": getattr(record, "rover_event", None) or record.getMessage(),
            **_around(),
            **getattr(record, "rover_fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
