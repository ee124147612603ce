"""The decider of RoverJobs: objects as they are and facts of their jobs in; submissions, requests and writes to objects out.

Asked at every Turn on what known_objects.py has evolved; service.py carries the effects out. answering.py has what
becomes of answers to plans. The rules, each in one place:

- An object is handed in once, under a uid made of its own, after our finalizer is on it. What means no job is never handed in.
- The object wins: `spec.suspend` is what the job is asked for. A person's `rover pause | resume` becomes `spec.suspend`.
- An object that is deleted cancels its job; the finalizer goes when the job's end is known. So ends a job whose object is gone.
- Events come before the status that shows their facts: what is told twice after a crash is a conflict, and no second Event.
- Nothing is decided on an object while something is being written for it, nor before what was written has been seen.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal

from rover_bus.events.deciding import Turn, TurnDecider, WakeAt
from rover_bus.events.job import JobSpec
from rover_bus.events.subjects import qualified
from rover_bus.kube.answering import ForAnswer, decide_answers
from rover_bus.kube.conditions import HandedIn, differs, patch_of, status_of
from rover_bus.kube.kinds import Ref
from rover_bus.kube.known_objects import ASKERS, Happening, KnownObject, Objects, evolve
from rover_bus.kube.notices import Notice, notice_of
from rover_bus.kube.object import changed_keys
from rover_bus.kube.resting import Resting
from rover_bus.kube.roverjobs import RoverJob, uid_of
from rover_bus.kube.runs import FollowedRun

ASK_AGAIN_S = 30.0  # a pause that nothing came of is asked for again: the job may not have been ready for it
DRAIN_S = 120.0  # a job whose deadline is over has so long to write its model, then it is cancelled
PROGRESS_S = 5.0  # progress alone is written no more often: job.reported comes every 5 s
DEADLINE = "its activeDeadlineSeconds are over"
DELETED = "its RoverJob is deleted"
SPEC = "spec"  # all of it: it means no job any more

Input = Happening | Turn
StopMode = Literal["drain", "cancel"]


# -- effects ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeepObject:
    """Put our finalizer on an object."""

    object: RoverJob


@dataclass(frozen=True, slots=True)
class LetObjectGo:
    """Take our finalizer off."""

    object: RoverJob


@dataclass(frozen=True, slots=True)
class ConfirmGone:
    """Read an object that is not known: where it is there after all, nothing else is done."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class HandIn:
    """Hand a job in; `job` is its name on the bus."""

    job: str
    uid: str
    spec: JobSpec
    by: str


@dataclass(frozen=True, slots=True)
class ForgetFormer:
    """An ended run of an object that is gone has the name of a new one: nothing of it is kept any longer."""

    job: str
    uid: str
    by: str


@dataclass(frozen=True, slots=True)
class AskStop:
    """`after`: the last request, by which this one is told from it; 0: there is none."""

    job: str
    uid: str
    mode: StopMode
    reason: str
    by: str
    after: int = 0


@dataclass(frozen=True, slots=True)
class AskPause:
    """`away`: all members shall leave, servers once a checkpoint is stored; else they come back. `after`: as of AskStop."""

    job: str
    uid: str
    away: bool
    by: str
    after: int = 0


@dataclass(frozen=True, slots=True)
class SetSuspend:
    """A person paused or resumed the job: the object says so from here on."""

    object: RoverJob
    suspend: bool


@dataclass(frozen=True, slots=True)
class TellNotice:
    object: RoverJob
    notice: Notice


