"""How much work a lease holds: the worker's measured rate times the target lease time, less towards the end of the epoch.

Guided self-scheduling (design §5): a lease takes at most 1/(2 * workers) of what is unassigned, so that nobody holds much when
the epoch ends; slow workers get little, fast ones more. And nobody gets more than its share of what is not done yet, what it
holds already included: a worker that reads ahead would else take the last batches while another one waits for the epoch's end.
Asked by the decider at every grant; pure.
"""

from __future__ import annotations

import math

from rover_bus.events.job import LeaseSpec

FASTEST_BATCHES_PER_S = 1e6  # a rate above it, or none that is a number, is a mistake of the worker
FIRST_LEASE_BATCHES = 8  # before a worker has a rate: enough to measure one, little to lose


def lease_batches(spec: LeaseSpec, rate: float, unassigned: int, workers: int) -> int:
    """Return the batches of the next lease, at least 1.

    rate: batches a second of this worker, 0 when unknown; unassigned: batches free now; workers: those alive.
    """
    by_rate = round(rate * spec.target_s) if is_known(rate) else FIRST_LEASE_BATCHES
    by_tail = -(-unassigned // (2 * max(workers, 1)))
    return max(1, min(by_rate, by_tail, spec.max_batches))


def is_known(rate: float) -> bool:
    """Whether a rate is one that was measured: 0 says that none is known yet."""
    return 0 < rate < FASTEST_BATCHES_PER_S


def share_left(remaining: int, held: int, part: float) -> int:
    """Return how many batches more a worker may hold so that all workers end the epoch together, at least 0.

    remaining: batches not done yet, leased ones included; held: those of this worker; part: its part of what all workers do.
    """
    return max(0, math.ceil(remaining * part) - held)
