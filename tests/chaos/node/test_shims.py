"""Real members under real shims: how they end, and that nothing of them is left.

Every test runs under `play`, which fails when a process of its members outlives it; `rig.ended` fails when an end is observed
twice, or while anything of the group lives.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rover_bus.events.identity import Resources
from rover_bus.node.local import proctree
from rover_bus.node.port import StartOrder

pytestmark = pytest.mark.chaos
Play = Callable[..., None]
SLEEP = ("sleep", "600")
POLITE = "trap 'echo goodbye; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
IGNORES_SIGTERM = (
    "import signal,time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
)


@pytest.mark.parametrize(
    ("script", "reason", "status", "number"),
    [
        ("exit 0", "completed", 0, None),
        ("exit 7", "failed", 7, None),
        ("kill -SEGV $$", "crashed", None, 11),
        ("kill -ABRT $$", "crashed", None, 6),
        ("kill -KILL $$", "killed", None, 9),
        ("kill -TERM $$", "killed", None, 15),
    ],
)
def test_an_end_is_reported_with_its_reason(
    play: Play, script: str, reason: str, status: int | None, number: int | None
) -> None:
    async def scene(rig: Any) -> None:
        end = await rig.ended(rig.start("sh", "-c", script))
        assert (end.exit.reason, end.exit.status, end.exit.signal) == (reason, status, number)

    play(scene)


def test_an_end_says_what_the_whole_group_used(play: Play) -> None:
    busy = "import time\nblock = b'x' * (64 << 20)\nwhile time.process_time() < 0.3: pass\n"
    below = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"

    async def scene(rig: Any) -> None:
        end = await rig.ended(rig.python(below))
        assert end.cpu_s >= 0.3
        assert 64 << 20 <= end.peak_memory_bytes < 256 << 20

    play(scene)


def test_a_program_or_directory_that_is_not_there_never_started_and_is_named(play: Play) -> None:
    async def scene(rig: Any) -> None:
        missing = await rig.ended(rig.start("no-such-program"))
        nowhere = await rig.ended(rig.start("true", index=1, directory="/no/such/place"))
        for end, name in ((missing, "no-such-program"), (nowhere, "/no/such/place")):
            assert end.exit.reason == "never_started"
            assert name in end.exit.detail

    play(scene)


def test_a_state_directory_that_cannot_be_written_is_a_start_that_never_was(play: Play) -> None:
    async def scene(rig: Any) -> None:
        (rig.layout.root / "members").write_text("in the way")
        end = await rig.ended(rig.start("true"))
        assert end.exit.reason == "never_started"
        assert "members" in end.exit.detail

    play(scene)


def test_a_member_has_its_output_in_its_log_its_directory_its_environment_and_its_cores(
    play: Play, tmp_path: Path
) -> None:
    async def scene(rig: Any) -> None:
        core = rig.allowed[-1]
        run = rig.python(
            "import os,sys; print(os.getcwd(), os.environ['ROVER_ROLE'], os.environ['OMP_NUM_THREADS'], "
            "os.environ['HELLO'], os.environ['ROVER_GRACE_S'], "
            "os.sched_getaffinity(0), flush=True); print('also this', file=sys.stderr)",
            directory=str(tmp_path),
            environment={"HELLO": "world"},
            cpus={core: 1.0},
            cores=1.0,
        )
        await rig.ended(run)
        assert rig.log(run).splitlines() == [
            f"{tmp_path} worker 1 world {run.desired.grace_s / 2:g} {{{core}}}",
            "also this",
        ]

    play(scene)


def test_a_member_meets_the_signals_that_any_program_expects(play: Play) -> None:
    async def scene(rig: Any) -> None:
        run = rig.start("sh", "-c", "grep -E 'SigBlk|SigIgn' /proc/self/status")
        await rig.ended(run)
        masks = [int(line.split()[1], 16) for line in rig.log(run).splitlines()]
        assert [mask & (1 << 31) - 1 for mask in masks] == [0, 0]  # above: the C library's own

    play(scene)


def test_what_a_member_leaves_behind_dies_with_it_even_in_a_session_of_its_own(play: Play) -> None:
    async def scene(rig: Any) -> None:
        run = rig.start(
            "sh", "-c", "sleep 600 & setsid sleep 600 & (setsid sh -c 'sleep 600; true' &) ; sleep 0.3"
        )
        end = await rig.ended(run)
        assert end.exit.reason == "completed"

    play(scene)


def test_a_drained_member_leaves_in_its_own_time(play: Play) -> None:
    async def scene(rig: Any) -> None:
        run = rig.start("sh", "-c", POLITE)
        await rig.until(lambda: "ready" in rig.log(run), "ready")
        rig.platform.stop(run)
        end = await rig.ended(run)
        assert (end.exit.reason, end.exit.status) == ("drained", 0)
        assert "goodbye" in rig.log(run)

    play(scene)


def test_a_member_that_does_not_hear_is_killed_after_its_grace_and_that_is_no_fault_of_its_program(
    play: Play,
) -> None:
    async def scene(rig: Any) -> None:
        run = rig.python(IGNORES_SIGTERM, grace_s=0.3)
        await rig.running(run)
        await rig.until(lambda: "deaf" in rig.log(run), "deaf")
        rig.platform.stop(run)
        end = await rig.ended(run)
        assert (end.exit.reason, end.exit.signal) == ("killed", 9)
        assert "0.3 s" in end.exit.detail

    play(scene)


def test_a_member_that_was_lost_is_killed_long_before_its_grace_is_over(play: Play) -> None:
    """It hangs (here: deaf, and stopped), it is fenced, and its successor waits for its place."""

    async def scene(rig: Any) -> None:
        for index, asked_before in enumerate((False, True)):
            run = rig.python(IGNORES_SIGTERM, index=index, grace_s=600.0)
            pid = await rig.running(run)
            await rig.until(lambda run=run: "deaf" in rig.log(run), "deaf")
            os.kill(pid, signal.SIGSTOP)
            if asked_before:
                rig.platform.stop(run)
            rig.platform.stop(run, hurried=True)
            end = await rig.ended(run)
            assert (end.exit.reason, end.exit.signal) == ("killed", 9)

    play(scene)


@pytest.mark.parametrize("hurried", [False, True])
def test_a_word_to_leave_that_comes_before_the_shim_can_listen_is_not_lost(play: Play, hurried: bool) -> None:
    async def scene(rig: Any) -> None:
        run = rig.start(*SLEEP)
        rig.platform.stop(run, hurried)
        end = await rig.ended(run)
        assert end.exit.reason == "drained"

    play(scene)


def test_a_group_over_its_memory_limit_is_killed_and_says_so(play: Play) -> None:
    async def scene(rig: Any) -> None:
        grow = "import time; held = bytearray(200 << 20); time.sleep(600)"
        alone = rig.python(grow, memory_bytes=100 << 20)
        child = rig.python(
            f"import os,time; os.fork() or exec({grow!r}); time.sleep(600)", index=1, memory_bytes=100 << 20
        )
        for run in (alone, child):
            end = await rig.ended(run)
            assert end.exit.reason == "out_of_memory"
            assert str(100 << 20) in end.exit.detail

    play(scene)


def test_shared_memory_counts_and_pages_that_two_processes_share_count_once(play: Play) -> None:
    async def scene(rig: Any) -> None:
        share = (
            "import mmap,os,time; m = mmap.mmap(-1, 80 << 20); m.write(bytes(80 << 20)); {} time.sleep({})"
        )
        # 80 MiB touched by three processes, under a limit of 150 MiB: it fits; under one of 60 MiB it does not.
        touch = "[os.fork() and 0 for _ in range(2)]; sum(m[i] for i in range(0, 80 << 20, 4096));"
        fits = rig.python(share.format(touch, 1.5), memory_bytes=150 << 20)
        not_so = rig.python(share.format("", 600), index=1, memory_bytes=60 << 20)
        assert (await rig.ended(not_so)).exit.reason == "out_of_memory"
        assert (await rig.ended(fits)).exit.reason == "completed"

    play(scene)


def test_limits_change_while_a_member_runs(play: Play) -> None:
    async def scene(rig: Any) -> None:
        run = rig.python(
            "import time; held = bytearray(150 << 20); print('held', flush=True); time.sleep(600)"
        )
        pid = await rig.running(run)
        await rig.until(lambda: "held" in rig.log(run), "held")
        core = rig.allowed[-1]
        rig.platform.adjust(run, Resources(cores=1.0), {core: 1.0})
        await rig.until(lambda: os.sched_getaffinity(pid) == {core}, "another affinity")
        rig.platform.adjust(run, Resources(memory_bytes=50 << 20), {})
        assert (await rig.ended(run)).exit.reason == "out_of_memory"

    play(scene)


def test_a_killed_shim_takes_its_whole_group_along_and_the_member_counts_as_killed(play: Play) -> None:
    async def scene(rig: Any) -> None:
        run = rig.start("sh", "-c", "sleep 600 & setsid sleep 600 & exec sleep 600")
        await rig.running(run)
        await rig.until(lambda: len(rig.processes_of(run)) == 4, "shim and three processes")
        os.kill(rig.record(run).shim, signal.SIGKILL)
        end = await rig.ended(run)
        assert (end.exit.reason, end.exit.signal) == ("killed", 9)

    play(scene)


@pytest.mark.parametrize("which", ["shim", "pid"])
def test_who_is_stopped_by_a_signal_can_still_be_ended(play: Play, which: str) -> None:
    async def scene(rig: Any) -> None:
        run = rig.start("sh", "-c", POLITE, grace_s=0.2)
        await rig.running(run)
        await rig.until(lambda: "ready" in rig.log(run), "ready")
        os.kill(getattr(rig.record(run), which), signal.SIGSTOP)
        rig.platform.stop(run)
        end = await rig.ended(run)
        assert (end.exit.reason, end.exit.signal) == ("killed", 9)

    play(scene)


def test_a_stopped_member_lives_and_nobody_reports_its_end(play: Play) -> None:
    async def scene(rig: Any) -> None:
        run = rig.start("sh", "-c", "kill -STOP $$; exit 5")
        pid = await rig.running(run)
        await rig.until(lambda: b") T " in proctree.read_bytes(f"/proc/{pid}/stat"), "stopped")
        assert rig.ends(run) == []
        os.kill(pid, signal.SIGCONT)
        assert (await rig.ended(run)).exit.status == 5

    play(scene)


def test_a_successor_adopts_the_living_and_reports_who_died_meanwhile(play: Play) -> None:
    async def scene(rig: Any) -> None:
        stays, ends = rig.start(*SLEEP), rig.start(*SLEEP, index=1)
        pids = [await rig.running(run) for run in (stays, ends)]
        shim = rig.record(ends).shim
        rig.die()
        os.kill(pids[1], signal.SIGKILL)
        await rig.until(lambda: not proctree.start_ticks(shim), "its shim is gone")
        heir = rig.successor()
        try:
            await heir.platform.adopt()
            assert await heir.running(stays) == pids[0]
            assert (await heir.ended(ends)).exit.reason == "killed"
            heir.platform.stop(stays)
            assert (await heir.ended(stays)).exit.reason == "drained"
        finally:
            heir.die()

    play(scene)


def test_a_successor_buries_a_group_whose_shim_was_killed_while_nobody_watched(play: Play) -> None:
    async def scene(rig: Any) -> None:
        run = rig.start("sh", "-c", "setsid sleep 600 & exec sleep 600")
        await rig.running(run)
        await rig.until(lambda: len(rig.processes_of(run)) == 3, "the whole group")
        rig.die()
        os.kill(rig.record(run).shim, signal.SIGKILL)
        heir = rig.successor()
        try:
            await heir.platform.adopt()
            assert (await heir.ended(run)).exit.reason == "killed"
        finally:
            heir.die()

    play(scene)


def test_a_daemon_killed_before_its_shim_wrote_anything_has_a_member_all_the_same(play: Play) -> None:
    async def scene(rig: Any) -> None:
        run = rig.start(*SLEEP)
        rig.die()
        heir = rig.successor()
        try:
            await heir.platform.adopt()
            await heir.running(run)
            heir.platform.start(
                StartOrder(run)
            )  # desired state asks again: the same run is not started beside itself
            await heir.until(lambda: len(heir.processes_of(run)) == 2, "one shim, one member")
            heir.platform.stop(run)
            await heir.ended(run)
        finally:
            heir.die()

    play(scene)


def test_without_a_daemon_a_group_drains_after_its_time_and_its_end_is_kept_for_the_next_one(
    play: Play,
) -> None:
    async def scene(rig: Any) -> None:
        lives = [rig.start(*SLEEP), rig.python(IGNORES_SIGTERM, index=1, grace_s=0.2)]
        for run in lives:
            await rig.running(run)
        await rig.until(lambda: "deaf" in rig.log(lives[1]), "deaf")
        rig.die()
        await rig.until(lambda: not any(rig.processes_of(run) for run in lives), "both groups are gone")
        heir = rig.successor()
        try:
            await heir.platform.adopt()
            assert [(await heir.ended(run)).exit.reason for run in lives] == ["drained", "killed"]
            assert "no daemon for 0.6 s" in heir.ends(lives[0])[0].exit.detail
        finally:
            heir.die()

    play(scene, orphan_s=0.6)


def test_a_daemon_that_comes_back_in_time_keeps_its_members(play: Play) -> None:
    async def scene(rig: Any) -> None:
        run = rig.start(*SLEEP)
        pid = await rig.running(run)
        shim = rig.record(run).shim
        rig.die()
        heir = rig.successor(orphan_s=1.0)
        try:
            await heir.platform.adopt()
            begun = os.times().elapsed
            await heir.until(lambda: os.times().elapsed - begun > 2.0, "twice the time of an orphan")
            assert proctree.start_ticks(pid)
            assert proctree.start_ticks(shim)
            heir.platform.stop(run)
            await heir.ended(run)
        finally:
            heir.die()

    play(scene, orphan_s=1.0)
