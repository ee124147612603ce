"""Nested maps as lines of YAML, for people who read it and programs that take it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def to_yaml(value: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Yield nested maps, and lists of maps, as lines of YAML; all else is written as JSON, which YAML understands."""
    for key, item in value.items():
        name = key if key.replace("_", "").isalnum() and not key.isdecimal() else json.dumps(key)
        if isinstance(item, dict) and item:
            yield f"{indent}{name}:"
            yield from to_yaml(item, indent + "  ")
        elif isinstance(item, list) and item and all(isinstance(each, dict) and each for each in item):
            yield f"{indent}{name}:"
            for each in item:
                first, *others = to_yaml(each, indent + "    ")
                yield f"{indent}  - {first.lstrip()}"
                yield from others
        else:
            yield f"{indent}{name}: {json.dumps(item, ensure_ascii=False)}"
