"""A field of the master's state that is added is also changed, read, stored, and kept when the job opens."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

import rover_bus
from rover_bus.master.state import State, Unopened

PACKAGE = Path(rover_bus.__file__).parent
# What a record may change: evolution, and the Structs that change themselves when it calls them.
CHANGES = ("*evolution.py", "ledger.py", "charges.py", "cut.py", "phases.py", "stream.py", "intervals.py")


def structs_below(kind: Any, found: set[type[msgspec.Struct]]) -> set[type[msgspec.Struct]]:
    """Every Struct of the master that a type holds."""
    ours = getattr(kind, "__module__", "").startswith("rover_bus.master.")
    if ours and kind not in found and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        found.add(kind)
        for each in get_type_hints(kind).values():
            structs_below(each, found)
    for each in get_args(kind):
        structs_below(each, found)
    return found


def names_in(path: Path) -> Iterator[str]:
    """Every name that a module gives as an attribute, a keyword, in a pattern, or by its place in a call of its class."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.MatchClass(kwd_attrs=names):
                yield from names
            case ast.Call(func=ast.Name(id=name), args=given) if name in BY_NAME:
                yield from BY_NAME[name].__struct_fields__[: len(given)]


def kinds_in(kind: Any) -> Iterator[Any]:
    yield getattr(kind, "__origin__", kind)
    for each in get_args(kind):
        yield from kinds_in(each)


TREE = sorted(structs_below(State, set()) | structs_below(Unopened, set()), key=lambda kind: kind.__name__)
BY_NAME = {kind.__name__: kind for kind in TREE}
FIELDS = [(kind, name) for kind in TREE for name in kind.__struct_fields__]


def test_every_field_is_changed_by_an_evolution():
    paths = {path for pattern in CHANGES for path in (PACKAGE / "master").glob(pattern)}
    changed = {name for path in paths for name in names_in(path)}
    forgotten = [f"{kind.__name__}.{name}" for kind, name in FIELDS if name not in changed]
    assert forgotten == [], "no record changes these: they are what they were at the start for ever"


def test_every_field_is_read_by_a_rule_or_a_view():
    evolutions = set((PACKAGE / "master").glob("*evolution.py"))
    others = [path for path in PACKAGE.rglob("*.py") if path not in evolutions]
    read = {name for path in others for name in names_in(path)}
    unread = [f"{kind.__name__}.{name}" for kind, name in FIELDS if name not in read]
    assert unread == [], "nothing reads these"


def test_no_field_is_a_set():
    """The order of a set is not the same in two processes: equal states would have unequal snapshots."""
    hints = {kind: get_type_hints(kind) for kind in TREE}
    sets = [
        f"{kind.__name__}.{name}"
        for kind, name in FIELDS
        if {set, frozenset} & set(kinds_in(hints[kind][name]))
    ]
    assert sets == [], "take a list or a dict"


def test_what_a_log_says_before_its_job_has_a_place_in_the_state_of_the_job():
    assert set(Unopened.__struct_fields__) - set(State.__struct_fields__) == set()
