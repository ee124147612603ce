"""What a window shows of the hosts that its workers ran on, taken into the state (`evolution`). Pure; docs/design/0039.

Apart from `hosts`, which says what follows from it: replay needs this half only.
"""

from __future__ import annotations

from math import exp, log
from statistics import median

from rover_bus.brain.log import WindowClosed
from rover_bus.brain.models.hosts import add_residual, share_of, usual_pace
from rover_bus.brain.state import BrainState, KnownJob, UsualPace
from rover_bus.events.identity import Member

SLOW = 0.8  # share of the usual speed below which a host is slow,
WELL = 0.9  # and above which it is well again
USUAL_WINDOWS = 3  # from so many windows what is usual is known
FOLLOWS, FORGETS = 0.1, 0.01  # how fast it follows, a window; and how fast it learns to call slowness usual
ALIKE = 0.25  # two residuals of one job that differ by less say the same

Paces = dict[str, dict[Member, float]]  # log of own pace, by host


def note_hosts(state: BrainState, job: KnownJob, window: WindowClosed) -> None:
    """Take in what the workers of a window show of their hosts."""
    state.clock_s += window.seconds / len(state.jobs)
    paces = _paces(job, window)
    if not paces:
        return
    _note_own_share(job, window)
    now = usual_pace(paces, state.slow_hosts)
    base = now if len(paces) > 1 else _own_past(job)
    if window.clean:
        _learn_usual(job, now)
    if base is None or len(state.hosts) < 2:  # a single host is compared with none
        return
    for host, members in paces.items():
        evidence = state.host_evidence.setdefault(host, {})
        for member, pace in members.items():
            add_residual(evidence, f"{window.job}/{member}", pace - base, state.clock_s, len(paces) == 1)
    if len(paces) == 1:
        [here] = paces
        job.alone_on = job.alone_on if here in job.alone_on else [*job.alone_on, here]
        _blame_the_job(state, job, window.job, paces)


def host_share(state: BrainState, host: str) -> float:
    """Return a host's speed as a share of what is usual, by what is known now."""
    return share_of(state.host_evidence.get(host, {}), state.clock_s, state.slow_memory_s)


def forget_job(state: BrainState, name: str) -> None:
    """Its own past went with it, and what it showed by that alone. What its members showed beside one another stays."""
    mark = f"{name}/"
    for host in state.jobs[name].alone_on:
        evidence = state.host_evidence.get(host, {})
        for key in [key for key, each in evidence.items() if each.alone and key.startswith(mark)]:
            del evidence[key]


def forget_host(state: BrainState, host: str) -> None:
    """It left: what comes back under its name is another one."""
    state.host_evidence.pop(host, None)
    state.slow_hosts.pop(host, None)


def _paces(job: KnownJob, window: WindowClosed) -> Paces:
    present = {
        (member.index, member.incarnation): member for member in job.members if member.role == "worker"
    }
    paces: Paces = {}
    for worker in window.workers:
        member = present.get((worker.index, worker.incarnation))
        host = job.where.get(member.name, "") if member is not None else ""
        if member is not None and host and worker.own > 0:
            paces.setdefault(host, {})[member] = log(worker.own)
    return paces


def _note_own_share(job: KnownJob, window: WindowClosed) -> None:
    shares = [min(each.pace / each.own, 1.0) for each in window.workers if each.own > 0 and each.pace > 0]
    if shares:
        job.own_share = round(0.5 * (job.own_share + median(shares)), 4)


def _own_past(job: KnownJob) -> float | None:
    """What is usual for a job of which all workers share one host, at this size; None: not known yet."""
    usual = job.usual
    known = (
        usual is not None and usual.size == job.held and usual.windows >= USUAL_WINDOWS and _is_settled(job)
    )
    return usual.pace if usual is not None and known else None


def _is_settled(job: KnownJob) -> bool:
    return job.change is None or job.change.settled or job.change.waits


def _learn_usual(job: KnownJob, now: float) -> None:
    usual = job.usual
    if job.held is None or not _is_settled(job):
        return
    if usual is None or usual.size != job.held:
        job.usual = UsualPace(job.held, now)
        return
    first = usual.windows < USUAL_WINDOWS
    slow = now < usual.pace + log(SLOW)
    follows = 1 / (usual.windows + 1) if first else FORGETS if slow else FOLLOWS
    job.usual = UsualPace(job.held, usual.pace + follows * (now - usual.pace), usual.windows + 1)


def _blame_the_job(state: BrainState, job: KnownJob, name: str, paces: Paces) -> None:
    """As slow on this host as it was on another: it slowed itself. Its pace is usual now, and what it showed is forgotten."""
    [(here, members)] = paces.items()
    now = _shown_by(state, here, name)
    elsewhere = [_shown_by(state, host, name) for host in job.alone_on if host != here]
    if now is None or exp(now) >= SLOW or job.held is None:
        return
    if not any(then is not None and abs(then - now) < ALIKE for then in elsewhere):
        return
    job.usual = UsualPace(job.held, median(members.values()), USUAL_WINDOWS)
    forget_job(state, name)


def _shown_by(state: BrainState, host: str, name: str) -> float | None:
    """What a job showed of a host by its own past: the median of its members that were there long enough; None: none were."""
    mark, evidence = f"{name}/", state.host_evidence.get(host, {})
    shown = [
        each.mean
        for key, each in evidence.items()
        if each.alone and key.startswith(mark) and each.windows >= USUAL_WINDOWS
    ]
    return median(shown) if shown else None
