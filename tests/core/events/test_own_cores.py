"""What a member says of its own control group: a quota of about its cores, none, or nothing that tells. Trees stand in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rover_bus.events.own_cores import cores_held

MOUNT_2 = "30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup ro,nsdelegate\n"
MOUNT_1 = (
    "32 31 0:29 /kubepods/pod7/box /sys/fs/cgroup/cpu,cpuacct ro,relatime - cgroup cgroup ro,cpu,cpuacct\n"
)


def in_a_container(root: Path, version: int, quota: str) -> Path:
    """What a container sees of its group. quota: in microseconds of a period of 100 ms; "": there is no such file."""
    (root / "proc/self").mkdir(parents=True)
    paths = "0::/\n" if version == 2 else "2:cpu,cpuacct:/kubepods/pod7/box\n0::/\n"
    (root / "proc/self/cgroup").write_text(paths)
    (root / "proc/self/mountinfo").write_text(MOUNT_2 if version == 2 else MOUNT_1)
    own = root / ("sys/fs/cgroup" if version == 2 else "sys/fs/cgroup/cpu,cpuacct")
    own.mkdir(parents=True)
    if quota and version == 2:
        (own / "cpu.max").write_text(f"{quota} 100000\n")
    elif quota:
        (own / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (own / "cpu.cfs_period_us").write_text("100000\n")
    return root


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("given", "quota"), [("1.5", "150000"), ("0.0005", "1000"), ("4", "400000"), ("0.3", "30100")]
)
def test_a_quota_of_about_the_cores_that_were_given_holds(
    tmp_path: Path, version: int, given: str, quota: str
) -> None:
    assert cores_held(given, in_a_container(tmp_path, version, quota)) is True


@pytest.mark.parametrize(("version", "quota"), [(1, "-1"), (2, "max"), (2, ""), (1, "")])
def test_without_a_quota_nothing_holds(tmp_path: Path, version: int, quota: str) -> None:
    assert cores_held("1.5", in_a_container(tmp_path, version, quota)) is False


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("quota", ["400000", "50000"])
def test_another_quota_tells_nothing(tmp_path: Path, version: int, quota: str) -> None:
    """It was changed since the member was made, or is that of a group which others share."""
    assert cores_held("1.5", in_a_container(tmp_path, version, quota)) is None


@pytest.mark.parametrize("given", ["", "0", "some"])
def test_a_member_that_was_given_none_says_nothing(tmp_path: Path, given: str) -> None:
    assert cores_held(given, in_a_container(tmp_path, 2, "max")) is None


def test_where_no_control_group_is_to_be_seen_nothing_is_said(tmp_path: Path) -> None:
    assert cores_held("1.5", tmp_path) is None


@pytest.mark.parametrize(("given", "said"), [("2", None), ("1", False), ("8", False)])
def test_cpus_of_its_own_need_no_quota_and_prove_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, said: bool | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8 if given == "8" else 2)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert cores_held(given, in_a_container(tmp_path, 2, "max")) is said


def test_a_quota_above_the_members_own_group_is_none_of_its_own(tmp_path: Path) -> None:
    root = in_a_container(tmp_path, 2, "150000")
    (root / "proc/self/cgroup").write_text("0::/box\n")
    (root / "sys/fs/cgroup/box").mkdir()
    (root / "sys/fs/cgroup/box/cpu.max").write_text("max 100000\n")
    assert cores_held("1.5", root) is False
