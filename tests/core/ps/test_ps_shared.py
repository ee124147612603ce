"""Frames whose bodies lie in memory that worker and server share: places, their return, and claims to refuse."""

from __future__ import annotations

import os
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rover_bus.events.errors import BadMessage
from rover_bus.ps.frame import ALIGNMENT, PRELUDE_BYTES, measure, pack
from rover_bus.ps.shared import HALF_BYTES, Ring, SharedBodies, create_memory, map_memory

HALF = 4096


def ends(half=HALF):
    """The worker's and the server's end of one connection."""
    forth, back = memoryview(bytearray(half)), memoryview(bytearray(half))
    return SharedBodies(forth, back, willing=True), SharedBodies(back, forth, willing=False)


def carry(sender, receiver, array):
    """Send an array as the body of a frame; return (whether it was shared, what arrived)."""
    frame = b"".join(sender.place(pack(b"header", [array])))
    extent = measure(frame, may_share=True)
    receiver.count_received()
    body = memoryview(frame)[extent.body_start : extent.end]
    body = receiver.find(body) if extent.shared else body
    return extent.shared, bytes(body[: array.nbytes])


@given(st.lists(st.one_of(st.integers(0, 40), st.none()), max_size=60))
def test_places_in_use_never_overlap_and_an_empty_ring_begins_at_its_front(steps):
    """A number takes so many units of 64 bytes; None gives the oldest back."""
    ring, used, number = Ring(32 * ALIGNMENT), deque(), 0
    for step in steps:
        if step is None:
            if used:
                ring.give_back(used.popleft()[0])
            continue
        number += 1
        size = step * ALIGNMENT
        start = ring.take(number, size)
        if start is None:
            assert used or size > 32 * ALIGNMENT
            continue
        assert start + size <= 32 * ALIGNMENT
        assert all(start + size <= first or end <= start or not size for _, first, end in used)
        assert used or start == 0
        if size:
            used.append((number, start, start + size))


@given(st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 1500)), max_size=30))
def test_whatever_is_shared_arrives_and_what_finds_no_room_goes_with_its_frame(sizes):
    worker, server = ends()
    for at, (request, reply) in enumerate(sizes):
        for sender, receiver, size in ((worker, server, request), (server, worker, reply)):
            array = np.full(size, at % 251, np.uint8)
            shared, arrived = carry(sender, receiver, array)
            assert shared
            assert arrived == array.tobytes()
    assert carry(worker, server, np.zeros(2 * HALF, np.uint8)) == (False, bytes(2 * HALF))


def test_requests_that_wait_for_their_replies_fill_the_memory_and_then_go_by_the_socket():
    worker, server = ends()
    array = np.ones(HALF // 4, np.uint8)
    assert [carry(worker, server, array)[0] for _ in range(6)] == [True] * 4 + [False] * 2
    carry(server, worker, array)  # says that all six are done with
    assert carry(worker, server, array)[0]


def test_a_server_shares_nothing_with_a_worker_that_shared_nothing():
    """So a worker that cannot map the memory needs no word for it."""
    _, server = ends()
    assert len(server.place(pack(b"header", [np.ones(100, np.uint8)]))) > 1


@pytest.mark.parametrize(
    "descriptor",
    [(HALF, 64, 0), (0, HALF + 64, 0), (1, 64, 0), (0, 63, 0), (2**64 - 64, 128, 0), (0, 64, 1)],
    ids=["behind the end", "too long", "unaligned", "unpadded", "wraps around", "done before sent"],
)
def test_a_body_outside_of_the_shared_memory_is_refused(descriptor):
    _, server = ends()
    with pytest.raises(BadMessage, match="not in the shared memory"):
        server.find(memoryview(b"".join(n.to_bytes(8, "little") for n in descriptor) + bytes(40)))


def test_a_shared_frame_is_foreign_where_nothing_is_shared():
    worker, _ = ends()
    [frame] = worker.place(pack(b"header", [np.ones(100, np.uint8)]))
    with pytest.raises(BadMessage, match="not a parameter server's frame"):
        measure(frame[:PRELUDE_BYTES])


def test_shared_memory_is_sealed_so_that_no_peer_can_pull_it_away():
    descriptor = create_memory()
    if descriptor is None:
        pytest.skip("this system has no memory files")
    try:
        for size in (0, HALF_BYTES, 4 * HALF_BYTES):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
        halves = map_memory(descriptor)
        assert [len(half) for half in halves] == [HALF_BYTES] * 2
    finally:
        os.close(descriptor)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory files")
def test_memory_that_could_still_shrink_is_not_mapped():
    descriptor = os.memfd_create("unsealed")
    try:
        os.ftruncate(descriptor, 2 * HALF_BYTES)
        with pytest.raises(BadMessage, match="not sealed"):
            map_memory(descriptor)
    finally:
        os.close(descriptor)
