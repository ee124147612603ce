"""Real spares under real shims: what a program sees of itself is what it sees after a cold start, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rover_bus.events.identity import Member
from rover_bus.node.local import proctree
from rover_bus.node.port import (
    Exited,
    Incarnation,
    Running,
    Spare,
    SpareGone,
    SpareReady,
    StartOrder,
    WorkerLoaded,
)

pytestmark = pytest.mark.chaos

PROGRAM = '''
"""A program's own words."""
from __future__ import annotations
import json, os, pathlib, pickle, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "libraries"))
import heavy
import library
from rover_bus.client.loaded import tell_loaded

class Own:
    pass

def seen():
    return {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "file": __file__, "name": __name__, "doc": __doc__,
        "spec": __spec__ and __spec__.origin,
        "package": __package__, "loader": type(__loader__).__name__, "names": sorted(vars(sys.modules["__main__"])),
        "pickled": type(pickle.loads(pickle.dumps(Own()))).__module__, "stdin": os.readlink("/proc/self/fd/0"),
        "cwd": os.getcwd(), "heavy": heavy.VALUE, "index": os.environ["ROVER_INDEX"],
        "threads": os.environ.get("OMP_NUM_THREADS"), "mark": os.environ["ROVER_MEMBER_DIR"].rsplit("/", 1)[1],
        "early": library.EARLY,
        "argument": sys.argv[1], "flags": sys.flags.optimize, "loaded_at": heavy.PID == os.getpid(),
    }

if file := os.environ.get("ROVER_LOADED_FILE"):
    tell_loaded(pathlib.Path(file))
print("seen", json.dumps(seen()), flush=True)
while True:
    time.sleep(600)
