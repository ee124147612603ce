"""How fast a host is, from the residuals of the members that ran there: a weighted median that fades without new evidence.

Fed by windows (`learning_hosts`), feeds `brain/hosts.py` and placement. A residual is the log of a worker's own pace over what is
usual; one member is weak evidence, because workers differ by themselves, so that a prior of one and a half members stands against
it [ours; docs/design/0039].
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from math import exp
from statistics import median, median_high
from typing import Any

import msgspec

SLOW_MEMORY_S = 3600.0  # what a host showed halves in so long without new evidence
MOST_MEMBERS = 32
FULL_WINDOWS = 3.0  # windows from which a member weighs one
PRIOR_MEMBERS = 1.5
_FOLLOWS = 0.3  # how fast a member's residual follows, a window


class MemberResidual(msgspec.Struct, frozen=True, array_like=True):
    """One incarnation on one host: mean log residual, windows, and when it was seen last (seconds of the cluster's clock).

    `alone`: it was compared with its job's own past, because all of the job ran there.
    """

    mean: float
    windows: int
    at_s: float
    alone: bool = False


HostEvidence = dict[str, MemberResidual]  # by `<job>/<incarnation>`


def add_residual(evidence: HostEvidence, key: str, residual: float, at_s: float, alone: bool = False) -> None:
    """Take in one window of a member, in place; of too many the one that was seen last the longest ago goes."""
    known = evidence.get(key)
    windows = known.windows + 1 if known is not None else 1
    before = known.mean if known is not None else residual
    mean = before + max(_FOLLOWS, 1 / windows) * (residual - before)
    evidence[key] = MemberResidual(mean, windows, at_s, alone)
    if len(evidence) > MOST_MEMBERS:
        del evidence[min(evidence, key=lambda each: (evidence[each].at_s, each))]


def share_of(evidence: Mapping[str, MemberResidual], now_s: float, memory_s: float) -> float:
    """Return a host's speed as a share of what is usual: 1 where nothing is known. Evidence halves in `memory_s`."""
    weighed = [(0.0, PRIOR_MEMBERS)]
    for each in evidence.values():
        weight = min(each.windows / FULL_WINDOWS, 1.0) * 0.5 ** (max(now_s - each.at_s, 0.0) / memory_s)
        weighed.append((each.mean, weight))
    half, seen = sum(weight for _, weight in weighed) / 2, 0.0
    for mean, weight in sorted(weighed):
        seen += weight
        if seen >= half:
            return min(exp(mean), 1.0)
    return 1.0


def slowest(evidence: Mapping[str, MemberResidual], below: float) -> list[str]:
    """Return the members whose share was less, the slowest first."""
    slow = [(each.mean, key) for key, each in evidence.items() if exp(each.mean) < below]
    return [key for _, key in sorted(slow)]


def usual_pace(paces: Mapping[str, Mapping[Any, float]], slow: Container[str]) -> float:
    """Return the usual log pace of a job's workers, given by host: the middle of its hosts, slow ones left out where others are."""
    middles = {
        host: median(each.values()) if len(each) > 1 else next(iter(each.values()))
        for host, each in paces.items()
    }
    usual = [middle for host, middle in middles.items() if host not in slow]
    return median_high(usual or middles.values())
