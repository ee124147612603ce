"""What threads decode has its decoder from import on: msgspec crashes where two threads use a type for the first time at once."""

from __future__ import annotations

import ast
from pathlib import Path

import rover_bus

PACKAGE = Path(rover_bus.__file__).parent
READ_BY_THREADS = ("flash", "node/storage", "ps")


def test_no_type_is_first_used_by_a_thread() -> None:
    """Such a call learns the type when it runs: here, in a thread of the persister or of a server."""
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for room in READ_BY_THREADS
        for path in sorted((PACKAGE / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".decode", ".convert"))
        if any(keyword.arg == "type" for keyword in node.keywords)
    ]
    assert found == [], "make a Decoder at import, as flash/journal.py does"
