"""The user of a run: which number it gets, whose is taken, what is refused; and who may do what with what was given."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rover_bus.events.errors import AccessDenied, InputError
from rover_bus.events.settings import HostSettings, Settings
from rover_bus.flash.acting import acting_as, acting_user
from rover_bus.flash.locks import open_locked
from rover_bus.flash.staged import find_staged
from rover_bus.node.service import Options, run_daemon
from rover_bus.node.users import (
    MemberUsers,
    NoFreeUser,
    acting,
    check_can_be_given,
    end_all_of,
    give,
    read_range,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
RUNS = range(first := 2_200_000_000 + 4 * os.getpid(), first + 4)  # the last one is for trials
MANY = range(3_000_000_000, 3_000_065_536)
UIDS = [f"{number:012x}" for number in range(9)]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory to which every user may pass; that of pytest is closed."""
    with tempfile.TemporaryDirectory(prefix="rover-users-") as made:
        Path(made).chmod(0o711)
        yield Path(made)


def users(directory: Path, uids: range = RUNS) -> MemberUsers:
    return MemberUsers(uids, directory / "state", directory / "shm", directory / "store")


@pytest.mark.parametrize(
    ("first", "count"), [(1, 10), (999, 10), ((1 << 32) - 4, 10), ((1 << 32) - 1001, 1000)]
)
def test_uids_of_the_system_and_beyond_the_last_are_refused(first: int, count: int) -> None:
    with pytest.raises(InputError, match="uids of members lie in 1000 to"):
        read_range(HostSettings(first_member_uid=first, member_uids=count))


def test_nothing_is_given_unless_it_is_set(place: Path) -> None:
    assert not read_range(HostSettings())
    check_can_be_given(HostSettings(), place)


def test_without_root_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="only root may start members as other users"):
        check_can_be_given(HostSettings(first_member_uid=700_000), place)


