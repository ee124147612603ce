"""A class name is used once in the package: a reader who meets it knows which class is meant."""

import ast
from collections import defaultdict
from pathlib import Path

import rover_bus

PACKAGE = Path(rover_bus.__file__).parent


def test_every_class_has_a_name_of_its_own():
    found = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].add(str(path.relative_to(PACKAGE)))
    assert {name: sorted(paths) for name, paths in found.items() if len(paths) > 1} == {}
