"""The vectorised parser against the plainest reader there is: csv module, float(), a hash written as a loop."""

import csv
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_bus.client.data import ClickLog, Schema
from rover_bus.client.data.fields import PADDING, Spans, split_rows
from rover_bus.client.data.ids import hash_fields
from rover_bus.client.data.numbers import parse_numbers

MASK = 2**64 - 1


def mix(word):
    word = (word + 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ word >> 27) * 0x94D049BB133111EB) & MASK
    return word ^ word >> 31


def plain_id(value):
    state = mix(len(value))
    for first in range(0, len(value), 8):
        state = mix(state ^ int.from_bytes(value[first : first + 8], "little"))
    return state - 2**64 if state >= 2**63 else state


def plain_number(field):
    try:
        value = float(field)
    except ValueError:
        return 0.0, True
    return (value, False) if math.isfinite(value) else (0.0, True)


def lay_out(fields):
    """Lay byte strings side by side, a comma between them, as spans."""
    ends = np.cumsum([len(field) + 1 for field in fields]) - 1
    text = b",".join(fields) + bytes(PADDING)
    return Spans(np.frombuffer(text, np.uint8), ends - [len(field) for field in fields], ends)


NUMBERS = st.one_of(
    st.text(alphabet="0123456789", max_size=20),
    st.from_regex(r"\A[-+]?[0-9]{0,9}\.?[0-9]{0,9}\Z"),
    st.from_regex(r"\A[-+]?[0-9]{1,3}(\.[0-9]{0,3})?[eE][-+]?[0-9]{1,3}\Z"),
    st.floats().map(repr),
    st.integers().map(str),
    st.sampled_from(
        [
            "",
            "-",
            ".",
            "-.",
            "5.",
            ".5",
            "-0",
            "1_000",
            " 7 ",
            "nan",
            "inf",
            "V",
            "unkonwn",
            "1..2",
            "1.2.3",
            "--1",
        ]
    ),
    st.text(alphabet="0123456789.-+eE_ xnaif", max_size=18),
)


@given(st.lists(NUMBERS.map(str.encode), min_size=1, max_size=40))
@settings(max_examples=300, deadline=None)
def test_numbers_equal_those_of_float_to_the_last_bit(fields):
    values, missing = parse_numbers(lay_out(fields))
    expected = [plain_number(field) for field in fields]
    assert values.tolist() == [value for value, _ in expected]
    assert missing.tolist() == [absent for _, absent in expected]


def test_every_length_of_integers_and_decimals_is_exact():
    rng = np.random.default_rng(5)
    digits = ["".join(map(str, rng.integers(0, 10, size))) for size in range(1, 17) for _ in range(50)]
    fields = [text[:dot] + "." + text[dot:] for text in digits for dot in range(len(text) + 1)] + digits
    values, missing = parse_numbers(lay_out([field.encode() for field in fields]))
    assert not missing.any()
    assert values.tolist() == [float(field) for field in fields]


@given(st.lists(st.binary(max_size=40).map(lambda value: value.replace(b",", b"")), min_size=1, max_size=30))
@settings(max_examples=200, deadline=None)
def test_ids_equal_the_hash_written_as_a_loop(values):
    assert hash_fields(lay_out(values)).tolist() == [plain_id(value) for value in values]


def test_golden_vectors_pin_the_ids():
    values = [b"05db9164", b"", b"68fd1e64xyz", b"0"]
    assert hash_fields(lay_out(values)).tolist() == [
        2618928767892805222,
        -2152535657050944081,
        587907684095037873,
        -6162505136108058947,
    ]


FIELD = st.text(alphabet='abc", 1.é|', max_size=10)


@given(
    rows=st.lists(st.lists(FIELD, min_size=3, max_size=3), min_size=1, max_size=20),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    newline=st.sampled_from(["\n", "\r\n"]),
    separator=st.sampled_from(",\t"),
)
@settings(max_examples=200, deadline=None)
def test_fields_equal_those_of_the_csv_module(tmp_path_factory, rows, quoting, newline, separator):
    path = tmp_path_factory.getbasetemp() / "fields.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=separator, quoting=quoting, lineterminator=newline).writerows(rows)
    split = split_rows(path.read_bytes(), 3, separator.encode(), True)
    flat = Spans(split.fields.text, split.fields.starts.ravel(), split.fields.ends.ravel())
    found = [flat.bytes_at(place).decode() for place in range(len(flat.starts))]
    assert found == [field for row in rows for field in row]
    assert split.unusable == []


DENSE = st.one_of(st.integers(-99, 99999).map(str), st.just(""), st.floats().map(repr), st.just("V"))
VALUE = st.text(alphabet='ab",é x', max_size=12)
ROWS = st.lists(
    st.tuples(st.sampled_from("01"), DENSE, VALUE, DENSE, VALUE, st.lists(VALUE, max_size=4).map("|".join)),
    min_size=1,
    max_size=30,
)


@given(rows=ROWS, newline=st.sampled_from(["\n", "\r\n"]))
@settings(max_examples=150, deadline=None)
def test_a_whole_file_reads_as_with_csv_module_and_float(tmp_path_factory, rows, newline):
    path = tmp_path_factory.getbasetemp() / "whole.csv"
    names = ["label", "d0", "c0", "d1", "c1", "m"]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator=newline).writerows([names, *rows])
    log = ClickLog(path, Schema(dense=("d0", "d1"), categorical=("c0", "c1"), multi={"m": "|"}))
    columns, places, skipped = log.read(np.arange(log.records))
    assert skipped == ()
    assert places.tolist() == list(range(len(rows)))

    numbers = [[plain_number(row[1]), plain_number(row[3])] for row in rows]
    values = np.array([[value for value, _ in pair] for pair in numbers])
    absent = np.array([[missing for _, missing in pair] for pair in numbers])
    assert columns.values_missing == absent.sum()
    assert np.array_equal(columns.dense, log.scaling.apply(values, absent))
    assert columns.labels.tolist() == [float(row[0]) for row in rows]
    assert columns.categorical.tolist() == [
        [plain_id(row[2].encode()), plain_id(row[4].encode())] for row in rows
    ]
    bags = [[plain_id(value.encode()) for value in row[5].split("|") if value] for row in rows]
    bag = columns.multi["m"]
    assert [bag.values[a:b].tolist() for a, b in zip(bag.offsets, bag.offsets[1:], strict=False)] == bags


@pytest.mark.parametrize("seed", range(3))
def test_rows_shuffled_and_repeated_read_the_same_as_in_file_order(tmp_path, seed):
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    path = tmp_path / "log.csv"
    lines = [
        f"{n % 2},{n},{'|'.join('abc'[: rng.integers(0, 4)])},{'x' * int(rng.integers(0, 20))}"
        for n in range(1500)
    ]
    path.write_text("\n".join(["label,d,m,c", *lines]))
    log = ClickLog(path, Schema(dense=("d",), categorical=("c",), multi={"m": "|"}))
    whole, _, _ = log.read(np.arange(1500))
    rows = rng.integers(0, 1500, 700)
    some, _, _ = log.read(rows)
    assert np.array_equal(some.rows, rows)
    assert np.array_equal(some.dense, whole.dense[rows])
    assert np.array_equal(some.categorical, whole.categorical[rows])
    assert np.array_equal(some.multi["m"].values, whole.multi["m"].take(rows).values)
    assert np.array_equal(some.multi["m"].offsets, whole.multi["m"].take(rows).offsets)
