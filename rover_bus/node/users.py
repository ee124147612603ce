"""A user of the operating system for each run of a job, out of the range that the operator sets (docs/design/0085).

Fed by the service with the range, by local/ with members to start, by storage/ with checkpoints to keep; gives the number of a
run, makes what belongs to it, and lends its rights on files. Apart, because a number is never another run's as long as one of its
processes lives or a file of it lies on this host, whatever made that. Numbers need no entry in /etc/passwd.
"""

from __future__ import annotations

import os
import pwd
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import msgspec
import xxhash

from rover_bus.events.errors import AccessDenied, InputError, PermanentError
from rover_bus.events.settings import HostSettings
from rover_bus.flash.acting import ROOT, acting_as
from rover_bus.flash.places import OTHERS_MAY_WRITE, checked

LEAST_UID = 1000  # below: the system's own
MOST_UID = (1 << 32) - 3  # beyond: "no user"
PASS_THROUGH = 0o711  # a directory of the daemon below which users have places of their own
OF_A_RUN = 0o710  # one below which one user alone has
RECORDS = "users"
BELOW = ("members", "logs", "parts", "spares")  # of the state directory: who owns something there


class NoFreeUser(PermanentError):
    """Every user of the range has a process or a file on this host."""

    code = "no_free_user"


class UserRecord(msgspec.Struct, frozen=True):
    """Whose a number is, and where else its files lie: storage that a job named."""

    run: str
    paths: list[str] = []


def read_range(settings: HostSettings) -> range:
    """Return the uids of members; empty: they run as the daemon does. Raises InputError for uids that cannot be members'."""
    first, end = settings.first_member_uid, settings.first_member_uid + settings.member_uids
    if not first:
        return range(0)
    if first < LEAST_UID or end - 1 > MOST_UID:
        raise InputError(
            f"hosts.first_member_uid={first} with hosts.member_uids={settings.member_uids}: uids of members lie in "
            f"{LEAST_UID} to {MOST_UID}, for example hosts.first_member_uid=700000"
        )
    return range(first, end)


def check_can_be_given(settings: HostSettings, state: Path) -> None:
    """Raise InputError where members cannot run as users of their own: for want of root, or of a way to the state directory."""
    if not read_range(settings):
        return
    if os.geteuid() != ROOT:
        raise InputError(
            "hosts.first_member_uid is set, and only root may start members as other users: run this as root, or set it to 0"
        )
    for folder in state.absolute().parents:
        if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH:
            raise InputError(
                f"hosts.first_member_uid is set, and other users cannot pass through {folder} to {state}: "
                f"`chmod o+x {folder}`, or choose another directory"
            )


class MemberUsers:
    """The users of one host's runs. `shm`: where runs stage; `storage`: where checkpoints lie that name no path of their own.

    May be asked from several threads. The last number of the range is for trials of programs.
    """

    def __init__(self, uids: range, state: Path, shm: Path, storage: Path) -> None:
        self._runs, self.of_trials = uids[:-1], uids[-1]
        self._state, self._shm, self._storage = state, shm, storage
        self._lock = threading.Lock()
        self._records: dict[int, UserRecord] = {}
        self._numbers: dict[str, int] = {}
        for folder in (state, *(state / name for name in BELOW), shm, storage):
            pass_through(folder)
        (state / RECORDS).mkdir(mode=0o700, exist_ok=True)
        for path in (state / RECORDS).iterdir():
            with suppress(ValueError, msgspec.DecodeError):
                self._note(int(path.name), msgspec.json.decode(path.read_bytes(), type=UserRecord))

    def _note(self, number: int, record: UserRecord) -> None:
        former = self._records.get(number)
        if former is not None:
            self._numbers.pop(former.run, None)
        self._records[number], self._numbers[record.run] = record, number

    def known(self, run: str) -> int | None:
        """Return the number of a run that has one."""
        return self._numbers.get(run)

    def of(self, run: str, also: str = "") -> int:
        """Return the number of a run, which gets one the first time; its place in shared memory is there then.

        `also`: that of what is held for other hosts, `places.COPIES` or `places.PARITY`. Raises NoFreeUser.
        """
        with self._lock:
            number = self._numbers.get(run)
            if number is None or number not in self._runs:
                number = self._choose(run)
                self._write(number, UserRecord(run))
            pass_through(self._shm)
            for name in {run, run + also}:
                give(self._shm / checked(name, "job"), number)
            return number

    def _choose(self, run: str) -> int:
        with suppress(OSError):  # what it staged says whose it is, where the record was lost
            staged: int = os.lstat(self._shm / run).st_uid
            if staged in self._runs and staged not in self._records:
                return staged
        taken = self._owners()
        first: int = xxhash.xxh3_64_intdigest(run.encode()) % len(self._runs)
        choices: list[int] = [*self._runs[first:], *self._runs[:first]]
        for number in choices:
            if number not in taken and not _has_name(number):
                return number
        raise NoFreeUser(
            f"each of the {len(self._runs)} users of hosts.member_uids has a process or files on this host: raise it, "
            "or forget jobs that have ended (`rover forget`)"
        )

    def _owners(self) -> set[int]:
        """Who owns a process, or something in the places of runs."""
        found = {number for number, record in self._records.items() if _own_any(record.paths, number)}
        found |= {user for _, user in _processes()}
        places = [self._state / name for name in BELOW] + [self._shm, self._storage]
        for place in places:
            for entry in _entries(place):
                with suppress(OSError):
                    each = entry.stat(follow_symlinks=False)
                    found |= {each.st_uid, each.st_gid}
        return found

    def _write(self, number: int, record: UserRecord) -> None:
        path = self._state / RECORDS / str(number)
        fresh = path.with_suffix(".next")
        fresh.write_bytes(msgspec.json.encode(record))
        fresh.rename(path)
        self._note(number, record)

    def own_storage(self, run: str, path: Path) -> None:
        """Make the directory of a run's checkpoints its user's. Raises AccessDenied where it is another's."""
        with acting_as(ROOT):
            number = self.of(run)
            for folder in reversed(path.parents):
                if not folder.exists():
                    pass_through(folder)
            give(path, number)
            with self._lock:
                record = self._records[number]
                if path.parent != self._storage and str(path) not in record.paths:
                    self._write(number, UserRecord(run, [*record.paths, str(path)]))


