"""Count the statements of rover_bus by package: how much code there is, whatever the length of its lines.

python docs/count_statements.py

A statement is an `ast.stmt` node. A docstring is one too, and is counted apart: prose costs nothing to keep.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parent.parent / "rover_bus"


class Count(NamedTuple):
    """What one module or package holds: files, statements that are code, docstrings."""

    files: int
    code: int
    docstrings: int


def count_module(tree: ast.Module) -> Count:
    """Return the statements of one module, its docstrings apart (those of fields too: a bare string below a field)."""
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    docstrings = sum(map(is_docstring, statements))
    return Count(1, len(statements) - docstrings, docstrings)


def is_docstring(statement: ast.stmt) -> bool:
    """Say whether a statement is a bare string: the docstring of a module, class, function or field."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def count_packages(root: Path = PACKAGE) -> dict[str, Count]:
    """Return the count of each package right below `root`, by name; modules that stand in `root` itself are `.`."""
    sums: dict[str, Counter[str]] = {}
    for package, count in _modules(root):
        sums.setdefault(package, Counter()).update(count._asdict())
    return {package: Count(**total) for package, total in sorted(sums.items())}


def _modules(root: Path) -> Iterator[tuple[str, Count]]:
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).parts
        yield inside[0] if len(inside) > 1 else ".", count_module(ast.parse(path.read_text()))


def main() -> None:
    packages = count_packages()
    total = Count(*map(sum, zip(*packages.values(), strict=True)))
    print(f"{'package':<12} {'files':>6} {'statements':>11} {'docstrings':>11}")
    for name, count in [*packages.items(), ("total", total)]:
        print(f"{name:<12} {count.files:>6,} {count.code:>11,} {count.docstrings:>11,}")


if __name__ == "__main__":
    main()
