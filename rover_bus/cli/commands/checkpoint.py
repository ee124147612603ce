"""`rover checkpoint`: what lies on storage, whether it is whole, the way back out, and what may go.

Works on the storage alone: no stack, no broker, no job need live. Fed by `flash.storage`; every line is for a person
after the loss of a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.views.tables import output_option, show

if TYPE_CHECKING:
    from rover_bus.client.model_file import ModelFile
    from rover_bus.flash.location import Location
    from rover_bus.flash.manifest import Manifest
    from rover_bus.flash.persist import RestoredPart
    from rover_bus.flash.retention import Damaged
    from rover_bus.flash.storage import ReadyCheckpoint, Run

F = TypeVar("F", bound=Callable[..., Any])
COLUMNS = ("job", "uid", "cut", "generation", "state", "ready_at", "parts", "files", "size")
DAMAGED = 1  # the exit code when something is not as it was written


class NamedStack(NamedTuple):
    """The options that name a stack, which is asked where a job's checkpoints lie."""

    directory: str
    url: str
    secret_file: str


@click.group()
def checkpoint() -> None:
    """List, verify, restore and prune checkpoints, straight from their storage."""


def on_storage(command: F) -> F:
    """Give a command the options that name a storage; it gets the job by its full name, `TENANT/JOB` where a tenant is meant.

    With a tenant and no job it gets `TENANT/`.
    """
    from rover_bus.cli.connection import split_name, stack_options
    from rover_bus.events.subjects import qualified

    @wraps(command)
    def run(*arguments: Any, whose: str, directory: str, url: str, secret_file: str, **options: Any) -> Any:
        named = NamedStack(directory, url, secret_file)
        tenant = split_name(options, whose) or _tenant_of(named)
        return command(*arguments, named=named, **options | {"job": qualified(tenant, options["job"])})

    wrapped: Any = run
    for option in (
        stack_options,
        click.option("--uid", default="", help="The run, where a name was used more than once [the last]."),
        click.option(
            "--storage",
            default="",
            metavar="DIR|URL",
            help="Where checkpoints lie, a directory or s3://bucket/prefix [as the job file says, else the stack's own].",
        ),
    ):
        wrapped = option(wrapped)
    return cast("F", wrapped)


def _tenant_of(named: NamedStack) -> str:
    """Return whose people the credentials of a stack that is named by its URL are for; "" for all others. Raises InputError."""
    from rover_bus.cli.connection import find_stack
    from rover_bus.events import credentials

    if not named.url and (named.directory or not os.environ.get("ROVER_URL")):
        return ""
    file = find_stack(*named).secret_file
    user = credentials.read(credentials.read_file(file)) if file else None
    return user.tenant if user else ""


def _storage(job: str, storage: str, named: NamedStack) -> Location:
    """The place that is named; else what a running stack knows of the job; else the state directory's own."""
    from rover_bus.cli.home import Home
    from rover_bus.events.errors import InputError
    from rover_bus.flash.location import parse_location

    if storage:
        place = parse_location(storage)
        if isinstance(place, Path) and not place.is_dir():
            raise InputError(f"there is no directory {place}: --storage names where checkpoints lie")
        return place.absolute() if isinstance(place, Path) else place
    return _path_of(job, named) or Home.find(named.directory).of_running().checkpoints


def _path_of(job: str, named: NamedStack) -> Location | None:
    """Where the job file puts its checkpoints; None if it does not say, or no stack runs here that could be asked.

    Raises RoverError where --url names one that cannot be asked.
    """
    from rover_bus.cli.connection import find_stack, visit
    from rover_bus.events.errors import RoverError
    from rover_bus.events.facts import JobSubmitted
    from rover_bus.events.looks import last_fact
    from rover_bus.events.subjects import job_fact, split_job
    from rover_bus.flash.location import parse_location

    tenant, bare = split_job(job)
    try:
        stack = find_stack(*named, tenant) if bare else None
        subject = job_fact(bare, JobSubmitted.kind())
        fact = visit(stack, lambda bus: last_fact(bus, subject, JobSubmitted)) if stack else None
        spec = fact.spec if fact is not None else None
    except RoverError:
        if named.url:
            raise  # the state directory here is not that stack's
        return None
    return parse_location(spec.checkpoint.path) if spec and spec.checkpoint and spec.checkpoint.path else None


def _find(job: str, uid: str, storage: str, named: NamedStack) -> Run:
    from rover_bus.flash.storage import find_run

    return find_run(_storage(job, storage, named), job, uid)


