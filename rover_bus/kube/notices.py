"""What a person looks for in `kubectl describe`: the facts of a run that become Events of its object, and in which words.

Fed by the news of a run (runs.py); feeds objects.py. An Event's name is made of the fact that it tells, so that telling it twice is
a conflict and no second Event.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from rover_bus.events import facts
from rover_bus.events.checkpoint_facts import CheckpointFailed, CheckpointNoneUsable
from rover_bus.events.data_facts import BatchDeadLettered, LedgerRewound
from rover_bus.events.host_facts import HostMemberStalled
from rover_bus.kube.conditions import constant, moment
from rover_bus.kube.kinds import Json, Kind, Metadata, Object
from rover_bus.kube.object import API_VERSION, KIND
from rover_bus.kube.runs import ASKED, FactOfJob, HeardFact

COMPONENT = "rover-bus.io/operator"
MOST_NOTE = 1024
NORMAL: Final = "Normal"
WARNING: Final = "Warning"
EVENT = Kind("api/v1", "events", Object)


class Notice(NamedTuple):
    """One Event. `sequence`: of the fact that it tells."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str
    sequence: int
    time_ms: int


def notice_of(heard: HeardFact) -> Notice | None:
    """Return the Event that a fact becomes; None for one that status shows well enough."""
    words = _words(heard.fact)
    if words is None:
        return None
    kind, reason, message = words
    return Notice(kind, reason, message[:MOST_NOTE], heard.sequence, heard.time_ms)


Words = tuple[Literal["Normal", "Warning"], str, str]


def _words(fact: FactOfJob) -> Words | None:
    match fact:
        case facts.JobSubmitted(uid=uid):
            return NORMAL, "Submitted", f"the job was handed in, its run is {uid}"
        case facts.PlanApplied(plan=plan, workers=workers, servers=servers, reason=why):
            size = f"workers {workers}, servers {servers}"
            return NORMAL, "PlanApplied", f"plan {plan}: {size}{_because(why)}"
        case facts.PlanChecked(plan=plan, outcome="waits"):
            return NORMAL, "PlanWaits", f"plan {plan} waits for a person: rover plan approve {fact.job}"
        case facts.PlanApproved(plan=plan, by=by, reason=why):
            return NORMAL, "PlanApproved", f"{by or 'a person'} approves plan {plan}{_because(why)}"
        case facts.PlanRolledBack(plan=plan, by_plan=by_plan, constant=why):
            return NORMAL, "PlanRolledBack", f"plan {by_plan} takes back plan {plan}: {why.replace('_', ' ')}"
        case facts.JobPaused(by="", reason=why, release=True):
            return WARNING, "Paused", f"all members leave, and their room is given to others{_because(why)}"
        case facts.JobPaused(by=by, reason=why):
            return NORMAL, "Paused", f"no worker shall run{f', as {by} asked' if by else ''}{_because(why)}"
        case facts.JobResumed(workers=workers):
            said = f"{workers} workers shall run again" if workers else "it waits for a plan with room for it"
            return NORMAL, "Resumed", said
        case facts.JobStopRequested(mode=mode, by=by, reason=why):
            return NORMAL, "StopAsked", f"{by or 'the Brain'} asked the job to end ({mode}){_because(why)}"
        case facts.JobEnded(state="completed"):
            return NORMAL, "Completed", "every sample of the data is accounted for"
        case facts.JobEnded(state=state, reason=reason, detail=detail):
            return (
                WARNING,
                constant(state if reason in ("", ASKED) else reason),
                f"the job is {state}{_because(detail)}",
            )
        case _:
            return _trouble(fact)


def _because(why: str) -> str:
    return f": {why}" if why else ""


def _trouble(fact: FactOfJob) -> Words | None:
    match fact:
        case facts.MemberLost(member=member, reason=reason, detail=detail):
            return WARNING, "MemberLost", f"{member} is lost: {reason}{f' ({detail})' if detail else ''}"
        case HostMemberStalled(member=member, reason=reason, why=why):
            return WARNING, "MemberStalled", f"{member} cannot start, it waits: {reason}: {why}"
        case facts.WorkerFailed(member=member, exception=exception, message=message):
            return WARNING, "ProgramFailed", f"the program of {member} raised {exception}: {message}"
        case LedgerRewound(samples_again=0, reason=why):
            return NORMAL, "WentBack", f"nothing is trained again: {why}"
        case LedgerRewound(cut=cut, samples_again=again, reason=why):
            where = f"checkpoint {cut}" if cut else "the beginning"
            return WARNING, "WentBack", f"back to {where}, {again} samples are trained again: {why}"
        case CheckpointFailed(cut=cut, reason=why):
            return WARNING, "CheckpointFailed", f"checkpoint {cut} will not be used: {why}"
        case CheckpointNoneUsable(problems=problems):
            return WARNING, "NoUsableCheckpoint", f"no checkpoint can be restored: {'; '.join(problems)}"
        case BatchDeadLettered(epoch=epoch, batch=batch, reason=why):
            return WARNING, "BatchDeadLettered", f"batch {batch} of epoch {epoch} is given up: {why}"
        case facts.RuleSwitchedOff(rule=rule, why=why):
            return WARNING, "RuleSwitchedOff", f"rule {rule} is left out, it failed three times: {why}"
        case facts.PlanRefused(plan=plan, constant=constant_, reason=why):
            return WARNING, "PlanRefused", f"the master refuses plan {plan} ({constant_}): {why}"
        case _:
            return None


def event_of(object_: Metadata, notice: Notice) -> Json:
    """Return the Event of a notice, as the API server takes it."""
    time = moment(notice.time_ms / 1000)
    about: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "namespace": object_.namespace,
        "name": object_.name,
        "uid": object_.uid,
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "namespace": object_.namespace,
            "name": f"{object_.name}.{object_.uid[:8]}{notice.sequence:x}",
        },
        "involvedObject": about,
        "type": notice.kind,
        "reason": notice.reason,
        "message": notice.message,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": "",
    }
