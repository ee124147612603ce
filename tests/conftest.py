"""What every ring needs of the process that runs it."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no deadlines", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("no deadlines")
pytest.register_assert_rewrite("platform_contract")  # scenes that two rings share

pytest_plugins = ["kube_fixtures"]
BROKER, SIMULATION = (Path(__file__).parent / ring for ring in ("broker", "simulation"))
# Seconds since 1970, given by `.ci/run`: no test of a ring begins later.
ENDS_AT = os.environ.get("TEST_ENDS_AT", "")
DAY_S = 86400
YOUNG = 20_000  # objects more than were freed: the collector of cycles looks at them then, not at each 700


def pytest_configure() -> None:
    """A shell that runs something in the background has it ignore Ctrl-C, and so would all that the tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip what the time of a ring leaves out, before anything is set up for it."""
    if ENDS_AT and time.time() > float(ENDS_AT):
        pytest.skip(
            "the time that .ci/run gives this ring is over: `make chaos`, `make kube` and `make upgrade` run all"
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests for the processes that run them, and for the time that there is."""
    if ENDS_AT:
        _begin_elsewhere(items)
    else:
        _deal(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Keep the collector of cycles off thousands of tests and all that they import: each full collection would look at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
        gc.enable()


def _begin_elsewhere(items: list[pytest.Item]) -> None:
    """Begin with another file each day, so that what a slow machine leaves out is another part each day."""
    paths = list(dict.fromkeys(item.path for item in items))
    first = int(float(ENDS_AT) // DAY_S) * 7 % len(paths) if paths else 0  # 7: a week's beginnings lie apart
    turned = {path: at for at, path in enumerate([*paths[first:], *paths[:first]])}
    items.sort(key=lambda item: turned[item.path])


def _deal(items: list[pytest.Item]) -> None:
    """Have half of the processes of a run, and one of an odd number, begin with the tests that wait for a broker, while the others
    use the cores.

    pytest-xdist gives each of its processes an equal run of the tests, in their order, and one that is done takes the last ones of
    another: so what is long comes first (whole stacks, whole histories), and what is short fills each run up, for an end at which
    all of them work. Files stay whole: their fixtures are.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting = [path for path in files if path.is_relative_to(BROKER)]
    waiting.sort(key=lambda path: not path.is_relative_to(BROKER / "cli"))
    computing = [path for path in files if path.is_relative_to(SIMULATION)]
    # A folder's histories are lived once for all its files.
    folders = list(dict.fromkeys(path.parent for path in computing))
    others = [test for path in files if path not in {*waiting, *computing} for test in files[path]]
    if processes < 2 or not waiting or not (computing or others):
        return
    _take_turns()
    size, shares = -(-len(items) // processes), (processes + 1) // 2
    begins = [waiting[share::shares] for share in range(shares)]
    for share in range(processes - shares):
        mine = folders[share :: processes - shares]
        begins.append([path for path in computing if path.parent in mine])
    dealt: list[pytest.Item] = []
    for paths in begins:
        first = [test for path in paths for test in files[path]]
        filled = max(size - len(first), 0)
        dealt += [*first, *others[:filled]]
        others = others[filled:]
    items[:] = [*dealt, *others]


def _take_turns() -> None:
    """Have this process, and each that it starts, wait for its turn at a core where others compute.

    Services of a stack wake up a hundred times a second, and interrupt a history each time: a tenth of all processor time.
    """
    if hasattr(os, "SCHED_BATCH"):  # Linux
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
