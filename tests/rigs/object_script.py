"""Golden scripts of the decider of RoverJobs: commands in; writes, requests, Events and status out, in text that a person can read.

Behind the decider stand an API server and a bus that do at once what they are asked. A line says what was done; `=` is the status
that was written, as it differs from the one before. After each command a second decider is asked that knows nothing but the object
and the facts: it has nothing to do that the first one has not done.
"""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

import msgspec
from words import made, part

from rover_bus.events import facts as f
from rover_bus.events.checkpoint_facts import CheckpointFailed, CheckpointNoneUsable, CheckpointReady
from rover_bus.events.data_facts import BatchDeadLettered, EpochOpened, LedgerRewound
from rover_bus.events.deciding import Turn, WakeAt
from rover_bus.events.fact import JobFact, MasterFact
from rover_bus.events.host_facts import HostMemberStalled
from rover_bus.events.identity import DesiredMember, Member
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.kube import objects
from rover_bus.kube.answering import ForAnswer, OwnAnswer, ReadPolicy, SayAnswer, SettleAnswer
from rover_bus.kube.kinds import Ref
from rover_bus.kube.known_objects import (
    Acted,
    Acting,
    AnswerActed,
    AnswerActing,
    AnswerSeen,
    Chose,
    Objects,
    ObjectSeen,
    PolicyRead,
)
from rover_bus.kube.notices import event_of
from rover_bus.kube.objects import ForObject, ObjectsDecider
from rover_bus.kube.plan_answers import PlanAnswer
from rover_bus.kube.roverjobs import FINALIZER, RoverJob
from rover_bus.kube.runs import HeardFact

REF = Ref("team", "clicks")
UID = "0a1b2c3d-4e5f-4a6b-8c7d-9e8f7a6b5c4d"
BEGUN_S = 1_790_000_000.0
SPEC: dict[str, Any] = {
    "program": ["train"],
    "data": {"train": "/data/clicks.csv", "epochs": 2},
    "checkpoint": {"storage": {"claim": "models"}},
}
KINDS: dict[str, type[JobFact | HostMemberStalled]] = {HostMemberStalled.kind(): HostMemberStalled} | {
    each.kind(): each
    for each in (
        *get_args(f.AboutJob | f.AboutMembers | f.AboutSlots | f.AboutPlans),
        CheckpointReady,
        CheckpointFailed,
        CheckpointNoneUsable,
        BatchDeadLettered,
        EpochOpened,
        LedgerRewound,
    )
    if issubclass(each, JobFact)
}


