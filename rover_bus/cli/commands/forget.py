"""`rover forget`: everything that a stack keeps of an ended job goes; its checkpoints only when asked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.connection import Address, visit, with_stack

if TYPE_CHECKING:
    from rover_bus.events.job import JobSpec
    from rover_bus.events.nats_bus import NatsBus


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("--reason", default="", help="Why: it is all that stays of the job.")
@click.option(
    "--checkpoints",
    is_flag=True,
    help="Also its checkpoints, in the stack's directory or where its file put them.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask (a terminal is asked).")
@with_stack
def forget(stack: Address, job: str, reason: str, checkpoints: bool, yes: bool) -> None:
    """Remove an ended JOB: its log, its facts and samples, the logs of its members, the final parts of its model.

    `rover export` first writes the model to a file of yours. Its name may be used again.
    """
    what = "its log, facts, member logs and final model" + (" and its checkpoints" if checkpoints else "")
    if not yes and sys.stdin.isatty():
        click.confirm(f"Remove {what} for good?", abort=True)
    click.echo(visit(stack, lambda bus: _forget(bus, stack, job, reason, checkpoints)))


async def _forget(bus: NatsBus, stack: Address, job: str, reason: str, checkpoints: bool) -> str:
    from rover_bus.cli.submission import asker
    from rover_bus.cli.views.history import read_job, read_jobs
    from rover_bus.events.errors import Refused
    from rover_bus.events.forgetting import ask_to_forget, forget_job
    from rover_bus.events.subjects import qualified

    view = await read_job(bus, job)
    if not view.ended_ms:
        raise Refused(f"job {job!r} has not ended: `rover cancel {job}` ends it", "not_ended")
    removed = ""
    if checkpoints:
        for other in (await read_jobs(bus)).values():
            spec = other.spec
            if not other.ended_ms and spec and spec.start_from and spec.start_from.uid == view.uid:
                raise Refused(
                    f"job {other.job!r} starts from a checkpoint of {job!r}: forget that one when the other has ended",
                    "in_use",
                )
        files = _remove_checkpoints(stack, view.spec, qualified(bus.tenant, job), view.uid)
        removed = f", {files} files of checkpoints"
    forget_it = ask_to_forget if bus.ways.tenant else forget_job
    await forget_it(bus, job, view.uid, by=asker(), reason=reason)
    return f"{job}: forgotten{removed}"


def _remove_checkpoints(stack: Address, spec: JobSpec | None, job: str, uid: str) -> int:
    """Remove those of a run; `job`: by its full name."""
    from rover_bus.flash.location import parse_location
    from rover_bus.flash.storage import remove_run, run_path

    named = spec.checkpoint.path if spec and spec.checkpoint else ""
    storage = parse_location(named or stack.home.checkpoints)
    return remove_run(run_path(storage, job, uid))
