"""What is watched stays true while its API server is killed, forgets its past, or says "too many"."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from kube_cluster import Cluster
from patience import PATIENCE_S

from rover_bus.kube.api import Api, ApiRefused
from rover_bus.kube.kinds import Json, Kind, Object, Ref
from rover_bus.kube.pace import RequestPace
from rover_bus.kube.watching import Mirror

AT_ONCE = 40
MAP = Kind("api/v1", "configmaps", Object)
Scene = Callable[[Api, Mirror[Object], str], Awaitable[None]]


def one(name: str, label: str, **data: str) -> Json:
    return {"metadata": {"name": name, "labels": {"test": label}}, "data": data}


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - it is another process that is waited for
            await asyncio.sleep(0.02)


@asynccontextmanager
async def watched(api: Api, label: str) -> AsyncIterator[Mirror[Object]]:
    found = Mirror(api, MAP, ["default"], f"test={label}")
    following = asyncio.create_task(found.run())
    try:
        await found.ready()
        yield found
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@pytest.fixture
def play(cluster: Cluster) -> Callable[[Scene], None]:
    """A scene with an API server, a cache of the config maps that bear a label of this test alone, and that label."""

    async def main(scene: Scene) -> None:
        label = f"t{uuid.uuid4().hex[:8]}"
        api = await Api.connect(str(cluster.config))
        try:
            async with watched(api, label) as found:
                await scene(api, found, label)
        finally:
            await api.close()

    return lambda scene: asyncio.run(main(scene))


def test_a_cache_follows_what_is_created_changed_and_deleted(play: Callable[[Scene], None]) -> None:
    async def scene(api: Api, found: Mirror[Object], label: str) -> None:
        told: list[Ref] = []
        ref = Ref("default", label)
        stop = found.listen(told.append)
        made = await api.create(MAP, "default", one(label, label, a="1"))
        await until(lambda: ref in found.objects)
        assert found.objects[ref] == made
        changed = await api.patch(MAP, ref, {"metadata": {"annotations": {"a": "2"}}})
        await until(lambda: found.objects[ref] == changed)
        stop()
        await api.delete(MAP, ref, uid=made.metadata.uid)
        await until(lambda: ref not in found.objects)
        assert told == [ref, ref], "one call a change, and none after the end of listening"

    play(scene)


def test_a_write_is_in_the_cache_before_the_watch_has_it_and_stays_there(
    play: Callable[[Scene], None],
) -> None:
    async def scene(api: Api, found: Mirror[Object], label: str) -> None:
        ref = Ref("default", label)
        made = await api.create(MAP, "default", one(label, label))
        found.put(made)
        assert found.objects[ref] == made
        changed = await api.patch(MAP, ref, {"metadata": {"annotations": {"a": "2"}}})
        found.put(changed)
        await asyncio.sleep(0.5)
        assert found.objects[ref] == changed, "the watch brings the former version later"
        await api.delete(MAP, ref)
        await until(lambda: ref not in found.objects)
        found.put(changed)
        assert ref not in found.objects, "an answer that came late brings nothing back"

    play(scene)


@pytest.mark.parametrize("what", ["restart-api", "compact"])
def test_a_cache_is_true_again_after(what: str, cluster: Cluster, play: Callable[[Scene], None]) -> None:
    """The API server is killed, and in the second case forgets its past besides; meanwhile objects come, change and go."""

    async def scene(api: Api, found: Mirror[Object], label: str) -> None:
        kept, gone, new = (Ref("default", f"{label}-{each}") for each in ("kept", "gone", "new"))
        for each in (kept, gone):
            await api.create(MAP, "default", one(each.name, label))
        await until(lambda: {kept, gone} <= found.objects.keys())
        told: list[Ref] = []
        found.listen(told.append)
        before = found.objects[gone].metadata.version - 1
        await asyncio.to_thread(cluster.fault, what)
        await again(lambda: api.create(MAP, "default", one(new.name, label)))
        await again(lambda: api.delete(MAP, gone))
        changed = await again(lambda: api.patch(MAP, kept, {"metadata": {"annotations": {"a": "2"}}}))
        await until(lambda: found.objects.keys() == {kept, new} and found.objects[kept] == changed)
        assert set(told) == {kept, gone, new}
        if what == "compact":
            await is_too_old(api, label, before)

    play(scene)


async def is_too_old(api: Api, label: str, version: int) -> None:
    """A watch from a version that is forgotten is refused: what is watched begins again with a list."""
    behind = Mirror(api, MAP, ["default"], f"test={label}")
    behind._seen["default"] = version
    with pytest.raises(ApiRefused) as told:
        await behind._watch("default")
    assert (told.value.status, told.value.code) == (410, "Expired")


async def again(call: Callable[[], Awaitable[object]]) -> object:
    """Repeat a call until the API server answers."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await call()
            except ApiRefused:
                raise
            except Exception:  # noqa: BLE001 - whatever a server that starts does
                await asyncio.sleep(0.2)