class ObjectScript:
    """One object, one bus, and the decider between them."""

    def __init__(self) -> None:
        self.now = BEGUN_S
        self.version, self.answer_version, self.sequence, self.position = 100, 100, 0, 0
        self.object: dict[str, Any] | None = None
        self.answers: dict[Ref, dict[str, Any]] = {}
        self.facts: list[HeardFact] = []
        self.events: set[str] = set()
        self.wakes: list[float] = []
        self.deaf = False
        self.early: list[str] = []  # what was done while time passed
        self.pinned_s: float | None = BEGUN_S
        self.decider = ObjectsDecider(Objects(policy="names"))

    def run(self, line: str) -> list[str]:
        """Run one command and return what was done, a line each."""
        verb, *words = shlex.split(line)
        named = dict(word.split("=", 1) for word in words if "=" in word)
        getattr(self, f"do_{verb}")(*[word for word in words if "=" not in word], **named)
        lines = self._settle()
        self._check_a_successor()
        return lines

    # -- commands ------------------------------------------------------------------------------------------------------

    def do_apply(self, **words: str) -> None:
        """Create the object, or change its spec: values are JSON, keys have dots."""
        if self.object is None:
            meta = {
                "name": REF.name,
                "namespace": REF.namespace,
                "uid": words.pop("uid", UID),
                "generation": 0,
            }
            self.object = {"metadata": {**meta, "finalizers": []}, "spec": copy.deepcopy(SPEC), "status": {}}
        for key, text in words.items():
            *tables, last = key.split(".")
            at = self.object["spec"]
            for table in tables:
                at = at.setdefault(table, {})
            value = json.loads(text)
            if value is None:
                at.pop(last, None)
            else:
                at[last] = value
        self.object["metadata"]["generation"] += 1
        self._changed()

    def do_delete(self) -> None:
        """`kubectl delete`: gone at once where no finalizer holds it."""
        assert self.object is not None
        self.object["metadata"]["deletionTimestamp"] = msgspec.to_builtins(self._time())
        self._changed()

    def do_force(self) -> None:
        """A person takes our finalizer off."""
        assert self.object is not None
        self.object["metadata"]["finalizers"] = []
        self._changed()

    def do_replace(self, uid: str) -> None:
        """Freed by force, deleted and created again between two looks."""
        self.object = None
        self.do_apply(uid=uid)

    def do_fact(self, kind: str, **words: str) -> None:
        """A fact of the job is stored. Members are written `worker-0.1`."""
        if kind == "members.desired":
            members = [_desired(each) for each in words.pop("members").split(",") if each]
            self._tell(f.MembersDesired(job="clicks", plan=int(words.pop("plan", "1")), members=members))
            return
        given: dict[str, Any] = {"job": "clicks"}
        if "member" in words:
            given["member"] = _member(words.pop("member"))
        if kind == "job.submitted":
            given["spec"] = JobSpec(name="clicks", program=[], data=part(DataSpec, words, train="x"))
        if "summary" in words:
            given["summary"] = json.loads(words.pop("summary"))
        if kind.startswith("checkpoint.") and kind != "checkpoint.none_usable":
            given["generation"] = 0
        if kind == "routing.changed":
            given |= {"generation": 0, "epoch": 1, "owners": [], "servers": []}
        self._tell(made(KINDS[kind], words, **given))

    def do_again(self, kind: str) -> None:
        """The last fact of a kind is delivered once more."""
        last = [each for each in self.facts if each.fact.kind() == kind][-1]
        self.sequence += 1
        self._hear(HeardFact(last.fact, self.sequence, int(self.now * 1000)))

    def do_forget(self) -> None:
        """A person, or the Brain's retention, forgets the job."""
        uid = next(each.fact.uid for each in reversed(self.facts) if isinstance(each.fact, f.JobSubmitted))
        self._tell(f.JobForgotten(job="clicks", uid=uid))

    def do_wait(self, seconds: str) -> None:
        """Time passes; the decider is asked whenever it said so."""
        end, early = self.now + float(seconds), list[str]()
        while (due := min(self.wakes, default=end)) < end:
            self.now = max(self.now, due)
            self.wakes = [each for each in self.wakes if each > self.now]
            early += [f"@{self.now - BEGUN_S:g} {line.strip()}" for line in self._settle()]
        self.now, self.early = end, early

    def do_answer(self, name: str, answer: str, plan: str, **words: str) -> None:
        """`kubectl create` of a PlanAnswer; a person has no other way to change it than to delete it."""
        ref = Ref(words.pop("namespace", REF.namespace), name)
        made_ = msgspec.to_builtins(self._time())
        meta = {"name": name, "namespace": ref.namespace, "uid": f"{name}-uid", "creationTimestamp": made_}
        spec = {"job": words.pop("job", REF.name), "plan": int(plan), "answer": answer, **words}
        self.answers[ref] = {"metadata": meta, "spec": spec, "status": {}}
        self._answer_changed(ref)

    def do_unproven(self) -> None:
        """The cluster has no policy that pins the name in an answer."""
        self.decider = ObjectsDecider(replace(self.decider.state, policy=""))

    def do_policy(self, begins: str) -> None:
        """The policy is in force so many seconds from now on, or it is `gone`."""
        self.pinned_s = None if begins == "gone" else self.now + float(begins)

    def do_deaf(self) -> None:
        """Facts that are stored from here on are delivered later, by `hear`."""
        self.deaf = True

    def do_hear(self) -> None:
        self.deaf = False
        for each in self.facts:
            if each.sequence > self.decider.state.heard:
                self.decider.decide(each, self.now)

    def do_set(self, **words: str) -> None:
        """What was set for the jobs of the stack."""
        from rover_bus.events.written_settings import choose

        self.decider.decide(Chose(choose([f"{key}={value}" for key, value in words.items()], {})), self.now)

    # -- what stands behind the decider ----------------------------------------------------------------------------------

    def _settle(self) -> list[str]:
        """Carry effects out until there are none."""
        lines, self.early = self.early, []
        for _ in range(50):
            effects = self.decider.decide(Turn(), self.now).effects
            self.wakes = [each.at_s for each in effects if isinstance(each, WakeAt)]
            work = [each for each in effects if not isinstance(each, WakeAt)]
            if not work:
                return lines
            for each in work:
                lines += self._carry(each) if isinstance(each, ForObject) else self._carry_answer(each)
        raise AssertionError(f"it does not come to rest: {lines[-6:]}")

    def _carry(self, work: ForObject) -> Iterable[str]:
        self.decider.decide(Acting(work.ref), self.now)
        before_version, before_sequence, wrote = self.version, self.sequence, False
        for act in work.acts:
            yield from self._do(act)
            wrote = wrote or isinstance(act, objects.WriteStatus)
        version = self.version if self.version > before_version else 0
        sequence = self.sequence if self.sequence > before_sequence else 0
        self.decider.decide(Acted(work.ref, self.now, version, sequence, "", wrote), self.now)

    def _carry_answer(self, work: ForAnswer) -> Iterable[str]:
        self.decider.decide(AnswerActing(work.ref, isinstance(work.act, SayAnswer)), self.now)
        if isinstance(work.act, ReadPolicy):
            self.decider.decide(PolicyRead(work.ref, self.pinned_s), self.now)
            yield f"  {work.ref.name}: reads policy {work.act.policy}"
            return
        before_version, before_sequence = self.answer_version, self.sequence
        told = self._do_answer(work.ref, work.act)
        version = self.answer_version if self.answer_version > before_version else 0
        sequence = self.sequence if self.sequence > before_sequence else 0
        self.decider.decide(AnswerActed(Acted(work.ref, self.now, version, sequence)), self.now)
        yield f"  {work.ref.name}: {told}"

    def _do_answer(self, ref: Ref, act: OwnAnswer | SayAnswer | SettleAnswer) -> str:
        match act:
            case OwnAnswer(_, owner):
                about = {"apiVersion": "v", "kind": "RoverJob", "name": owner.name, "uid": owner.uid}
                self.answers[ref]["metadata"]["ownerReferences"] = [about]
                self._answer_changed(ref)
                return f"belongs to {owner.name}"
            case SayAnswer(job, plan, yes, by, reason):
                kind = f.PlanApproved if yes else f.PlanRejected
                self._tell(kind(job=job, plan=plan, by=by, reason=reason))
                return f"{kind.kind()} plan={plan} by={by}"
            case SettleAnswer(_, state, reason, message, fact):
                self.answers[ref]["status"] = {"state": state}
                self._answer_changed(ref)
                return f"{state} {reason}: {message}{f' [{fact}]' if fact else ''}"

    def _answer_changed(self, ref: Ref) -> None:
        self.answer_version += 1
        self.answers[ref]["metadata"]["resourceVersion"] = str(self.answer_version)
        self.decider.decide(AnswerSeen(ref, self._answer(ref)), self.now)

    def _answer(self, ref: Ref) -> PlanAnswer:
        return msgspec.convert(copy.deepcopy(self.answers[ref]), PlanAnswer)

    def _do(self, act: objects.Act) -> Iterable[str]:
        match act:
            case objects.KeepObject():
                self._finalizers([FINALIZER])
                return ["  finalizer on"]
            case objects.LetObjectGo():
                self._finalizers([])
                return ["  finalizer off"]
            case objects.ConfirmGone():
                assert self.object is None
                return ["  looked for: gone"]
            case objects.HandIn(job, uid, spec, by):
                self._tell(f.JobSubmitted(job=job, uid=uid, spec=spec, by=by))
                return [f"  job.submitted uid={uid} by={by}"]
            case objects.ForgetFormer(job, uid):
                self._tell(f.JobForgotten(job=job, uid=uid))
                return [f"  job.forgotten uid={uid}"]
            case objects.AskStop(job, _, mode, reason, by):
                self._tell(f.JobStopRequested(job=job, mode=mode, reason=reason, by=by))
                return [f"  job.stop_requested mode={mode} reason={reason!r}"]
            case objects.AskPause(job, _, away, by):
                asked = f.JobPauseRequested(job=job, by=by, release=True)
                self._tell(asked if away else f.JobResumeRequested(job=job, by=by))
                return [f"  job.{'pause' if away else 'resume'}_requested"]
            case objects.SetSuspend(_, suspend):
                assert self.object is not None
                self.object["spec"]["suspend"] = suspend
                self.object["metadata"]["generation"] += 1
                self._changed()
                return [f"  spec.suspend={suspend}"]
            case objects.TellNotice(object_, notice):
                name = event_of(object_.metadata, notice)["metadata"]["name"]
                assert name not in self.events, "an Event is told once"
                self.events.add(name)
                return [f"  {notice.kind} {notice.reason}: {notice.message}"]
            case objects.WriteStatus(object_, patch):
                return self._write(object_, patch)
            case objects.DeleteObject():
                self.do_delete()
                return ["  object deleted"]
        raise AssertionError(act)

    def _write(self, object_: RoverJob, patch: Any) -> list[str]:
        assert self.object is not None
        assert object_.metadata.version == self.version, "what is written rests on what is there"
        former = copy.deepcopy(self.object["status"])
        _merge(self.object["status"], patch)
        self._changed()
        return [f"  = {line}" for line in _shown(former, self.object["status"])]

    def _finalizers(self, names: list[str]) -> None:
        assert self.object is not None
        self.object["metadata"]["finalizers"] = names
        self._changed()

    def _changed(self) -> None:
        assert self.object is not None
        self.version += 1
        meta = self.object["metadata"]
        meta["resourceVersion"] = str(self.version)
        if "deletionTimestamp" in meta and not meta["finalizers"]:
            self.object = None
        self.decider.decide(ObjectSeen(REF, self._seen()), self.now)

    def _seen(self) -> RoverJob | None:
        return None if self.object is None else msgspec.convert(copy.deepcopy(self.object), RoverJob)

    def _tell(self, fact: JobFact) -> None:
        self.sequence += 1
        if isinstance(fact, MasterFact):
            self.position += 1
            fact = fact.replace(position=(self.position, 0))
        heard = HeardFact(fact, self.sequence, int(self.now * 1000))
        if isinstance(fact, f.JobForgotten):
            self.facts.clear()
        self.facts.append(heard)
        self._hear(heard)

    def _hear(self, heard: HeardFact) -> None:
        if not self.deaf:
            self.decider.decide(heard, self.now)

    def _check_a_successor(self) -> None:
        """An operator that starts now, long after the last status was written, finds the same: it writes progress at most."""
        if self.deaf:
            return
        state = self.decider.state
        heir = ObjectsDecider(Objects(chosen=state.chosen, policy=state.policy))
        for ref in self.answers:
            heir.decide(AnswerSeen(ref, self._answer(ref)), self.now)
        if self.object is not None:
            heir.decide(ObjectSeen(REF, self._seen()), self.now)
        for each in self.facts:
            heir.decide(each, self.now)
        effects = heir.decide(Turn(), self.now).effects
        assert not [each for each in effects if isinstance(each, ForAnswer)]
        left = [act for each in effects if isinstance(each, ForObject) for act in each.acts]
        for act in left:
            assert isinstance(act, objects.WriteStatus), f"a successor does {act}"
            assert set(act.patch), act.patch

    def _time(self) -> Any:
        from datetime import UTC, datetime

        return datetime.fromtimestamp(self.now, UTC)


