"""`rover submit`: a job file onto the bus, and with --wait to its end."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rover_bus.cli.connection import Address, find_stack, split_name, tenant_option, visit
from rover_bus.cli.home import Home
from rover_bus.cli.views.tables import json_option

if TYPE_CHECKING:
    from rover_bus.cli.views.history import Happened
    from rover_bus.events.job import JobSpec
    from rover_bus.events.nats_bus import NatsBus

EXIT_CODES = {"completed": 0, "failed": 10, "stopped": 11, "cancelled": 12}


@click.command()
@click.argument("job_file", type=click.Path(path_type=Path))
@click.option("--wait", is_flag=True, help="Follow the job to its end; the exit code says how it ended.")
@json_option("the last line on stdout is one object; implies --wait.")
@click.option(
    "--embedded",
    is_flag=True,
    help="Bring up a private stack for this job alone, and remove it. Implies --wait.",
)
@click.option(
    "--predictions",
    type=click.Path(path_type=Path),
    help="Write row,score for every row of the evaluation file.",
)
@click.option("--seed", type=int, help="Instead of data.seed.")
@click.option("--name", default="", help="Instead of the job file's name.")
@click.option(
    "--from-checkpoint",
    "origin",
    default="",
    metavar="JOB[:CUT]",
    help="Begin with the model of a ready checkpoint of another job [its newest]; "
    "of a job that the stack does not know, on the storage that the job file names.",
)
@click.option("--quiet", "-q", is_flag=True, help="Do not narrate.")
@click.option("--dir", "directory", default="", help="State directory [$ROVER_HOME, ./.rover].")
@click.option("--url", default="", help="Use this broker instead, nats://HOST:PORT [$ROVER_URL].")
@click.option("--secret-file", default="", metavar="FILE", help="The secret of a broker named by --url.")
@tenant_option
@click.pass_context
def submit(  # noqa: PLR0913 - the options of a command
    context: click.Context,
    job_file: Path,
    wait: bool,
    as_json: bool,
    embedded: bool,
    predictions: Path | None,
    seed: int | None,
    name: str,
    origin: str,
    quiet: bool,
    directory: str,
    url: str,
    secret_file: str,
    whose: str,
) -> None:
    """Submit JOB_FILE (docs/job-file.md) to a running stack.

    Everything is checked before: the file, the data, the columns, and that the program starts on the hosts that have room.
    """
    from rover_bus.cli.views.settings import read_chosen
    from rover_bus.client.job_file import check_data, read_job

    named = {"job": name}
    whose = split_name(named, whose)
    name = named["job"]
    spec = read_job(job_file, name=name, seed=seed, predictions=predictions or "")
    say = _narrate(as_json, quiet)
    if not quiet and (risk := risk_without_checkpoints(spec)):
        click.echo(risk, err=True)
    report: dict[str, Any] | None
    if embedded:
        _refuse_what_needs_a_stack(whose, origin)
        check_data(spec)
        report = run_embedded(spec, directory, say)
    else:
        home = Home.find(directory)
        cache = home.index_cache if home.root.is_dir() else None
        rows = check_data(spec, cache)  # before anything needs a stack
        stack = find_stack(directory, url, secret_file, whose)
        spec = read_job(
            job_file, name=name, seed=seed, predictions=predictions or "", stack=visit(stack, read_chosen)
        )
        report = _hand_in(spec, stack, origin, rows["train"], say if wait or as_json else None)
    if report is not None:
        _print(report, as_json)
        context.exit(EXIT_CODES[report["state"]])


def _refuse_what_needs_a_stack(whose: str, origin: str) -> None:
    if whose:
        raise click.UsageError("a private stack has no tenants: leave --tenant out, or --embedded")
    if origin:
        raise click.UsageError(
            "--from-checkpoint needs the stack that the other job ran on: leave --embedded out"
        )


def risk_without_checkpoints(spec: JobSpec) -> str:
    """Return in one line what a job risks that takes no checkpoints of its servers; "" for one that does, or has none."""
    if spec.checkpoint is not None or not spec.has_servers:
        return ""  # without servers the model is the program's own
    what = "starts it from nothing" if spec.on_server_lost == "restart" else "ends it, and its model is gone"
    return (
        f"note: {spec.name} takes no checkpoints: a parameter server that is lost {what} (add [checkpoint])"
    )


def _hand_in(
    spec: JobSpec, stack: Address, origin: str, records: int, say: Callable[[Happened], None] | None
) -> dict[str, Any] | None:
    """Submit to a stack that runs and follow the job to its report; without `say` the command does not wait for that."""
    if origin:
        from rover_bus.cli.views.checkpoints import find_origin

        named = spec.checkpoint.path if spec.checkpoint is not None else ""
        storage = named or str(stack.home.checkpoints)
        spec = spec.replace(start_from=visit(stack, lambda bus: find_origin(bus, origin, storage)))
    visit(stack, lambda bus: _check_room(bus, spec, records))
    visit(stack, lambda bus: _require_program(bus, spec))
    if say is None:
        sequence = visit(stack, lambda bus: _submit(bus, spec))
        full = stack.full_name(spec.name)
        click.echo(f"submitted {full} (ROVER_FACTS:{sequence}); `rover events {full} --follow` watches it")
        return None
    try:
        return visit(stack, lambda bus: submit_and_wait(bus, spec, say))
    except KeyboardInterrupt:
        click.echo(f"{spec.name} goes on: `rover jobs`, `rover stop {spec.name}`", err=True)
        raise


async def _check_room(bus: NatsBus, spec: JobSpec, records: int) -> None:
    """Raise NotEnoughMemory for a job whose checkpoints can never be staged."""
    from rover_bus.cli.shared_memory import read_shared_memory, require_shared_memory, state_bytes
    from rover_bus.cli.views.checkpoints import read_ready
    from rover_bus.cli.views.history import read_job

    if spec.checkpoint is None:
        return
    stored, samples, start = 0, 0, spec.start_from
    if start is not None and start.cut in await read_ready(
        bus, start.job
    ):  # else no fact says how large it is
        stored = (await read_ready(bus, start.job))[start.cut].size_bytes
        samples = (await read_job(bus, start.job)).total
    require_shared_memory(spec, state_bytes(spec, records, stored, samples), await read_shared_memory(bus))


async def _require_program(bus: NatsBus, spec: JobSpec) -> None:
    from rover_bus.cli.programs import require_program

    await require_program(bus, spec, lambda text: click.echo(text, err=True))


async def _submit(bus: NatsBus, spec: JobSpec) -> int:
    from rover_bus.cli.submission import submit

    return await submit(bus, spec)


def _narrate(as_json: bool, quiet: bool) -> Callable[[Happened], None]:
    """Return what tells facts: to stderr when stdout belongs to the JSON line."""

    def say(happened: Happened) -> None:
        from rover_bus.cli.views.records import event_line

        click.echo(event_line(happened, with_job=False), err=as_json)

    return (lambda _: None) if quiet else say


def _print(report: dict[str, Any], as_json: bool) -> None:
    from rover_bus.cli.views.report import report_lines

    for line in report_lines(report):
        click.echo(line, err=as_json)
    if as_json:
        from rover_bus.cli.decode import to_line

        click.echo(to_line(report))
    sys.stdout.flush()


async def submit_and_wait(bus: NatsBus, spec: JobSpec, say: Callable[[Happened], None]) -> dict[str, Any]:
    """Submit a job, follow it to its end, return its report (report.py)."""
    from rover_bus.cli.submission import Outages, submit_and_follow
    from rover_bus.cli.views.report import Tally, sum_up

    outages, tally, began_s = Outages(bus), Tally(), time.monotonic()

    def observe(happened: Happened) -> None:
        tally.observe(happened)
        say(happened)

    ended = await submit_and_follow(bus, spec, observe)
    wall_s = time.monotonic() - began_s
    return sum_up(spec.name, ended, tally, wall_s=wall_s, broker_restarts=outages.count)


def run_embedded(spec: JobSpec, directory: str, say: Callable[[Happened], None]) -> dict[str, Any]:
    """Run a job on a private stack that is gone afterwards. Its directory stays when it was named, or when the job failed."""
    from rover_bus.cli.stack import RunningStack, ending_on_signals

    root = Path(directory or tempfile.mkdtemp(prefix="rover-"))
    done = False
    try:
        with (
            ending_on_signals(),
            RunningStack(Home(root.absolute()), settings=["hosts.orphan_after=5s"], disposable=True) as stack,
        ):
            address = Address(stack.url, stack.secret_file, stack.home)
            visit(address, lambda bus: _require_program(bus, spec))
            report = visit(address, lambda bus: submit_and_wait(bus, spec, say))
            done = report["state"] == "completed"
    finally:
        if not directory:
            _tidy(root, done or sys.exc_info()[0] is KeyboardInterrupt)
    return report


def _tidy(root: Path, done: bool) -> None:
    if done:
        shutil.rmtree(root, ignore_errors=True)
    else:
        click.echo(f"logs of its members: {root}/node/logs", err=True)
