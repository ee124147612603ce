"""Moments that are gone: a step is shown once all of it was known, and samples are found by when they were stored."""

from __future__ import annotations

from rover_bus.cli.views.past_samples import MOST_PLACES, SamplePlaces
from rover_bus.cli.views.timelines import MOST_STEPS, Timeline
from rover_bus.events.bus import Stored

BEGAN_MS = 1_000_000_000_000


def test_a_step_in_which_a_later_sample_lies_was_not_known() -> None:
    timeline = Timeline()
    timeline.add("y", BEGAN_MS, (0.0,))
    timeline.spread("x", BEGAN_MS + 2000, 2.0, (4.0,))
    timeline.spread("x", BEGAN_MS + 3500, 2.0, (4.0,))
    known = timeline.known_by(BEGAN_MS + 3000)
    assert known.steps("x") == [(BEGAN_MS, [2.0])], "half a second of the next step was told later"
    assert len(timeline.known_by(BEGAN_MS + 3500).steps("x")) == 4
    assert list(timeline.known_by(BEGAN_MS + 1999).tracks) == ["y"]


def test_what_was_known_does_not_change_when_more_comes() -> None:
    timeline = Timeline()
    timeline.add("x", BEGAN_MS, (1.0,))
    known = timeline.known_by(BEGAN_MS)
    timeline.add("x", BEGAN_MS + 10, (5.0,))
    assert known.steps("x") == [(BEGAN_MS, [1.0])]
    assert timeline.known_by(BEGAN_MS).tracks == {}


def test_steps_that_became_wider_are_known_when_the_last_of_each_is() -> None:
    timeline = Timeline()
    for second in range(MOST_STEPS + 1):
        timeline.add("x", BEGAN_MS + 1000 * second, (1.0,))
    known = timeline.known_by(BEGAN_MS + 10_000)
    assert (known.width_ms, [sums for _, sums in known.steps("x")]) == (2000, [[2.0]] * 5)


def test_places_lie_before_all_samples_since_a_moment() -> None:
    places = SamplePlaces()
    assert places.before(BEGAN_MS) is None
    stored = [Stored(6 + number, "s", b"", time_ms=BEGAN_MS + 300 * number) for number in range(1, 50)]
    for each in stored:
        places.note(each)
    for since_ms in range(BEGAN_MS + 400, BEGAN_MS + 15_000, 77):
        first = places.before(since_ms)
        assert first is not None
        assert all(each.sequence >= first for each in stored if each.time_ms >= since_ms)
        assert sum(first <= each.sequence and each.time_ms < since_ms for each in stored) <= 5
    assert places.before(BEGAN_MS) is None, "what was sampled before the first place is not known"


def test_before_the_streams_first_sample_there_was_none() -> None:
    places = SamplePlaces()
    places.note(Stored(1, "s", b"", time_ms=BEGAN_MS))
    assert places.before(BEGAN_MS - 5000) == 1


def test_places_begin_again_where_the_stream_did_and_are_bounded() -> None:
    places = SamplePlaces()
    for number in range(MOST_PLACES + 10):
        places.note(Stored(number + 1, "s", b"", time_ms=BEGAN_MS + 1000 * number))
    assert places.before(BEGAN_MS + 5000) is None
    places.note(Stored(3, "s", b"", time_ms=BEGAN_MS + 9_000_000))
    assert places.before(BEGAN_MS + 8_000_000) is None
    assert places.before(BEGAN_MS + 9_000_500) == 3