def test_preconditions_are_conflicts_and_a_second_object_of_a_name_is_one(
    play: Callable[[Scene], None],
) -> None:
    async def scene(api: Api, found: Mirror[Object], label: str) -> None:
        ref = Ref("default", label)
        made = await api.create(MAP, "default", one(label, label))
        refused = {
            "AlreadyExists": lambda: api.create(MAP, "default", one(label, label)),
            "Conflict": lambda: api.delete(MAP, ref, uid="of-another"),
            "NotFound": lambda: api.read(MAP, Ref("default", f"{label}-none")),
        }
        for reason, call in refused.items():
            with pytest.raises(ApiRefused) as told:
                await call()
            assert told.value.code == reason
        await api.patch(MAP, ref, {"metadata": {"annotations": {"a": "1"}}})
        old = {"resourceVersion": made.metadata.resource_version, "annotations": {"a": "2"}}
        with pytest.raises(ApiRefused) as told:
            await api.patch(MAP, ref, {"metadata": old})
        assert (told.value.status, told.value.code) == (409, "Conflict")

    play(scene)


THROTTLED: list[Json] = [
    {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "PriorityLevelConfiguration",
        "metadata": {"name": "none"},
        "spec": {
            "type": "Limited",
            "limited": {
                "nominalConcurrencyShares": 0,
                "borrowingLimitPercent": 0,
                "limitResponse": {"type": "Reject"},
            },
        },
    },
    {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": "none"},
        "spec": {
            "matchingPrecedence": 2,
            "priorityLevelConfiguration": {"name": "none"},
            "rules": [
                {
                    "subjects": [{"kind": "User", "user": {"name": "user"}}],
                    "resourceRules": [
                        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}
                    ],
                }
            ],
        },
    },
]


@pytest.fixture
def throttled_user(cluster: Cluster) -> Iterator[str]:
    """The kubeconfig of a user who may look, of whose requests the server works on one at a time. Taken away after the test."""
    role = ("create", "clusterrolebinding", "reader", "--clusterrole=view", "--user=user")
    made = "\n---\n".join(map(json.dumps, THROTTLED))
    try:
        for done in (cluster.kubectl("apply", "-f", "-", given=made), cluster.kubectl(*role)):
            assert done.returncode == 0, done.stderr
        yield str(cluster.user())
    finally:
        cluster.kubectl("delete", "-f", "-", given=made)
        cluster.kubectl("delete", "clusterrolebinding", "reader")


def test_requests_that_are_too_many_wait_as_the_server_says_and_are_repeated(
    cluster: Cluster, throttled_user: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server works on one request of a user at a time, and answers all others with 429: each has its answer in the end."""
    caplog.set_level("INFO", "rover.kube")

    async def main() -> None:
        api = await Api.connect(throttled_user, RequestPace(20.0, AT_ONCE))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while "asked less" not in caplog.text:
                    asked = (api.call("GET", MAP.path(Ref("default", ""))) for _ in range(AT_ONCE))
                    assert all(b"ConfigMapList" in answer for answer in await asyncio.gather(*asked))
        finally:
            await api.close()

    asyncio.run(main())


def test_a_kind_that_a_cluster_lacks_is_said_once_and_asked_for_less_and_less(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "rover.kube")
    pauses: list[float] = []

    async def scene() -> None:
        api = await Api.connect(str(cluster.config))
        absent = Mirror(
            api, Kind("apis/rover-bus.io/v1alpha1", "absences", Object), ["default"], may_lack=True
        )
        sleep = asyncio.sleep

        async def noted(seconds: float) -> None:
            pauses.append(seconds)
            await sleep(0)

        monkeypatch.setattr("rover_bus.kube.watching.asyncio.sleep", noted)
        following = asyncio.create_task(absent.run())
        try:
            await absent.ready()
            async with asyncio.timeout(PATIENCE_S):
                while pauses.count(30.0) < 2:
                    await sleep(0.02)
        finally:
            monkeypatch.undo()  # the API's own end takes its time
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await api.close()

    asyncio.run(scene())
    assert len([each for each in caplog.records if "absences" in str(each.__dict__)]) == 1
    assert pauses[0] < 1.0
    assert max(pauses) == 30.0
