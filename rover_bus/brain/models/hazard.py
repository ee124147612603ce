"""How often a cluster takes members from jobs: counted, beginning with what is published (docs/design/0094).

Fed by windows and ends of jobs, feeds the scores of plans: a job on n members that each fail at rate h loses n*h*t_recover.
"""

from __future__ import annotations

import math
from functools import lru_cache

import msgspec


class Hazard(msgspec.Struct, frozen=True, kw_only=True):
    """How often one member fails (a second) and how long the job then stands still."""

    failures_per_member_s: float = 0.0
    recovery_s: float = 60.0


# Of one member a second: production jobs complete with 0.93 exp(-0.00264 n) of n members (`algorithms.md §6`), in some 80 minutes.
PUBLISHED_PER_S = 0.00264 / 4800
RECOVERY_S = 120.0
PUBLISHED_WEIGHS = 0.1  # of a loss: clusters differ widely, and a bad one shows it in its first hours
MOVED = 0.75  # of a doubling: nearer than this to what is believed it stays


class LossCount(msgspec.Struct, frozen=True):
    """How often members of this cluster were taken from outside: so many, in so many seconds of all members that were watched."""

    lost: int = 0
    member_s: float = 0.0
    doublings: int = 0  # of what is published, that are believed

    def watch(self, members: int, seconds: float, lost: int) -> LossCount:
        """So many members were watched for some seconds more, and so many were lost meanwhile."""
        all_lost, member_s = self.lost + lost, round(self.member_s + members * seconds, 3)
        rate = (PUBLISHED_WEIGHS + all_lost) / (PUBLISHED_WEIGHS / PUBLISHED_PER_S + member_s)
        exactly = max(math.log2(rate / PUBLISHED_PER_S), 0.0)
        moved = abs(exactly - self.doublings) > MOVED
        return LossCount(all_lost, member_s, round(exactly) if moved else self.doublings)

    @property
    def hazard(self) -> Hazard:
        """What is believed of the next second: the mean of a gamma distribution, to which what is published is a tenth of a loss.

        Never less than that, by which 64 members lose 0.4 % of their time, and in powers of two of it: what is decided by it stays
        until it is much in doubt, and in a cluster that loses nothing for good.
        """
        return _hazard(self.doublings)


@lru_cache(maxsize=64)
def _hazard(doubled: int) -> Hazard:
    return Hazard(failures_per_member_s=PUBLISHED_PER_S * 2.0**doubled, recovery_s=RECOVERY_S)