@checkpoint.command(name="list")
@click.argument("job", shell_complete=complete_jobs, default="")
@output_option
@on_storage
def list_(job: str, output: str, uid: str, storage: str, named: NamedStack) -> None:
    """List the checkpoints of JOB, or of all jobs, newest first: those that are ready, and those that were set aside as damaged."""
    from rover_bus.flash.errors import NoCheckpoint
    from rover_bus.flash.retention import list_damaged
    from rover_bus.flash.storage import list_runs, survey

    rows, found, said = [], [], ""
    try:
        found = list_runs(_storage(job, storage, named), "" if job.endswith("/") else job)
    except NoCheckpoint as error:
        if job and not job.endswith("/"):
            raise
        said = str(error)
    for run in found:
        if run.uid.startswith(uid) and (not job.endswith("/") or run.job.startswith(job)):
            ready, refused = survey(run)
            rows += [describe(item) for item in ready]
            rows += [_describe_damaged(run, item) for item in list_damaged(run.files)]
            _complain(refused)
    show(rows, COLUMNS, output, empty=said or "no checkpoint is ready here")


def describe(ready: ReadyCheckpoint) -> dict[str, Any]:
    """One row of the list. `files`: how many a restore of the longest part reads."""
    from datetime import datetime

    from rover_bus.flash.location import below

    manifest = ready.manifest
    return {
        "job": ready.run.job,
        "uid": ready.run.uid,
        "cut": manifest.cut,
        "generation": manifest.generation,
        "state": "ready",
        "ready_at": datetime.fromtimestamp(ready.written_at_s).astimezone().isoformat(" ", "seconds"),
        "parts": len(manifest.parts),
        "files": ready.chain_length,
        "size": _mib(ready.size_bytes),
        "size_bytes": ready.size_bytes,
        "model": manifest.model,
        "path": str(below(ready.run.path, manifest.path)),
        **({"about": manifest.about} if manifest.about else {}),
    }


def _describe_damaged(run: Run, item: Damaged) -> dict[str, Any]:
    from rover_bus.flash.location import below

    return {
        "job": run.job,
        "uid": run.uid,
        "cut": item.cut if item.cut >= 0 else None,
        "generation": item.generation if item.generation >= 0 else None,
        "state": "damaged",
        "path": str(below(run.path, item.path)),
        "damage": [item.reason],
    }


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.1f} MiB"


def _complain(lines: list[str]) -> None:
    for line in lines:
        click.echo(f"rover: {line}", err=True)


@checkpoint.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("--cut", type=int, help="Only this one [all].")
@output_option
@on_storage
def verify(job: str, cut: int | None, output: str, uid: str, storage: str, named: NamedStack) -> None:
    """Read every byte of the checkpoints of JOB and compare digests. Exit code 1 if one is damaged; the line says where."""
    from rover_bus.flash.errors import NoCheckpoint
    from rover_bus.flash.persist import verify as verify_cut
    from rover_bus.flash.storage import find_cut, survey

    run = _find(job, uid, storage, named)
    ready, refused = survey(run)
    if cut is not None:
        ready, refused = [find_cut(ready, cut)], []
    elif not ready and not refused:
        raise NoCheckpoint(f"no checkpoint is ready in {run.path}: the job had none complete yet")
    rows = []
    for item in ready:
        damage = verify_cut(run.files, item.manifest)
        rows.append({**describe(item), "state": "damaged" if damage else "whole", "damage": damage})
        refused += damage
    show(rows, ("job", "cut", "generation", "parts", "size", "state"), output)
    _complain(refused)
    click.get_current_context().exit(DAMAGED if refused else 0)


@checkpoint.command()
@click.argument("job", shell_complete=complete_jobs)
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--cut", type=int, help="This one, or nothing [the newest that is whole].")
@on_storage
def restore(job: str, out: Path, cut: int | None, uid: str, storage: str, named: NamedStack) -> None:
    """Write the model of a checkpoint of JOB to OUT (.npz), every byte checked; an older one is taken if the newest is damaged.

    As `rover export` does: dense arrays, and tables as rows and `<name>.ids`. Parts of other programs come as `<part>/<array>`.
    A job starts from a checkpoint with `rover submit --from-checkpoint`; this is for looking inside, and for other programs.
    """
    run = _find(job, uid, storage, named)
    ready, parts, passed_over = read_newest(run, cut)
    _complain(passed_over)
    for name, values in _write_arrays(out, parts, ready.manifest).items():
        click.echo(f"{name:<40} {' x '.join(map(str, values.shape)) or '1'}")
    click.echo(f"cut {ready.manifest.cut}, generation {ready.manifest.generation}, is in {out}", err=True)


def read_newest(run: Run, cut: int | None) -> tuple[ReadyCheckpoint, dict[str, RestoredPart], list[str]]:
    """The newest checkpoint that is whole, its parts, and a line for each that was passed over; a given cut is not replaced.

    Raises NoCheckpoint, BrokenCheckpoint, NewerCheckpoint.
    """
    from rover_bus.flash.errors import BrokenCheckpoint, NewerCheckpoint, NoCheckpoint
    from rover_bus.flash.persist import read_chain
    from rover_bus.flash.storage import find_cut, survey

    ready, refused = survey(run)
    for item in [find_cut(ready, cut)] if cut is not None else ready:
        try:
            return item, {part.name: read_chain(run.files, part) for part in item.manifest.parts}, refused
        except (BrokenCheckpoint, NoCheckpoint) as error:
            if cut is not None or isinstance(error, NewerCheckpoint):
                raise
            refused.append(str(error))
    raise NoCheckpoint(refused[0] if refused else f"no checkpoint is ready in {run.path}")


