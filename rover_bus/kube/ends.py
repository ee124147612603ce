"""What has ended of a run, kept in its namespace until the job is forgotten: a ConfigMap a run, an entry a member and host.

Used by platform.py. A pod that was deleted is gone once the fact of its end is stored; without this record a successor would start
its incarnation again, for as long as the log desires it. Only the last end of a member counts, and what it wrote is in the fact.
Members of a job leave together, from many hosts: entries that come while a request for their ConfigMap is under way share the next.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from rover_bus.events.identity import Exit, Member
from rover_bus.events.subjects import split_job
from rover_bus.kube.api import Api, ApiRefused
from rover_bus.kube.kinds import CONFIG_MAP, ConfigMap, Json, Ref
from rover_bus.kube.pods import DOMAIN, OURS, PodSettings, named, namespace_of, owners_of
from rover_bus.kube.watching import Mirror
from rover_bus.node.port import Exited

OF_ENDS = {**OURS, "app.kubernetes.io/component": "ends"}
RUN = f"{DOMAIN}/run"


class EndedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Which run a ConfigMap is of."""

    job: str
    uid: str


class KeptEnd(msgspec.Struct, frozen=True, kw_only=True):
    """An end whose fact is stored."""

    member: Member
    exit: Exit
    ran_s: float


class EndsWriter:
    """What writes entries into ConfigMaps, for all hosts: one request at a time for each."""

    def __init__(self, api: Api, kept: Mirror[ConfigMap]) -> None:
        self.api, self.kept = api, kept
        self._waiting: defaultdict[Ref, dict[str, str]] = defaultdict(dict)
        self._writing: defaultdict[Ref, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def write(self, ref: Ref, key: str, text: str, made: Callable[[dict[str, str]], Json]) -> None:
        """Return once an entry is stored. made: its ConfigMap, where there is none. Raises ApiRefused, ApiUnreachable."""
        waiting = self._waiting[ref]
        waiting[key] = text
        try:
            async with self._writing[ref]:
                if waiting.get(key) != text:
                    return  # it went with another one
                batch = dict(waiting)
                self.kept.put(await self._store(ref, batch, made))
                for each in batch.keys() & waiting.keys():
                    if waiting[each] == batch[each]:
                        del waiting[each]
        finally:
            if waiting.get(key) == text:
                del waiting[key]  # it failed, or is wanted no more: its caller knows
            if not waiting and self._waiting.get(ref) is waiting:
                del self._waiting[ref], self._writing[ref]

    async def _store(
        self, ref: Ref, data: dict[str, str], made: Callable[[dict[str, str]], Json]
    ) -> ConfigMap:
        """The cache may lag in either way."""
        if ref in self.kept.objects:
            try:
                return await self.api.patch(CONFIG_MAP, ref, {"data": data})
            except ApiRefused as error:
                if error.status != 404:
                    raise
        try:
            return await self.api.create(CONFIG_MAP, ref.namespace, made(data))
        except ApiRefused as error:
            if error.code != "AlreadyExists":
                raise
            return await self.api.patch(CONFIG_MAP, ref, {"data": data})


class KeptEnds:
    """The records of one host."""

    def __init__(self, writer: EndsWriter, settings: PodSettings, host: str) -> None:
        self._api, self._kept, self._writer = writer.api, writer.kept, writer
        self._settings, self._host = settings, host

    def all(self, at_s: float) -> Iterator[Exited]:
        """Return what has ended here. `at_s`: the second of this look."""
        for each in self._kept.objects.values():
            if (run := _run_of(each)) is None:
                continue
            for key, text in each.data.items():
                if key.startswith(f"{self._host}."):
                    end = msgspec.json.decode(text, type=KeptEnd)
                    yield Exited(run.job, run.uid, end.member, end.exit, end.ran_s, at_s, reported=True)

    async def keep(self, ended: Exited) -> None:
        """Write down an end. Raises ApiRefused, ApiUnreachable."""
        end = KeptEnd(member=ended.member, exit=ended.exit.replace(stderr=""), ran_s=ended.ran_s)
        key, text = f"{self._host}.{ended.member.name}", msgspec.json.encode(end).decode()
        ref = self._ref(ended.job, ended.uid)
        await self._writer.write(ref, key, text, partial(self._manifest, ended.job, ended.uid, ref))

    async def drop(self, wanted: Callable[[str, str], bool]) -> None:
        """Remove the records of runs, and what holds nothing then. Raises ApiRefused, ApiUnreachable."""
        for each in list(self._kept.objects.values()):
            run = _run_of(each)
            if run is None or not wanted(run.job, run.uid):
                continue
            mine = [key for key in each.data if key.startswith(f"{self._host}.")]
            left = await self._without(each, mine) if mine else each
            if not left.data:
                about = left.metadata
                await self._api.delete(CONFIG_MAP, about.ref, version=about.resource_version)

    async def _without(self, kept: ConfigMap, keys: list[str]) -> ConfigMap:
        left = await self._api.patch(CONFIG_MAP, kept.metadata.ref, {"data": dict.fromkeys(keys)})
        self._kept.put(left)
        return left

    def _ref(self, job: str, uid: str) -> Ref:
        return Ref(namespace_of(self._settings, job, uid), named(job, uid, "ends"))

    def _manifest(self, job: str, uid: str, ref: Ref, data: dict[str, str]) -> Json:
        metadata = {
            "name": ref.name,
            "labels": OF_ENDS | {f"{DOMAIN}/job": split_job(job)[1]},
            "annotations": {RUN: msgspec.json.encode(EndedRun(job=job, uid=uid)).decode()},
            "ownerReferences": owners_of(self._settings, job, uid),
        }
        return {"metadata": metadata, "data": data}


def _run_of(each: ConfigMap) -> EndedRun | None:
    try:
        return msgspec.json.decode(each.metadata.annotations[RUN], type=EndedRun)
    except (KeyError, ValueError, RecursionError):
        return None
