"""Names for the shell's completion: the jobs of the stack that runs here. Says nothing where it cannot know.

Used by the arguments of commands (`shell_complete=`); the shell asks for it in a process of its own (docs/cli.md).
"""

from __future__ import annotations

import click


def complete_jobs(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the jobs whose names begin as typed, the newest first."""
    from rover_bus.cli.connection import find_stack, visit
    from rover_bus.cli.views.history import read_submissions
    from rover_bus.events.errors import RoverError

    named = {key: str(context.params.get(key) or "") for key in ("directory", "url", "secret_file")}
    tenant = str(context.params.get("whose") or "")
    try:
        jobs = visit(find_stack(**named, tenant=tenant), read_submissions)
    except (RoverError, OSError):
        return []
    return [job for job in reversed(jobs) if job.startswith(incomplete)]