def _write_arrays(out: Path, parts: dict[str, RestoredPart], manifest: Manifest) -> dict[str, Any]:
    import numpy as np

    from rover_bus.cli.views.results import write_whole
    from rover_bus.client.model_file import write_model

    model = _as_model(parts, manifest)
    if model is not None:
        write_whole(out, lambda file: write_model(file, model))
        return model.arrays
    arrays = {f"{name}/{key}": array for name, part in parts.items() for key, array in part.arrays.items()}
    write_whole(out, lambda file: np.savez(file, allow_pickle=False, **arrays))
    return arrays


def _as_model(parts: dict[str, RestoredPart], manifest: Manifest) -> ModelFile | None:
    """The tables of a model, put together from the parts of its servers; None for parts that are not of our servers."""
    import msgspec
    import numpy as np

    from rover_bus.cli.views.results import model_of
    from rover_bus.events.errors import InputError
    from rover_bus.events.model_card import ModelCard
    from rover_bus.ps.hashing import SLOTS
    from rover_bus.ps.parts import assemble
    from rover_bus.ps.snapshots import merge, open_part

    try:
        opened = [open_part(part.arrays, part.extra) for part in parts.values()]
    except InputError:
        return None
    tables = merge(opened, np.arange(SLOTS)).tables
    listed = tables.catalogue.tables()
    exported = {table.name: assemble(table, [tables.export(table.name)]) for table in listed}
    card = msgspec.json.decode(manifest.about["card"], type=ModelCard)
    return model_of(exported, listed, card, tables.seed)


@checkpoint.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("--last", default=3, type=click.IntRange(1), help="Keep this many of the newest [3].")
@click.option("--every", default=0, type=click.IntRange(0), help="Also keep cuts divisible by this [none].")
@click.option("--damaged", is_flag=True, help="Delete what was set aside as damaged, and nothing else.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and leave it.")
@on_storage
def prune(  # noqa: PLR0913 - the options of a command
    job: str, last: int, every: int, damaged: bool, dry_run: bool, uid: str, storage: str, named: NamedStack
) -> None:
    """Remove older checkpoints of JOB, and files that none of the others needs. The newest that is whole always stays.

    A newer one is read back before an older one goes. What is damaged is moved to `damaged/` beside them and not counted.
    """
    run = _find(job, uid, storage, named)
    if damaged:
        _free_damaged(run, dry_run)
    elif dry_run:
        _foretell(run, last, every)
    else:
        _prune(run, last, every)


def _free_damaged(run: Run, dry_run: bool) -> None:
    from rover_bus.flash.retention import free_damaged, list_damaged
    from rover_bus.flash.storage import hold_for_work, survey

    for item in list_damaged(run.files):
        click.echo(f"{'would delete' if dry_run else 'deleted'} {item}, damaged")
    if dry_run:
        _complain(survey(run)[1])
        return
    with hold_for_work(run):
        click.echo(f"{len(free_damaged(run.files))} files deleted")


def _foretell(run: Run, last: int, every: int) -> None:
    from rover_bus.flash.chain import choose_kept
    from rover_bus.flash.storage import survey

    ready, refused = survey(run)
    manifests = [item.manifest for item in ready]
    keep = choose_kept(manifests, last=last, every=every)
    _complain(refused)
    _say_pruned("would remove", [item for item in manifests if item not in keep])
    click.echo(f"kept: {', '.join(str(item.cut) for item in keep)}")


def _prune(run: Run, last: int, every: int) -> None:
    from rover_bus.flash.errors import NoCheckpoint
    from rover_bus.flash.retention import ReadBack
    from rover_bus.flash.storage import survey
    from rover_bus.node.storage.checkpoints import prune_run

    before = [item.manifest for item in survey(run)[0]]
    if not before:
        raise NoCheckpoint(f"no checkpoint is ready in {run.path}: nothing is removed")
    files = set(run.files.list("parts"))
    aside = prune_run(run, last, every, ReadBack())
    kept = [item.manifest for item in survey(run)[0]]
    _complain([f"{item} is damaged, see {item.path}: {item.reason}" for item in aside])
    there = {(item.generation, item.cut) for item in kept} | {(item.generation, item.cut) for item in aside}
    _say_pruned("removed", [item for item in before if (item.generation, item.cut) not in there])
    gone = len(files - set(run.files.list("parts")))
    click.echo(f"kept: {', '.join(str(item.cut) for item in kept)} ({gone} part files removed)")


def _say_pruned(verb: str, manifests: list[Manifest]) -> None:
    for item in manifests:
        click.echo(f"{verb} cut {item.cut} of generation {item.generation}")
