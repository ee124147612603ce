"""The step across jobs: one plan a job, capacities shared: a multiple-choice knapsack, solved fast or exactly.

Fed by every job's offers (its front), feeds the planning round. `choose_greedily` takes prices that are the duals of the
capacities, then fills; `choose_exactly` (scipy.optimize.milp) is the oracle and what small clusters use
(`algorithms.md §5` [ours]; the multiple-choice knapsack is Lyra's).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rover_bus.brain.decisions.pieces import Pieces, finish
from rover_bus.brain.decisions.stray_prints import c_prints_on_stderr
from rover_bus.brain.models.samples import FloatArray, IntArray
from rover_bus.events.errors import TemporaryError

# Up to so many jobs the exact solver answers within a round (`algorithms.md §5`).
EXACT_JOBS = 30
EXACT_GAP = 1e-3  # of the bound: nearer than this is near enough
_SUBGRADIENT_STEPS = 60
# With so many jobs one price is as good as another next to it: rounding errors of single jobs vanish.
_MANY_JOBS = 500
_NEGLIGIBLE_GAIN = 1e-6
_NODES = 2000  # of the search that is exact
_EPSILON = 1e-9
# What is done to all offers once takes so much an offer (`pieces`): a step of the prices, a look at what to give back or to fill.
_PRICED, _RATED = 0.4e-5, 8e-5
_UPGRADED, _UPGRADES = 0.05, 200  # an upgrade, and so many of them are one piece


@dataclass(frozen=True, eq=False)
class Offers:
    """Padded offers: `value` (j, k), -inf where a job has fewer; `usage` (j, k, r) >= 0; `capacity` (r,) > 0.

    Every job's offer 0 is its least one (or what it holds): when not even all of these fit, nothing does.
    """

    value: FloatArray
    usage: FloatArray
    capacity: FloatArray

    def total(self, choice: IntArray) -> FloatArray:
        """Usage of a choice (j,) by resource (r,)."""
        return np.asarray(self.usage[np.arange(len(choice)), choice].sum(axis=0))

    def worth(self, choice: IntArray) -> float:
        """Value of a choice (j,)."""
        return float(self.value[np.arange(len(choice)), choice].sum())

    def fits(self, choice: IntArray) -> bool:
        """Whether a choice (j,) stays within every capacity."""
        return bool(np.all(self.total(choice) <= self.capacity * (1 + _EPSILON)))


@dataclass(frozen=True, eq=False)
class Choice:
    """Chosen offer a job (j,), its worth, the prices (r,) used, and a bound no choice can exceed."""

    offers: IntArray
    worth: float
    prices: FloatArray
    bound: float

    @property
    def gap(self) -> float:
        """Largest possible distance to the optimum, as a share of the bound."""
        return (self.bound - self.worth) / abs(self.bound) if self.bound else 0.0


class DoesNotFit(TemporaryError):
    """Not even the least offers of all jobs fit the capacity."""

    code = "does_not_fit"


def choose(offers: Offers) -> Choice:
    """Choose one offer a job: by priced greedy, and exactly where up to 30 jobs leave a gap worth closing. Raises DoesNotFit."""
    return finish(choosing(offers))


def choosing(offers: Offers) -> Pieces[Choice]:
    """`choose` in pieces."""
    greedy = yield from choosing_greedily(offers)
    if len(offers.value) > EXACT_JOBS or greedy.gap <= EXACT_GAP:
        return greedy
    return _solve(offers, greedy, EXACT_GAP, _NODES)


def _pricing(offers: Offers, steps: int = _SUBGRADIENT_STEPS) -> Pieces[tuple[FloatArray, float]]:
    """Prices of the capacities (r,) and the Lagrangian bound, by some 60 subgradient steps with Polyak-like decay."""
    # One contiguous plane a resource: the loop below is most of what a choice among thousands of jobs takes.
    planes = np.ascontiguousarray(np.moveaxis(offers.usage / offers.capacity, 2, 0))
    prices = np.zeros(len(offers.capacity))
    best, bound = prices, np.inf
    spread = np.where(np.isfinite(offers.value), offers.value, 0.0)
    stride = float((spread.max(axis=1) - spread[:, 0]).sum()) + _EPSILON
    rows = np.arange(len(offers.value))
    yield _PRICED * offers.value.size
    for step in range(steps):
        reduced = offers.value - np.einsum("r,rjk->jk", prices, planes)
        picked = reduced.argmax(axis=1)
        dual = float(reduced[rows, picked].sum() + prices.sum())
        if dual < bound:
            best, bound = prices, dual
        excess = planes[:, rows, picked].sum(axis=1) - 1.0
        slack = np.where(prices > 0, np.abs(excess), np.maximum(excess, 0.0))
        norm = float(slack.max())
        if norm < 1e-3 / len(rows):
            break
        prices = np.maximum(prices + stride * 0.9**step * excess / max(norm, 0.1), 0.0)
        yield _PRICED * offers.value.size
    return best / offers.capacity, bound


def choose_greedily(offers: Offers) -> Choice:
    """Take each job's best offer at the dual prices, take back what does not fit, then fill what is left.

    Never above capacity, never below offer 0. Several prices around the duals are tried and the best kept.
    """
    return finish(choosing_greedily(offers))


def choosing_greedily(offers: Offers) -> Pieces[Choice]:
    """`choose_greedily` in pieces."""
    _refuse_impossible(offers)
    if len(offers.value) == 1:  # as where a window moved one model
        return _best_of_one(offers)
    prices, bound = yield from _pricing(offers)
    factors = (1.0, 1.06, 0.94) if len(offers.value) <= _MANY_JOBS else (1.0,)
    tried = list[IntArray]()
    for factor in factors:
        tried.append((yield from _repair_and_fill(offers, prices * factor)))
    chosen = max(tried, key=offers.worth)
    return Choice(chosen, offers.worth(chosen), prices, max(bound, offers.worth(chosen)))


def _best_of_one(offers: Offers) -> Choice:
    """The best offer of a single job that fits: nothing is shared, so nothing has a price."""
    fits = np.all(offers.usage[0] <= offers.capacity * (1 + _EPSILON), axis=1)
    best = int(np.where(fits, offers.value[0], -np.inf).argmax())
    worth = float(offers.value[0, best])
    return Choice(np.array([best]), worth, np.zeros(len(offers.capacity)), worth)


def _repair_and_fill(offers: Offers, prices: FloatArray) -> Pieces[IntArray]:
    reduced = offers.value - offers.usage @ prices
    choice = np.asarray(reduced.argmax(axis=1), dtype=np.int64)
    yield from _take_back(offers, choice)
    yield from _fill(offers, choice, prices)
    return choice


def _take_back(offers: Offers, choice: IntArray) -> Pieces[None]:
    """Swap to cheaper offers, least loss a unit of relief first, until everything fits; at worst to offer 0 of all.

    A swap never asks for more of any resource, so every round comes nearer and the rounds end.
    """
    rows = np.arange(len(choice))
    while np.any((over := offers.total(choice) - offers.capacity) > offers.capacity * _EPSILON):
        need = np.maximum(over, 0.0) / offers.capacity
        relief = (offers.usage[rows, choice][:, None, :] - offers.usage) / offers.capacity
        useful = np.minimum(relief, need).sum(axis=2, where=need > 0)
        loss = np.maximum(offers.value[rows, choice][:, None] - offers.value, 0.0) + 1e-15
        cheaper = np.all(relief >= 0, axis=2) & (useful > 1e-15) & np.isfinite(loss)
        rate = np.where(cheaper, useful / loss, -1.0)
        best = rate.argmax(axis=1)
        order = np.argsort(-rate[rows, best])
        if rate[order[0], best[order[0]]] < 0:
            choice[:] = 0
            return
        # An eighth of the jobs at most before rates are computed again.
        for job in order[: max(len(order) // 8, 1)]:
            if rate[job, best[job]] < 0 or not np.any(over > offers.capacity * _EPSILON):
                break
            over = over + offers.usage[job, best[job]] - offers.usage[job, choice[job]]
            choice[job] = best[job]
        yield _RATED * offers.value.size


def _fill(offers: Offers, choice: IntArray, prices: FloatArray) -> Pieces[None]:
    """Upgrade jobs, best gain a unit of priced resource first, while something fits."""
    free = offers.capacity - offers.total(choice)
    weights = (
        np.maximum(prices, _EPSILON * max(float(prices.max(initial=0.0)), 1e-12)) + 1e-6 / offers.capacity
    )
    gain = offers.value - offers.value[np.arange(len(choice)), choice][:, None]
    extra = offers.usage - offers.usage[np.arange(len(choice)), choice][:, None, :]
    rate, option = _best_upgrade(gain, extra, weights, free)
    heap = [(-float(r), int(j), int(o)) for j, (r, o) in enumerate(zip(rate, option, strict=True)) if r > 0]
    heapq.heapify(heap)
    yield _RATED * offers.value.size
    # What is free could gain no more than this at the best rate left: below it, filling on is lost time.
    enough, done = _NEGLIGIBLE_GAIN * abs(offers.worth(choice)), 0
    while heap and -heap[0][0] * float(free @ weights) > enough:
        _, job, upgrade = heapq.heappop(heap)
        more = offers.usage[job, upgrade] - offers.usage[job, choice[job]]
        if np.all(more <= free + _EPSILON * offers.capacity):
            free, choice[job] = free - more, upgrade
        gain_one = offers.value[job] - offers.value[job, choice[job]]
        extra_one = offers.usage[job] - offers.usage[job, choice[job]]
        again, which = _best_upgrade(gain_one[None], extra_one[None], weights, free)
        if again[0] > 0:
            heapq.heappush(heap, (-float(again[0]), job, int(which[0])))
        done += 1
        if done % _UPGRADES == 0:
            yield _UPGRADED * _UPGRADES


def _best_upgrade(
    gain: FloatArray, extra: FloatArray, weights: FloatArray, free: FloatArray
) -> tuple[FloatArray, NDArray[np.int64]]:
    """Best rate of gain among the offers that fit what is free, and which offer; rate <= 0 where there is none."""
    fits = np.all(extra <= free, axis=2) & (gain > 1e-12)
    priced = np.maximum(extra @ weights, 1e-12)
    rate = np.where(fits, gain / priced, -1.0)
    option = rate.argmax(axis=1)
    return rate[np.arange(len(option)), option], option


def choose_exactly(offers: Offers, gap: float = EXACT_GAP, node_limit: int = _NODES) -> Choice:
    """Solve the knapsack within `gap` of the optimum: scipy.optimize.milp (HiGHS). Raises DoesNotFit.

    Bounded by nodes, never by time: a replay must find the same plan. The greedy choice stands where it is better.
    """
    return _solve(offers, choose_greedily(offers), gap, node_limit)


def _solve(offers: Offers, greedy: Choice, gap: float, node_limit: int) -> Choice:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    jobs, options = np.nonzero(np.isfinite(offers.value))
    n = len(jobs)
    one_each = csr_array((np.ones(n), (jobs, np.arange(n))), shape=(len(offers.value), n))
    usage = csr_array((offers.usage[jobs, options] / offers.capacity).T)
    with c_prints_on_stderr():
        solved = milp(
            -offers.value[jobs, options],
            constraints=[LinearConstraint(one_each, 1, 1), LinearConstraint(usage, -np.inf, 1.0)],
            integrality=np.ones(n),
            bounds=Bounds(0, 1),
            options={"node_limit": node_limit, "mip_rel_gap": gap},
        )
    if solved.x is None:
        return greedy
    choice = np.zeros(len(offers.value), dtype=np.int64)
    taken = solved.x > 0.5
    choice[jobs[taken]] = options[taken]
    bound = -float(solved.mip_dual_bound if solved.mip_dual_bound is not None else solved.fun)
    if not offers.fits(choice) or offers.worth(choice) < greedy.worth:
        choice = greedy.offers
    worth = offers.worth(choice)
    return Choice(choice, worth, greedy.prices, max(min(bound, greedy.bound), worth))


def _refuse_impossible(offers: Offers) -> None:
    least = np.zeros(len(offers.value), dtype=np.int64)
    if not offers.fits(least):
        over = offers.total(least) / offers.capacity
        raise DoesNotFit(
            f"the least plans of {len(least)} jobs need {over.max():.2f} times resource {int(over.argmax())}; "
            "pause jobs of low priority or add capacity",
            delay_s=60.0,
        )