@needs_root
def test_a_directory_that_others_cannot_pass_to_is_refused_and_named(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(InputError, match=f"chmod o\\+x {closed}"):
        check_can_be_given(HostSettings(first_member_uid=700_000), closed / "state")


@needs_root
def test_a_broker_where_all_show_one_secret_is_refused(place: Path) -> None:
    hosts = HostSettings(first_member_uid=RUNS[0])
    options = Options(secret_file=str(place / "secret"), settings=Settings(hosts=hosts))
    unused: Any = object()  # it is refused before anything is said to a bus
    with pytest.raises(InputError, match="members of this broker all show one secret"):
        asyncio.run(run_daemon(unused, "h", place / "state", options))


@needs_root
def test_a_run_keeps_its_number_over_restarts_and_hosts_agree(place: Path) -> None:
    one, other = (
        users(place / "one", MANY),
        users(place / "two", MANY),
    )
    numbers = {uid: one.of(uid) for uid in UIDS}
    assert len(set(numbers.values())) == len(UIDS)
    assert {uid: other.of(uid) for uid in UIDS} == numbers
    again = users(place / "one", MANY)
    assert {uid: again.known(uid) for uid in UIDS} == numbers


@needs_root
def test_no_two_runs_share_a_number_until_the_files_of_one_are_gone(place: Path) -> None:
    all_ = users(place)
    first = {uid: all_.of(uid) for uid in UIDS[:3]}
    assert sorted(first.values()) == list(RUNS[:-1])
    with pytest.raises(NoFreeUser, match="each of the 3 users"):
        all_.of(UIDS[3])
    (place / "shm" / UIDS[1]).rmdir()
    log = place / "state" / "logs" / f"demo.{UIDS[1]}"
    log.mkdir(parents=True)
    os.chown(log, 0, first[UIDS[1]])
    with pytest.raises(NoFreeUser):
        all_.of(UIDS[3])
    log.rmdir()
    assert all_.of(UIDS[3]) == first[UIDS[1]]
    assert all_.known(UIDS[1]) is None
    assert users(place).known(UIDS[3]) == first[UIDS[1]]


@needs_root
def test_checkpoints_on_a_storage_that_a_job_named_keep_a_number_taken(place: Path) -> None:
    all_ = users(place)
    elsewhere = place / "far" / "away" / f"demo.{UIDS[0]}"
    number = all_.of(UIDS[0])
    all_.own_storage(UIDS[0], elsewhere)
    assert elsewhere.stat().st_uid == number
    assert (place / "far").stat().st_mode & 0o777 == 0o711
    (place / "shm" / UIDS[0]).rmdir()
    again = users(place)
    for uid in UIDS[1:3]:
        assert again.of(uid) != number
    with pytest.raises(NoFreeUser):
        again.of(UIDS[3])


@needs_root
def test_what_another_user_has_is_never_given(place: Path) -> None:
    theirs = place / "theirs"
    give(theirs, 700_001)
    with pytest.raises(AccessDenied, match="belongs to user 700001, not to 700002"):
        give(theirs, 700_002)
    (place / "link").symlink_to("/etc")
    with pytest.raises(OSError, match="link"):
        give(place / "link", 700_002)
    assert os.stat("/etc").st_uid == 0


@needs_root
def test_what_a_user_could_have_put_in_its_place_is_not_given(place: Path) -> None:
    theirs = place / "theirs"
    give(theirs, 700_001)
    (theirs / "renamed").mkdir()
    (theirs / "renamed" / "of root").touch()
    with pytest.raises(AccessDenied, match="belongs to user 0"):
        give(theirs / "renamed", 700_001)
    assert (theirs / "renamed" / "of root").stat().st_uid == 0


@needs_root
def test_a_process_keeps_its_user_taken_even_one_that_cannot_be_dumped(place: Path) -> None:
    number = RUNS[0]
    (ready, tell), undumpable = os.pipe(), 4
    pid = os.fork()
    if pid == 0:
        os.setresgid(number, number, number)
        os.setresuid(number, number, number)
        ctypes.CDLL(None).prctl(undumpable, 0, 0, 0, 0)
        os.write(tell, b"r")
        signal.pause()
    os.read(ready, 1)
    try:
        all_ = users(place)
        assert number not in {all_.of(uid) for uid in UIDS[:2]}
        with pytest.raises(NoFreeUser):
            all_.of(UIDS[2])
    finally:
        end_all_of(number)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert all_.of(UIDS[2]) == number


@needs_root
def test_what_root_left_in_a_place_is_given_along(place: Path) -> None:
    given = place / "given"
    (given / "parts").mkdir(parents=True)
    (given / "parts" / "file").write_text("")
    (given / "link").symlink_to("/etc/hostname")
    give(given, 700_001)
    assert {path.lstat().st_uid for path in (given, *given.rglob("*"))} == {700_001}
    assert os.stat("/etc/hostname").st_uid == 0


@needs_root
def test_who_acts_as_a_user_has_its_rights_on_files_and_gets_its_own_back(place: Path) -> None:
    all_ = users(place)
    mine, theirs = (all_.of(uid) for uid in UIDS[:2])
    secret = place / "shm" / UIDS[1] / "ps-0.1.slot"
    secret.write_bytes(b"x" * 4096)
    os.chown(secret, theirs, theirs)
    secret.chmod(0o600)
    link = place / "shm" / UIDS[0] / "ps-0.1.slot"
    link.symlink_to(secret)
    with acting(all_, UIDS[0]):
        assert acting_user() == mine
        with pytest.raises(PermissionError):
            link.read_bytes()
        (link.parent / "made").touch()
        with acting_as(0):
            assert secret.read_bytes()
        with pytest.raises(PermissionError):
            secret.read_bytes()
    assert acting_user() == -1
    assert secret.read_bytes()
    assert (link.parent / "made").stat().st_uid == mine


@needs_root
def test_a_link_or_a_pipe_in_place_of_a_slot_is_no_slot(place: Path) -> None:
    target = place / "target"
    target.write_bytes(b"x" * 4096)
    (place / "ps-0.1.slot").symlink_to(target)
    os.mkfifo(place / "ps-0.2.slot")
    problems: list[str] = []
    assert find_staged(place, "ps-0", problems) == []
    assert any("ps-0.1.slot" in line for line in problems)


@needs_root
def test_a_lock_that_root_makes_is_the_folder_s_owner_s_and_follows_no_link(place: Path) -> None:
    place = place / "place"
    give(place, 700_001)
    held = open_locked(place / "work.lock", exclusive=True)
    assert held is not None
    os.close(held)
    assert (place / "work.lock").stat().st_uid == 700_001
    (place / "other.lock").symlink_to(place / "made")
    with pytest.raises(OSError, match="other"):
        open_locked(place / "other.lock", exclusive=True)
    assert not (place / "made").exists()
