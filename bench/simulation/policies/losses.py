"""Lost members under the former planner (`staged`): plans made before, one plan for all that were lost together.

They go with that planner; the Brain's own answer is `decisions.scaling.decide_loss`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rover_bus.brain.decisions.plans import Allocation, PlanDecision, Prices
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.scaling import JobView, Predictor
from rover_bus.brain.models.samples import Configurations

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


def member_loss_plans(job: JobView, model: Predictor, prices: Prices) -> dict[str, PlanDecision]:
    """Plans for one worker less and one server less, made before they are needed: a failure then needs no solve.

    The place of a lost member is filled when it pays (`replace_lost`); a job whose throughput would fall by less than its
    share of the cost goes on smaller (`shrink_after_loss`) [ours; `algorithms.md §5`]. Never below one of each.
    """
    plans: dict[str, PlanDecision] = {}
    held = job.held
    for role, smaller in (
        ("worker", held.replace(workers=max(held.workers - 1, 1))),
        (
            "ps",
            held.replace(
                servers=max(held.servers - 1, 1),
                server_memory_bytes=_server_bytes(job, max(held.servers - 1, 1)),
            ),
        ),
    ):
        both = [held.configuration(job.batch_size), smaller.configuration(job.batch_size)]
        speed = model.predict(Configurations.from_list(both)).throughput
        saved = 1 - prices.cost(smaller) / max(prices.cost(held), 1e-12)
        lost = 1 - float(speed[1] / speed[0])
        shrink = smaller != held and lost < saved / 2
        plans[role] = PlanDecision(
            allocation=smaller if shrink else held,
            reason=Reason.SHRINK_AFTER_LOSS if shrink else Reason.REPLACE_LOST,
            scores={"throughput_lost": lost, "cost_saved": saved},
        )
    return plans


def _server_bytes(job: JobView, servers: int) -> int:
    held = job.held
    own = max(held.server_memory_bytes - job.table_bytes // max(held.servers, 1), 0)
    return own + -(-job.table_bytes // max(servers, 1)) if held.server_memory_bytes else 0
