"""The half of the decider of objects that turns PlanAnswers into a person's word on a plan, each once (docs/design/0066).

Asked by objects.py at every Turn; service.py carries the effects out. The rules, each in one place:

- An answer belongs to its RoverJob before anything comes of it, and goes with it.
- It is a word on the plan that waits, or none: what waits is what the facts of the run say, not what the answer says.
- What was created before the job was restored from a backup answers a plan that is erased, though another one has its number.
- One word a plan. A plan that has been answered is answered; the answer whose word it is says so, any other one says whose it is.
- Where no policy of the cluster pins `by` to the user, a name proves nothing, and every answer is refused. The policy is looked
  at before an answer counts: it must be in force, and have been when the answer was created.
- What is written is seen before the next is decided, so that an operator that died after any write is gone on from there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal, assert_never

from rover_bus.events.deciding import WakeAt
from rover_bus.kube.kinds import Metadata, Ref
from rover_bus.kube.known_objects import KnownAnswer, Objects
from rover_bus.kube.plan_answers import PlanAnswer
from rover_bus.kube.roverjobs import RoverJob, uid_of
from rover_bus.kube.runs import FollowedRun

GRACE_S = 10.0  # an answer may be seen before the job or the plan that it means


@dataclass(frozen=True, slots=True)
class OwnAnswer:
    """Have an answer belong to its RoverJob."""

    answer: PlanAnswer
    owner: Metadata


@dataclass(frozen=True, slots=True)
class SayAnswer:
    """State the person's word; `uid`: of the answer."""

    job: str
    plan: int
    yes: bool
    by: str
    reason: str
    uid: str


@dataclass(frozen=True, slots=True)
class SettleAnswer:
    """Write what became of an answer. `fact`: the sequence of its word; 0: it has none."""

    answer: PlanAnswer
    state: Literal["Given", "Refused"]
    reason: str
    message: str
    fact: int = 0


@dataclass(frozen=True, slots=True)
class ReadPolicy:
    """Look at the policy that pins names."""

    policy: str


AnswerAct = OwnAnswer | ReadPolicy | SayAnswer | SettleAnswer


@dataclass(frozen=True, slots=True)
class ForAnswer:
    """What is to be done for one answer."""

    ref: Ref
    act: AnswerAct


def decide_answers(
    state: Objects, now_s: float, leave_out: Collection[str] = ()
) -> Iterator[ForAnswer | WakeAt]:
    """Yield what is to be done for answers now, the oldest first: at most one of a job states its word at a time."""
    stating = {_job_of(each.answer) for each in state.answers.values() if each.states and each.answer.is_open}
    for ref, known in sorted(state.answers.items(), key=lambda item: _age(item[1].answer)):
        job = _job_of(known.answer)
        if not known.answer.is_open or state.job_name(job) in leave_out or _is_under_way(state, known):
            continue
        if now_s < known.not_before_s:
            yield WakeAt(known.not_before_s)
            continue
        act = _on(state, known, now_s)
        if isinstance(act, SayAnswer):
            if job in stating and not known.states:
                continue
            stating.add(job)
        yield act if isinstance(act, WakeAt) else ForAnswer(ref, act)


def _is_under_way(state: Objects, known: KnownAnswer) -> bool:
    return known.acting or known.sequence > state.heard or known.answer.metadata.version < known.version


def _on(state: Objects, asked: KnownAnswer, now_s: float) -> AnswerAct | WakeAt:
    """Decide on one answer."""
    answer = asked.answer
    job = _job_of(answer)
    known = state.known.get(job)
    object_ = known.object if known is not None else None
    if object_ is None:
        said = f"there is no RoverJob {job.name} in namespace {job.namespace}"
        return _unless_early(answer, now_s, "NoSuchJob", said)
    if _is_older(answer, object_):
        said = f"RoverJob {job.name} was created after this answer, which was to another one of its name"
        return SettleAnswer(answer, "Refused", "NoSuchJob", said)
    if not answer.belongs_to(object_.metadata):
        return OwnAnswer(answer, object_.metadata)
    if not state.policy:
        said = (
            "no policy of this cluster pins spec.by to the user who creates an answer, so that it proves no name:"
            " an administrator sets the chart's value planAnswers, or a person says `rover plan approve`"
        )
        return SettleAnswer(answer, "Refused", "NameNotProven", said)
    run = state.run_of(job)
    if run is None or run.uid != uid_of(object_.metadata):
        return _unless_early(answer, now_s, "NotSubmitted", f"the job of RoverJob {job.name} does not run")
    act = _on_run(answer, run, f"{state.asker_of(job)}/{answer.spec.by}", now_s)
    return _if_pinned(act, asked, state.policy) if isinstance(act, SayAnswer) else act


