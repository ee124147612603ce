"""Lives of objects on a real API server and a real broker, with a master that says what the test wants, and operators that die.

`SpeakingMaster` stands for a job's master, its Brain and its members: it does what it is asked at once. `Mortal` counts the writes
of an operator, to the API server and to the bus together, and ends it after one of them, whose answer it never has.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from kube_cluster import Cluster
from live_bus import connect
from patience import PATIENCE_S
from told import told

from rover_bus.events import facts as f
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Bus, Stored
from rover_bus.events.errors import BusTimeout
from rover_bus.events.fact import JobFact
from rover_bus.events.identity import DesiredMember, Member
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.reading import read_fact
from rover_bus.events.streams import BUCKETS, FACTS, STREAMS
from rover_bus.events.subjects import job_fact, job_facts
from rover_bus.kube.api import Api, ApiRefused, ApiUnreachable
from rover_bus.kube.kinds import Json, Ref
from rover_bus.kube.known_objects import Objects
from rover_bus.kube.plan_answers import PLAN_ANSWER
from rover_bus.kube.roverjobs import ROVER_JOB, RoverJob
from rover_bus.kube.service import Mirrors, follow_objects
from rover_bus.kube.watching import Mirror

SPEC: dict[str, Any] = {
    "program": ["python", "train.py"],
    "data": {"train": "/data/clicks.csv", "epochs": 2},
    "checkpoint": {"storage": {"claim": "models"}},
}


class SpeakingMaster:
    """Speaks for one job. `silent`: requests that nothing comes of."""

    def __init__(self, bus: Bus, job: str, silent: frozenset[str] = frozenset()) -> None:
        self._bus, self._job, self._silent = bus, job, silent
        self._number = self._incarnation = 0
        self._asked: asyncio.Queue[JobFact] = asyncio.Queue()
        self.heard: list[JobFact] = []

    async def run(self) -> None:
        following = await self._bus.follow(FACTS, [job_facts(self._job)], self._hear, start="first")
        try:
            while True:
                await self._answer(await self._asked.get())
        finally:
            await following.stop()

    async def say(self, fact: JobFact) -> None:
        """Store a fact of the job's log, or one that was asked."""
        self._number += 1
        body, headers = told(fact.replace(job=self._job), self._number)
        await self._bus.append(FACTS, job_fact(self._job, fact.kind()), body, headers=headers)

    def asked(self, kind: str) -> list[JobFact]:
        """What was heard of a kind."""
        return [each for each in self.heard if each.kind() == kind]

    def _hear(self, stored: Stored) -> None:
        fact = read_fact(stored)
        assert isinstance(fact, JobFact)
        self.heard.append(fact)
        self._asked.put_nowait(fact)

    async def _answer(self, fact: JobFact) -> None:
        if fact.kind() in self._silent:
            return
        match fact:
            case f.JobSubmitted():
                await self.say(f.PlanProposed(plan=1, workers=1, servers=0, reason="a start"))
                await self.say(f.PlanApplied(plan=1, workers=1, servers=0, reason="a start"))
                await self.say(f.RoutingChanged(generation=0, epoch=1, owners=[], servers=[]))
                await self._work()
            case f.JobPauseRequested(by=by, reason=why, release=release):
                await self.say(f.JobPaused(workers=1, by=by, reason=why, release=release))
                await self.say(f.MembersDesired(plan=2, members=[]))
                await self.say(f.MemberLeft(member=self._worker(), reason="drained"))
            case f.JobResumeRequested(by=by):
                await self.say(f.JobResumed(workers=1, by=by))
                await self._work()
            case f.JobStopRequested(mode=mode, reason=why):
                ended = "cancelled" if mode == "cancel" else "stopped"
                await self.say(f.JobEnded(state=ended, reason="asked", detail=why))
            case _:
                pass

    async def _work(self) -> None:
        self._incarnation += 1
        worker = DesiredMember(member=self._worker(), host="n1")
        await self.say(f.MembersDesired(plan=1, members=[worker]))
        await self.say(f.MemberAdmitted(member=worker.member, host="n1"))

    def _worker(self) -> Member:
        return Member("worker", 0, self._incarnation)


class Mortal:
    """The writes that an operator has left."""

    def __init__(self, left: int = 1 << 30) -> None:
        self.left, self.done = left, 0

    @property
    def dead(self) -> bool:
        return self.left <= 0

    def wrote(self, error: Exception) -> None:
        """One more write was done; raise where it was the last."""
        self.left, self.done = self.left - 1, self.done + 1
        if self.dead:
            raise error


