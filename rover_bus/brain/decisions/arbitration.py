"""Which job goes first: priorities, quotas, risks. A higher job may shrink or pause a lower one, which goes on when there is room.
Among equals every job gets the least that it can live with before any gets more: a full cluster makes room for one more job.

Fed by what each job wants and the least it can live with, feeds plans. P22: growth that needs a shrink elsewhere names it and is
released only when that shrink is applied. Until checkpoints exist a pause releases workers only: servers stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.decisions.reasons import Reason


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One job's wish. `at_risk` (out of memory soon) goes before its equals (S25); `tenant` names its quota."""

    job: str
    wanted: Allocation
    least: Allocation
    held: Allocation | None = None
    priority: int = 0
    at_risk: bool = False
    tenant: str = ""
    score: float = 0.0


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What a job gets and why; `released_by` are the jobs whose shrink must be applied first (P22)."""

    job: str
    allocation: Allocation
    reason: Reason
    released_by: tuple[str, ...] = ()
    detail: str = ""


class Budget(msgspec.Struct, frozen=True):
    """Cores and bytes: a cluster's capacity or a tenant's quota."""

    cores: float
    memory_bytes: float

    def holds(self, cores: float, memory_bytes: float) -> bool:
        """Whether so much fits."""
        return cores <= self.cores + 1e-9 and memory_bytes <= self.memory_bytes


def arbitrate(
    claims: Sequence[Claim], capacity: Budget, quotas: Mapping[str, Budget] | None = None
) -> list[Grant]:
    """Give each job its wish, its least, or a pause, by (priority, risk, score); never above capacity or a quota.

    "Every job 1 PS + 1 worker, then greedily the best gain" (Optimus, `algorithms.md §2`): the leasts of one priority come
    before the wishes of that priority. The answer is in the order of the claims.
    """
    order = sorted(claims, key=lambda c: (-c.priority, not c.at_risk, -c.score, c.job))
    yard = _Taken(capacity, dict(quotas or {}))
    # What is not taken away: the servers of every job that runs (a pause releases workers only).
    for claim in order:
        yard.take(claim.tenant, _paused(claim))
    settled: dict[str, tuple[Allocation, Reason, str]] = {}
    for _, equals in groupby(order, key=lambda c: c.priority):
        promised = {claim.job: (claim, _promise(claim, yard)) for claim in equals}
        for claim, least in promised.values():
            yard.give_back(claim.tenant, least)
            settled[claim.job] = _settle(claim, yard)
            yard.take(claim.tenant, settled[claim.job][0])
    shrunk = tuple(sorted(c.job for c in claims if c.held and settled[c.job][0].cores < c.held.cores - 1e-9))
    free_cores = capacity.cores - sum(c.held.cores for c in claims if c.held)
    return [_grant(claim, *settled[claim.job], shrunk, free_cores) for claim in claims]


class _Taken:
    """What is taken so far, of the cluster and of each tenant's quota."""

    def __init__(self, capacity: Budget, quotas: dict[str, Budget]) -> None:
        self.capacity, self.quotas = capacity, quotas
        self.used: dict[str | None, list[float]] = {}

    def take(self, tenant: str, allocation: Allocation, sign: int = 1) -> None:
        for key in (None, tenant):
            used = self.used.setdefault(key, [0.0, 0.0])
            used[0] += sign * allocation.cores
            used[1] += sign * allocation.memory_bytes

    def give_back(self, tenant: str, allocation: Allocation) -> None:
        self.take(tenant, allocation, -1)

    def obstacle(self, tenant: str, allocation: Allocation) -> tuple[Reason, str] | None:
        """Return None when it fits, else what stands in the way, named."""
        for key, budget, reason, name in (
            (tenant, self.quotas.get(tenant), Reason.QUOTA_EXCEEDED, f"the quota of {tenant!r}"),
            (None, self.capacity, Reason.NO_CAPACITY, "the cluster"),
        ):
            cores, memory = self.used.get(key, [0.0, 0.0])
            if budget and not budget.holds(cores + allocation.cores, memory + allocation.memory_bytes):
                return (
                    reason,
                    f"{allocation.cores:g} cores more do not fit {name}: {cores:g} of {budget.cores:g} are taken",
                )
        return None


def _promise(claim: Claim, yard: _Taken) -> Allocation:
    """Set aside the least of a job where it fits, else what is never taken from it."""
    yard.give_back(claim.tenant, _paused(claim))
    promised = claim.least if yard.obstacle(claim.tenant, claim.least) is None else _paused(claim)
    yard.take(claim.tenant, promised)
    return promised


def _settle(claim: Claim, yard: _Taken) -> tuple[Allocation, Reason, str]:
    obstacle = yard.obstacle(claim.tenant, claim.wanted)
    if obstacle is None:
        grown = claim.held is not None and claim.held.workers == 0 and claim.wanted.workers > 0
        return claim.wanted, Reason.ROOM_AGAIN if grown else Reason.BEST_VALUE_UNDER_CAPACITY, ""
    for workers in range(claim.wanted.workers - 1, claim.least.workers - 1, -1):
        smaller = claim.wanted.replace(workers=workers)
        if yard.obstacle(claim.tenant, smaller) is None:
            return smaller, _because(obstacle[0], Reason.SHRUNK_FOR_PRIORITY), obstacle[1]
    if yard.obstacle(claim.tenant, claim.least) is None:
        return claim.least, _because(obstacle[0], Reason.SHRUNK_FOR_PRIORITY), obstacle[1]
    return _paused(claim), _because(obstacle[0], Reason.PAUSED_FOR_PRIORITY), obstacle[1]


def _because(obstacle: Reason, priority: Reason) -> Reason:
    """A tenant's own quota is named as such; everything else is the doing of the jobs that went first."""
    return obstacle if obstacle is Reason.QUOTA_EXCEEDED else priority


def _paused(claim: Claim) -> Allocation:
    """A pause: workers go, servers stay. A job that never ran holds nothing."""
    return claim.held.replace(workers=0) if claim.held else claim.wanted.replace(workers=0, servers=0)


def _grant(
    claim: Claim,
    allocation: Allocation,
    reason: Reason,
    detail: str,
    shrunk: tuple[str, ...],
    free_cores: float,
) -> Grant:
    held = claim.held.cores if claim.held else 0.0
    needs_release = allocation.cores - held > free_cores + 1e-9
    released_by = tuple(job for job in shrunk if job != claim.job) if needs_release else ()
    return Grant(job=claim.job, allocation=allocation, reason=reason, released_by=released_by, detail=detail)
