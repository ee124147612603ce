"""A class of the command line has a name that no other class of the package has: a reader who meets it knows which is meant."""

import ast
from collections import defaultdict
from pathlib import Path

import rover_bus

PACKAGE = Path(rover_bus.__file__).parent


def test_no_class_of_cli_shares_its_name_with_another_of_the_package():
    found = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].add(str(path.relative_to(PACKAGE)))
    shared = {name: sorted(paths) for name, paths in found.items() if len(paths) > 1}
    assert not {
        name: paths for name, paths in shared.items() if any(each.startswith("cli/") for each in paths)
    }
