"""One fact as it is shown: a line for people, a record for programs.

Feeds `rover events`, `story` and `submit`, and what serves HTTP.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from rover_bus.cli.views.history import Happened


def event_line(happened: Happened, *, with_job: bool) -> str:
    """Return one fact as a line: sequence, time, job, what happened."""
    from rover_bus.cli.views.narration import mood

    fact, text = happened.fact, event_text(happened)
    time = datetime.fromtimestamp(happened.stored.time_ms / 1000).strftime("%H:%M:%S.%f")[:-3]
    colour = "yellow" if fact is None else mood(fact)
    styled = click.style(text, dim=True) if colour == "dim" else click.style(text, fg=colour or None)
    whose = f"{happened.job or getattr(fact, 'host', ''):<16} " if with_job else ""
    return f"{click.style(f'{happened.stored.sequence:>6} {time}', dim=True)}  {whose}{styled}"


def event_text(happened: Happened) -> str:
    """Return what happened, in words."""
    from rover_bus.cli.views.narration import narrate

    if happened.fact is None:
        return f"{happened.stored.subject}: passed over: {happened.problem}"
    return narrate(happened.fact)


def event_json(happened: Happened) -> str:
    """Return one fact as one line of JSON."""
    from rover_bus.cli.decode import to_line

    return to_line(event_record(happened))


def event_record(happened: Happened) -> dict[str, Any]:
    """Return one fact with every field, in JSON's types; what a later format writes otherwise, in the form that readers know."""
    from rover_bus.cli.decode import describe
    from rover_bus.events.codec import encode, type_of

    stored, envelope, fact = happened.stored, happened.envelope, happened.fact
    otherwise = fact is not None and type_of(stored.body) != fact.tag()
    passed_over = {"passed_over": happened.problem} if happened.problem else {}
    return {
        "id": happened.id,
        "subject": stored.subject,
        "time_ms": stored.time_ms,
        "event_id": envelope.id,
        "source": envelope.source,
        "cause": envelope.cause,
        **passed_over,
        "body": describe(encode(fact) if otherwise else stored.body),
    }
