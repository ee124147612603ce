"""What the Brain is told once for all jobs: prices, weights, restraint. The simulator's benchmark runs under the same figures.

Used by wishes, rounds and `rover explain`. Frozen on the development seeds of `bench/simulation` (design 0011); only
what a change costs differs: a local member starts in seconds, a pod in a minute.
"""

from __future__ import annotations

import msgspec

from rover_bus.brain.decisions.scaling import Restraint, ScalingRules
from rover_bus.brain.decisions.scoring import Hazard, ScalePolicy
from rover_bus.events.job import PlanSpec

CLUSTER = ScalingRules(
    policy=ScalePolicy(
        scale_s=30.0,
        reference_s=2000.0,
        short_jobs_first=0.6,
        hazard=Hazard(failures_per_member_s=2e-6, recovery_s=120.0),
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


def rules_of(spec: PlanSpec) -> ScalingRules:
    """Return the rules for one job: the cluster's, with the search that the job chose."""
    return RULES if spec.search == "exact" else _SEARCHED


def rules_for(fair_share: float, rings: bool = False) -> ScalingRules:
    """Return the rules under an objective: 0 throughput and short jobs first, below 0 the power of the fair-share mean. `rings`:
    no job of the cluster has servers.
    """
    if not fair_share:
        return _OF_RINGS if rings else RULES
    return msgspec.structs.replace(RULES, policy=msgspec.structs.replace(RULES.policy, fair_share=fair_share))
