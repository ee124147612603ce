"""How a member ended stands in what is observed of it: signal, status, and the last lines that it wrote, under real shims."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytestmark = pytest.mark.chaos
Play = Callable[[Callable[[Any], Awaitable[None]]], None]


def test_a_bus_error_is_named_with_what_the_program_said_last(play: Play) -> None:
    async def scene(rig: Any) -> None:
        run = rig.python(
            "import faulthandler, os, sys; faulthandler.enable(); print('loading', flush=True); os.kill(os.getpid(), 7)"
        )
        exit = (await rig.ended(run)).exit
        assert (exit.reason, exit.signal, exit.status) == ("crashed", 7, None)
        assert exit.stderr.startswith("loading\nFatal Python error: Bus error")
        assert exit.describe() == "SIGBUS: Fatal Python error: Bus error"

    play(scene)


def test_an_error_before_anything_was_begun_is_named(play: Play) -> None:
    async def scene(rig: Any) -> None:
        exit = (await rig.ended(rig.python("import no_such_module_anywhere"))).exit
        assert (exit.reason, exit.status) == ("failed", 1)
        assert exit.describe() == "status 1: ModuleNotFoundError: No module named 'no_such_module_anywhere'"

    play(scene)


def test_a_flood_of_words_is_cut_to_its_end(play: Play) -> None:
    async def scene(rig: Any) -> None:
        program = "import sys\nfor n in range(300): print(n, '\u00e9' * 200)\nprint('the end'); sys.exit(3)"
        exit = (await rig.ended(rig.python(program))).exit
        lines = exit.stderr.splitlines()
        assert lines[-1] == "the end"
        assert len(lines) <= 50
        assert len(exit.stderr.encode()) <= 4096

    play(scene)


def test_who_ends_in_order_leaves_no_words(play: Play) -> None:
    async def scene(rig: Any) -> None:
        exit = (await rig.ended(rig.python("print('done')"))).exit
        assert (exit.reason, exit.stderr) == ("completed", "")

    play(scene)
