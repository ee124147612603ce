"""The judge of exactness, and the names of failures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_bus.client.failure import fingerprint
from rover_bus.client.witness import NAME, read_witness, witness_of, witness_table
from rover_bus.events.job import Dataset
from rover_bus.ps.local import LocalParameters
from rover_bus.ps.store import BatchKey


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 3), st.data())
def test_each_push_adds_one_at_the_positions_used_and_nowhere_else(
    records: int, batch_size: int, epochs: int, data: st.DataObject
) -> None:
    dataset = Dataset(records=records, batch_size=batch_size, epochs=epochs)
    table = witness_table(dataset)
    assert table is not None
    parameters = LocalParameters()
    parameters.declare(table)
    expected = np.zeros((epochs, records), np.int32)
    for epoch in range(epochs):
        used = np.frombuffer(data.draw(st.binary(min_size=records, max_size=records)), np.uint8) % 2 == 1
        for number in range(dataset.batches):
            positions = np.arange(number * batch_size, min((number + 1) * batch_size, records))
            positions = positions[used[positions]]
            expected[epoch, positions] += 1
            parameters.push(BatchKey(epoch, number), {}, add={NAME: witness_of(dataset, epoch, positions)})
    assert np.array_equal(read_witness(parameters.export()[NAME], dataset), expected)


@pytest.mark.parametrize(
    "dataset",
    [
        Dataset(records=0, batch_size=1, partitions=["a"]),
        Dataset(records=10, batch_size=1, epochs=0),
        Dataset(records=2**36, batch_size=512),
    ],
)
def test_where_positions_have_no_end_there_is_no_witness(dataset: Dataset) -> None:
    assert witness_table(dataset) is None


def fail(text: str) -> BaseException:
    try:
        raise KeyError(text)
    except KeyError as error:
        return error


def test_equal_failures_have_equal_names_whatever_their_message_says() -> None:
    assert fingerprint(fail("at 0x7f01")) == fingerprint(fail("at 0x7f02"))
    assert fingerprint(fail("x")).startswith("KeyError@client/test_witness.py:fail:")
    assert fingerprint(ValueError("never raised")) == "ValueError@"
