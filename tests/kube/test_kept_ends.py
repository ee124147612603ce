"""Ends of a run are kept in one ConfigMap: members that leave together are written together, each of them, whatever is there."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest
from kube_cluster import Cluster

from rover_bus.kube.api import BURST, PER_S, Api, ApiRefused
from rover_bus.kube.ends import OF_ENDS, EndsWriter
from rover_bus.kube.kinds import CONFIG_MAP, ConfigMap, Json, Ref
from rover_bus.kube.pace import RequestPace
from rover_bus.kube.watching import Mirror

HOSTS = 12
Scene = Callable[[Api, EndsWriter, Ref], Awaitable[None]]


class CountedPace(RequestPace):
    """How many requests went."""

    count = 0

    def take(self, now_s: float) -> float:
        self.count += 1
        return super().take(now_s)


def made(ref: Ref) -> Callable[[dict[str, str]], Json]:
    return lambda data: {"metadata": {"name": ref.name, "labels": OF_ENDS}, "data": data}


@pytest.fixture
def pace() -> CountedPace:
    return CountedPace(PER_S, BURST)


@pytest.fixture
def play(cluster: Cluster, pace: CountedPace) -> Callable[[Scene], None]:
    """A scene with a writer whose cache knows only what it wrote itself: it lags as far as a cache can."""

    async def main(scene: Scene) -> None:
        api, ref = await Api.connect(str(cluster.config), pace), Ref("default", f"t{uuid.uuid4().hex[:8]}")
        try:
            await scene(api, EndsWriter(api, Mirror(api, CONFIG_MAP, ["default"])), ref)
        finally:
            await api.close()

    return lambda scene: asyncio.run(main(scene))


async def write_all(writer: EndsWriter, ref: Ref, what: str = "a") -> None:
    await asyncio.gather(*(writer.write(ref, f"h{n}.ps-0", what, made(ref)) for n in range(HOSTS)))


async def kept(api: Api, ref: Ref) -> ConfigMap:
    return await api.read(CONFIG_MAP, ref)


def test_ends_of_many_hosts_at_once_take_two_requests_and_none_is_refused(
    play: Callable[[Scene], None], pace: CountedPace
) -> None:
    async def scene(api: Api, writer: EndsWriter, ref: Ref) -> None:
        await write_all(writer, ref)
        assert pace.count == 2, "the first, and all that came while it was under way"
        assert (await kept(api, ref)).data == {f"h{n}.ps-0": "a" for n in range(HOSTS)}
        await writer.write(ref, "h0.ps-0", "b", made(ref))
        assert (await kept(api, ref)).data["h0.ps-0"] == "b", "the last end counts"

    play(scene)


def test_a_record_that_another_process_made_or_removed_is_written_all_the_same(
    play: Callable[[Scene], None],
) -> None:
    async def scene(api: Api, writer: EndsWriter, ref: Ref) -> None:
        await api.create(CONFIG_MAP, ref.namespace, made(ref)({"other.ps-0": "a"}))
        await write_all(writer, ref)
        assert set((await kept(api, ref)).data) == {"other.ps-0", *(f"h{n}.ps-0" for n in range(HOSTS))}
        await api.delete(CONFIG_MAP, ref)
        await write_all(writer, ref, "b")
        assert (await kept(api, ref)).data == {f"h{n}.ps-0": "b" for n in range(HOSTS)}

    play(scene)


def test_an_end_that_cannot_be_kept_is_told_to_each_that_asked_and_can_be_kept_later(
    play: Callable[[Scene], None],
) -> None:
    async def scene(api: Api, writer: EndsWriter, ref: Ref) -> None:
        nowhere = Ref(f"no-{ref.name}", ref.name)
        asked = (writer.write(nowhere, f"h{n}.ps-0", "a", made(nowhere)) for n in range(HOSTS))
        refused = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in refused] == [ApiRefused] * HOSTS
        await api.call("POST", "/api/v1/namespaces", {"metadata": {"name": nowhere.namespace}})
        try:
            await write_all(writer, nowhere)
            assert len((await kept(api, nowhere)).data) == HOSTS
        finally:
            await api.call("DELETE", f"/api/v1/namespaces/{nowhere.namespace}")

    play(scene)
