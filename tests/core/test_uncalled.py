"""What the package defines it also uses: a rule that is written and not called, or code that only tests call, is found here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import rover_bus

PACKAGE = Path(rover_bus.__file__).parent
REPOSITORY = PACKAGE.parent


def definitions(tree: ast.Module) -> Iterator[str]:
    """Functions and classes of a module; not those that a decorator hands on, as click's commands."""
    for node in tree.body:
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name, decorator_list=[])
                | ast.AsyncFunctionDef(name=name, decorator_list=[])
            ):
                yield name


def uses(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.ImportFrom(names=aliases):
                yield from (alias.name for alias in aliases if alias.asname)


def test_every_function_and_class_of_the_package_is_used_outside_of_tests():
    defined: dict[str, str] = {}
    used: set[str] = set()
    for folder in (PACKAGE, REPOSITORY / "bench", REPOSITORY / "examples", REPOSITORY / "docs"):
        for path in folder.rglob("*.py"):
            tree = ast.parse(path.read_text())
            used.update(uses(tree))
            if folder == PACKAGE:
                defined |= dict.fromkeys(definitions(tree), str(path.relative_to(REPOSITORY)))
    idle = {name: path for name, path in defined.items() if name not in used}
    assert idle == {}, "only tests use these"
