"""What the daemons of one process read of FACTS: once, and never a fact for another that bears its number."""

from __future__ import annotations

import pytest

from rover_bus.events.bus import Stored
from rover_bus.events.codec import encode
from rover_bus.events.errors import BadMessage
from rover_bus.events.facts import JobForgotten
from rover_bus.events.subjects import job_fact
from rover_bus.kube.reading_once import reading_once


def forgotten(sequence: int, uid: str) -> Stored:
    fact = JobForgotten(job="train", uid=uid)
    return Stored(sequence, job_fact("train", fact.kind()), encode(fact))


def test_what_is_stored_is_read_once() -> None:
    read = reading_once()
    assert read(forgotten(1, "0123456789ab")) is read(forgotten(1, "0123456789ab"))


def test_another_fact_of_the_same_number_is_another() -> None:
    """A broker that has lost its tail gives numbers again."""
    read = reading_once()
    read(forgotten(1, "0123456789ab"))
    fact = read(forgotten(1, "ba9876543210"))
    assert isinstance(fact, JobForgotten)
    assert fact.uid == "ba9876543210"


def test_what_cannot_be_read_is_refused_each_time() -> None:
    read, bad = reading_once(), Stored(1, job_fact("train", "job.forgotten"), b"{}")
    for _ in range(2):
        with pytest.raises(BadMessage):
            read(bad)
