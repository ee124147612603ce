"""Stage 1: a new job starts from the history of similar ones, and names the jobs it used.

Fed by history (one record a finished job), feeds the first plan. [recalled] A <- mu*A_i + (1-mu)*A over the k most similar, least
similar first; mu of 0.20 to 0.25 fits the figure [data]. Server resources follow the production rule [paper's authors]: total CPU
= mean over similar jobs, total memory = max, CPU a server = max, count = ratio (`algorithms.md §4`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from rover_bus.brain.decisions.plans import Allocation, PlanDecision, Prices
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.events.subjects import as_seen_by

MOMENTUM = 0.22
MOST_SIMILAR = 10
_LEAST_SIMILARITY = 0.25
_WEIGHTS = {"user": 1.0, "dataset": 2.0, "family": 2.0}
_DAY_S = 86_400.0
_UNSHOWN = 2.0  # jobs
_FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0)  # steps in which cores are offered
_SHARES = (1 / 8, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1.0)  # steps in which shares of asked memory are told
_FAMILIES = 3  # of fewer a share would tell what a single one used
_PRICES = Prices()


class JobTraits(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a job before it runs. Sizes are any positive features: samples, table rows, dense parameters."""

    user: str = ""
    dataset: str = ""
    family: str = ""
    sizes: dict[str, float] = {}


class PastJob(msgspec.Struct, frozen=True, kw_only=True):
    """One line of history: what a finished job was and what it held at its end."""

    job: str
    traits: JobTraits
    final: Allocation
    ended_at_s: float
    completed: bool = True
    asked: Allocation | None = (
        None  # what its user asked it to begin with, 0 where nothing; None: its size was never chosen
    )
    tables_bytes: int = 0  # that its servers used at its end, together; 0: that was not measured
    asked_bytes: int = (
        0  # that its user asked for its servers, together; 0: no limit, or their number was open
    )


def similarity(new: JobTraits, old: JobTraits) -> float:
    """Share of traits that agree, 0..1; sizes agree by their ratio."""
    total = sum(_WEIGHTS.values())
    equal = {
        "user": new.user == old.user,
        "dataset": new.dataset == old.dataset,
        "family": new.family == old.family,
    }
    agreed = sum(weight for name, weight in _WEIGHTS.items() if equal[name] and getattr(new, name))
    for name in sorted(new.sizes.keys() & old.sizes.keys()):
        a, b = new.sizes[name], old.sizes[name]
        total += 1.0
        agreed += min(a, b) / max(a, b) if a > 0 and b > 0 else 0.0
    return agreed / total


def is_related(new: JobTraits, old: JobTraits) -> bool:
    """Whether two jobs share what decides how they run: program or data. One user's jobs, or equal batches, say nothing of it."""
    return _same(new.family, old.family) or _same(new.dataset, old.dataset)


def _same(new: str, old: str) -> bool:
    return bool(new) and new == old


def recency(age_s: float, half_life_s: float = 14 * _DAY_S) -> float:
    """Weight of an old job: halves every two weeks."""
    return math.pow(0.5, max(age_s, 0.0) / half_life_s)


def decide_start(
    traits: JobTraits,
    history: Sequence[PastJob],
    now_s: float,
    small: Allocation,
    momentum: float = MOMENTUM,
    tenant: str = "",
) -> PlanDecision:
    """First plan of a job: from its most similar predecessors, or `small` when there is none (then probes follow).

    `tenant`: whose people read the reason.
    """
    ranked = sorted(
        (
            (similarity(traits, old.traits) * recency(now_s - old.ended_at_s), old)
            for old in history
            if old.completed and is_related(traits, old.traits)
        ),
        key=lambda pair: (-pair[0], -pair[1].ended_at_s, pair[1].job),
    )
    used = [(weight, old) for weight, old in ranked[:MOST_SIMILAR] if weight >= _LEAST_SIMILARITY]
    if not used:
        return PlanDecision(allocation=small, reason=Reason.COLD_START, detail="no similar job in history")
    least_first = [old.final for _, old in reversed(used)]
    workers = smooth([a.workers for a in least_first], momentum)
    worker_cores = smooth([a.worker_cores for a in least_first], momentum)
    servers = _servers([old.final for _, old in used])
    allocation = servers.replace(
        workers=max(round(workers), 1),
        worker_cores=worker_cores,
        worker_memory_bytes=max(a.worker_memory_bytes for a in least_first),
    )
    names = ", ".join(f"{as_seen_by(tenant, old.job)} ({weight:.2f})" for weight, old in used)
    scores = {old.job: weight for weight, old in used}
    return PlanDecision(
        allocation=allocation, reason=Reason.WARM_START, scores=scores, detail=f"from {names}"
    )


class UsualFactors(msgspec.Struct, frozen=True):
    """By what jobs of this cluster outgrow what their users ask for: never below 1."""

    workers: float = 1.0
    servers: float = 1.0
    worker_cores: float = 1.0
    server_cores: float = 1.0


def usual_factors(history: Sequence[PastJob]) -> UsualFactors:
    """Learn from jobs that ended by how much a first size should pass what its user asks for: geometric means over the last run
    of each family, shrunk towards 1 as if so many more (`_UNSHOWN`) had asked rightly. 1 where users ask for too much: rounds take
    back what is not used, and know what that costs [ours; "users ask 2x CPU too much, 25 % too little", `algorithms.md §8`].
    """
    last = {(old.traits.family, old.traits.dataset): old for old in history if old.completed and old.asked}
    factors = []
    for axis in ("workers", "servers", "worker_cores", "server_cores"):
        pairs = [(getattr(old.final, axis), getattr(old.asked, axis)) for old in last.values()]
        logs = [math.log(final / asked) for final, asked in pairs if final > 0 and asked > 0]
        learned = math.exp(sum(logs) / (len(logs) + _UNSHOWN))
        factors.append(max(step for step in _FACTORS if step <= max(learned, 1.0)))
    return UsualFactors(*factors)


def usual_memory_share(history: Sequence[PastJob]) -> float:
    """Return what share of the server memory that its user asked for a run of this cluster used at its end: the geometric mean over
    the last run of each family, shrunk towards 1 as if so many more (`_UNSHOWN`) had asked rightly, in the steps of `_SHARES`,
    rounded up; 1 before so many families (`_FAMILIES`) have ended, so that it tells of none of them [ours; "users ask for 5.3 times
    what servers need, and one in ten for too little", `algorithms.md §8`].
    """
    shares = {
        (old.traits.family, old.traits.dataset): old.tables_bytes / old.asked_bytes
        for old in history
        if old.completed and old.tables_bytes and old.asked_bytes
    }
    if len(shares) < _FAMILIES:
        return 1.0
    learned = math.exp(sum(map(math.log, shares.values())) / (len(shares) + _UNSHOWN))
    return min([step for step in _SHARES if step >= learned], default=1.0)


def smooth(values: Sequence[float], momentum: float = MOMENTUM) -> float:
    """A <- mu*A_i + (1-mu)*A, least similar first; starts at the least similar one [recalled]."""
    current = values[0]
    for value in values[1:]:
        current = momentum * value + (1 - momentum) * current
    return current


def _servers(finals: Sequence[Allocation]) -> Allocation:
    total_cores = sum(a.servers * a.server_cores for a in finals) / len(finals)
    total_memory = max(a.servers * a.server_memory_bytes for a in finals)
    cores = max(a.server_cores for a in finals)
    count = max(math.ceil(total_cores / max(cores, 1e-9) - 1e-9), 1)
    return Allocation(
        workers=0, servers=count, server_cores=cores, server_memory_bytes=math.ceil(total_memory / count)
    )
