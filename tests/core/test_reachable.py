"""What the Brain is made of runs in the product: each module of brain/ is on the way from the command line, or from the library."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import rover_bus

PACKAGE = Path(rover_bus.__file__).parent
LIBRARY = "rover_bus.brain.v1"  # what a scheduler of its own imports (docs/brain-library.md)


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in PACKAGE.rglob("*.py")}


def imports(name: str) -> Iterator[str]:
    """What a module imports, when it is loaded or called; and what is above that."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        found = list[str]()
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for each in found:
            parts = each.split(".")
            above = (".".join(parts[:length]) for length in range(2, len(parts) + 1))
            yield from (name for name in above if name in MODULES)


def reached(roots: set[str]) -> set[str]:
    seen, left = set[str](), list(roots)
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += imports(name)
    return seen


def test_every_module_of_the_brain_is_on_the_way_from_the_command_line() -> None:
    commands = {
        name for name in MODULES if name.startswith("rover_bus.cli")
    }  # loaded by name, when they are called
    assert "rover_bus.cli.entry" in commands
    there = {name for name in MODULES if name.startswith("rover_bus.brain")}
    idle = there - reached(commands | {LIBRARY})
    assert not idle, "no command reaches these"


def test_the_simulator_composes_no_decisions_of_its_own() -> None:
    """Ours, oracles and rivals with our mechanisms go through the library; a rival has its own algorithm and nothing else."""
    allowed = {
        "plans",  # values
        "placement",  # where members go is the cluster's own affair: all policies' alike
        "optimus",  # the rival
        "hot_servers",  # its threshold
        "scaling",  # the front of what an oracle was told
    }
    folder = PACKAGE.parent / "bench" / "simulation"
    used = set[str]()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                "rover_bus.brain.decisions."
            ):
                used.add(str(node.module).rpartition(".")[2])
    assert used <= allowed
