"""The status of an object: what its run is, as conditions, columns and figures.

Fed by an object and the facts of its run (runs.py); feeds the one status patch of objects.py. Pure. Each condition is always there
once it was decided on: True, or False with the reason why not; `lastTransitionTime` moves when the status of a condition does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from rover_bus.events.identity import Member
from rover_bus.kube.object import CONDITIONS
from rover_bus.kube.plan_answers import how_to_answer
from rover_bus.kube.roverjobs import RoverJob
from rover_bus.kube.runs import FollowedRun, PauseState

Kind = Literal["Accepted", "Running", "Degraded", "Suspended", "Complete", "Failed"]
MOST_MESSAGE = 1024
MOST_MEMBERS = 1000  # listed: an object has at most 1.5 MiB
MOST_NAMED = 5  # members in one message
DEADLINE_EXCEEDED = "DeadlineExceeded"  # as Kubernetes' own jobs say it
FORGOTTEN = "Forgotten"
NO_USABLE = "NoUsableCheckpoint"  # a person is asked
RESULTS = ("auc", "logloss")
FIGURES = (
    "epochs",
    "samples_total",
    "samples_committed",
    "samples_dead_lettered",
    "samples_retrained",
    "updates_ignored",
    "values_missing",
    "workers_lost",
    "servers_lost",
)
# What moves all the time: it alone is no reason to write at once.
PROGRESS = frozenset({"committed", "deadLettered", "total", "goodput", "observedFact", "checkpoint"})


class ShownCondition(NamedTuple):
    type: Kind
    holds: bool
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class HandedIn:
    """What became of handing an object in. `invalid`: why it means no job; `taken`: the run that has its name, of another object.
    `lacking`: the tenant whose job it means, which is not there yet.

    `changed`: keys that are not those which were handed in. `risk`: what it risks without checkpoints that outlive a node. `late`:
    it was asked to end because its deadline was over. `forgotten`: it ended, and nothing is known of it any more.
    `answers`: PlanAnswers are taken.
    """

    invalid: str = ""
    taken: str = ""
    lacking: str = ""
    changed: tuple[str, ...] = ()
    risk: str = ""
    late: bool = False
    forgotten: bool = False
    answers: bool = False


def status_of(object_: RoverJob, run: FollowedRun | None, handing: HandedIn, now_s: float) -> dict[str, Any]:
    """Return the whole status of an object. `run`: its own, None where it was not handed in. now_s: Unix seconds."""
    found = list(conditions(object_, run, handing))
    status: dict[str, Any] = {
        "observedGeneration": object_.metadata.generation,
        "conditions": _written(object_, found, now_s),
        "state": state_word(object_, found),
    }
    if handing.forgotten:
        status["completionTime"] = moment(now_s)  # known no better
    return status if run is None else status | _progress(run)


def differs(former: Mapping[str, Any], status: Mapping[str, Any]) -> Literal["", "progress", "more"]:
    """Say whether a status is to be written: not, some time, at once."""
    keys = {key for key in {*former, *status} if former.get(key) != status.get(key)}
    if not keys:
        return ""
    return "progress" if keys <= PROGRESS else "more"


def patch_of(former: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a merge patch that makes one status of the other."""
    return {**dict.fromkeys(key for key in former if key not in status), **_with_nulls(former, status)}


