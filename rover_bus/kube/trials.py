"""Whether a program would start: tried by a pod of the worker's image, once for all nodes.

Shared by the platforms of all nodes (cluster.py). What an image holds is known where it runs, so a small pod looks, by
node/local/lone_trial.py, and leaves the answer as the message of its end. An image holds the same files on every node: the first
question makes the pod, and what it answers is the answer to all that were asked meanwhile, also where it came to no end: a hundred
nodes ask at once, and one after the other they would try for an hour.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field

import msgspec

from rover_bus.events.errors import RoverError, TemporaryError
from rover_bus.events.programs import TRY_S, ProgramReply, ProgramRequest
from rover_bus.kube.api import Api, ApiRefused
from rover_bus.kube.kinds import POD, Json, Pod, Ref
from rover_bus.kube.pods import OURS, PodSettings, is_over, main_of, why_not_started
from rover_bus.kube.templates import MAIN, template_of
from rover_bus.kube.watching import Mirror
from rover_bus.node.local.lone_trial import ANSWER, QUESTION
from rover_bus.node.port import Answer

PATIENCE_S = 2 * TRY_S  # with the pull of its image; then nothing is known
MOST_SHOWN = 300
WRITTEN_TO = "/dev/termination-log"
OF_TRIALS = {**OURS, "app.kubernetes.io/component": "trial"}


class _Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried, in which pod: the same trial has the same answer."""

    namespace: str
    request: ProgramRequest
    template: Json


@dataclass(slots=True)
class Tried:
    """What is known of one trial. Its tries are numbered from 1 on. `last`: the answer of try `answered`; `known`: the last that
    came to an end.
    """

    begun: int = 0
    answered: int = 0
    last: ProgramReply | None = None
    known: ProgramReply | None = None
    trying: asyncio.Lock = field(default_factory=asyncio.Lock)

    def floor(self, anew: bool) -> int:
        """Return the last try that is no answer to a question of now."""
        return self.begun if anew else self.answered

    def begin(self) -> int:
        """Return the number of the next try."""
        self.begun += 1
        return self.begun

    def answer_after(self, floor: int, anew: bool) -> ProgramReply | None:
        """Return the answer to a question; `floor`: the last try that is none to it; None: it is to be tried."""
        if self.answered > floor:
            return self.last
        return None if anew else self.known

    def take(self, number: int, reply: ProgramReply) -> ProgramReply:
        self.answered, self.last = number, reply
        if reply.state != "unknown":
            self.known = reply
        return reply


class PodTrials:
    """Trials of one cluster's programs."""

    def __init__(self, api: Api, settings: PodSettings, pods: Mirror[Pod]) -> None:
        """pods: all of the followed namespaces, which another task keeps up to date."""
        self._api, self._settings, self._pods = api, settings, pods
        self._tried: dict[bytes, Tried] = {}

    async def answer(self, request: ProgramRequest, answer: Answer, anew: bool, of: tuple[str, str]) -> None:
        """Answer once. anew: nothing remembered counts. of: the run that asks, whose object may name an image of its own."""
        try:
            trial = self._trial(request, *of)
        except RoverError as error:
            answer(_unknown(str(error)))
            return
        key = msgspec.json.encode(trial)
        tried = self._tried.setdefault(key, Tried())
        floor = tried.floor(anew)
        async with tried.trying:
            reply = tried.answer_after(floor, anew)
            if reply is None:
                reply = tried.take(tried.begin(), await self._try(trial, key))
        answer(reply)

    def _trial(self, request: ProgramRequest, job: str, uid: str) -> _Trial:
        object_ = self._settings.object_of(job, uid)
        template = template_of(self._settings.templates.get("worker", {}), object_, "worker")
        namespace = object_.metadata.namespace if object_ else self._settings.namespace("default")
        return _Trial(namespace=namespace, request=request, template=template)

    async def _try(self, trial: _Trial, key: bytes) -> ProgramReply:
        ref = Ref(trial.namespace, f"rover-trial-{hashlib.sha256(key).hexdigest()[:16]}")
        pod: Pod | None = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                pod = await self._begun(ref, trial)
                return _reply(await self._ended(pod))
        except TimeoutError:
            pod = self._pods.objects.get(ref, pod)
            why = why_not_started(pod) if pod is not None else ""
            return _unknown(why or f"no answer within {PATIENCE_S:.0f} s")
        except RoverError as error:
            return _unknown(str(error))
        finally:
            await self._remove(ref)

    async def _begun(self, ref: Ref, trial: _Trial) -> Pod:
        try:
            return await self._api.create(POD, ref.namespace, _manifest(self._settings, ref, trial))
        except ApiRefused as error:
            if error.code != "AlreadyExists":
                raise
            return await self._api.read(POD, ref)  # a former process asked the same

    async def _ended(self, pod: Pod) -> Pod:
        """Wait for its end, which the watch of all pods shows. Raises TemporaryError where another took it away."""
        ref, changed = pod.metadata.ref, asyncio.Event()
        self._pods.put(pod)
        unlisten = self._pods.listen(lambda other: changed.set() if other == ref else None)
        try:
            while (found := self._pods.objects.get(ref)) is not None:
                if is_over(found):
                    return found
                await changed.wait()
                changed.clear()
            raise TemporaryError(f"{ref} was deleted before it gave an answer")
        finally:
            unlisten()

    async def _remove(self, ref: Ref) -> None:
        try:
            await self._api.delete(POD, ref, grace_s=1)
        except RoverError:
            return  # gone, or its own deadline ends it


def _manifest(settings: PodSettings, ref: Ref, trial: _Trial) -> Json:
    template = trial.template.get("spec", {})
    others: Json = next((each for each in template.get("containers", []) if each["name"] == MAIN), {})
    asked = msgspec.json.encode(trial.request).decode()
    environment = [{"name": QUESTION, "value": asked}, {"name": ANSWER, "value": WRITTEN_TO}]
    container = {
        "image": settings.image,
        **others,
        "name": MAIN,
        "command": [settings.python, "-m", "rover_bus.node.local.lone_trial"],
        "env": [*others.get("env", []), *environment],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "terminationMessagePath": WRITTEN_TO,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    spec = {
        "automountServiceAccountToken": False,
        **template,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": int(PATIENCE_S),
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    return {"metadata": {"name": ref.name, "labels": OF_TRIALS}, "spec": spec}


def _reply(pod: Pod) -> ProgramReply:
    """Read what it left: the answer; or what Python said where it could not begin."""
    main = main_of(pod)
    ended = main.state.terminated if main else None
    if ended is None:
        return _unknown(pod.status.message or "its pod did not run")
    if ended.exit_code == 0:
        try:
            return msgspec.json.decode(ended.message, type=ProgramReply)
        except (msgspec.DecodeError, RecursionError):
            return _unknown("its pod left no answer")
    said = ended.message.strip().rpartition("\n")[2]
    return ProgramReply(state="refused", path="the image", problem=(said or ended.reason)[:MOST_SHOWN])


def _unknown(why: str) -> ProgramReply:
    return ProgramReply(state="unknown", problem=why[:MOST_SHOWN])
