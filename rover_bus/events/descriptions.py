"""The descriptions in a JSON Schema as one reads them, whichever msgspec made it.

Used where schemas are written (`cli/schemas`) or served (`web/openapi`). msgspec took docstrings as they are indented in the source
until 0.22, and without the indentation from 0.23 on: what is committed must not depend on which of the two is installed.
"""

from __future__ import annotations

from inspect import cleandoc
from typing import Any


def undented(schema: Any) -> Any:
    """Return a JSON value in which each description has lost the indentation of its source."""
    if isinstance(schema, list | tuple):
        return [undented(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: cleandoc(value) if key == "description" and isinstance(value, str) else undented(value)
        for key, value in schema.items()
    }
