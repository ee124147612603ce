"""Memory on the page: what hosts say of members, and in pods, which no host measures, what members say."""

from __future__ import annotations

import pytest

from rover_bus.cli.views.own_words import own_word
from rover_bus.cli.views.timelines import JobTimelines
from rover_bus.events.identity import Member
from rover_bus.events.profiles import ProcessSample, ServerProfile

SERVER = Member("ps", 0, 1)


def said(memory_bytes: int) -> ServerProfile:
    return ServerProfile(
        window_s=2.0,
        job="j",
        member=SERVER,
        pulls=1,
        pushes=1,
        ignored=0,
        cores_used=0.5,
        memory_bytes=memory_bytes,
    )


def test_a_member_of_an_earlier_release_says_nothing() -> None:
    assert own_word(said(0)) is None


@pytest.mark.parametrize(("by_host", "mean"), [(False, 100.0), (True, 300.0)])
def test_a_members_own_word_is_drawn_where_no_host_says_more(by_host: bool, mean: float) -> None:
    lines = JobTimelines()
    if by_host:
        measured = ProcessSample(job="j", member=SERVER, pid=1, cores_used=0.5, memory_bytes=300)
        lines.take_process(measured, 1_000)
    lines.take_server(said(100), 1_000)
    [step] = lines.memory.tracks["ps-0"].values()
    total, samples = step.sums
    assert total / samples == mean
