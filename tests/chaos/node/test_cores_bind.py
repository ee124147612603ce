"""Cores bind where a control group can be had: a member is held to them, they change while it runs, and the platform says so.

Both answers are tried: with the group that this machine allows, and without one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rover_bus.events.cgroup import Cgroup
from rover_bus.events.identity import Resources
from rover_bus.events.peaks import PERIOD_S
from rover_bus.node.local.capacity import read_machine
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


BURSTS = """
import time
while True:
    end = time.monotonic() + 0.3
    while time.monotonic() < end: pass
    time.sleep(0.7)
"""


def test_the_busiest_tenths_of_a_second_of_a_member_are_measured(play: Play, tmp_path: Path) -> None:
    if not can_bind(tmp_path):
        pytest.skip("no control group can be written here")

    async def scene(rig: Any) -> None:
        await rig.platform.capacity_changes()
        await rig.platform.measure("h")
        bursts, held = rig.python(BURSTS, cores=2.0), rig.python(SPIN, cores=0.2, index=1)
        pids = [await rig.running(bursts), await rig.running(held)]
        await rig.platform.measure("h")
        await asyncio.sleep(4.0)
        window = await rig.platform.measure("h")
        used = {each.pid: (each.cores_used, each.cores_peak) for each in window.processes}
        mean, peak = used[pids[0]]
        assert mean < 0.6
        assert peak > 1.4 * mean, "its bursts use a core, its mean a third of one"
        mean, peak = used[pids[1]]
        assert 0.1 < peak < 0.4, "what its limit leaves"
        for pid, run in zip(pids, (bursts, held), strict=True):
            os.kill(pid, signal.SIGKILL)
            await rig.ended(run)

    play(scene)


@pytest.mark.parametrize("version", [1, 2])
def test_peaks_are_read_from_the_groups_of_members(play: Play, tmp_path: Path, version: int) -> None:
    """Files stand in for the kernel's, whose groups few test machines have: each tenth of a second a member uses half a core,
    in one of three of them two."""
    tree = tmp_path / "group"
    tree.mkdir()

    async def scene(rig: Any) -> None:
        machine = read_machine()
        group = Cgroup(version, (tree,), (tree,), (tree,))
        capacity = machine.capacity.replace(cores_bind=True)
        rig.platform.release()
        there = type(machine)(capacity, machine.limits, group, machine.cpus)
        rig.platform = LocalPlatform(rig.layout, there, rig.platform._settings, rig.seen.append)
        run = rig.python("import time; time.sleep(60)", cores=4.0)
        pid = await rig.running(run)
        (own,) = [each for top in tree.glob("rover-*") for each in top.iterdir() if each.is_dir()]

        async def count() -> None:
            used_us = 0
            for number in range(1000):
                name, text = (
                    ("cpu.stat", f"usage_usec {used_us}\nnr_periods 0\n")
                    if version == 2
                    else ("cpuacct.usage", f"{used_us}000\n")
                )
                (own / name).write_text(text)
                await asyncio.sleep(PERIOD_S)
                used_us += int(1e6 * PERIOD_S * (0.5 if number % 3 else 2.0))

        counting = asyncio.create_task(count())
        await rig.platform.measure("h")
        for _ in range(2):  # the first window has too few readings
            await asyncio.sleep(20 * PERIOD_S)
            window = await rig.platform.measure("h")
        counting.cancel()
        (said,) = window.processes
        assert said.pid == pid
        assert said.cores_used < 0.1, "it really sleeps"
        assert 0.9 < said.cores_peak <= 4.0, "as much as a late reader saw in one tenth of a second"
        os.kill(pid, signal.SIGKILL)
        await rig.ended(run)

    play(scene)


READS = """
import pathlib, sys
from rover_bus.events.own_cores import cores_held
pathlib.Path(sys.argv[1]).write_text(repr(cores_held(sys.argv[2])))
"""


@pytest.mark.parametrize(
    ("cores", "given", "said"), [(0.5, "0.5", True), (0.5, "2", None), (0.0, "0.5", False)]
)
def test_a_member_reads_in_its_own_group_whether_it_is_held(
    play: Play, tmp_path: Path, cores: float, given: str, said: bool | None
) -> None:
    """What members in pods say when they join (docs/design/0038), in the group that the kernel really holds a process by."""
    if not can_bind(tmp_path):
        pytest.skip("no control group can be written here")
    heard = tmp_path / "heard"

    async def scene(rig: Any) -> None:
        await rig.ended(rig.start(sys.executable, "-c", READS, str(heard), given, cores=cores))

    play(scene)
    assert heard.read_text() == repr(said)


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
