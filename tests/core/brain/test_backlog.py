"""A Brain that does not keep up has longer windows, and says so; one that does again has those that were set."""

from __future__ import annotations

import pytest
from brain_states import cluster, runs, size
from brain_totals import assert_totals_agree

from rover_bus.brain import backlog, turns
from rover_bus.brain.backlog import BEHIND_LOOKS, IN_TIME_LOOKS, MOST, STEP, Backlog
from rover_bus.brain.decider import A_WINDOW, BrainDecider
from rover_bus.brain.log import WindowClosed, WindowsStretched
from rover_bus.brain.state import BrainState
from rover_bus.brain.totals import keep_totals
from rover_bus.cli.views.explaining import stretched_text
from rover_bus.events.inputs import Continued, Ticked


def crowd(jobs: int = 12) -> BrainDecider:
    hosts = "abcdefghijkl"
    brain = BrainDecider(1)
    brain.state = cluster(
        *(runs(f"j{at:02}", size(4), hosts[at]) for at in range(jobs)), cores=16.0, hosts=hosts
    )
    keep_totals(brain.state)
    return brain


def look(brain: BrainDecider, at_s: float, inputs: int) -> list[object]:
    """One look of so many inputs at most: what is left then is not done when the next tick comes."""
    decision = brain.decide(Ticked(), at_s)
    said = list[object](decision.effects)
    for _ in range(inputs - 1):
        if decision.unfinished:
            decision = brain.decide(Continued(), at_s)
            said += decision.effects
    assert_totals_agree(brain.state)
    return said


def test_windows_are_longer_while_looks_are_not_over_when_the_next_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brain = crowd()
    look(brain, 0.0, 1000)
    monkeypatch.setattr(turns, "PIECE", 2 * A_WINDOW)
    said = [each for at in range(BEHIND_LOOKS + 1) for each in look(brain, 20.0 + at, 1)]
    [stretched] = [each for each in said if isinstance(each, WindowsStretched)]
    assert (stretched.stretch, brain.state.stretch) == (STEP, STEP)
    assert stretched.windows_left > 0
    [text] = stretched_text(brain.state)
    assert "1.5 times" in text


def test_a_longer_window_closes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    brain = crowd(1)
    brain.state.stretch = 4.0
    window_s = brain.state.jobs["j00"].window_s
    look(brain, 0.0, 1000)
    late = [
        any(isinstance(each, WindowClosed) for each in look(brain, 2 * k * window_s, 1000))
        for k in (1, 3.9, 4)
    ]
    assert late == [False, False, True], "overdue after two windows of four times their length"


def test_what_is_in_time_again_for_long_has_the_windows_that_were_set() -> None:
    state, judged = BrainState(stretch=2.0), Backlog()
    said = [each for at in range(3 * IN_TIME_LOOKS) for each in _taken(judged, state, 0, float(at))]
    assert [each.stretch for each in said] == [pytest.approx(2.0 / STEP, abs=1e-3), 1.0]
    assert stretched_text(state) == []


def test_a_late_look_counts_where_samples_made_it_late_and_windows_have_a_longest_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog, "MANY_SAMPLES", 10)
    starved, flooded = BrainState(), BrainState()
    idle, busy = Backlog(), Backlog()
    for at in range(100):
        for _ in range(11):
            busy.count_sample()
        list(_taken(idle, starved, 0, 3.0 * at))
        list(_taken(busy, flooded, 0, 3.0 * at))
    assert (starved.stretch, flooded.stretch) == (1.0, MOST)


def _taken(judged: Backlog, state: BrainState, left: int, now: float) -> list[WindowsStretched]:
    said = []
    for record in judged.look(state, left, now):
        assert isinstance(record, WindowsStretched)
        state.stretch = record.stretch
        said.append(record)
    return said
