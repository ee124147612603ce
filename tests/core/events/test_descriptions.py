"""Descriptions in schemas are the same whichever msgspec is installed."""

import msgspec

from rover_bus.events.descriptions import undented


class Documented(msgspec.Struct):
    """First line.

    `description`: a field by that name.
        Indented below it.
    """

    description: str = "  stays"


SAID = "First line.\n\n`description`: a field by that name.\n    Indented below it."


def test_descriptions_lose_the_indentation_of_their_source() -> None:
    """As msgspec wrote them until 0.22, and as it does from 0.23 on."""
    for said in (f"{Documented.__doc__}", SAID):
        schema = {"$defs": {"A": {"description": said, "anyOf": [{"description": said}]}}}
        assert undented(schema) == {"$defs": {"A": {"description": SAID, "anyOf": [{"description": SAID}]}}}


def test_what_else_a_schema_says_stays_as_it_is() -> None:
    made = undented(msgspec.json.schema(Documented))["$defs"]["Documented"]
    assert made["description"] == SAID
    assert made["properties"] == {"description": {"type": "string", "default": "  stays"}}
    assert undented(((1, None), True)) == [[1, None], True]
