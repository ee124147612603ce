"""Which checkpoints lie below a storage directory: one directory a run of a job, found by name, read without a stack.

    <storage>/<job>.<uid>/manifests/     two small files a ready checkpoint, the same twice (`manifest`)
    <storage>/<job>.<uid>/parts/         what they name (`part`)
    <storage>/<job>.<uid>/damaged/       what cannot be read, and the parts that only it needs (`retention`)
    <storage>/<job>.<uid>/work.lock      held by the process that compacts or prunes there (not in an object store)

Fed by node daemons, by restores and by `rover checkpoint`. It is apart from `persist`, which knows one run and no
names, so that users find their checkpoints when everything else is gone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from rover_bus.events.subjects import job_of_file
from rover_bus.flash import locks
from rover_bus.flash.errors import BrokenCheckpoint, NoCheckpoint, PartHeld
from rover_bus.flash.files import Files
from rover_bus.flash.location import Location, below, last_name, open_files
from rover_bus.flash.manifest import Manifest, age_of, second_path
from rover_bus.flash.objects import ObjectFiles
from rover_bus.flash.persist import list_manifests
from rover_bus.flash.places import checked

LOCK = "work.lock"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job: `uid` tells runs of one name apart; a directory that a user named has none."""

    job: str
    uid: str
    path: Location

    @property
    def files(self) -> Files:
        return open_files(self.path)


class ReadyCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is complete on storage. `written_at_s`: Unix seconds, for users."""

    run: Run
    manifest: Manifest
    written_at_s: float

    @property
    def size_bytes(self) -> int:
        """Of every file that it needs; files may be shared with other checkpoints."""
        return sum(file.size_bytes for part in self.manifest.parts for file in part.files)

    @property
    def chain_length(self) -> int:
        """Files that a restore of its longest part reads."""
        return max((len(part.files) for part in self.manifest.parts), default=0)


def run_path(storage: Location, job: str, uid: str) -> Location:
    """Where the checkpoints of one run are. Raises InputError for names that cannot be a directory's."""
    named = "@".join(checked(each, "job") for each in job.split("/", 1))  # tenant and job
    return below(storage, f"{named}.{checked(uid, 'uid')}")


def list_runs(storage: Location, job: str = "") -> list[Run]:
    """The runs below a storage, or the place itself if it is one; those written last come first.

    Raises NoCheckpoint when there is none, StorageFailed for an object store that does not answer.
    """
    names = _names_below(storage)
    if "manifests" in names:
        return [_named(storage)]
    found = [_named(below(storage, name)) for name in names if _is_run(below(storage, name))]
    runs = [run for run in found if job in ("", run.job)]
    if not runs:
        what = f"no checkpoint of {job!r}" if job else "no checkpoint"
        close = f" (there are: {', '.join(sorted({run.job for run in found}))})" if found else ""
        raise NoCheckpoint(f"{what} lies below {storage}{close}: name the directory with --storage")
    return sorted(runs, key=_last_written, reverse=True)


def _names_below(storage: Location) -> list[str]:
    if isinstance(storage, Path):
        return [path.name for path in storage.glob("*") if path.is_dir()]
    return ObjectFiles(storage).folders()


def _is_run(location: Location) -> bool:
    return "manifests" in _names_below(location)


def _named(location: Location) -> Run:
    job, _, uid = last_name(location).partition(".")
    return Run(job=job_of_file(job), uid=uid, path=location)


def _last_written(run: Run) -> float:
    """When its newest checkpoint became ready: a folder's time would change with every look of a pruner."""
    return max(_written_at_s(run).values(), default=0.0)


def _written_at_s(run: Run) -> dict[str, float]:
    """When each manifest was written, by its path."""
    if not isinstance(run.path, Path):
        return ObjectFiles(run.path).written_at_s("manifests")
    times = {}
    for path in (run.path / "manifests").glob("*"):
        with suppress(OSError):
            times[f"manifests/{path.name}"] = path.stat().st_mtime
    return times


def remove_run(path: Location) -> int:
    """Remove all that lies there of one run, manifests first: none may name what is gone. Returns how many files there were."""
    files = open_files(path)
    names = sorted(files.list(""), key=lambda name: not name.startswith("manifests/"))
    for name in names:
        files.remove(name)
    if isinstance(path, Path):
        shutil.rmtree(path, ignore_errors=True)
    return len(names)


def find_run(storage: Location, job: str, uid: str = "") -> Run:
    """The run of a job that was written last, or the one of that uid (its beginning is enough). Raises NoCheckpoint."""
    runs = [run for run in list_runs(storage, job) if run.uid.startswith(uid)]
    if not runs:
        raise NoCheckpoint(
            f"no run {uid} of {job!r} lies below {storage}: `rover checkpoint list` shows them"
        )
    return runs[0]


def survey(run: Run) -> tuple[list[ReadyCheckpoint], list[str]]:
    """The ready checkpoints of a run, newest first, and a line for every manifest that cannot be read."""
    manifests, refused = list_manifests(run.files)
    times = _written_at_s(run)
    ready = [
        ReadyCheckpoint(
            run=run,
            manifest=item,
            written_at_s=times.get(item.path) or times.get(second_path(item.path), 0.0),
        )
        for item in manifests
    ]
    return ready, refused


def find_cut(ready: Iterable[ReadyCheckpoint], cut: int) -> ReadyCheckpoint:
    """The newest checkpoint of that cut: a number may come again in a later generation. Raises NoCheckpoint."""
    items = list(ready)
    for item in items:
        if item.manifest.cut == cut:
            return item
    there = ", ".join(str(item.manifest.cut) for item in items) or "none"
    raise NoCheckpoint(f"no cut {cut} is ready (there are: {there})")


def unfinished(files: Files, ready: Sequence[Manifest]) -> set[str]:
    """Part files newer than every ready checkpoint: a writer may be about to publish them, so a pruner leaves them."""
    newest = max((manifest.age for manifest in ready), default=(-1, -1))
    return {path for path in files.list("parts") if age_of(path) > newest}


@contextmanager
def hold_for_work(run: Run) -> Iterator[None]:
    """Be the only process that compacts or prunes a run while the body runs. Raises PartHeld, BrokenCheckpoint.

    An object store has no locks: nothing is compacted there, and two that prune remove the same.
    """
    if not isinstance(run.path, Path):
        yield
        return
    try:
        lock = locks.open_locked(run.path / LOCK, exclusive=True)
    except OSError as error:
        raise BrokenCheckpoint(
            f"{run.path} cannot be written ({error.strerror}): nothing was changed"
        ) from None
    if lock is None:
        raise PartHeld(
            f"another process compacts or prunes {run.path} just now: try again in a moment", delay_s=2.0
        )
    try:
        yield
    finally:
        os.close(lock)
