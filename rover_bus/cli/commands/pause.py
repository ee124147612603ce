"""`rover pause` and `rover resume`: the members of a job leave and come back; its servers, or a checkpoint, keep the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.connection import Address, visit, with_stack

if TYPE_CHECKING:
    from rover_bus.events.nats_bus import NatsBus


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("--reason", default="", help="Why: it stands in the job's history.")
@click.option(
    "--release", is_flag=True, help="Its servers leave too, once a checkpoint on storage holds the model."
)
@with_stack
def pause(stack: Address, job: str, reason: str, release: bool) -> None:
    """Let the workers of JOB part-commit what they hold and leave. Its servers stay and keep the model, or leave by --release."""
    click.echo(visit(stack, lambda bus: ask(bus, job, reason, away=True, release=release)))


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("--reason", default="", help="Why: it stands in the job's history.")
@click.option(
    "--from-nothing", is_flag=True, help="None of its checkpoints can be restored: train from the beginning."
)
@click.option(
    "--checkpoint",
    type=click.IntRange(1),
    metavar="N",
    help="None could be restored: take this one, mended or older.",
)
@with_stack
def resume(stack: Address, job: str, reason: str, from_nothing: bool, checkpoint: int | None) -> None:
    """Let JOB go on where it was, with the workers that it had.

    A job that waits because none of its checkpoints can be restored tries all of them again, unless one of the options is given.
    """
    if from_nothing and checkpoint:
        raise click.UsageError("--from-nothing and --checkpoint exclude each other")
    choice = ResumeFrom(from_nothing, checkpoint or 0)
    click.echo(visit(stack, lambda bus: ask(bus, job, reason, away=False, choice=choice)))


class ResumeFrom(NamedTuple):
    """What a job without a usable checkpoint is to go on from; neither: all of them are tried again."""

    from_nothing: bool = False
    checkpoint: int = 0


async def ask(
    bus: NatsBus,
    job: str,
    reason: str,
    *,
    away: bool,
    release: bool = False,
    choice: ResumeFrom = ResumeFrom(),  # noqa: B008 - a value
) -> str:
    """Ask for a pause or its end; return what the master made of it. Raises Refused where it is so already."""
    from rover_bus.cli.plan_words import open_plans, send
    from rover_bus.cli.submission import asker
    from rover_bus.cli.trials import ANSWER_S, first_fact
    from rover_bus.events.errors import Refused
    from rover_bus.events.facts import JobPaused, JobPauseRequested, JobResumed, JobResumeRequested

    now = await open_plans(bus, job)
    if now.paused == away and not (release and not now.released):
        raise Refused(f"job {job!r} is {'paused already' if away else 'not paused'}", "already")
    if any(choice) and not await _lacks_a_checkpoint(bus, job):
        raise Refused(
            f"job {job!r} has its model: --from-nothing and --checkpoint are for one that has no usable checkpoint",
            "not_asked",
        )
    by = asker()
    asked = (
        JobPauseRequested(job=job, reason=reason, by=by, release=release)
        if away
        else JobResumeRequested(
            job=job, reason=reason, by=by, from_nothing=choice.from_nothing, checkpoint=choice.checkpoint
        )
    )
    sequence = await send(bus, job, asked)
    answer = JobPaused if away else JobResumed
    answered = await first_fact(bus, job, sequence, lambda fact: isinstance(fact, answer))
    if answered is None:
        return f"{job}: asked; no master answered within {ANSWER_S:g} s (`rover jobs`, `rover events {job} -n 5`)"
    if isinstance(answered, JobResumed) and not answered.workers:
        return f"{job}: goes on once there is room for it (`rover explain {job}`)"
    return f"{job}: {'paused' if away else 'goes on'}"


async def _lacks_a_checkpoint(bus: NatsBus, job: str) -> bool:
    from rover_bus.cli.views.progress import JobProgress
    from rover_bus.master.phases import Searching

    progress = JobProgress(bus, job)
    await progress.read()
    phase = progress.state.phase if progress.state is not None else None
    return isinstance(phase, Searching) and phase.asking
