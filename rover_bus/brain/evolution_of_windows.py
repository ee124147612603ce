"""How a closed window changes what is known of its job: measured sizes, paces of workers, cores and memory in use, the curve.

Used by `evolution`. Apart, because all that the models rest on enters here. Pure.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from rover_bus.brain.decisions.hot_servers import WINDOWS as HOT_WINDOWS
from rover_bus.brain.decisions.lifecycle import ChangeHistory, may_change
from rover_bus.brain.decisions.stragglers import REPLACE_WINDOWS, evolve_paces
from rover_bus.brain.log import WindowClosed
from rover_bus.brain.state import UNREST, WINDOWS_KEPT, Change, KnownJob, TriedSize
from rover_bus.events.facts import Size
from rover_bus.events.job import is_synchronous

Point = TypeVar("Point")
RECENT = 0.3  # weight of the newest window in how long a batch takes
FORGETTING = 0.9  # of a size's older windows, a window
ESTABLISHED = 1.5  # windows of weight from which the mean of a size is a reference
RETURNED = 0.5  # windows of weight that are left of a size's mean when its job comes back to it
BAD_MINUTES = 0.8  # of what a job did before a change was asked for: noise alone does not take so much
ALIKE_PRESENT = 2  # windows in a row with as many workers, while others are on their way
MOST_POINTS = 64
MOST_LOSSES = 200
MOST_TRIED = 64


def _note_memory(job: KnownJob, window: WindowClosed) -> None:
    """Add a point to what each server needs; what its host says that it uses is one until the server says more itself."""
    for name in window.server_needs:
        if name not in job.say_needs:
            job.memory.pop(name, None)
            job.say_needs = [*job.say_needs, name]
    used = {name: size for name, size in window.server_bytes.items() if name not in job.say_needs}
    for name, size in {**used, **window.server_needs}.items():
        job.memory[name] = _thinned([*job.memory.get(name, []), (job.samples, size)], MOST_POINTS)


def measure(job: KnownJob, window: WindowClosed) -> None:
    job.windows += 1
    job.clock_s += window.seconds
    job.log_sequence = max(job.log_sequence, window.log_sequence)
    job.committed, job.total = max(job.committed, window.committed), window.total or job.total
    throughput = sum(worker.rate for worker in window.workers)
    job.samples += throughput * window.seconds
    paces = {worker.index: worker.pace for worker in window.workers if worker.pace >= 0}
    kept = {w.index: job.paces[w.index] for w in window.workers if w.pace < 0 and w.index in job.paces}
    job.paces = {**kept, **evolve_paces(job.paces, paces)}
    for known, told in ((job.cores_used, window.cores_used), (job.cores_peak, window.cores_peak)):
        for role, cores in told.items():
            known[role] = cores if role not in known else 0.5 * (known[role] + cores)
    _note_memory(job, window)
    if window.server_cores:
        job.server_loads = [*job.server_loads, window.server_cores][-HOT_WINDOWS:]
    _learn(job, window)
    waits = job.change is not None and job.change.waits  # for a person: the job goes on as it was
    settled = job.change is None or job.change.settled or waits
    if throughput > 0 and window.workers:
        step_s = job.spec.data.batch_size * len(window.workers) / throughput
        if is_synchronous(job.spec) and window.batch_s:
            step_s = window.batch_s  # a batch may be a worker's part of a step, or the step of all of them
        job.step_s += (step_s - job.step_s) * (RECENT if job.step_s else 1.0)
    if job.change is not None and job.change.applied and not settled and job.change.base:
        job.change.watched_s += window.seconds
        job.lost_s = round(job.lost_s + window.seconds * max(1 - throughput / job.change.usual, 0.0), 3)
    if window.clean and job.change is not None and not settled and throughput > 0:
        _note_bad_minutes(job, job.change, window, throughput)
    in_a_row = job.present[1] + 1 if job.present[0] == window.present else 1
    job.present = (window.present, in_a_row) if window.present else (0, 0)
    if window.present and throughput > 0:
        _learn_from_those_present(job, window, throughput)
    if window.clean and settled and throughput > 0:
        if _is_slowed(job, throughput):
            return
        job.recent = [*job.recent, throughput][-WINDOWS_KEPT:]
        _note_rest(job)
        if job.change is not None and not waits:
            job.change.windows.append(throughput)
        if job.held is not None:
            _try(job, job.held, throughput, window)


def _learn_from_those_present(job: KnownJob, window: WindowClosed, throughput: float) -> None:
    """While members are on their way a job has a size that no plan chose: to measure it costs nothing. The first window of it may
    have begun with one worker less.
    """
    change, held = job.change, job.held
    under_way = change is not None and change.applied and not change.settled
    slots_move = under_way and change is not None and change.before.servers != change.after.servers
    if held is None or slots_move or job.present[1] < ALIKE_PRESENT:
        return
    if not job.stragglers and not any(pace.slow for pace in job.paces.values()):
        _try(job, held.replace(workers=window.present), throughput, window, passing=True)


def _note_bad_minutes(job: KnownJob, change: Change, window: WindowClosed, throughput: float) -> None:
    """A job that became slow while members of a change are on their way is slow for another reason, which may last: the change is
    held against what it did just before. What it does better then is a part of the change that has come already.
    """
    if (
        not change.base
        or len(window.workers) != change.before.workers
        or any(p.slow for p in job.paces.values())
    ):
        return
    if throughput < BAD_MINUTES * change.usual:
        change.base = [*change.base, throughput][-WINDOWS_KEPT:]


def _note_rest(job: KnownJob) -> None:
    """A job that was free to change and whose windows agree has the size that was chosen for it: no probe is owed any more."""
    history = ChangeHistory(settled_at_s=job.settled_s, rollbacks=job.rollbacks)
    if (
        len(job.recent) == WINDOWS_KEPT
        and job.unrest <= UNREST
        and not may_change(history, job.clock_s, job.spec.plan.cooldown_s)
    ):
        job.probe = None


def _is_slowed(job: KnownJob, throughput: float) -> bool:
    """Put a window aside that a slow worker spoils; not for ever: one that stays slow is what the job has.

    Beside others a worker is slow from its first slow window on; one that is alone, when it is found: until then its own windows
    are all that shows unrest.
    """
    slow = len(job.paces) > 1 and any(pace.slow for pace in job.paces.values())
    if not slow and not job.stragglers:
        job.slowed = []
        return False
    if len(job.slowed) >= REPLACE_WINDOWS:
        return False
    job.slowed = [*job.slowed, throughput]
    if len(job.slowed) == REPLACE_WINDOWS:
        job.recent = []
    return True


def return_to(job: KnownJob, size: Size) -> None:
    """A job comes back to a size: what it shows now is told apart from what it showed then.

    The size that it leaves was measured until now, so a difference is the returned size's own, and no drift of all of them: were it
    spread over all, no later window could mend what two sizes were first taken to differ by.
    """
    for row in job.tried:
        if row.size.shape == size.shape and row.weight > RETURNED:
            row.scatter *= RETURNED / row.weight
            row.weight = RETURNED


def _try(job: KnownJob, size: Size, throughput: float, window: WindowClosed, passing: bool = False) -> None:
    crosses, alike = job.crosses, (tried for tried in job.tried if tried.size.shape == size.shape)
    row = next((tried for tried in alike if tried.crosses == crosses), None)
    if row is None:
        row = TriedSize(size, crosses=crosses, passing=passing)
        job.tried = [*job.tried, row][-MOST_TRIED:]
    row.passing = row.passing and passing
    former = row.mean if FORGETTING * row.weight >= ESTABLISHED else 0.0
    share = sum(worker.input_share for worker in window.workers) / len(window.workers)
    old = FORGETTING * row.weight
    row.weight = old + 1.0
    step = throughput - row.mean
    row.mean += step / row.weight
    row.scatter = FORGETTING * row.scatter + step * (throughput - row.mean)
    row.input_share += (share - row.input_share) / row.weight
    used, peak = window.cores_used, window.cores_peak
    row.worker_cores = _mean(row.worker_cores, used.get("worker"), row.weight)
    row.server_cores = _mean(row.server_cores, used.get("ps"), row.weight)
    row.worker_peak = _mean(row.worker_peak, peak.get("worker"), row.weight)
    row.server_peak = _mean(row.server_peak, peak.get("ps"), row.weight)
    if former > 0:
        _drift(job, row, row.mean / former)


def _mean(before: float, told: float | None, weight: float) -> float:
    """A fading mean with one window more. The first word is the mean: windows before it said nothing."""
    if told is None:
        return before
    return before + (told - before) / weight if before else told


def _drift(job: KnownJob, held: TriedSize, factor: float) -> None:
    """What slows one size slows all: a host that became busier must not make the sizes of calmer times look better."""
    for row in job.tried:
        if row is not held:
            row.mean *= factor
            row.scatter *= factor * factor
    job.ceilings = [
        each
        if each.size.shape == held.size.shape
        else msgspec.structs.replace(each, speed=each.speed * factor)
        for each in job.ceilings
    ]


def _learn(job: KnownJob, window: WindowClosed) -> None:
    """One point of the learning curve, where a target is asked for. Steps are batches."""
    value = 1.0 - window.auc if job.spec.stop.auc and window.auc else window.loss
    if value > 0 and (job.spec.stop.auc or job.spec.stop.loss or job.spec.stop.least_decrease_per_step):
        steps = job.samples / job.spec.data.batch_size
        job.losses = _thinned([*job.losses, (steps, value)], MOST_LOSSES)


def _thinned(points: list[Point], most: int) -> list[Point]:
    """Every second one of the older half goes when there are too many: old ones tell the slope, new ones the present."""
    if len(points) <= most:
        return points
    half = len(points) // 2
    return points[:half:2] + points[half:]