@dataclass(frozen=True, slots=True)
class WriteStatus:
    object: RoverJob
    patch: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Its time to live is over."""

    object: RoverJob


Act = (
    KeepObject
    | LetObjectGo
    | ConfirmGone
    | HandIn
    | ForgetFormer
    | AskStop
    | AskPause
    | SetSuspend
    | TellNotice
    | WriteStatus
    | DeleteObject
)


@dataclass(frozen=True, slots=True)
class ForObject:
    """What is to be done for one object, in this order; one that fails leaves the rest out."""

    ref: Ref
    acts: tuple[Act, ...]


Effect = ForObject | ForAnswer | WakeAt


class ObjectsDecider(TurnDecider[Objects, Happening, Effect]):
    """The decider of RoverJobs."""

    def __init__(self, state: Objects) -> None:
        super().__init__(state, evolve, partial(decide, resting=Resting()))


# -- decide ----------------------------------------------------------------------------------------------------------------


def decide(
    state: Objects, now_s: float, leave_out: Collection[str] = (), resting: Resting | None = None
) -> list[Effect]:
    """Return what is to be done now. Asked at every Turn; asked twice it answers the same. leave_out: jobs left as they are.

    resting: objects that former Turns found nothing to do for; None: each is decided on.
    """
    effects: list[Effect] = []
    wakes: list[float] = []
    resting = resting or Resting()
    resting.turn()
    for ref, known in (*state.known.items(), *((ref, KnownObject()) for ref in state.orphans())):
        if state.job_name(ref) in leave_out:
            continue
        if (until_s := resting.until(state, ref, known, now_s)) is not None:
            wakes += [until_s] if until_s < math.inf else []
            continue
        steps = [*_on(state, ref, known, now_s)]
        due = [each.at_s for each in steps if isinstance(each, WakeAt)]
        wakes += due
        if acts := tuple(each for each in steps if not isinstance(each, WakeAt)):
            effects.append(ForObject(ref, acts))
        else:
            resting.note(state, ref, known, due)
    for answered in decide_answers(state, now_s, leave_out):
        if isinstance(answered, WakeAt):
            wakes.append(answered.at_s)
        else:
            effects.append(answered)
    return [*effects, WakeAt(min(wakes))] if wakes else effects


Steps = Iterator[Act | WakeAt]


def _on(state: Objects, ref: Ref, known: KnownObject, now_s: float) -> Steps:
    """Decide on one object."""
    object_, run, by = known.object, state.run_of(ref), state.asker_of(ref)
    if known.acting or known.sequence > state.heard:
        return
    if object_ is not None and object_.metadata.version < known.version:
        return
    if now_s < known.not_before_s:
        yield WakeAt(known.not_before_s)
        return
    if object_ is None:
        if (
            run is not None
            and run.end is None
            and run.by == by
            and (stop := [*_stop(run, "cancel", DELETED, by)])
        ):
            yield ConfirmGone(ref)
            yield from stop
        return
    own = run if run is not None and run.uid == uid_of(object_.metadata) else None
    if own is None and _is_over(object_):
        if object_.is_held:
            yield LetObjectGo(object_)
        yield from _expire(object_, _ended_s(object_), now_s)
    elif own is None and uid_of(object_.metadata) in state.forgotten and not object_.is_deleted:
        yield from _show(known, object_, None, HandedIn(forgotten=True), now_s)
    elif object_.is_deleted:
        yield from _delete(known, object_, own, by, now_s)
    elif own is None:
        yield from _hand_in(known, object_, run, by, now_s, state.lacking(ref))
    elif own.end is None:
        yield from _run(known, object_, own, by, now_s, bool(state.policy))
    else:
        yield from _end(known, object_, own, by, now_s)


def _delete(known: KnownObject, object_: RoverJob, own: FollowedRun | None, by: str, now_s: float) -> Steps:
    if own is not None and own.end is None:
        yield from _stop(own, "cancel", DELETED, by)
        yield from _show(known, object_, own, HandedIn(), now_s)
    elif object_.is_held:
        if own is not None:
            yield from _tell(object_, own)
        yield LetObjectGo(object_)


def _hand_in(
    known: KnownObject, object_: RoverJob, run: FollowedRun | None, by: str, now_s: float, lacking: str
) -> Steps:
    """The job is on the bus, or it is said why not. lacking: the tenant that is not there yet."""
    job, invalid, taken = known.job, known.invalid, ""
    if run is not None:
        if run.end is not None and run.by == by:
            yield ForgetFormer(run.job, run.uid, by)
            return
        if run.by == by:  # of an object that was freed by force: this one has its name
            yield from _stop(run, "cancel", DELETED, by)
        whose = f", of {run.by}" if run.by else ""
        taken = f"a job {run.job} is there already{whose}: take another name, or `rover forget {run.job}` once it has ended"
    if job is None or taken or lacking or object_.is_suspended:
        handing = HandedIn(invalid=invalid, taken=taken, lacking=lacking, risk=_risk(job))
        yield from _show(known, object_, None, handing, now_s)
    elif not object_.is_held:
        yield KeepObject(object_)
    else:
        tenant = job.plan.tenant
        yield HandIn(qualified(tenant, job.name), uid_of(object_.metadata), job, by)


def _run(
    known: KnownObject, object_: RoverJob, run: FollowedRun, by: str, now_s: float, proven: bool
) -> Steps:
    if not object_.is_held:  # it was taken off: the job still has to be ended first
        yield KeepObject(object_)
        return
    yield from _deadline(object_, run, by, now_s)
    word = run.word
    fresh = word is not None and not word.by.startswith(ASKERS) and word.sequence > object_.observed
    if word is not None and fresh:
        if object_.is_suspended != word.away:
            yield SetSuspend(object_, word.away)
            return
    elif object_.is_suspended and (run.paused is None or (run.paused.is_asked and not _is_released(run))):
        yield from _ask(run, True, by, now_s)
    elif not object_.is_suspended and run.paused is not None and run.paused.is_asked:
        yield from _ask(run, False, by, now_s)
    handing = replace(_handed(known, run, by), answers=proven)
    yield from _show(known, object_, run, handing, now_s, at_once=fresh)


def _end(known: KnownObject, object_: RoverJob, run: FollowedRun, by: str, now_s: float) -> Steps:
    """The end is shown, then the finalizer goes: from here on the object can be deleted without us."""
    assert run.end is not None
    acts = list(_show(known, object_, run, _handed(known, run, by), now_s))
    yield from acts
    if acts:
        return
    if object_.is_held:
        yield LetObjectGo(object_)
        return
    yield from _expire(object_, run.end.time_ms / 1000, now_s)


def _expire(object_: RoverJob, ended_s: float, now_s: float) -> Steps:
    ttl = object_.spec.get("ttlSecondsAfterFinished")
    if not isinstance(ttl, int) or object_.is_deleted or object_.is_held:
        return
    if now_s >= ended_s + ttl:
        yield DeleteObject(object_)
    else:
        yield WakeAt(ended_s + ttl)


# -- what a job is asked for ---------------------------------------------------------------------------------------------


def _deadline(object_: RoverJob, run: FollowedRun, by: str, now_s: float) -> Steps:
    limit = object_.spec.get("activeDeadlineSeconds")
    if not isinstance(limit, int) or not run.began_ms:
        return
    over_s = run.began_ms / 1000 + limit
    if now_s < over_s:
        yield WakeAt(over_s)
    elif now_s < over_s + DRAIN_S:
        yield from _stop(run, "drain", DEADLINE, by)
        yield WakeAt(over_s + DRAIN_S)
    else:
        yield from _stop(run, "cancel", DEADLINE, by)


def _stop(run: FollowedRun, mode: StopMode, reason: str, by: str) -> Steps:
    """Once is enough: a master obeys a stop whenever it receives it."""
    stop = run.stop
    if stop is None or (stop.mode, stop.by) != (mode, by):
        yield AskStop(run.job, run.uid, mode, reason, by, stop.time_ms if stop is not None else 0)


def _has_servers(run: FollowedRun) -> bool:
    return run.spec is None or run.spec.has_servers


def _is_released(run: FollowedRun) -> bool:
    """Whether its servers leave too, where it has any."""
    return run.paused is not None and (run.paused.release or not _has_servers(run))


def _ask(run: FollowedRun, away: bool, by: str, now_s: float) -> Steps:
    word = run.word
    if word is not None and word.away == away and (word.release or not away or not _has_servers(run)):
        again_s = word.time_ms / 1000 + ASK_AGAIN_S
        if now_s < again_s:
            yield WakeAt(again_s)
            return
    yield AskPause(run.job, run.uid, away, by, word.sequence if word is not None else 0)


# -- what an object shows --------------------------------------------------------------------------------------------------


def _handed(known: KnownObject, run: FollowedRun, by: str) -> HandedIn:
    job = known.job
    changed = changed_keys(run.spec, job) if run.spec is not None and job is not None else ()
    late = run.stop is not None and (run.stop.by, run.stop.reason) == (by, DEADLINE)
    return HandedIn(changed=changed or ((SPEC,) if known.invalid else ()), risk=_risk(run.spec), late=late)


def _show(
    known: KnownObject,
    object_: RoverJob,
    run: FollowedRun | None,
    handing: HandedIn,
    now_s: float,
    at_once: bool = False,
) -> Steps:
    told = list(_tell(object_, run)) if run is not None else []
    yield from told
    status = status_of(object_, run, handing, now_s)
    difference = differs(object_.status, status)
    if not difference:
        return
    due_s = known.status_s + PROGRESS_S
    if difference == "more" or told or at_once or now_s >= due_s:
        yield WriteStatus(object_, patch_of(object_.status, status))
    else:
        yield WakeAt(due_s)


def _tell(object_: RoverJob, run: FollowedRun) -> Iterator[TellNotice]:
    for heard in run.news:
        notice = notice_of(heard) if heard.sequence > object_.observed else None
        if notice is not None:
            yield TellNotice(object_, notice)


def _is_over(object_: RoverJob) -> bool:
    """Whether an object shows its end: it is never handed in again, also where its run was forgotten."""
    return any(
        isinstance(each, dict) and each.get("type") in ("Complete", "Failed") and each.get("status") == "True"
        for each in object_.status.get("conditions") or []
    )


def _ended_s(object_: RoverJob) -> float:
    """When an object that shows its end ended; now is never before it."""
    try:
        return datetime.fromisoformat(str(object_.status.get("completionTime"))).timestamp()
    except ValueError:
        return 0.0


def _risk(job: JobSpec | None) -> str:
    """Return what a job risks whose checkpoints, or whose model, no node's loss survives."""
    if job is None or not job.has_servers:
        return ""
    if job.checkpoint is None:
        return "the job takes no checkpoints: a parameter server that is lost loses the model; add spec.checkpoint"
    if not job.checkpoint.path:
        return "a lost node loses the checkpoints that it holds: name spec.checkpoint.storage"
    return ""
