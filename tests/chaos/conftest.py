"""Every stack of a chaos test is walked when it has stopped: each fact says what led to it (design 2.4)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from walked import every_stack_walked


@pytest.fixture(autouse=True)
def every_story_begins(request: pytest.FixtureRequest) -> Iterator[None]:
    """Not where a test stores facts that nobody decided: `foreign_facts`."""
    if request.node.get_closest_marker("foreign_facts"):
        yield
        return
    with every_stack_walked() as offenders:
        yield
    assert offenders == []
