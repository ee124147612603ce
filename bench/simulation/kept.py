"""Finished cells in a file of JSON lines, so that a run that was broken off goes on where it was.

Fed by the command as cells finish, feeds the same command the next time. A line is believed only if its worlds' digest and
conditions are those of the run that asks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.simulation.experiment import BOUND, Figures


class Kept:
    """The cells of one file; `path` None keeps nothing."""

    def __init__(self, path: Path | None, digest: str) -> None:
        self.path, self.digest = path, digest
        self.cells: dict[str, dict[str, Figures]] = {}
        if path is None or not path.exists():
            return
        for key, cell in _lines(path):
            self.cells.setdefault(key, {}).update(cell)
        if not path.read_text().endswith("\n"):
            with path.open("a") as file:
                file.write("\n")

    def missing(
        self, world: str, load: float, seed: int, conditions: dict[str, Any], policies: Sequence[str]
    ) -> tuple[str, ...]:
        """Policies of a cell that have not been run."""
        known = self.cells.get(self._key(world, load, seed, conditions), {})
        return tuple(name for name in policies if name not in known)

    def add(
        self, world: str, load: float, seed: int, conditions: dict[str, Any], cell: dict[str, Figures]
    ) -> None:
        """A cell, or a part of one, has finished."""
        key = self._key(world, load, seed, conditions)
        self.cells.setdefault(key, {}).update(cell)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({"key": key, "cell": cell}) + "\n")

    def cell(
        self, world: str, load: float, seed: int, conditions: dict[str, Any], policies: Sequence[str]
    ) -> dict[str, Figures]:
        """A whole cell, its policies in the order asked for."""
        known = self.cells[self._key(world, load, seed, conditions)]
        return {name: known[name] for name in (*policies, BOUND)}

    def _key(self, world: str, load: float, seed: int, conditions: dict[str, Any]) -> str:
        return json.dumps([self.digest, world, load, seed, sorted(conditions.items())])


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Figures]]]:
    for line in path.read_text().splitlines():
        try:
            body = json.loads(line)
        except json.JSONDecodeError:
            continue  # a run was broken off while it wrote
        yield body["key"], body["cell"]
