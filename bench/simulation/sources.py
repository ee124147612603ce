"""What a figure depends on: the digest of a world, of the engine, of a policy, by the modules that each of them imports.

Fed by modules, feeds the keys of kept cells. A rule of the Brain that only one policy calls makes that policy's figures old, and
no other's. What is followed: modules of this project, and of the package of a foreign module, or of its folder where it has none.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import bench
import rover_bus

ABSENT = "absent"
_OURS = tuple(Path(root).resolve() for package in (bench, rover_bus) for root in package.__path__)


def digest_of(modules: Iterable[str], *extra: str | bytes) -> str:
    """First 16 digits of SHA-256 over the sources of modules, of all that they import, and over what else is given.

    `absent` where one of the modules is not on the path: nothing that was kept under another digest is believed.
    """
    files = set[Path]()
    for module in sorted(set(modules)):
        file = _file(module)
        if file is None:
            return ABSENT
        files |= _sources(module, file)
    texts = [file.read_bytes() for file in sorted(files)]
    texts += [more.encode() if isinstance(more, str) else more for more in extra]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


@cache
def _sources(module: str, first: Path) -> frozenset[Path]:
    """The file of a module and all that it imports, within the roots that are followed."""
    roots, found, left = (
        (*_OURS, first.parents[max(module.count(".") - (first.name != "__init__.py"), 0)]),
        set[Path](),
        [(module, first)],
    )
    while left:
        name, file = left.pop()
        if file in found:
            continue
        found.add(file)
        for other in _imports(name, file):
            path = _file(other)
            if path is not None and any(path.is_relative_to(root) for root in roots):
                left.append((other, path))
    return frozenset(found)


def _imports(module: str, file: Path) -> Iterator[str]:
    """Names of modules that a file imports when it is loaded or called; a name from a package may be a module of it."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def _file(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # what is above it is no package: a name that a module defines
        return None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin).resolve()