def _with_nulls(former: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
    """A merge patch keeps what it does not name: keys of tables that are gone are named as null."""
    made: dict[str, Any] = {}
    for key, value in status.items():
        known = former.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            value = {**dict.fromkeys(each for each in known if each not in value), **value}
        made[key] = value
    return made


# -- conditions ----------------------------------------------------------------------------------------------------------


def conditions(object_: RoverJob, run: FollowedRun | None, handing: HandedIn) -> Iterator[ShownCondition]:
    """Yield the conditions in the order of CONDITIONS."""
    yield _accepted(run, handing)
    yield _running(object_, run, handing)
    yield _degraded(run)
    yield _suspended(object_, run, handing)
    yield from _over(run, handing)


def _accepted(run: FollowedRun | None, handing: HandedIn) -> ShownCondition:
    if run is None and handing.invalid:
        return ShownCondition("Accepted", False, "InvalidSpec", handing.invalid)
    if run is None and handing.taken:
        return ShownCondition("Accepted", False, "NameTaken", handing.taken)
    if run is None and handing.lacking:
        said = f"the tenant {handing.lacking} is not made yet: a Brain makes it once it runs, and its log says what is in the way"
        return ShownCondition("Accepted", False, "TenantNotReady", said)
    if run is not None and handing.changed:
        keys = ", ".join(handing.changed)
        said = f"{keys} changed after the job was handed in: a running job keeps what it began with; submit another job"
        return ShownCondition("Accepted", True, "ChangesIgnored", said)
    if handing.risk:
        return ShownCondition("Accepted", True, "WithoutStorage", handing.risk)
    return ShownCondition("Accepted", True, "Valid")


def _running(object_: RoverJob, run: FollowedRun | None, handing: HandedIn) -> ShownCondition:
    if run is None:
        if handing.forgotten:
            return ShownCondition("Running", False, "Ended")
        if handing.invalid or handing.taken or handing.lacking:
            return ShownCondition("Running", False, "NotAccepted")
        held = object_.is_suspended
        return ShownCondition("Running", False, "Suspended" if held else "NotSubmitted")
    if run.end is not None:
        return ShownCondition("Running", False, "Ended")
    if object_.is_deleted:
        return ShownCondition("Running", False, "Deleted", "the job is asked to end")
    if run.paused is not None:
        return ShownCondition("Running", False, *_why_paused(run, run.paused, "Suspended"))
    if not run.is_planned:
        return ShownCondition("Running", False, *_without_plan(object_, run, handing))
    if not run.routed or not run.count("worker"):
        what = f"{_named(run.missing)} to join" if run.missing else "its servers to hold the model"
        return ShownCondition("Running", False, "Starting", f"waits for {what}{_stalled(run)}")
    return ShownCondition("Running", True, "Training", _waiting_plan(object_, run, handing))


def _why_paused(run: FollowedRun, paused: PauseState, asked: str) -> tuple[str, str]:
    """Return the reason and the message of a pause. asked: the reason of one that was asked for."""
    if run.unusable and not paused.is_asked:
        return NO_USABLE, _unusable(run)
    return asked if paused.is_asked else "Paused", paused.reason


def _unusable(run: FollowedRun) -> str:
    return (
        f"no checkpoint can be restored: rover resume {run.job} --from-nothing, or --checkpoint N; or bring back its storage, "
        f"which is looked at again now and then: {run.unusable[0]}"
    )


def _waiting_plan(object_: RoverJob, run: FollowedRun, handing: HandedIn) -> str:
    """Return how the plan that waits is answered; "" where none does."""
    plan = run.plan
    if plan is None or plan.state != "waits" or plan.number in run.answers:
        return ""
    about = object_.metadata
    other = (
        f"; or {how_to_answer(about.namespace, about.name, plan.number)} (or Reject)"
        if handing.answers
        else ""
    )
    return f"plan {plan.number} waits for a person: rover plan approve {run.job}{other}"


def _without_plan(object_: RoverJob, run: FollowedRun, handing: HandedIn) -> tuple[str, str]:
    plan = run.plan
    if waits := _waiting_plan(object_, run, handing):
        return "PlanWaits", waits
    if run.withheld:
        return "NoRoom", run.withheld
    if plan is not None and plan.state != "refused":
        return "Starting", ""
    return "WaitsForPlan", "the Brain has made no plan yet"


def _degraded(run: FollowedRun | None) -> ShownCondition:
    if run is None or run.end is not None:
        return ShownCondition("Degraded", False, "NotRunning")
    if run.unusable:
        return ShownCondition("Degraded", True, NO_USABLE, _unusable(run))
    if run.rules_off:
        rule, why = next(iter(run.rules_off.items()))
        return ShownCondition("Degraded", True, "RuleSwitchedOff", f"rule {rule} failed three times: {why}")
    if run.failed_checkpoint:
        return ShownCondition("Degraded", True, "CheckpointFailed", run.failed_checkpoint)
    settled = run.plan is not None and run.plan.state in ("settled", "kept")
    if settled and run.missing and run.paused is None:
        said = f"{_named(run.missing)} take no part{_stalled(run)}"
        return ShownCondition("Degraded", True, "MembersMissing", said)
    return ShownCondition("Degraded", False, "AsPlanned")


def _suspended(object_: RoverJob, run: FollowedRun | None, handing: HandedIn) -> ShownCondition:
    if run is None:
        held = object_.is_suspended and not handing.forgotten
        return ShownCondition("Suspended", held, "NotSubmitted" if held else "NotAsked")
    if run.end is not None or run.paused is None:
        return ShownCondition(
            "Suspended", False, "Suspending" if object_.is_suspended and not run.end else "NotAsked"
        )
    present = [seat.member for seat in run.seats.values() if seat.present]
    if left := [member for member in present if member.role == "worker" or run.unusable]:
        said = f"waits for {_named(left)} to leave"
        return ShownCondition("Suspended", False, "Suspending", said)
    if run.paused.release and present:
        why = f" ({run.failed_checkpoint})" if run.failed_checkpoint else ""
        said = (
            f"{_named(present)} wait for a checkpoint of all that was trained to be stored, then leave{why}"
        )
        return ShownCondition("Suspended", False, "Suspending", said)
    return ShownCondition("Suspended", True, *_why_paused(run, run.paused, "Asked"))


def _over(run: FollowedRun | None, handing: HandedIn) -> Iterator[ShownCondition]:
    end = run.end if run is not None else None
    if handing.forgotten:
        said = (
            "the job ended and was forgotten before this object showed how: its checkpoints on storage stay"
        )
        yield ShownCondition("Complete", False, FORGOTTEN)
        yield ShownCondition("Failed", True, FORGOTTEN, said)
    elif end is None:
        yield ShownCondition("Complete", False, "NotEnded")
        yield ShownCondition("Failed", False, "NotEnded")
    elif end.state == "completed":
        yield ShownCondition("Complete", True, constant(end.reason) or "Completed", end.detail)
        yield ShownCondition("Failed", False, "Completed")
    else:
        why = DEADLINE_EXCEEDED if handing.late else constant(end.reason or end.state)
        yield ShownCondition("Complete", False, constant(end.state))
        yield ShownCondition("Failed", True, why, end.detail)


def state_word(object_: RoverJob, found: list[ShownCondition]) -> str:
    """Return the conditions in one word, for people."""
    by = {each.type: each for each in found}
    if by["Complete"].holds:
        return "Complete"
    if by["Failed"].holds:
        return "Failed"
    if object_.is_deleted:
        return "Ending"
    if not by["Accepted"].holds:
        return "Refused"
    if by["Running"].reason == NO_USABLE:
        return "Degraded"  # a suspended job is one that a person suspended
    if by["Suspended"].holds:
        return "Suspended"
    if by["Suspended"].reason == "Suspending":
        return "Suspending"
    if by["Degraded"].holds:
        return "Degraded"
    if by["Running"].holds:
        return "Running"
    return "Starting" if by["Running"].reason == "Starting" else "Waiting"


def constant(text: str) -> str:
    """Return a reason as conditions spell it: `server_lost` is ServerLost."""
    return "".join(
        word[:1].upper() + word[1:] for word in text.replace("-", "_").replace(" ", "_").split("_")
    )


def _stalled(run: FollowedRun) -> str:
    return f"; {run.stalled}" if run.stalled else ""


def _named(members: list[Member]) -> str:
    more = len(members) - MOST_NAMED
    return ", ".join(map(str, members[:MOST_NAMED])) + (f" and {more} more" if more > 0 else "")


def _written(object_: RoverJob, found: list[ShownCondition], now_s: float) -> list[dict[str, Any]]:
    """As the API has them: a condition whose status is as it was keeps the time of its last change."""
    former = {
        each.get("type"): each for each in object_.status.get("conditions") or [] if isinstance(each, dict)
    }
    made = []
    for each in sorted(found, key=lambda one: CONDITIONS.index(one.type)):
        status = "True" if each.holds else "False"
        known = former.get(each.type, {})
        since = known.get("lastTransitionTime") if known.get("status") == status else None
        made.append(
            {
                "type": each.type,
                "status": status,
                "reason": each.reason,
                "message": each.message[:MOST_MESSAGE],
                "lastTransitionTime": since or moment(now_s),
                "observedGeneration": object_.metadata.generation,
            }
        )
    return made


# -- progress ------------------------------------------------------------------------------------------------------------


def _progress(run: FollowedRun) -> dict[str, Any]:
    epochs = run.spec.data.epochs if run.spec is not None else 0
    done = epochs if run.end is not None and run.end.state == "completed" else min(run.epoch + 1, epochs)
    status: dict[str, Any] = {
        "uid": run.uid,
        "observedFact": run.newest,
        "workers": run.count("worker"),
        "servers": run.count("ps"),
        "epoch": f"{done}/{epochs}",
        "committed": run.committed,
        "deadLettered": run.dead_lettered,
        "total": run.total,
    }
    if run.seats:
        status["members"] = [
            {
                "name": name,
                "incarnation": seat.member.incarnation,
                "node": seat.host,
                "state": "leaving" if seat.leaving else "present" if seat.present else "wanted",
            }
            for name, seat in sorted(run.seats.items())[:MOST_MEMBERS]
        ]
    if run.rate is not None:
        status["goodput"] = f"{run.rate:.0f}/s"
    if run.plan is not None:
        plan = run.plan
        status["plan"] = {
            "number": plan.number,
            "workers": plan.workers,
            "servers": plan.servers,
            "reason": constant(plan.constant),
            "message": plan.words[:MOST_MESSAGE],
            "state": constant(plan.state),
        }
    if run.checkpoint is not None:
        ready = run.checkpoint
        time = moment(ready.time_ms / 1000)
        status["checkpoint"] = {"number": ready.number, "time": time, "location": ready.location}
    if run.began_ms:
        status["startTime"] = moment(run.began_ms / 1000)
    if run.end is not None:
        status["completionTime"] = moment(run.end.time_ms / 1000)
        status["result"] = _result(run.end.summary)
    return status


def _result(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of an ended job, by the names that `rover submit --json` prints."""
    values = summary.get("result") or {}
    made = {key: summary[key] for key in FIGURES if key in summary}
    return made | {key: values[key] for key in RESULTS if key in values}


def moment(now_s: float) -> str:
    """Return Unix seconds as the API writes times."""
    return datetime.fromtimestamp(int(now_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
