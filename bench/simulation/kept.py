"""Finished cells in a file of JSON lines, so that a run that was broken off goes on where it was.

Fed by the command as cells finish, feeds the same command the next time, and reports made from pieces. A line is believed only
if its digest (`frozen`: worlds, engine, policies) and conditions are those of the run that asks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.simulation import policies
from bench.simulation.experiment import BOUND, Figures
from bench.simulation.worlds import digest
from rover_bus.brain import decisions, models, rules

Group = tuple[str, float, str]  # world, load, conditions as JSON


_ENGINE = [
    "budget",
    "cluster",
    "generator",
    "jobs",
    "metrics",
    "nodes",
    "port",
    "runtime",
    "telemetry",
    "weather",
]


def frozen() -> dict[str, str]:
    """Digests of what a figure depends on: the worlds; the engine; our policies with the production deciders and models that they
    call."""
    engine = [Path(__file__).with_name(f"{module}.py") for module in _ENGINE]
    folders = [Path(str(package.__file__)).parent for package in (policies, decisions, models)]
    called = [file for folder in folders for file in sorted(folder.glob("*.py"))] + [Path(rules.__file__)]
    return {
        "worlds' digest": digest(),
        "engine's digest": _digest_of(engine),
        "policies' digest": _digest_of(called),
    }


def _digest_of(files: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def frozen_key() -> str:
    """All digests in one."""
    return "-".join(frozen().values())


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

    def groups(self) -> dict[Group, dict[int, dict[str, Figures]]]:
        """All that is kept under this digest: by world, load and conditions, the policies of every seed."""
        found: dict[Group, dict[int, dict[str, Figures]]] = {}
        for key, cell in self.cells.items():
            digest_, world, load, seed, conditions = json.loads(key)
            if digest_ == self.digest:
                found.setdefault((world, load, json.dumps(conditions)), {})[seed] = cell
        return found

    def _key(self, world: str, load: float, seed: int, conditions: dict[str, Any]) -> str:
        return json.dumps([self.digest, world, load, seed, sorted(conditions.items())])


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Figures]]]:
    for line in path.read_text().splitlines():
        try:
            body = json.loads(line)
        except json.JSONDecodeError:
            continue  # a run was broken off while it wrote
        yield body["key"], body["cell"]
