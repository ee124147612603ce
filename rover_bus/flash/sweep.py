"""No file outlives its job: directories without a holder are removed.

Used by a store whose part was the last one, and by daemons with the jobs that the log knows as alive. Locks decide,
not ages: a lock dies with its process, so that a directory is never taken from under a holder, and never kept by one
that is gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from rover_bus.flash import locks, places
from rover_bus.flash.errors import PartHeld


def hold_job(directory: Path) -> int:
    """Create a job's directory and keep it from being swept until the returned descriptor is closed, or this
    process ends."""
    while True:
        places.make_ours(directory)
        try:
            lock = locks.open_locked(directory / places.JOB_LOCK, exclusive=False)
        except FileNotFoundError:
            continue  # swept between the two lines
        if lock is not None:
            return lock
        if not (directory / places.JOB_LOCK).exists():
            continue
        raise PartHeld(f"{directory} is being swept: try again")


def sweep_job(directory: Path, *, even_if_staged: bool) -> bool:
    """Remove a job's directory if no process holds it and, unless told otherwise, nothing is staged in it; whether it
    went."""
    if not directory.is_dir():
        return False
    try:
        lock = locks.open_locked(directory / places.JOB_LOCK, exclusive=True)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR):
            raise
        shutil.rmtree(directory)  # what its job put in the place of the lock holds nothing
        return True
    if lock is None:
        return False
    try:
        going = even_if_staged or not places.parts_in(directory)
        if going:
            shutil.rmtree(directory)
            with contextlib.suppress(OSError):
                directory.parent.rmdir()  # the last job takes the root along
        return going
    finally:
        os.close(lock)


def sweep(root: Path, keep: Collection[str]) -> list[str]:
    """Remove the directories of all jobs but `keep` that no living process holds; return their names.

    `keep` names the jobs that may come back although none holds them now: those that the log does not know as ended. A directory
    whose lock has vanished is not held.
    """
    if not root.is_dir():
        return []
    found = sorted(path for path in root.iterdir() if path.is_dir())
    return [path.name for path in found if path.name not in keep and sweep_job(path, even_if_staged=True)]
