"""Finished cells in a file of JSON lines, so that a run that was broken off goes on where it was.

Fed by the command as cells finish, feeds the same command the next time, and reports made from pieces. A line is believed only
if its conditions and the digests of its world and of each policy (`sources`) are those of the run that asks. What a policy reached
before it was changed can still be read (`groups(former=True)`): the frame of design note 36.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from bench.simulation.experiment import BOUND, POLICIES, Figures, load_world, parts_of
from bench.simulation.sources import ABSENT, digest_of

Group = tuple[str, float, str]  # world, load, conditions as JSON
_ENGINE = ("bench.simulation.cluster", "bench.simulation.generator")


def frozen() -> dict[str, str]:
    """Digests of what figures depend on: the built-in worlds; the engine; all built-in policies with what they call."""
    called = [module for make in POLICIES.values() for module, _ in parts_of(make)]
    return {
        "worlds' digest": digest_of(["bench.simulation.worlds"]),
        "engine's digest": digest_of(_ENGINE),
        "policies' digest": digest_of(called),
    }


@cache
def ground_digest(world: str) -> str:
    """What every figure of a world depends on: the engine, the world's module with what it imports, and the files that it reads."""
    module = world.partition(":")[0] if ":" in world else "bench.simulation.worlds"
    try:
        read = [file.read_bytes() for file in load_world(world).files()]
    except (
        FileNotFoundError,
        ImportError,
        AttributeError,
        TypeError,
        ValueError,
    ):  # it, or a file of it, is gone
        return ABSENT
    return digest_of([*_ENGINE, module], *read)


@cache
def policy_digest(policy: str) -> str:
    """What a policy's figures depend on beyond that: its module with what it imports, and what it is made with."""
    if policy == BOUND:
        return ""
    if policy not in POLICIES:
        return digest_of([policy.partition(":")[0]])
    parts = parts_of(POLICIES[policy])
    return digest_of([module for module, _ in parts], *(given for _, given in parts))


class Kept:
    """The cells of one file; `path` None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
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
        return tuple(name for name in policies if _dated(name) not in known)

    def add(
        self, world: str, load: float, seed: int, conditions: dict[str, Any], cell: dict[str, Figures]
    ) -> None:
        """A cell, or a part of one, has finished."""
        key = self._key(world, load, seed, conditions)
        cell = {_dated(name): figures for name, figures in cell.items()}
        self.cells.setdefault(key, {}).update(cell)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({"key": key, "cell": cell}) + "\n")

    def figures(
        self, world: str, load: float, seed: int, conditions: dict[str, Any], policies: Sequence[str]
    ) -> dict[str, Figures]:
        """Policies of one seed, in the order asked for."""
        known = self.cells[self._key(world, load, seed, conditions)]
        return {name: known[_dated(name)] for name in policies}

    def groups(self, former: bool = False) -> dict[Group, dict[int, dict[str, Figures]]]:
        """All that is kept of the worlds as they are: by world, load and conditions, the policies of every seed.

        `former`: also policies as they were before they were changed, each under its name and digest.
        """
        found: dict[Group, dict[int, dict[str, Figures]]] = {}
        for key, cell in self.cells.items():
            ground, world, load, seed, conditions = json.loads(key)
            if ground == ground_digest(world):
                names = {dated: _current(dated) or (dated if former else "") for dated in cell}
                seeds = found.setdefault((world, load, json.dumps(conditions)), {})
                seeds[seed] = {names[dated]: figures for dated, figures in cell.items() if names[dated]}
        return found

    def _key(self, world: str, load: float, seed: int, conditions: dict[str, Any]) -> str:
        return json.dumps([ground_digest(world), world, load, seed, sorted(conditions.items())])


def _dated(policy: str) -> str:
    """A policy's name in a cell."""
    digest = policy_digest(policy)
    return f"{policy}@{digest}" if digest else policy


def _current(dated: str) -> str:
    """The policy that a name in a cell stands for; empty where it is another one now."""
    name, _, digest = dated.rpartition("@") if "@" in dated else (dated, "", "")
    known = name == BOUND or name in POLICIES or ":" in name
    return name if known and policy_digest(name) == digest else ""


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Figures]]]:
    for line in path.read_text().splitlines():
        try:
            body = json.loads(line)
        except json.JSONDecodeError:
            continue  # a run was broken off while it wrote
        yield body["key"], body["cell"]
