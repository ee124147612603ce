"""How often a cut is worth its cost: Young's and Daly's interval, and a bound on what staging may take from training. Pure.

Asked by `cutting` on ticks. J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974;
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006, equation (37).
"""

from __future__ import annotations

import math

from rover_bus.events.job import CheckpointSpec

PRIOR_S = 4 * 3600.0  # one loss in so much training is assumed until losses are counted
FAILED_FIRST_S = 2.0


def backoff_s(failures: int, wanted: CheckpointSpec) -> float:
    """Return the least time to the next cut after so many failed in a row before they were staged: twice as long each time.

    What a host lacks it usually lacks for long.
    """
    return min(FAILED_FIRST_S * 2.0 ** min(failures - 1, 20), wanted.most_interval_s)


def mean_time_between_losses_s(trained_s: float, losses: int) -> float:
    """Return the expected training time to the next loss of a server: a prior of one loss, then what is counted."""
    return (PRIOR_S + trained_s) / (1 + losses)


def interval_s(cost_s: float, between_losses_s: float, wanted: CheckpointSpec) -> float:
    """Return the time between two cuts, between the least and the most wanted unless the bound on the overhead asks for more.

    `cost_s`: how long a server stands still for a cut; `between_losses_s`: see above; `wanted.overhead`: the largest share of the
    time that standing still may take, which wins over everything else.
    """
    ratio = cost_s / (2 * between_losses_s)
    if ratio >= 1:
        daly = between_losses_s
    else:
        series = 1 + math.sqrt(ratio) / 3 + ratio / 9
        daly = math.sqrt(2 * cost_s * between_losses_s) * series - cost_s
    return max(min(max(daly, wanted.least_interval_s), wanted.most_interval_s), cost_s / wanted.overhead)
