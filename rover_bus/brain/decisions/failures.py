"""Lost members: one plan for all that were lost together, applied in parallel and rate-bounded.

Fed by the losses of a window and the plans made before (`scaling.member_loss_plans`), feeds plans (S20: thirty workers evicted at
once are one plan, not thirty).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rover_bus.brain.decisions.plans import Allocation, PlanDecision
from rover_bus.brain.decisions.reasons import Reason

MOST_STARTS_A_ROUND = 64


class Losses(msgspec.Struct, frozen=True):
    """Members lost since the last plan, and how many the cluster can start now."""

    workers: int = 0
    servers: int = 0
    room_for: int = MOST_STARTS_A_ROUND


def decide_failures(
    held: Allocation, losses: Losses, prepared: Mapping[str, PlanDecision]
) -> PlanDecision | None:
    """Return one plan for all losses, or None when nothing was lost. Never below one worker and one server.

    A single loss takes the plan prepared for it. More are replaced together, as many as there is room for; servers come first,
    because nothing trains without them.
    """
    if not losses.workers + losses.servers:
        return None
    if losses.workers + losses.servers == 1:
        ready = prepared.get("worker" if losses.workers else "ps")
        if ready is not None and losses.room_for >= 1:
            return ready
    room = min(losses.room_for, MOST_STARTS_A_ROUND)
    servers_back = min(losses.servers, room)
    workers_back = min(losses.workers, room - servers_back)
    allocation = held.replace(
        workers=max(held.workers - losses.workers + workers_back, 1),
        servers=max(held.servers - losses.servers + servers_back, 1),
    )
    reason = Reason.REPLACE_LOST if allocation == held else Reason.SHRINK_AFTER_LOSS
    scores = {
        "workers_lost": float(losses.workers),
        "servers_lost": float(losses.servers),
        "room_for": float(room),
    }
    return PlanDecision(allocation=allocation, reason=reason, scores=scores)