def _merge(into: dict[str, Any], patch: Any) -> None:
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = copy.deepcopy(value)


def _shown(former: dict[str, Any], status: dict[str, Any]) -> list[str]:
    """What differs, on as few lines as can be read."""
    known = {each["type"]: each for each in former.get("conditions", [])}
    lines = []
    for each in status["conditions"]:
        before = known.get(each["type"], {})
        if any(each[key] != before.get(key) for key in ("status", "reason", "message")):
            said = f" ({each['message']})" if each["message"] else ""
            lines.append(f"{each['type']} {each['status']} {each['reason']}{said}")
    left_out = ("conditions", "observedFact", "uid")
    plain = [
        f"{key}={_short(value)}"
        for key, value in status.items()
        if key not in left_out and former.get(key) != value
    ]
    gone = [f"{key} gone" for key in former if key not in status]
    return lines + ([" ".join([*plain, *gone])] if plain or gone else [])


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(f"{m['name']}.{m['incarnation']}@{m['node']}:{m['state']}" for m in value)
    return json.dumps(value).replace('"', "") if isinstance(value, dict) else str(value)


def _member(text: str) -> Member:
    name, _, incarnation = text.rpartition(".")
    role, _, index = name.rpartition("-")
    return Member(role, int(index), int(incarnation))  # type: ignore[arg-type]


def _desired(text: str) -> DesiredMember:
    return DesiredMember(member=_member(text), host="n1")
