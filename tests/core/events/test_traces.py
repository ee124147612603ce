"""The table of spans that operators read is the code's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from rover_bus.events.traces import SpanName

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "operations" / "traces.md"


def test_the_page_names_each_span_once_and_no_other() -> None:
    table = PAGE.read_text().split("## Spans")[1]
    named = re.findall(r"^\| `([a-z_.]+)` \|", table, re.MULTILINE)
    assert named == list(get_args(SpanName))


def test_each_span_is_made_somewhere() -> None:
    text = "".join(path.read_text() for path in (REPOSITORY / "rover_bus").rglob("*spans.py"))
    assert [name for name in get_args(SpanName) if f'"{name}"' not in text] == []
