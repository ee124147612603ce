"""Digests, copies and stored parts of a run belong to the run's user, whichever host made them, and to no other (0085)."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rover_bus.events import checkpoint_facts as cuts
from rover_bus.flash.acting import acting_as
from rover_bus.flash.errors import BrokenCheckpoint, NoCheckpoint
from rover_bus.flash.store import FlashStore
from rover_bus.flash.verified import newest_verified
from rover_bus.node.storage.peers import PartServer
from rover_bus.node.storage.state import JobCheckpoints, StorageTask
from rover_bus.node.storage.tasks import Tasks
from rover_bus.node.users import MemberUsers, acting

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
SECRET = b"s" * 32
FIRST = 2_300_000_000 + 16 * os.getpid()


class Host:
    """A host's memory and storage, the users of its runs, and the tasks of its daemon."""

    def __init__(self, root: Path, uids: range) -> None:
        self.shm, self.storage = root / "shm", root / "store"
        self.users = MemberUsers(uids, root / "state", self.shm, self.storage)
        self.tasks = Tasks("h", "d1", self.shm, self.storage, SECRET, self.users)

    def do(self, step: str, uid: str, sources: list[str] | None = None) -> list[object]:
        task = StorageTask("ads", uid, step, 1, 0, "ps-0")  # type: ignore[arg-type]
        given = {"ps-0": sources or []}
        return [*self.tasks.carry_out(task, JobCheckpoints(uid), threading.Event(), given)]

    def stage(self, uid: str, value: float) -> None:
        """What a server of the run does, as the run's user."""
        self.users.of(uid)
        with acting(self.users, uid):
            store = FlashStore(uid, "ps-0", root=self.shm, threads=1, background=False, alone=False)
            state = {"emb": np.full((300, 4), value)}
            store.prepare(state)
            store.save(state, 1)
            store.close()


def owners(below: Path) -> set[int]:
    return {path.stat().st_uid for path in (below, *below.rglob("*"))}


@pytest.fixture
def root() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="rover-test-", dir="/dev/shm"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


def test_what_daemons_make_of_a_run_is_its_user_s_alone(root: Path) -> None:
    here, there = Host(root / "1", range(FIRST, FIRST + 5)), Host(root / "2", range(FIRST + 5, FIRST + 9))
    for uid, value in (("a1", 1.0), ("b1", 2.0)):
        here.stage(uid, value)
        (digested,) = here.do("digest", uid)
        assert isinstance(digested, cuts.HostPartDigested)
        (stored,) = here.do("persist", uid)
        assert isinstance(stored, cuts.HostPartPersisted)
        assert owners(here.shm / uid) == owners(here.storage / f"ads.{uid}") == {here.users.known(uid)}
    server = PartServer(here.shm, SECRET, users=here.users)
    try:
        for uid in ("a1", "b1"):
            there.do("mirror", uid, [server.address])
    finally:
        server.close()
    mine, theirs = there.users.known("a1"), there.users.known("b1")
    assert mine != theirs
    assert theirs is not None
    for uid, user in (("a1", mine), ("b1", theirs)):
        copies = there.shm / f"{uid}-copies"
        assert owners(copies) == {user}
        assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (copies, here.shm / uid)} == {0}
    with acting_as(theirs):
        found = newest_verified(there.shm / "b1-copies", "ps-0").staged
        assert found.arrays["emb"][0, 0] == 2.0
        found.close()
        with pytest.raises(PermissionError):
            os.listdir(there.shm / "a1-copies")
    assert sorted(os.listdir(there.shm)) == ["a1", "a1-copies", "b1", "b1-copies"]


def test_a_link_to_another_run_s_slot_is_neither_digested_nor_stored_nor_served(root: Path) -> None:
    here = Host(root / "1", range(FIRST, FIRST + 5))
    here.stage("b1", 2.0)
    here.do("digest", "b1")
    here.users.of("a1")
    for path in (here.shm / "b1").iterdir():
        with acting(here.users, "a1"):
            (here.shm / "a1" / path.name).symlink_to(path)
    for step in ("digest", "persist"):
        with pytest.raises((NoCheckpoint, BrokenCheckpoint)):
            here.do(step, "a1")
    there, server = (
        Host(root / "2", range(FIRST + 5, FIRST + 9)),
        PartServer(here.shm, SECRET, users=here.users),
    )
    try:
        with pytest.raises(NoCheckpoint):
            there.do("mirror", "a1", [server.address])
    finally:
        server.close()
    here.do("sweep", "a1")
    assert not (here.shm / "a1").exists()
    assert owners(here.shm / "b1") == {here.users.known("b1")}
