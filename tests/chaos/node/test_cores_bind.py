"""Cores bind where a control group can be had: a member is held to them, they change while it runs, and the platform says so.

Both answers are tried: with the group that this machine allows, and without one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rover_bus.events.identity import Resources
from rover_bus.node.local.capacity import read_machine
from rover_bus.node.local.cgroup import Cgroup
from rover_bus.node.local.cores import CoreGroups
from rover_bus.node.local.platform import LocalPlatform

pytestmark = pytest.mark.chaos
SPIN = "while True: pass"
Play = Callable[..., None]


def can_bind(folder: Path) -> bool:
    groups = CoreGroups.below(read_machine().cgroup, folder)
    binds = groups.try_whether_they_bind()
    groups.remove_empty()
    return binds


def cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def share(pid: int, seconds: float) -> float:
    began_s, before = time.monotonic(), cpu_s(pid)
    await asyncio.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - began_s)


def test_a_member_is_held_to_its_cores_and_to_others_while_it_runs(play: Play, tmp_path: Path) -> None:
    if not can_bind(tmp_path):
        pytest.skip("no control group can be written here")

    async def scene(rig: Any) -> None:
        run = rig.python(SPIN, cores=0.1)
        pid = await rig.running(run)
        few = await share(pid, 1.5)
        rig.platform.adjust(run, Resources(cores=0.5), {})
        more = await share(pid, 1.5)
        assert few < 0.16, "a tenth of a core, and what the kernel's periods add"
        assert more < 0.6
        assert more > few
        rig.platform.stop(run, hurried=True)
        os.kill(pid, signal.SIGKILL)
        await rig.ended(run)

    play(scene)


def test_a_member_without_a_limit_is_held_to_none(play: Play) -> None:
    async def scene(rig: Any) -> None:
        run = rig.python(SPIN)
        pid = await rig.running(run)
        before = cpu_s(pid)
        await rig.until(lambda: cpu_s(pid) - before > 0.3, "it uses what it gets")
        os.kill(pid, signal.SIGKILL)
        await rig.ended(run)

    play(scene)


def test_the_platform_says_whether_they_bind(play: Play, tmp_path: Path) -> None:
    binds = can_bind(tmp_path)

    async def scene(rig: Any) -> None:
        assert not rig.platform.capacity.cores_bind, "nothing is claimed before it was tried"
        if not binds:
            pytest.skip("no control group can be written here")
        await rig.platform.capacity_changes()
        assert rig.platform.capacity.cores_bind

    play(scene)


def test_without_a_group_nothing_is_claimed_and_members_run_all_the_same(play: Play, tmp_path: Path) -> None:
    async def scene(rig: Any) -> None:
        machine = read_machine()
        bare = type(machine)(machine.capacity, machine.limits, Cgroup(0), machine.cpus)
        rig.platform.release()
        rig.platform = LocalPlatform(rig.layout, bare, rig.platform._settings, rig.seen.append)
        assert not CoreGroups.below(bare.cgroup, tmp_path).try_whether_they_bind()
        trial = asyncio.ensure_future(rig.platform.capacity_changes())
        run = rig.python(SPIN, cores=0.1)
        pid = await rig.running(run)
        before = cpu_s(pid)
        await rig.until(lambda: cpu_s(pid) - before > 0.5, "affinity alone holds it to no tenth of a core")
        assert not trial.done()
        trial.cancel()
        assert not rig.platform.capacity.cores_bind
        os.kill(pid, signal.SIGKILL)
        await rig.ended(run)

    play(scene)


def test_groups_of_dead_members_are_removed(play: Play, tmp_path: Path) -> None:
    groups = CoreGroups.below(read_machine().cgroup, tmp_path / "state")
    entrance = groups.entrance("looked.up", 0.1)
    if not entrance:
        pytest.skip("no control group can be written here")
    top = Path(entrance).parents[1]
    groups.remove("looked.up")

    async def scene(rig: Any) -> None:
        first, second = rig.python(SPIN, cores=0.5), rig.python(SPIN, cores=0.5, index=1)
        pids = [await rig.running(first), await rig.running(second)]
        assert len([each for each in top.iterdir() if each.is_dir()]) == 2
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        await rig.ended(first)
        await rig.ended(second)
        assert not top.exists(), "the last one takes the whole away"
        await rig.ended(rig.python("pass", cores=0.5, index=2))  # and the next one makes it again

    play(scene)
    assert not top.exists()
