"""What follows RoverJobs and answers to plans: objects and facts in, the decisions of objects.py out to the API server and the bus.

The shell of this half; operator.py runs it while it leads. All that is known is rebuilt from the objects and from FACTS: nothing is
decided before both have been read to their ends, because half of them asks for what the other half has had. What is to be done for
one object is done in order, one thing at a time; what fails is decided on again, after a look at the object as it is now. When the
broker has forgotten what it said (P21), everything is read again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import assert_never

import msgspec

from rover_bus.events.bus import Bus, Entry, Start, Stored, Subscription
from rover_bus.events.deciding import Decider, WakeAt
from rover_bus.events.errors import BadMessage, InputError, RoverError, TemporaryError
from rover_bus.events.facts import (
    JobPauseRequested,
    JobResumeRequested,
    JobStopRequested,
    JobSubmitted,
    MemberAdmitted,
    PlanApproved,
    PlanRejected,
)
from rover_bus.events.forgetting import forget_job
from rover_bus.events.host_facts import HostMemberStalled
from rover_bus.events.logs import get_logger
from rover_bus.events.reading import read_fact
from rover_bus.events.stating import hand_in, state_of_job
from rover_bus.events.streams import OF_THE_CLUSTER, SETTINGS, TENANTS
from rover_bus.events.subjects import everywhere, host_facts, job_facts, split_job
from rover_bus.events.written_settings import load
from rover_bus.kube.answering import AnswerAct, ForAnswer, OwnAnswer, ReadPolicy, SayAnswer, SettleAnswer
from rover_bus.kube.api import NOT_FOUND, Api, ApiRefused
from rover_bus.kube.conditions import moment
from rover_bus.kube.kinds import NAMESPACE, Json, Ref
from rover_bus.kube.known_objects import (
    Acted,
    Acting,
    AnswerActed,
    AnswerActing,
    AnswerSeen,
    Chose,
    Happening,
    Objects,
    ObjectSeen,
    PolicyRead,
    TenantsKnown,
)
from rover_bus.kube.name_policy import pinned_since
from rover_bus.kube.notices import EVENT, Notice, event_of
from rover_bus.kube.object import API_VERSION, KIND, PLURAL
from rover_bus.kube.objects import (
    Act,
    AskPause,
    AskStop,
    ConfirmGone,
    DeleteObject,
    Effect,
    ForgetFormer,
    ForObject,
    HandIn,
    Input,
    KeepObject,
    LetObjectGo,
    ObjectsDecider,
    SetSuspend,
    TellNotice,
    WriteStatus,
)
from rover_bus.kube.plan_answers import ANSWERS, PLAN_ANSWER, PlanAnswer
from rover_bus.kube.roverjobs import FINALIZER, ROVER_JOB, RoverJob
from rover_bus.kube.runs import FOLLOWED, FactOfJob, HeardFact
from rover_bus.kube.watching import Mirror
from rover_bus.node.turns import FailingJobs, Following, Turns, decide_turn, insist

NAME = "kube.objects"  # under which it says how far it has read
SOURCE = "rover-operator"
SYSTEM = Ref("", "kube-system")  # each cluster has it from its beginning to its end
SUSPENDED = "spec.suspend"  # why a job is paused and resumed
log = get_logger("rover.kube")


class WholeFollowing(Following):
    """All facts that are kept, then all that follow: a run is the sum of its facts."""

    start: Start = "first"


@dataclass(frozen=True, slots=True)
class Mirrors:
    """What the API server holds of our kinds; another task keeps it up to date. note_admitted: takes members that are admitted."""

    objects: Mirror[RoverJob]
    answers: Mirror[PlanAnswer]
    note_admitted: Callable[[MemberAdmitted], None] = lambda _: None


async def follow_objects(api: Api, bus: Bus, mirrors: Mirrors, begin: Objects) -> None:
    """Follow RoverJobs, and answers to their plans, until cancelled. `begin`: what is known without a look at either."""
    begin = replace(begin, cluster=await identify(api))
    if begin.policy:
        await _look_at_policy(api, begin.policy)
    while True:
        following = ObjectsShell(api, bus, mirrors, begin)
        await following.run()
        log.warning("facts of jobs are lost (a power cut?): everything is read again")


async def _look_at_policy(api: Api, policy: str) -> None:
    """Say at once what would refuse every answer."""
    try:
        if await pinned_since(api, policy) is None:
            log.warning(
                "PlanAnswers are refused: no policy that is in force pins their names; apply the chart again",
                policy=policy,
            )
    except ApiRefused as error:
        log.warning(
            "PlanAnswers are not settled: let the operator get the policy and its binding",
            policy=policy,
            why=str(error),
        )


async def identify(api: Api) -> str:
    """Return what tells this cluster from others on the same bus: the uid of its namespace kube-system, in short. "" without a
    right to read it: then two clusters with a namespace of one name must not share a bus.
    """
    try:
        return (await api.read(NAMESPACE, SYSTEM)).metadata.uid[:8]
    except ApiRefused as error:
        log.warning(
            "this cluster has no name on the bus: let the operator get namespace kube-system", why=str(error)
        )
        return ""


class ObjectsShell:
    """One life of it: from knowing nothing to the loss of what was known."""

    def __init__(self, api: Api, bus: Bus, mirrors: Mirrors, begin: Objects) -> None:
        self._api, self._bus = api, bus
        self._loop = asyncio.get_running_loop()
        self._objects, self._answers = mirrors.objects, mirrors.answers
        self._note_admitted = mirrors.note_admitted
        subjects = everywhere(*(job_facts("*", each.kind()) for each in FOLLOWED))
        subjects = [*subjects, host_facts(fact=HostMemberStalled.kind())]
        self._told, self._lost = asyncio.Event(), asyncio.Event()
        self._following = WholeFollowing(bus, subjects, self._on_fact, self._lost.set, NAME)
        self._turns = Turns(self._decide)
        self._decider: Decider[Objects, Input, Effect] = ObjectsDecider(begin)
        self._failing = FailingJobs("", NAME, lambda *_: None)  # a line in the log is what there is to say
        self._acting: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Return when the broker has lost what was read. Raises what reading it raises."""
        watches: list[Subscription] = []
        works = [asyncio.create_task(each) for each in (self._lost.wait(), self._begin())]
        unlisten = [self._objects.listen(self._on_object), self._answers.listen(self._on_answer)]
        try:
            for ref in list(self._objects.objects):
                self._on_object(ref)
            for ref in list(self._answers.objects):
                self._on_answer(ref)
            watches.append(await insist(lambda: self._bus.watch(TENANTS, "*", self._on_tenant)))
            watches.append(await insist(lambda: self._bus.watch(SETTINGS, OF_THE_CLUSTER, self._on_settings)))
            self._told.set()
            while not self._lost.is_set():
                open_ = [each for each in works if not each.done()]
                for each in (await asyncio.wait(open_, return_when=asyncio.FIRST_COMPLETED))[0]:
                    each.result()
        finally:
            for end in unlisten:
                end()
            self._turns.end()
            for each in (*works, *self._acting):
                each.cancel()
            await asyncio.gather(*works, *self._acting, return_exceptions=True)
            await self._following.stop()
            for watch in watches:
                await watch.stop()

    async def _begin(self) -> None:
        await self._told.wait()
        await self._following.begin()
        await self._objects.ready()
        await self._answers.ready()
        log.info("RoverJobs are followed", objects=len(self._objects.objects))
        self._turns.begin()

    # -- what happens --------------------------------------------------------------------------------------------------

    def _on_object(self, ref: Ref) -> None:
        self._take(ObjectSeen(ref, self._objects.objects.get(ref)))

    def _on_answer(self, ref: Ref) -> None:
        self._take(AnswerSeen(ref, self._answers.objects.get(ref)))

    def _on_fact(self, stored: Stored) -> None:
        try:
            fact = read_fact(stored)
        except BadMessage as error:
            log.warning("a fact is passed over", subject=stored.subject, why=str(error))
            return
        if isinstance(fact, MemberAdmitted):
            self._note_admitted(fact)
        if isinstance(fact, FactOfJob):
            self._take(HeardFact(fact, stored.sequence, stored.time_ms))

    def _on_tenant(self, entry: Entry) -> None:
        known = self._decider.state.tenants
        self._take(TenantsKnown(known - {entry.key} if entry.value is None else known | {entry.key}))

    def _on_settings(self, entry: Entry) -> None:
        try:
            self._take(Chose(load(entry.value) if entry.value else {}))
        except InputError as error:
            log.warning("the settings of the stack cannot be read: those before stay", why=str(error))

    def _take(self, happening: Happening) -> None:
        self._decider.decide(happening, time.time())
        self._turns.soon()

    # -- what is done ----------------------------------------------------------------------------------------------------

    def _decide(self) -> float | None:
        now_s, wake = time.time(), list[float]()
        state = self._decider.state
        meant = (Ref(ref.namespace, each.answer.spec.job) for ref, each in state.answers.items())
        jobs = map(state.job_name, (*state.known, *meant))
        for effect in decide_turn(self._decider, now_s, jobs, self._failing):
            match effect:
                case ForObject():
                    self._decider.decide(Acting(effect.ref), now_s)
                    self._begin_work(self._carry(effect))
                case ForAnswer(ref, act):
                    self._decider.decide(AnswerActing(ref, isinstance(act, SayAnswer)), now_s)
                    self._begin_work(self._carry_answer(ref, act))
                case WakeAt(at_s):
                    wake.append(self._loop.time() + at_s - now_s)
                case _:
                    assert_never(effect)
        return min(wake, default=None)

    def _begin_work(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._acting.add(task)
        task.add_done_callback(self._acting.discard)

    async def _carry_answer(self, ref: Ref, act: AnswerAct) -> None:
        """Do one thing for an answer. What fails is decided again: its watch tells of it as it is now."""
        version, sequence, problem = 0, 0, ""
        try:
            if isinstance(act, ReadPolicy):
                self._take(PolicyRead(ref, await pinned_since(self._api, act.policy)))
                return
            version, sequence = await self._do_answer(act)
        except RoverError as error:
            problem = str(error)
            log.info("what is to be done for an answer is decided again", answer=str(ref), why=problem)
        except Exception as error:  # noqa: BLE001 - an error of ours in one answer must not end all else
            problem = repr(error)
            log.error("an answer cannot be served", answer=str(ref), why=problem)
        self._take(AnswerActed(Acted(ref, time.time(), version, sequence, problem)))

    async def _do_answer(self, act: OwnAnswer | SayAnswer | SettleAnswer) -> tuple[int, int]:
        """Do one thing; return the version that an answer has by it, and the sequence of a fact that will be heard."""
        match act:
            case OwnAnswer(answer, owner):
                about = {"apiVersion": API_VERSION, "kind": KIND, "name": owner.name, "uid": owner.uid}
                owners = [msgspec.to_builtins(each) for each in answer.metadata.owner_references]
                return await self._patch_answer(answer, owners=[*owners, about]), 0
            case SayAnswer(job, plan, yes, by, reason, uid):
                kind = PlanApproved if yes else PlanRejected
                fact = kind(job=job, plan=plan, by=by, reason=reason)
                sequence = await state_of_job(self._bus, fact, f"answer.{uid}", SOURCE)
                return 0, sequence if "/" not in job else 0
            case SettleAnswer(answer, state, reason, message, fact_):
                time_ = moment(time.time())
                became: Json = {"state": state, "reason": reason, "message": message, "time": time_}
                status = {**became, "fact": fact_} if fact_ else became
                return await self._patch_answer(answer, status=status), 0
            case _:
                assert_never(act)

    async def _patch_answer(
        self, answer: PlanAnswer, *, owners: list[Json] | None = None, status: Json | None = None
    ) -> int:
        """Change an answer as it was decided on; return its new version."""
        about: Json = {"uid": answer.metadata.uid, "resourceVersion": answer.metadata.resource_version}
        body: Json = {"metadata": about}
        if owners is not None:
            about["ownerReferences"] = owners
        if status is not None:
            body["status"] = status
        which = "status" if status is not None else ""
        written = await self._api.patch(PLAN_ANSWER, answer.metadata.ref, body, subresource=which)
        if written.metadata.version == answer.metadata.version:
            raise TemporaryError(
                f"the API server keeps nothing of what is written to {ANSWERS}: apply deploy/crd/{ANSWERS}.yaml of this release"
            )
        self._answers.put(written)
        return written.metadata.version

    async def _carry(self, work: ForObject) -> None:
        """Do what is to be done for one object, in order."""
        version, sequence, problem, wrote = 0, 0, "", False
        try:
            for act in work.acts:
                written, stored = await self._do(act)
                version, sequence = written or version, stored or sequence
                wrote = wrote or isinstance(act, WriteStatus)
        except RoverError as error:
            problem = str(error)
            log.info("what is to be done for an object is decided again", object=str(work.ref), why=problem)
            if isinstance(error, ApiRefused) and error.status in (404, 409):
                await self._look_again(work.ref)
        except Exception as error:  # noqa: BLE001 - an error of ours in one object must not end the others
            problem = repr(error)
            log.error("an object cannot be served", object=str(work.ref), why=problem)
        self._take(Acted(work.ref, time.time(), version, sequence, problem, wrote))

    async def _do(self, act: Act) -> tuple[int, int]:
        """Do one thing; return the version that an object has by it, and the sequence of a fact that will be heard."""
        match act:
            case KeepObject(object_):
                return await self._patch(object_, finalizers=[*object_.metadata.finalizers, FINALIZER]), 0
            case LetObjectGo(object_):
                left = [each for each in object_.metadata.finalizers if each != FINALIZER]
                return await self._patch(object_, finalizers=left), 0
            case SetSuspend(object_, suspend):
                return await self._patch(object_, {"spec": {"suspend": suspend}}), 0
            case WriteStatus(object_, patch):
                return await self._patch(object_, {"status": dict(patch)}, subresource="status"), 0
            case TellNotice(object_, notice):
                await self._tell(object_, notice)
            case ConfirmGone(ref):
                await self._confirm(ref)
            case DeleteObject(object_):
                await self._api.delete(ROVER_JOB, object_.metadata.ref, uid=object_.metadata.uid)
            case _:
                return 0, await self._ask(act)
        return 0, 0

    async def _ask(self, act: HandIn | ForgetFormer | AskStop | AskPause) -> int:
        """State a fact; return its sequence, 0 for that of another account than the one that is followed."""
        match act:
            case HandIn(job, uid, spec, by):
                sequence = await hand_in(self._bus, JobSubmitted(job=job, uid=uid, spec=spec, by=by), SOURCE)
            case ForgetFormer(job, uid, by):
                tenant, bare = split_job(job)
                await forget_job(self._bus.of(tenant), bare, uid, by=by, reason="a new object has its name")
                return 0
            case AskStop(job, uid, mode, reason, by, after):
                asked = JobStopRequested(job=job, mode=mode, reason=reason, by=by)
                sequence = await state_of_job(self._bus, asked, f"stop.{mode}.{uid}.{after}", SOURCE)
            case AskPause(job, uid, away, by, after):
                word = (
                    JobPauseRequested(job=job, reason=SUSPENDED, by=by, release=True)
                    if away
                    else JobResumeRequested(job=job, reason=SUSPENDED, by=by)
                )
                what = f"{'pause' if away else 'resume'}.{uid}.{after}"
                sequence = await state_of_job(self._bus, word, what, SOURCE)
            case _:
                assert_never(act)
        return sequence if "/" not in act.job else 0

    async def _patch(
        self,
        object_: RoverJob,
        body: Json | None = None,
        *,
        finalizers: list[str] | None = None,
        subresource: str = "",
    ) -> int:
        """Change an object as it was decided on: another one since then is a conflict. Returns its new version."""
        about: Json = {"uid": object_.metadata.uid, "resourceVersion": object_.metadata.resource_version}
        if finalizers is not None:
            about["finalizers"] = finalizers
        whole = {**(body or {}), "metadata": about}
        written = await self._api.patch(ROVER_JOB, object_.metadata.ref, whole, subresource=subresource)
        if written.metadata.version == object_.metadata.version:
            raise TemporaryError(
                f"the API server keeps nothing of what is written to {PLURAL}: apply deploy/crd/{PLURAL}.yaml of this release"
            )
        self._objects.put(written)
        return written.metadata.version

    async def _tell(self, object_: RoverJob, notice: Notice) -> None:
        """An Event is for people: one that is there already, or that the API server does not want, is no failure."""
        try:
            await self._api.create(EVENT, object_.metadata.namespace, event_of(object_.metadata, notice))
        except ApiRefused as error:
            if error.status != 409:
                log.info("an Event is not told", object=str(object_.metadata.ref), why=str(error))

    async def _confirm(self, ref: Ref) -> None:
        """A list may be older than facts: what is not in it is looked for before its job is ended."""
        try:
            found = await self._api.read(ROVER_JOB, ref)
        except ApiRefused as error:
            if (
                error.code != NOT_FOUND
            ):  # a server that has just begun does not know our kind yet, and says 404 as well
                raise
            return
        self._objects.put(found)
        raise TemporaryError(f"{KIND} {ref} is there after all")

    async def _look_again(self, ref: Ref) -> None:
        try:
            self._objects.put(await self._api.read(ROVER_JOB, ref))
        except RoverError as error:
            log.info("an object cannot be read", object=str(ref), why=str(error))
