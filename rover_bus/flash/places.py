"""Where a job's staged cuts lie: one directory a job, a few files a part, all on a tmpfs.

    <root>/<job>/job.lock               held (shared) by every process that uses the directory; without a holder it may be swept
    <root>/<job>/<part>.owner           held (exclusive) by the one writer of a part
    <root>/<job>/<part>.<n>.slot        seal, head, data
    <root>/<job>/<part>.<n>.digests     digests of what the slot held at one save, written by the process that persists
    <root>/<job>/<part>.<save>.touched  rows touched between two saves

Feeds every module that opens one of these. Names are validated here and joined nowhere else.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

import xxhash

from rover_bus.events.errors import AccessDenied, InputError
from rover_bus.events.units import number_in
from rover_bus.flash.acting import ROOT, acting_user

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
JOB_LOCK = "job.lock"
OTHERS_MAY_WRITE = 0o022
COPIES, PARITY = "-copies", "-parity"  # after a job's name: what is held for other hosts


def default_root() -> Path:
    """A directory of this user in the host's shared memory."""
    return Path(f"/dev/shm/rover-{os.getuid()}")


def host_root(state_directory: Path | str) -> Path:
    """Where the jobs of one host stage: its daemon and its servers, which share a state directory, both find it so.

    `$ROVER_SHM`, or /dev/shm, or, where neither can be had, the state directory itself: then it is no memory, but it works.
    `$ROVER_STAGING` is the place itself, whatever the state directory: processes of several pods find it so.
    """
    if place := os.environ.get("ROVER_STAGING", ""):
        return Path(place)
    state = os.path.abspath(state_directory)
    base = Path(os.environ.get("ROVER_SHM", "") or "/dev/shm")
    if not os.access(base, os.W_OK | os.X_OK):
        return Path(state) / "shm"
    return base / f"rover-{os.getuid()}-{xxhash.xxh3_64_hexdigest(state.encode())[:12]}"


def directories_of(job: str) -> tuple[str, str, str]:
    """The names of all directories of a job: what is staged here, copies, and parity, of parts of other hosts."""
    return job, job + COPIES, job + PARITY


def job_directory(root: Path | None, job: str) -> Path:
    """Where the parts of `job` are. Raises InputError for a name that cannot be a directory's, AccessDenied like `check_ours`."""
    root = root or default_root()
    check_ours(root)
    return root / checked(job, "job")


def make_ours(directory: Path) -> None:
    """Create a job's directory and the root above it for this user alone. Raises AccessDenied like `check_ours`."""
    for each in (directory.parent, directory):
        each.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_ours(each)


def give_to(directory: Path, user: int) -> None:
    """Create the root of all jobs for another user alone, below a directory that only root can change: for a node's pods, by root.

    Raises AccessDenied for one that another user could have put there.
    """
    check_ours(directory.parent)
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (user, ROOT):
        raise AccessDenied(
            f"{directory} belongs to user {found.st_uid}, not to {user}: remove it on this node"
        )
    os.lchown(directory, user, user)


def check_ours(directory: Path) -> None:
    """Raise AccessDenied unless a directory is this user's (or root's, who may do anything) and no other user can write there.

    One that is missing may be made. /dev/shm is open to all users: another user may have made the name that we would use, and what
    lies there becomes the model.
    """
    try:
        found = os.lstat(directory)
    except FileNotFoundError:
        return
    problem = ""
    if not stat.S_ISDIR(found.st_mode):
        problem = "is no directory"
    elif found.st_uid not in (os.geteuid(), ROOT, acting_user()):
        problem = f"belongs to user {found.st_uid}, not to {os.geteuid()}"
    elif found.st_mode & OTHERS_MAY_WRITE:
        problem = f"can be written by other users (mode {stat.S_IMODE(found.st_mode):o})"
    if problem:
        raise AccessDenied(f"{directory} {problem}: remove it, or name another place by ROVER_SHM")


def checked(name: str, what: str) -> str:
    if not NAME.fullmatch(name):
        raise InputError(f"{name!r} cannot name a {what}: use letters, digits, - and _, at most 100")
    return name


def owner_path(directory: Path, part: str) -> Path:
    return directory / f"{checked(part, 'part')}.owner"


def slot_path(directory: Path, part: str, number: int) -> Path:
    return directory / f"{part}.{number}.slot"


def digests_path(slot: Path) -> Path:
    return slot.with_suffix(".digests")


def touched_path(directory: Path, part: str, save_number: int) -> Path:
    return directory / f"{part}.{save_number}.touched"


def numbered(directory: Path, part: str, suffix: str) -> list[tuple[int, Path]]:
    """The files of one kind of one part, by their number."""
    found = []
    for path in directory.glob(f"{checked(part, 'part')}.*.{suffix}"):
        number = number_in(path.name.split(".")[1])
        if number >= 0:
            found.append((number, path))
    return sorted(found)


def parts_in(directory: Path) -> list[str]:
    """Every part that has a slot here."""
    return sorted({path.name.split(".")[0] for path in directory.glob("*.*.slot")})