class MortalApi(Api):
    mortal: Mortal

    async def call(self, method: str, path: str, body: Json | None = None, **more: Any) -> bytes:
        if self.mortal.dead:
            raise ApiUnreachable("this process is dead")
        try:
            answer = await super().call(method, path, body, **more)
        except ApiRefused:
            raise  # nothing was written
        if method != "GET":
            self.mortal.wrote(ApiUnreachable("the answer is lost"))
        return answer


class Unwatching(MortalApi):
    """Lists, and hears of nothing that comes after. `listed` is set once it watches."""

    listed: asyncio.Event

    @asynccontextmanager
    async def watch(self, path: str, *more: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        self.listed.set()
        await asyncio.Event().wait()
        async with super().watch(path, *more) as lines:
            yield lines


class MortalBus(NatsBus):
    mortal: Mortal

    async def append(self, *where: Any, **more: Any) -> int:
        if self.mortal.dead:
            raise BusTimeout("this process is dead")
        sequence = await super().append(*where, **more)
        self.mortal.wrote(BusTimeout("the answer is lost"))
        return sequence


class Stage:
    """One namespace, one job, one master; operators come and go."""

    def __init__(self, cluster: Cluster, broker: EmbeddedBroker, namespace: str, job: str) -> None:
        self.cluster, self.broker = cluster, broker
        self.ref = Ref(namespace, job)
        self.api: Api
        self.master: SpeakingMaster

    @asynccontextmanager
    async def played(self, silent: frozenset[str] = frozenset()) -> AsyncIterator[Stage]:
        self.api = await Api.connect(str(self.cluster.config))
        bus = await connect(self.broker)
        self.master = SpeakingMaster(bus, self.ref.name, silent)
        speaking = asyncio.create_task(self.master.run())
        try:
            yield self
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)
            await bus.close()
            await self.api.close()

    @asynccontextmanager
    async def operator(
        self, mortal: Mortal | None = None, api_class: type[MortalApi] = MortalApi, *, policy: str = ""
    ) -> AsyncIterator[Mortal]:
        """An operator of this namespace; at the end it is gone, as after SIGKILL. `policy`: under which it takes answers."""
        mortal = mortal or Mortal()
        api = await api_class.connect(str(self.cluster.config))
        bus = await MortalBus.connect(self.broker.url, secret=self.broker.secret)
        await bus.ensure(STREAMS, BUCKETS)
        api.mortal = bus.mortal = mortal
        here = [self.ref.namespace]
        mirrors = Mirrors(Mirror(api, ROVER_JOB, here), Mirror(api, PLAN_ANSWER, here))
        following_them = follow_objects(api, bus, mirrors, Objects(frozenset(here), policy=policy))
        works = (mirrors.objects.run(), mirrors.answers.run(), following_them)
        following = [asyncio.create_task(each) for each in works]
        try:
            yield mortal
        finally:
            for each in following:
                each.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            await bus.close()
            await api.close()

    async def apply(self, **changes: Any) -> None:
        """Create the object, or change its spec."""
        spec = {**SPEC, **changes}
        body = {"apiVersion": "rover-bus.io/v1alpha1", "kind": "RoverJob", "spec": spec}
        body["metadata"] = {"name": self.ref.name, "namespace": self.ref.namespace}
        try:
            await self.api.create(ROVER_JOB, self.ref.namespace, body)
        except ApiRefused as error:
            if error.status != 409:
                raise
            await self.api.patch(ROVER_JOB, self.ref, {"spec": changes})

    async def look(self) -> RoverJob | None:
        try:
            return await self.api.read(ROVER_JOB, self.ref)
        except ApiRefused as error:
            if error.status != 404:
                raise
            return None

    async def until(
        self, claim: Callable[[RoverJob | None], object], mortal: Mortal | None = None
    ) -> RoverJob | None:
        """Wait until something holds of the object, or the operator is dead."""
        now: RoverJob | None = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    now = await self.look()
                    if claim(now) or (mortal is not None and mortal.dead):
                        return now
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"never came: {now and now.status}, {self.master.heard}") from None

    async def events(self) -> list[tuple[str, str]]:
        """Return reason and message of the Events of the object."""
        body = await self.api.call("GET", f"/api/v1/namespaces/{self.ref.namespace}/events")
        found = json.loads(body)["items"]
        return [
            (each["reason"], each["message"])
            for each in found
            if each["involvedObject"]["name"] == self.ref.name
        ]


def condition(object_: RoverJob | None, kind: str) -> str:
    """Return status and reason of a condition, "" where there is none."""
    found = object_.status.get("conditions", []) if object_ is not None else []
    return next((f"{each['status']} {each['reason']}" for each in found if each["type"] == kind), "")


def is_in(state: str) -> Callable[[RoverJob | None], bool]:
    return lambda object_: object_ is not None and object_.status.get("state") == state
