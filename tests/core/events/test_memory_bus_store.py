"""What an in-memory stream and bucket promise, without a loop: JetStream's rules in small."""

import pytest

from rover_bus.events.bus import MESSAGE_ID
from rover_bus.events.errors import StreamFull, WrongSequence
from rover_bus.events.memory_store import MemoryBucket, MemoryStream, matches
from rover_bus.events.streams import StreamSpec


def stream(**limits: object) -> MemoryStream:
    return MemoryStream(StreamSpec(name="S", subjects=["a.>"], **limits))  # type: ignore[arg-type]


def put(
    kept: MemoryStream,
    subject: str = "a.b",
    body: bytes = b"x",
    now_s: float = 0.0,
    *,
    message_id: str = "",
    expected_last: int | None = None,
) -> int:
    headers = {MESSAGE_ID: message_id} if message_id else {}
    return kept.store(subject, body, headers, now_s, expected_last)[0]


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("*.b", "a.b", True),
        ("a.b", "a.b.c", False),
        (">", "a", True),
    ],
)
def test_subjects_match_as_in_nats(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected


def test_the_expected_sequence_is_of_the_subject_and_not_of_the_stream() -> None:
    kept = stream()
    assert put(kept, "a.one", expected_last=0) == 1
    assert put(kept, "a.two", expected_last=0) == 2
    assert put(kept, "a.one", expected_last=1) == 3
    with pytest.raises(WrongSequence):
        put(kept, "a.one", expected_last=1)


def test_a_repeat_within_the_window_is_not_stored_twice_and_after_it_is() -> None:
    kept = stream(dedupe_window_s=10)
    assert put(kept, message_id="m") == 1
    assert put(kept, message_id="m", now_s=9.0) == 1
    assert put(kept, message_id="m", now_s=30.0) == 2


def test_the_retry_of_a_chained_append_is_refused_even_inside_the_window() -> None:
    kept = stream()
    put(kept, message_id="m", expected_last=0)
    with pytest.raises(WrongSequence):
        put(kept, message_id="m", expected_last=0)


def test_a_full_stream_refuses_and_takes_again_after_a_purge() -> None:
    kept = stream(max_bytes=200, discard="new")
    put(kept, body=bytes(100))
    with pytest.raises(StreamFull):
        put(kept, body=bytes(100))
    kept.purge("a.b", None)
    assert put(kept, body=bytes(100)) == 2
    assert kept.size_bytes < 200


def test_a_stream_that_discards_old_drops_the_oldest() -> None:
    kept = stream(max_bytes=300)
    for _ in range(5):
        put(kept, body=bytes(100))
    assert [message.sequence for message in kept.select(["a.>"])] == [4, 5]


def test_age_and_count_limits_hold() -> None:
    kept = stream(max_age_s=60, max_messages_a_subject=2)
    for at_s in (0.0, 1.0, 2.0):
        put(kept, now_s=at_s)
    assert [message.sequence for message in kept.select(["a.b"])] == [2, 3]
    kept.expire(61.5)
    assert [message.sequence for message in kept.select(["a.b"])] == [3]


def test_selection_over_several_subjects_is_in_order_of_sequence() -> None:
    kept = stream()
    for subject in ("a.x", "a.y", "a.x", "a.z"):
        put(kept, subject)
    assert [message.sequence for message in kept.select(["a.*"], 2)] == [2, 3, 4]
    assert [message.sequence for message in kept.newest(["a.x", "a.y"])] == [2, 3]


def test_a_power_cut_gives_lost_sequence_numbers_out_again() -> None:
    kept = stream()
    for _ in range(4):
        put(kept)
    kept.truncate(2)
    assert (kept.last_on("a.b"), put(kept)) == (2, 3)


def test_a_key_is_written_only_over_the_revision_that_was_seen() -> None:
    bucket = MemoryBucket()
    first = bucket.put("k", b"1", 0, None)
    with pytest.raises(WrongSequence):
        bucket.put("k", b"2", 0, None)
    second = bucket.put("k", b"2", first.revision, None)
    with pytest.raises(WrongSequence):
        bucket.delete("k", first.revision)
    gone = bucket.delete("k", second.revision)
    assert gone is not None
    assert gone.value is None
    assert bucket.put("k", b"3", 0, None).revision > second.revision


def test_a_renewed_value_survives_the_end_of_its_former_time_to_live() -> None:
    bucket = MemoryBucket()
    first = bucket.put("k", b"1", None, 1.0)
    second = bucket.put("k", b"1", first.revision, 2.0)
    assert bucket.expire("k", first.revision) is None
    assert bucket.expire("k", second.revision) is not None
