"""Requests that may wait give way to workers, and are not forgotten."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from rover_bus.ps import messages
from rover_bus.ps.admission import Fence
from rover_bus.ps.frame import unpack
from rover_bus.ps.messages import Fetch
from rover_bus.ps.patience import MOST_S, Patience


def test_a_worker_goes_before_rows_that_move_but_they_are_not_forgotten():
    patience, done = Patience(), []
    patience.note_answer(0.0, gave_values=True)
    for name in ("first", "second", "third"):
        patience.put(partial(done.append, name), lambda: None, 0.001)
    assert patience.pause_s(0.001, 1.0) == pytest.approx(MOST_S)
    patience.take(0.001).do()  # a worker was just given values
    assert patience.take(0.002) is None  # its push may come any moment
    patience.note_answer(0.0025, gave_values=False)
    assert patience.take(0.0025) is None  # its next pull is on its way
    patience.note_answer(0.003, gave_values=True)
    patience.take(0.003).do()
    assert patience.take(0.004) is None
    patience.take(0.001 + MOST_S).do()  # it has waited long enough
    assert done == ["first", "second", "third"]


def test_rows_that_move_use_the_time_that_a_worker_usually_takes_as_far_as_they_are_done_in_it():
    patience, done = Patience(), []
    for step in range(100):  # asks 4 ms after it was given values
        patience.note_answer(step * 0.005, gave_values=True)
        patience.note_request(step * 0.005 + 0.004)
        patience.note_work(0.002)
    patience.note_answer(1.0, gave_values=True)
    for name in ("first", "second", "third"):
        patience.put(partial(done.append, name), lambda: None, 1.0)
    patience.take(1.0005).do()
    assert patience.pause_s(1.001, 1.0) == 0.0
    patience.take(1.0015).do()
    assert patience.take(1.0025) is None  # what begins now may not be done in time
    patience.note_request(1.003)
    assert patience.take(1.003) is None
    assert done == ["first", "second"]


def test_work_that_takes_longer_than_a_worker_begins_right_after_values_were_given_or_not_at_all():
    patience, done = Patience(), []
    for step in range(100):
        patience.note_answer(step * 0.005, gave_values=True)
        patience.note_request(step * 0.005 + 0.001)
        patience.note_work(0.002)
    patience.put(partial(done.append, "late"), lambda: None, 1.0)
    patience.note_answer(1.001, gave_values=False)
    assert patience.take(1.001) is None
    patience.note_answer(1.002, gave_values=True)
    patience.take(1.002).do()
    patience.put(partial(done.append, "next"), lambda: None, 1.002)
    assert patience.take(1.0021) is None
    assert done == ["late"]


def test_without_workers_nothing_waits():
    patience, done = Patience(), []
    patience.put(lambda: done.append("at once"), lambda: None, 5.0)
    assert patience.pause_s(5.0, 1.0) == 0.0
    patience.take(5.0).do()
    assert done == ["at once"]
    assert patience.pause_s(5.0, 1.0) == 1.0


def test_what_waits_when_a_server_ends_is_dropped():
    patience, dropped = Patience(), []
    patience.put(lambda: None, lambda: dropped.append(1), 0.0)
    patience.drop()
    assert dropped == [1]
    assert patience.take(9.0) is None


def test_the_kind_of_a_request_is_seen_without_reading_it():
    fence = Fence(0, 0, 0, 1)
    fetch = Fetch(fence=fence, move=1, number=1, target=(1, 1))
    kinds = {
        "values": messages.Pull(fence=fence),
        "leisurely": fetch,
        "hand-over": msgspec.structs.replace(fetch, hand_over=True),
        "push": messages.Push(fence=fence, epoch=0, number=1),
    }
    headers = {name: unpack(bytearray(b"".join(messages.encode(kind))))[0] for name, kind in kinds.items()}
    assert [name for name, header in headers.items() if messages.asks_for_values(header)] == ["values"]
    assert [name for name, header in headers.items() if messages.is_leisurely(header)] == ["leisurely"]
    assert not messages.is_leisurely(b"")
    assert not messages.is_leisurely(bytes(headers["leisurely"])[:8])
