"""What has lasted is kept from the collector of cycles; what is young is collected, and what died later is too, by a full one."""

from __future__ import annotations

import gc
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
    gc.unfreeze()


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
