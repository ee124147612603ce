"""A field that is added to the state of a master or of the Brain is also changed by records, read, and stored."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec
import pytest

import rover_bus
from rover_bus.brain.state import BrainState
from rover_bus.master.state import State, Unopened

PACKAGE = Path(rover_bus.__file__).parent


def structs_below(kind: Any, module: str, found: set[type[msgspec.Struct]]) -> set[type[msgspec.Struct]]:
    """Every Struct of these modules that a type holds."""
    ours = getattr(kind, "__module__", "").startswith(module)
    if ours and kind not in found and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        found.add(kind)
        for each in get_type_hints(kind).values():
            structs_below(each, module, found)
    for each in get_args(kind):
        structs_below(each, module, found)
    return found


class Tree(NamedTuple):
    """The state of one component. `changes`: evolution, and the modules whose functions and Structs it calls to change itself."""

    room: str
    structs: list[type[msgspec.Struct]]
    changes: list[str]

    @property
    def fields(self) -> list[tuple[type[msgspec.Struct], str]]:
        return [(kind, name) for kind in self.structs for name in kind.__struct_fields__]


def tree(room: str, module: str, roots: list[Any], changes: list[str]) -> Tree:
    found: set[type[msgspec.Struct]] = set()
    for root in roots:
        structs_below(root, module, found)
    return Tree(room, sorted(found, key=lambda kind: kind.__name__), changes)


MASTER = tree(
    "master",
    "rover_bus.master.",
    [State, Unopened],
    [
        "*evolution.py",
        "ledger.py",
        "lockstep.py",
        "charges.py",
        "cut.py",
        "phases.py",
        "stream.py",
        "intervals.py",
    ],
)
BRAIN = tree(
    "brain",
    "rover_bus.brain.state",
    [BrainState],
    [
        "evolution.py",
        "evolution_of_hosts.py",
        "evolution_of_windows.py",
        "learning_hosts.py",
        "loads.py",
        "families.py",
        "predicting.py",
    ],
)
TREES = pytest.mark.parametrize("tree", [MASTER, BRAIN], ids=lambda tree: tree.room)


def names_in(path: Path, tree: Tree) -> Iterator[str]:
    """Every name that a module gives as an attribute, a keyword, in a pattern, or by its place in a call of its class."""
    by_name = {kind.__name__: kind for kind in tree.structs}
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.MatchClass(kwd_attrs=names):
                yield from names
            case ast.Call(func=ast.Name(id=name), args=given) if name in by_name:
                yield from by_name[name].__struct_fields__[: len(given)]


def kinds_in(kind: Any) -> Iterator[Any]:
    yield getattr(kind, "__origin__", kind)
    for each in get_args(kind):
        yield from kinds_in(each)


@TREES
def test_every_field_is_changed_by_an_evolution(tree: Tree) -> None:
    paths = {path for pattern in tree.changes for path in (PACKAGE / tree.room).glob(pattern)}
    changed = {name for path in paths for name in names_in(path, tree)}
    forgotten = [f"{kind.__name__}.{name}" for kind, name in tree.fields if name not in changed]
    assert forgotten == [], "no record changes these: they are what they were at the start for ever"


def test_every_field_of_a_master_is_read_by_a_rule_or_a_view() -> None:
    evolutions = set((PACKAGE / "master").glob("*evolution.py"))
    others = [path for path in PACKAGE.rglob("*.py") if path not in evolutions]
    read = {name for path in others for name in names_in(path, MASTER)}
    unread = [f"{kind.__name__}.{name}" for kind, name in MASTER.fields if name not in read]
    assert unread == [], "nothing reads these"


@TREES
def test_no_field_is_a_set(tree: Tree) -> None:
    """The order of a set is not the same in two processes: equal states would have unequal snapshots."""
    hints = {kind: get_type_hints(kind) for kind in tree.structs}
    sets = [
        f"{kind.__name__}.{name}"
        for kind, name in tree.fields
        if {set, frozenset} & set(kinds_in(hints[kind][name]))
    ]
    assert sets == [], "take a list or a dict"


def test_what_a_log_says_before_its_job_has_a_place_in_the_state_of_the_job() -> None:
    assert set(Unopened.__struct_fields__) - set(State.__struct_fields__) == set()
