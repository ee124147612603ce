"""What is at rest: objects for which there is nothing to do until something that this rests on is another, or a second comes.

Used by objects.py at every Turn. One fact concerns one job; what is decided on the ninety-nine others would be what it was, and to
find that out takes longer than all else that a fact does (docs/design/0072). Nothing is remembered of an object for which anything
is to be done: it is decided on again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rover_bus.kube.kinds import Ref
from rover_bus.kube.known_objects import KnownObject, Objects
from rover_bus.kube.roverjobs import uid_of
from rover_bus.kube.runs import FollowedRun


@dataclass(frozen=True, slots=True)
class _Ground:
    """All of a state that one object is decided on. States share what did not change, so that two are told apart without a look
    inside.
    """

    known: KnownObject
    run: FollowedRun | None
    others: tuple[object, ...]

    def is_same(self, other: _Ground) -> bool:
        return self.known is other.known and self.run is other.run and self.others == other.others


@dataclass(frozen=True, slots=True)
class _Rest:
    ground: _Ground
    until_s: float


class Resting:
    """The objects at rest, as of the last Turn."""

    def __init__(self) -> None:
        self._rests: Mapping[Ref, _Rest] = {}
        self._next: dict[Ref, _Rest] = {}

    def turn(self) -> None:
        """A Turn begins: what is not asked for in it is forgotten."""
        self._rests, self._next = self._next, {}

    def until(self, state: Objects, ref: Ref, known: KnownObject, now_s: float) -> float | None:
        """Return the second to which an object rests (infinity: no second ends that); None: it is to be decided on."""
        rest = self._rests.get(ref)
        if rest is None or now_s >= rest.until_s or not rest.ground.is_same(_ground(state, ref, known)):
            return None
        self._next[ref] = rest
        return rest.until_s

    def note(self, state: Objects, ref: Ref, known: KnownObject, wakes: list[float]) -> None:
        """There was nothing to do for an object, before the first of these seconds."""
        self._next[ref] = _Rest(_ground(state, ref, known), min(wakes, default=math.inf))


def _ground(state: Objects, ref: Ref, known: KnownObject) -> _Ground:
    forgotten = known.object is not None and uid_of(known.object.metadata) in state.forgotten
    unheard = known.sequence > state.heard
    others = (unheard, forgotten, state.lacking(ref), state.policy, state.cluster)
    return _Ground(known, state.run_of(ref), others)