def _if_pinned(word: SayAnswer, asked: KnownAnswer, policy: str) -> AnswerAct:
    """Let an answer count only where the name in it is its user's."""
    match asked.name:
        case "unread":
            return ReadPolicy(policy)
        case "pinned":
            return word
        case "early":
            said = f"it was created before the policy {policy} was in force, so that it proves no name: create it again"
        case "free":
            said = f"the policy {policy} is not in force, so that spec.by proves no name: an administrator applies the chart again"
        case _:
            assert_never(asked.name)
    return SettleAnswer(asked.answer, "Refused", "NameNotProven", said)


def _on_run(answer: PlanAnswer, run: FollowedRun, by: str, now_s: float) -> AnswerAct | WakeAt:
    """Decide on an answer to a plan of a run; `by`: whose word it is on the bus."""
    plan = answer.spec.plan
    word = run.answers.get(plan)
    if word is not None and (word.by, word.yes) == (by, answer.says_yes):
        said = f"plan {plan} has this answer by fact {word.sequence}"
        return SettleAnswer(answer, "Given", "Approved" if word.yes else "Rejected", said, word.sequence)
    if word is not None:
        said = f"plan {plan} was {'approved' if word.yes else 'rejected'} by {word.by} before (fact {word.sequence})"
        return SettleAnswer(answer, "Refused", "AnsweredBefore", said)
    if run.end is not None:
        return SettleAnswer(answer, "Refused", "Ended", f"the job has ended: {run.end.state}")
    if _made_ms(answer) < run.restored_ms:
        said = f"the job was restored from a backup since, and the plan {plan} that this answers is erased: create it again"
        return SettleAnswer(answer, "Refused", "Restored", said)
    last = run.plan
    if last is not None and (last.number, last.state) == (plan, "waits"):
        uid = answer.metadata.uid.replace("-", "")
        return SayAnswer(run.job, plan, answer.says_yes, by, answer.spec.reason, uid)
    if last is not None and last.state == "waits":
        return _unless_early(
            answer, now_s, "OtherPlanWaits", f"plan {last.number} waits, and not plan {plan}"
        )
    newest = f"plan {last.number}, the newest, is {last.state.replace('_', ' ')}" if last else "it has none"
    said = f"no plan of the job waits for an answer: {newest}"
    return _unless_early(answer, now_s, "NoPlanWaits", said)


def _unless_early(answer: PlanAnswer, now_s: float, reason: str, message: str) -> AnswerAct | WakeAt:
    """Refuse an answer to what is not known; one that was made just now may only be seen before it."""
    made = answer.metadata.creation_timestamp
    due_s = made.timestamp() + GRACE_S if made is not None else now_s
    return WakeAt(due_s) if now_s < due_s else SettleAnswer(answer, "Refused", reason, message)


def _job_of(answer: PlanAnswer) -> Ref:
    return Ref(answer.metadata.namespace, answer.spec.job)


def _is_older(answer: PlanAnswer, object_: RoverJob) -> bool:
    made, of_job = answer.metadata.creation_timestamp, object_.metadata.creation_timestamp
    return made is not None and of_job is not None and made < of_job


def _made_ms(answer: PlanAnswer) -> float:
    made = answer.metadata.creation_timestamp
    return 1000 * made.timestamp() if made is not None else float("inf")


def _age(answer: PlanAnswer) -> tuple[float, Ref]:
    made = answer.metadata.creation_timestamp
    return made.timestamp() if made is not None else 0.0, answer.metadata.ref