'''
HEAVY = """
import os
VALUE, PID = 1, os.getpid()
EARLY = "ROVER_INDEX" not in list(os.environ)
print("heavy is loaded", flush=True)
"""


def bearing(path: Path) -> list[int]:
    return proctree.bearing(str(path), only=True)


class Workshop:
    """A rig with a program of its own, one worker of which has run."""

    def __init__(self, rig: Any, directory: Path, heavy: str = HEAVY, *options: str) -> None:
        self.rig, self.directory = rig, directory
        (directory / "program.py").write_text(PROGRAM)
        (directory / "heavy.py").write_text(heavy)
        (directory / "libraries").mkdir()
        (directory / "libraries" / "library.py").write_text(HEAVY)
        self.command = [sys.executable, *options, "program.py", "an argument"]
        if "-m" in options:
            self.command[-2] = "program"

    async def worker(self) -> Incarnation:
        run: Incarnation = self.rig.start(*self.command, directory=str(self.directory), cores=1.0)
        await self.rig.until(lambda: self.of(WorkerLoaded), "a worker that says what it loaded")
        return run

    def of(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.rig.seen if isinstance(each, kind)]

    async def spare(self, template: Incarnation, number: int = 1) -> Spare:
        spare = Spare(template.job, template.uid, number, template.desired)
        self.rig.platform.prepare(spare)
        key = spare.key
        await self.rig.until(
            lambda: key in [each.key for each in self.of(SpareReady) + self.of(SpareGone)],
            "a spare, or its end",
        )
        return spare

    def start(self, template: Incarnation, spare: Spare, index: int = 1) -> Incarnation:
        desired = template.desired.replace(member=Member("worker", index, 4))
        run = Incarnation(template.job, template.uid, desired)
        self.rig.platform.start(StartOrder(run, spare=spare.number))
        return run

    async def said(self, run: Incarnation) -> dict[str, Any]:
        await self.rig.until(lambda: "seen {" in self.rig.log(run), f"{run.member} speaks")
        line = next(each for each in self.rig.log(run).splitlines() if each.startswith("seen "))
        found: dict[str, Any] = json.loads(line.removeprefix("seen "))
        return found


Play = Callable[..., None]


@pytest.mark.parametrize("options", [(), ("-O",), ("-X", "utf8", "-m")], ids=["script", "option", "module"])
def test_a_program_sees_of_itself_what_it_sees_after_a_cold_start(
    play: Play, tmp_path: Path, options: tuple[str, ...]
) -> None:
    async def scene(rig: Any) -> None:
        shop, ran_s = Workshop(rig, tmp_path, HEAVY, *options), dict[Member, float]()
        first = await shop.worker()
        spare = await shop.spare(first)
        assert [each.key for each in shop.of(SpareReady)] == [spare.key]
        warm = shop.start(first, spare)
        cold, seen = await shop.said(first), await shop.said(warm)
        assert (cold.pop("index"), seen.pop("index")) == ("0", "1")
        assert (cold.pop("mark"), seen.pop("mark")) == ("worker-0.1", "worker-1.4")
        assert (cold.pop("early"), seen.pop("early")) == (False, True), "it was loaded by the spare"
        assert seen == cold
        assert rig.log(warm).splitlines()[0] == "heavy is loaded", "what imports print stands in its log"
        assert [each.warm for each in shop.of(Running)] == [False, True]
        for each in (warm, first):
            rig.platform.stop(each, hurried=True)
            end = await rig.ended(each)
            assert end.exit.reason == "drained"
            ran_s[each.member] = end.ran_s
        assert ran_s[warm.member] < ran_s[first.member], "it ran from its admission on, not from its birth"

    play(scene)


def test_a_spare_whose_files_changed_meanwhile_starts_from_nothing(play: Play, tmp_path: Path) -> None:
    async def scene(rig: Any) -> None:
        shop = Workshop(rig, tmp_path)
        first = await shop.worker()
        spare = await shop.spare(first)
        (tmp_path / "heavy.py").write_text(HEAVY.replace("VALUE, PID = 1", "VALUE, PID = 22"))
        warm = shop.start(first, spare)
        seen = await shop.said(warm)
        assert (seen["heavy"], seen["index"], seen["mark"]) == (22, "1", "worker-1.4")
        assert [each.pid for each in shop.of(Running)][1:] == [rig.record(warm).pid], "in the same process"
        for each in (first, warm):
            rig.platform.stop(each, hurried=True)
            await rig.ended(each)

    play(scene)


def test_a_program_whose_modules_ask_which_member_they_are_has_no_spares(play: Play, tmp_path: Path) -> None:
    async def scene(rig: Any) -> None:
        asking = HEAVY + "INDEX = os.environ.get('ROVER_INDEX', '0')\n"
        shop = Workshop(rig, tmp_path, asking)
        first = await shop.worker()
        await shop.spare(first)
        (gone,) = shop.of(SpareGone)
        assert gone.how == "ended"
        assert (
            gone.why == "status 77: a module reads ROVER_INDEX while it is imported, which only a worker has"
        )
        rig.platform.stop(first, hurried=True)
        await rig.ended(first)

    play(scene)


@pytest.mark.parametrize("daemon", ["dies", "lets go"])
def test_spares_end_with_their_daemon_and_a_member_that_was_one_lives_on(
    play: Play, tmp_path: Path, daemon: str
) -> None:
    async def scene(rig: Any) -> None:
        shop = Workshop(rig, tmp_path)
        first = await shop.worker()
        used, held = await shop.spare(first, 1), await shop.spare(first, 2)
        warm = shop.start(first, used)
        await shop.said(warm)
        (path,) = (each for each in rig.layout.spare("").iterdir() if not each.is_symlink())
        assert bearing(path), held
        if daemon == "dies":
            rig.die()
        else:
            rig.platform.release()
            os.close(rig.lock)
        await rig.until(lambda: not bearing(path), "the end of the spare")
        heir = rig.successor()
        await heir.platform.adopt()
        await heir.until(
            lambda: len([each for each in heir.seen if isinstance(each, Running)]) == 2, "both members"
        )
        assert not path.exists()
        for each in (first, warm):
            heir.platform.stop(each, hurried=True)
            assert (await heir.ended(each)).exit.reason == "drained"
        assert list(rig.layout.spare("").iterdir()) == []
        heir.die()
        rig.lock = None

    play(scene)


def test_a_member_that_was_a_spare_is_killed_with_all_that_it_began(play: Play, tmp_path: Path) -> None:
    """Its shim is killed with it: what is left is found by the name that the spare had."""

    async def scene(rig: Any) -> None:
        shop = Workshop(rig, tmp_path)
        first = await shop.worker()
        warm = shop.start(first, await shop.spare(first))
        await shop.said(warm)
        record = rig.record(warm)
        os.kill(record.shim, signal.SIGKILL)
        end: Exited = await rig.ended(warm)
        assert end.exit.reason == "killed"
        assert list(rig.layout.spare("").iterdir()) == []
        rig.platform.stop(first, hurried=True)
        await rig.ended(first)

    play(scene)
