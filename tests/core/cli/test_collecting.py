"""What has lasted is kept from the collector of cycles; what is young is collected, and what died later is too, by a full one."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from rover_bus.cli.collecting import set_aside


class Knot:
    """An object in a cycle of its own."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    gc.unfreeze()
    gc.collect()
    gc.disable()  # only what the test calls collects
    yield
    gc.enable()
    gc.freeze()  # as tests/conftest.py has it


def test_what_is_young_and_dead_is_collected_before_the_rest_is_set_aside() -> None:
    dead = weakref.ref(Knot())
    kept = [Knot()]
    set_aside(full=False)
    assert dead() is None
    assert gc.get_freeze_count() > 0
    assert not any(each is kept[0] for each in gc.get_objects()), "no collection looks at it any more"


def test_a_cycle_that_dies_after_it_was_set_aside_is_collected_by_a_full_one() -> None:
    kept = [Knot()]
    died = weakref.ref(kept[0])
    set_aside(full=False)
    kept.clear()
    set_aside(full=False)
    assert died() is not None
    set_aside(full=True)
    assert died() is None


def test_no_full_collection_begins_in_the_middle_of_what_a_service_does() -> None:
    """Nearly all that a round of thousands makes lasts until its end: Python would look through all of it, several times."""
    run = (
        "import asyncio, gc\n"
        "from rover_bus.cli.collecting import collect_seldom\n"
        "async def serve():\n"
        "    collecting = asyncio.create_task(collect_seldom())\n"
        "    await asyncio.sleep(0.1)\n"
        "    before = [each['collections'] for each in gc.get_stats()]\n"
        "    made = [[n] for n in range(300_000)]\n"
        "    young, _, full = (each['collections'] - n for each, n in zip(gc.get_stats(), before))\n"
        "    print('young', young > 0, 'full', full)\n"
        "    collecting.cancel()\n"
        "    await asyncio.gather(collecting, return_exceptions=True)\n"
        "before = gc.get_threshold()\n"
        "asyncio.run(serve())\n"
        "print('as before', gc.get_threshold() == before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.splitlines() == ["young True full 0", "as before True"], done.stderr


@pytest.mark.parametrize("module", ["entry", "serve"])
def test_a_process_of_ours_ends_without_a_search_for_cycles(module: str) -> None:
    run = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print('set aside', gc.get_freeze_count() > 1000))\n"  # the first is called last
        f"from rover_bus.cli.{module} import main\n"
        "sys.argv = ['x', *sys.argv[1:]]\n"
        "sys.exit(main())\n"
    )
    words = {
        "entry": ["--version"],
        "serve": ["master", "--url", "nats://127.0.0.1:9", "--secret-file", "/none"],
    }
    done = subprocess.run(
        [sys.executable, "-c", run, *words[module]], capture_output=True, text=True, check=False, timeout=60
    )
    assert "set aside True" in done.stdout, done.stderr


def test_a_service_collects_again_once_it_has_loaded(tmp_path: Path) -> None:
    """Its broker is not there: it loads, and asks for it again and again."""
    watch = (
        "import gc, os, runpy, signal, threading, time\n"
        "def look():\n"
        "    while gc.isenabled(): time.sleep(0.001)\n"
        "    print('off', flush=True)\n"
        "    while not gc.isenabled(): time.sleep(0.01)\n"
        "    print('on', flush=True)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=look, daemon=True).start()\n"
        "runpy.run_module('rover_bus.cli.serve', run_name='__main__')\n"
    )
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "secret").chmod(0o600)
    words = ["master", "--job", "j", "--url", "nats://127.0.0.1:9", "--secret-file", str(tmp_path / "secret")]
    done = subprocess.run(
        [sys.executable, "-c", watch, *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.split() == ["off", "on"], done.stderr


def test_a_command_collects_again_once_it_has_loaded() -> None:
    run = (
        "import gc, sys\n"
        "from rover_bus.cli.entry import main\n"
        "sys.argv = ['rover', 'jobs', '--help']\n"
        "code = main()\n"
        "print('collects', gc.isenabled(), gc.get_freeze_count() > 1000, code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, check=False, timeout=60
    )
    assert "collects True True 0" in done.stdout, done.stderr
