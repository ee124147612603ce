"""Whether the Brain keeps up: while it does not, windows are longer, so that fewer of them close a second.

Fed by the decider at each look with what the last one left undone, feeds its log (`WindowsStretched`). Judged by what was
left and by how many samples came, not by the clock alone: a process that others starve gains nothing by longer windows. Pure.
"""

from __future__ import annotations

from collections.abc import Generator

from rover_bus.brain.log import WindowsStretched
from rover_bus.brain.state import BrainState
from rover_bus.events.log import Record

Steps = Generator[Record, None, None]
LATE_S = 2.0  # between two looks, one of which is due each second
MANY_SAMPLES = 20_000  # between two looks: a late one is late for them
BEHIND_LOOKS, IN_TIME_LOOKS = 3, 30  # in a row, until windows become longer, and shorter again
STEP, MOST = 1.5, 16.0


class Backlog:
    """How many looks in a row were late, or not. Of one process: a successor judges for itself, from the windows as they are."""

    def __init__(self) -> None:
        self._behind = self._in_time = 0
        self._looked_s: float | None = None
        self._samples = 0

    def count_sample(self) -> None:
        """A sample was taken in."""
        self._samples += 1

    def look(self, state: BrainState, left: int, now: float) -> Steps:
        """Judge the time until this look; `left`: windows that the last one did not come to."""
        late = self._looked_s is not None and now - self._looked_s > LATE_S and self._samples > MANY_SAMPLES
        samples, self._samples, self._looked_s = self._samples, 0, now
        if left or late:
            self._behind, self._in_time = self._behind + 1, 0
        else:
            self._behind, self._in_time = 0, self._in_time + 1
        stretch = state.stretch
        if self._behind >= BEHIND_LOOKS:
            stretch = min(stretch * STEP, MOST)
        elif self._in_time >= IN_TIME_LOOKS:
            stretch = max(stretch / STEP, 1.0)
        if stretch == state.stretch:
            return
        self._behind = self._in_time = 0
        yield WindowsStretched(stretch=round(stretch, 3), windows_left=left, samples=samples, cause="look")
