"""What an API server holds of one kind, kept up to date: a list, then a watch from there, for as long as the process lives.

Fed by api.py; read by the platform and by whatever follows objects. Level-triggered: a listener is told *that* an object is another
now, or gone, and looks at the cache; what lies between two looks may be left out. A watch that breaks, is quiet for too long or is
too old (410) begins again with a list; one that its server ends in order goes on where it was.

The cache never goes back: versions of a kind are numbers that grow. What the server answers to a write of ours is put into it at
once (`put`), so that a process reads its own writes, and nothing is created twice for want of a watch's news.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, Literal

import msgspec

from rover_bus.events.errors import RoverError
from rover_bus.events.logs import get_logger
from rover_bus.kube.api import Api, ApiRefused, Status, decoded
from rover_bus.kube.kinds import Kind, Metadata, O, Object, Ref

PAGE = 500  # objects of a list that are asked for at once
WATCH_S = 290  # after which the server ends a watch in order
QUIET_S = 150.0  # bookmarks come every minute: a watch without any has lost its other end
SHORT_S = 1.0  # a watch that lives no longer is a failure, whatever its end says
PAUSE_S, MOST_PAUSE_S = 0.1, 5.0  # before the next try, doubled
LACKED_PAUSE_S = 30.0  # before a cluster is asked again for a kind that it lacks
log = get_logger("rover.kube")
OnChange = Callable[[Ref], None]


class _ListMetadata(Metadata, frozen=True, kw_only=True):
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, frozen=True, kw_only=True):
    """A list whose items are decoded by the caller's type."""

    metadata: _ListMetadata = _ListMetadata()
    items: list[msgspec.Raw] = []


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class Mirror(Generic[O]):
    """The cache of one kind. `namespaces`: those that are watched; "": all of them. `selector`: of labels. `may_lack`: the
    cluster may not have this kind yet, or not let us see it; then there is nothing of it.
    """

    def __init__(
        self,
        api: Api,
        kind: Kind[O],
        namespaces: Sequence[str] = ("",),
        selector: str = "",
        *,
        may_lack: bool = False,
    ) -> None:
        self._api, self._kind, self._selector, self._may_lack = api, kind, selector, may_lack
        self._objects: dict[Ref, O] = {}
        self._seen: dict[str, int] = {}  # namespace watched -> the version up to which all is known
        self._listed = {each: asyncio.Event() for each in namespaces}
        self._listeners: list[OnChange] = []

    @property
    def objects(self) -> Mapping[Ref, O]:
        """What is there now, as far as is known."""
        return MappingProxyType(self._objects)

    def listen(self, on_change: OnChange) -> Callable[[], None]:
        """Call this after each change of the cache; the returned function ends that."""
        self._listeners.append(on_change)
        return lambda: self._listeners.remove(on_change)

    async def ready(self) -> None:
        """Return once all of it was listed."""
        for each in self._listed.values():
            await each.wait()

    def put(self, written: O) -> None:
        """Take in what the server answered to a write; nothing where the watch is as far already."""
        if written.metadata.version > self._seen_of(written.metadata.namespace):
            self._store(written)

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            for each in self._listed:
                group.create_task(self._follow(each))

    # -- one namespace -------------------------------------------------------------------------------------------------

    async def _follow(self, namespace: str) -> None:
        pause_s, said = PAUSE_S, ""
        while True:
            begun_s, most_s = asyncio.get_running_loop().time(), MOST_PAUSE_S
            try:
                await self._list(namespace)
                said = ""
                while await self._watch(namespace) > SHORT_S:
                    pass
            except RoverError as error:
                if str(error) != said:
                    log.info("what is watched is listed again", kind=self._kind.plural, why=str(error))
                said = str(error)
                if self._may_lack and isinstance(error, ApiRefused) and error.status in (403, 404):
                    self._listed[namespace].set()
                    most_s = LACKED_PAUSE_S
            lived_s = asyncio.get_running_loop().time() - begun_s
            pause_s = PAUSE_S if lived_s > MOST_PAUSE_S else pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, most_s)

    async def _list(self, namespace: str) -> None:
        path, more = self._kind.path(Ref(namespace, "")), ""
        found = dict[Ref, O]()
        while True:
            query = [("limit", str(PAGE)), *([("continue", more)] if more else []), *self._selection()]
            page = decoded(await self._api.call("GET", path, query=query), _Page)
            for item in page.items:
                each = decoded(item, self._kind.cls)
                found[each.metadata.ref] = each
            if not (more := page.metadata.continue_):
                break
        self._take_list(namespace, found, page.metadata.version)

    def _take_list(self, namespace: str, found: Mapping[Ref, O], version: int) -> None:
        """All that is older than the list, and not in it, is gone."""
        self._seen[namespace] = version
        gone = [
            ref
            for ref, each in self._objects.items()
            if namespace in ("", ref.namespace) and ref not in found and each.metadata.version <= version
        ]
        for ref in gone:
            self._remove(ref)
        for each in found.values():
            self._store(each)
        self._listed[namespace].set()

    async def _watch(self, namespace: str) -> float:
        """Follow one watch to its end in order; return how long it lived, in seconds. Raises RoverError for any other end."""
        query = [
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(WATCH_S)),
            ("resourceVersion", str(self._seen[namespace])),
            *self._selection(),
        ]
        begun_s = asyncio.get_running_loop().time()
        async with self._api.watch(self._kind.path(Ref(namespace, "")), query, QUIET_S) as lines:
            async for line in lines:
                self._take_event(namespace, decoded(line, _Event))
        return asyncio.get_running_loop().time() - begun_s

    def _take_event(self, namespace: str, event: _Event) -> None:
        if event.type == "ERROR":
            said = decoded(event.object, Status)
            raise ApiRefused(f"a watch of {self._kind.plural} ends: {said.message}", said.code, said.reason)
        if event.type == "BOOKMARK":
            seen = decoded(event.object, Object)
            self._seen[namespace] = max(self._seen[namespace], seen.metadata.version)
            return
        each = decoded(event.object, self._kind.cls)
        self._seen[namespace] = max(self._seen[namespace], each.metadata.version)
        if event.type == "DELETED":
            known = self._objects.get(each.metadata.ref)
            if known is not None and known.metadata.version <= each.metadata.version:
                self._remove(each.metadata.ref)
        else:
            self._store(each)

    # -- the cache -----------------------------------------------------------------------------------------------------

    def _store(self, each: O) -> None:
        known = self._objects.get(each.metadata.ref)
        if known is None or known.metadata.version < each.metadata.version:
            self._objects[each.metadata.ref] = each
            self._tell(each.metadata.ref)

    def _remove(self, ref: Ref) -> None:
        del self._objects[ref]
        self._tell(ref)

    def _tell(self, ref: Ref) -> None:
        for listener in list(self._listeners):
            listener(ref)

    def _seen_of(self, namespace: str) -> int:
        return self._seen.get(namespace, self._seen.get("", 0))

    def _selection(self) -> list[tuple[str, str]]:
        return [("labelSelector", self._selector)] if self._selector else []
