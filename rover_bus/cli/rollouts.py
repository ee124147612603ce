"""Following what became of a wish to change servers: from the request to the end of its rollout.

Fed by the facts of a job; used by `rover move`, `rover scale` and bench/moves.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from rover_bus.cli.views.history import read_happened
from rover_bus.cli.views.narration import narrate
from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Stored
from rover_bus.events.errors import Refused
from rover_bus.events.facts import (
    JobEnded,
    MoveRefused,
    PlanChecked,
    PlanRefused,
    PlanSettled,
    RolloutClosed,
    RolloutOpened,
    SlotsMoved,
)
from rover_bus.events.streams import FACTS


class Moved(NamedTuple):
    """What a rollout came to."""

    moves: int
    bytes: int


async def follow_rollout(
    bus: Bus, job: str, sequence: int, observe: Callable[[str], None], plan: int = 0
) -> Moved:
    """Wait for the end of the rollout that a wish, stored at `sequence`, begins; of a plan by its number.

    Raises Refused, in the master's words.
    """
    stored: asyncio.Queue[Stored] = asyncio.Queue()
    following = await bus.follow(FACTS, [subjects.job_facts(job)], stored.put_nowait, start=sequence + 1)
    ours, moves, size = 0, 0, 0
    try:
        while True:
            fact = read_happened(await stored.get()).fact
            if plan and isinstance(fact, PlanRefused | PlanChecked | PlanSettled) and fact.plan != plan:
                continue
            match fact:
                case MoveRefused() | PlanRefused():
                    raise Refused(fact.reason, "refused")
                case RolloutOpened():
                    ours = fact.rollout
                    observe(narrate(fact))
                case PlanSettled() if not ours:
                    return Moved(0, 0)  # as many servers as there are: nothing had to move
                case PlanChecked(outcome="waits"):
                    raise Refused(f"its plan waits for a person: `rover plan approve {job}`", "waits")
                case PlanChecked(outcome="observed"):
                    raise Refused(
                        f"its plan is only observed: `rover plan mode {job} auto` lets plans pass", "waits"
                    )
                case SlotsMoved(bytes=some):
                    moves, size = moves + 1, size + some
                case RolloutClosed(rollout=rollout, outcome=outcome, reason=reason) if rollout == ours:
                    if outcome != "done":
                        raise Refused(f"{outcome.replace('_', ' ')}: {reason}", outcome)
                    return Moved(moves, size)
                case JobEnded(state=state):
                    raise Refused(f"the job has ended meanwhile: {state}", "ended")
                case _:
                    pass  # the others do not matter here
    finally:
        await following.stop()
