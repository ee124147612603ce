"""A user's mistakes in a schema come back as one line that names the right spelling."""

import pytest

from rover_bus.client.data import Schema
from rover_bus.events.errors import InputError


def test_an_unknown_key_suggests_the_right_one():
    with pytest.raises(InputError, match="no data setting 'categorial'; did you mean 'categorical'"):
        Schema.parse({"categorial": ["user_id"]})


def test_a_missing_column_suggests_the_right_one():
    schema = Schema.parse({"categorical": ["user"]})
    with pytest.raises(InputError, match="no column 'user'; did you mean 'user_id'"):
        schema.lay_out(["label", "user_id", "item_id"])


def test_a_column_that_resembles_nothing_lists_what_there_is():
    with pytest.raises(InputError, match="no column 'zzz'; the file has label, user_id"):
        Schema(dense=("zzz",)).lay_out(["label", "user_id"])


def test_a_value_of_the_wrong_type_is_named():
    with pytest.raises(InputError, match=r"data settings: .*dense"):
        Schema.parse({"dense": [1, 2]})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "names no feature"),
        ({"dense": ["a", "a"]}, "'a' is named twice"),
        ({"dense": ["label"]}, "'label' is named twice"),
        ({"multi": {"g": "||"}}, "multi.g must be one plain ASCII character"),
        ({"multi": {"g": ","}}, "multi.g is the delimiter"),
        ({"dense": ["a"], "delimiter": "é"}, "delimiter must be one plain ASCII character"),
        ({"dense": ["a"], "delimiter": '"'}, "delimiter must be one plain ASCII character"),
        ({"dense": ["a"], "header": False}, "set columns"),
        ({"dense": ["a"], "columns": ["label", "a", "a"]}, "twice in columns"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(table, message):
    with pytest.raises(InputError, match=message):
        Schema.parse(table)


def test_raw_criteo_needs_no_names():
    layout = Schema.parse({"format": "criteo"}).lay_out(None)
    assert (layout.width, layout.label) == (40, 0)
    assert layout.dense == tuple(range(1, 14))
    assert layout.categorical == tuple(range(14, 40))


def test_columns_may_stand_in_any_order_and_be_left_out():
    schema = Schema(label="y", dense=("d",), categorical=("c",), multi={"m": "|"})
    layout = schema.lay_out(["m", "unused", "c", "y", "d"])
    assert (layout.width, layout.label, layout.dense, layout.categorical, layout.multi) == (
        5,
        3,
        (4,),
        (2,),
        (0,),
    )
