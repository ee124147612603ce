"""What has lasted is kept from the collector of cycles; what is young is collected, and what died later is too, by a full one."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

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