def acting(users: MemberUsers | None, run: str) -> AbstractContextManager[None]:
    """Work with the rights of a run's user on files, where it has one; else with those of the daemon."""
    number = users.known(run) if users is not None else None
    return nullcontext() if number is None else acting_as(number)


def pass_through(folder: Path) -> None:
    """Make a directory of the daemon's: others may pass through it, and see nothing of it."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    found = folder.stat()
    if made or (found.st_uid == ROOT and stat.S_IMODE(found.st_mode) == 0o700):
        folder.chmod(PASS_THROUGH)


def keep_for(folder: Path, number: int) -> None:
    """Mark a directory of root's alone as kept for a user: its logs are written by descriptors."""
    os.chown(folder, ROOT, number)
    folder.chmod(0o700)


def open_to(folder: Path, number: int) -> None:
    """Let one user pass through a directory of the daemon's."""
    os.chown(folder, ROOT, number)
    folder.chmod(OF_A_RUN)


def give(folder: Path, number: int) -> None:
    """Make a directory a user's own; what root left in it goes along, where root alone could have put it there.

    Raises AccessDenied for one that is another user's.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        owner = os.fstat(opened).st_uid
        is_theirs = owner == ROOT and os.listdir(opened) and not _is_roots(folder.parent)
        if owner not in (number, ROOT) or is_theirs:
            raise AccessDenied(f"{folder} belongs to user {owner}, not to {number}: remove it on this host")
        if owner == ROOT:
            for _, folders, files, at in os.fwalk(".", dir_fd=opened):
                for name in (*folders, *files):
                    os.chown(name, number, number, dir_fd=at, follow_symlinks=False)
            os.fchown(opened, number, number)
        os.fchmod(opened, 0o700)
    finally:
        os.close(opened)


def hand_over(folder: Path, number: int) -> None:
    """Make a directory below one of the daemon's this user's, also where it was another user's: the parts of a job's former run."""
    pass_through(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    os.chown(folder, number, number, follow_symlinks=False)
    folder.chmod(0o700)


def give_file(path: Path, number: int) -> None:
    """Make an empty file, or one that is there, a user's, in a directory that is root's."""
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchown(opened, number, number)
        os.fchmod(opened, 0o600)
    finally:
        os.close(opened)


def end_all_of(number: int) -> None:
    """Kill every process of a user."""
    for pid, user in _processes():
        if user == number:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _processes() -> Iterator[tuple[int, int]]:
    for entry in _entries(Path("/proc")):
        with suppress(OSError, ValueError):
            yield int(entry.name), entry.stat().st_uid


def _is_roots(folder: Path) -> bool:
    found = folder.stat()
    return found.st_uid == ROOT and not found.st_mode & OTHERS_MAY_WRITE


def _entries(place: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(place) as found:
        yield from found


def _own_any(paths: list[str], number: int) -> bool:
    for path in paths:
        with suppress(OSError):
            if os.lstat(path).st_uid == number:
                return True
    return False


def _has_name(number: int) -> bool:
    try:
        pwd.getpwuid(number)
    except KeyError:
        return False
    return True
