"""The span of a request to the API server that is part of something: a member that comes, leaves or is changed.

Used by api.py. Lists, watches and what follows objects are part of nothing, and make none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rover_bus.events import traces
from rover_bus.events.errors import RoverError
from rover_bus.events.traces import Context, TraceSpan


@contextmanager
def traced_call(method: str, path: str) -> Iterator[None]:
    """The body is one request, with all its repetitions."""
    parent = traces.current()
    if parent is None:
        yield
        return
    began_ns, failed = time.time_ns(), ""
    context = traces.within(parent, f"{method} {path} {began_ns}")
    try:
        with traces.following(context):
            yield
    except RoverError as error:
        failed = str(error)
        raise
    finally:
        traces.emit(_span(method, path, context, parent, (began_ns, time.time_ns()), failed))


def _span(
    method: str, path: str, context: Context, parent: Context, times: tuple[int, int], failed: str
) -> TraceSpan:
    return TraceSpan(
        name="api.call",
        context=context,
        parent=parent,
        start_ns=times[0],
        end_ns=times[1],
        failed=failed,
        attributes={"http.request.method": method, "url.path": path},
    )
