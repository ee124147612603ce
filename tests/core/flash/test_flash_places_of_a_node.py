"""The root of all jobs in a node's memory is given to the user of its pods, where no other user can have put it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rover_bus.events.errors import AccessDenied
from rover_bus.flash.places import give_to

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a directory away")
USER = 65532


def test_it_is_given_away_once_and_stays_given(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    for _ in range(2):
        give_to(jobs, USER)
        assert (jobs.stat().st_uid, jobs.stat().st_mode & 0o777) == (USER, 0o700)


@pytest.mark.parametrize("what", ["a link", "of another user", "below what others can change"])
def test_what_another_user_could_have_put_there_is_refused(tmp_path: Path, what: str) -> None:
    jobs, other = tmp_path / "node" / "jobs", tmp_path / "other"
    jobs.parent.mkdir(mode=0o755)
    other.mkdir()
    if what == "a link":
        jobs.symlink_to(other)
    elif what == "of another user":
        jobs.mkdir()
        os.chown(jobs, 1234, 1234)
    else:
        os.chown(jobs.parent, 1234, 1234)
    with pytest.raises(AccessDenied):
        give_to(jobs, USER)
    assert other.stat().st_uid == 0
