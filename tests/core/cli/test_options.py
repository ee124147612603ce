"""How much of a log is kept, as people write it."""

import pytest

from rover_bus.cli.options import parse_keep_log, write_keep_log
from rover_bus.events.errors import InputError
from rover_bus.events.streams import KEEP_LOG, KeepLog


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("7d:256MiB", KEEP_LOG),
        ("7d", KEEP_LOG),
        ("30m:1GiB", KeepLog(age_s=1800.0, bytes=1 << 30)),
        ("0s:0B", KeepLog(age_s=0.0, bytes=0)),
    ],
)
def test_an_age_and_a_size_are_read_and_passed_on(word, kept):
    assert parse_keep_log(word) == kept
    assert parse_keep_log(write_keep_log(kept)) == kept


@pytest.mark.parametrize("word", ["", "week", "7d:much", ":1GiB"])
def test_anything_else_is_refused_with_an_example(word):
    with pytest.raises(InputError, match="7d:256MiB"):
        parse_keep_log(word)
