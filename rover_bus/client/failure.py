"""What an exception of user code is called on the bus: equal exceptions have equal fingerprints (S28).

Fed by `job` when a training loop raises; feeds FailureRequest. A fingerprint is the type and the place it was raised at; the
message is left out, because it often holds addresses, batch numbers and times.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from rover_bus.client.lease import Assigned
from rover_bus.client.worker import Worker
from rover_bus.events.requests import FailureRequest

MESSAGE_CHARACTERS = 2_000
TRACEBACK_CHARACTERS = 16_000


def fingerprint(error: BaseException) -> str:
    """Return `Type@folder/file.py:function:line` of the innermost frame."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f"{'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_qualname}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{_name(error)}@{place}"


def describe_failure(error: BaseException, worker: Worker, assigned: Assigned | None) -> FailureRequest:
    """Return the report of an exception raised while working on a batch (None: on none)."""
    text = "".join(traceback.format_exception(error))
    return FailureRequest(
        **worker.who(),
        token=assigned.token if assigned else 0,
        batch=assigned.number if assigned else -1,
        exception=_name(error),
        message=str(error)[:MESSAGE_CHARACTERS],
        traceback=text[-TRACEBACK_CHARACTERS:],
        fingerprint=fingerprint(error),
    )


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
