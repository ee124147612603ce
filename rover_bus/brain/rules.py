"""What the Brain is told once for all jobs: prices, weights, restraint. The simulator's benchmark runs under the same figures.

Used by wishes, rounds and `rover explain`. Frozen on the development seeds of `bench/simulation` (design 0011); only
what a change costs differs: a local member starts in seconds, a pod in a minute.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from rover_bus.brain.decisions.scaling import Restraint, ScalingRules
from rover_bus.brain.decisions.scoring import ScalePolicy
from rover_bus.brain.models.hazard import Hazard, LossCount
from rover_bus.events.job import PlanSpec

CLUSTER = ScalingRules(
    policy=ScalePolicy(
        scale_s=30.0,
        reference_s=2000.0,
        short_jobs_first=0.6,
        hazard=LossCount().hazard,  # until this cluster's own is counted
    ),
    restraint=Restraint(growth=2.0, dead_band=0.08, least_return=0.1, tries=True),
)
SCALE_S = 3.0  # what a change of workers costs a local job
RULES = msgspec.structs.replace(CLUSTER, policy=msgspec.structs.replace(CLUSTER.policy, scale_s=SCALE_S))
_SEARCHED = msgspec.structs.replace(RULES, search="nsga2")
# Where rings alone share a cluster: some run for half a day and most for minutes, and all share it for hours unless short ones go
# first more strictly. Both values by measurement, with what was rejected: docs/design/0081.
_OF_RINGS = msgspec.structs.replace(
    RULES,
    policy=msgspec.structs.replace(RULES.policy, short_jobs_first=1.2),
    restraint=msgspec.structs.replace(RULES.restraint, dead_band=0.05),
)
HEADROOM = 0.01  # of the cluster that a round leaves free


def rules_of(spec: PlanSpec, hazard: Hazard) -> ScalingRules:
    """Return the rules for one job: the cluster's, with the search that the job chose."""
    return _under(RULES if spec.search == "exact" else _SEARCHED, hazard)


def rules_for(fair_share: float, hazard: Hazard, rings: bool = False) -> ScalingRules:
    """Return the rules under an objective: 0 throughput and short jobs first, below 0 the power of the fair-share mean. `rings`:
    no job of the cluster has servers. `hazard`: how often this cluster takes members.
    """
    if not fair_share:
        return _under(_OF_RINGS if rings else RULES, hazard)
    fair = msgspec.structs.replace(RULES.policy, fair_share=fair_share)
    return _under(msgspec.structs.replace(RULES, policy=fair), hazard)


@lru_cache(maxsize=64)
def _under(rules: ScalingRules, hazard: Hazard) -> ScalingRules:
    return msgspec.structs.replace(rules, policy=msgspec.structs.replace(rules.policy, hazard=hazard))
