"""Platforms of pods as tests build them: one a daemon, on a real API server, with a kubelet that runs pods as processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from patience import PATIENCE_S
from platform_contract import script_of

from rover_bus.events.programs import ProgramRequest
from rover_bus.kube.api import Api
from rover_bus.kube.cluster import KubeCluster
from rover_bus.kube.platform import KubePlatform
from rover_bus.kube.pods import PodSettings, ref_of
from rover_bus.kube.templates import MAIN
from rover_bus.node.port import Incarnation, Observation, Platform, Spare


class Pods:
    """Each daemon has caches of its own, as in another process."""

    makes_spares, measures = False, False

    def __init__(self, config: str, node: str, namespace: str, **settings: Any) -> None:
        self.host, self._config, self.namespace = node, config, namespace
        self.settings = PodSettings(
            "example.com/any", lambda _tenant: namespace, python=sys.executable, **settings
        )
        self._following: dict[int, asyncio.Task[None]] = {}

    def attach(self, observe: Callable[[Observation], None]) -> Platform:
        seen = KubeCluster(self.api, self.settings, [self.namespace])
        platform = KubePlatform(seen, self.host, observe)
        self._following[id(platform)] = asyncio.create_task(seen.run())
        return platform

    def kill_daemon(self, platform: Platform) -> None:
        platform.release()
        self._following[id(platform)].cancel()

    async def settle(self, platform: Platform) -> None:
        assert isinstance(platform, KubePlatform)
        async with asyncio.timeout(PATIENCE_S):
            while platform._writes or any(  # noqa: ASYNC110 - it is the API server that is waited for
                each.grace_s != each.granted_s for each in platform._held.values()
            ):
                await asyncio.sleep(0.02)

    def run(self, main: Awaitable[None]) -> None:
        async def scene() -> None:
            self.api = await Api.connect(self._config)
            try:
                await main
            finally:
                others = asyncio.all_tasks() - {asyncio.current_task()}
                for each in others:
                    each.cancel()
                await asyncio.gather(*others, return_exceptions=True)
                await self.api.close()

        asyncio.run(scene())

    def command(self, program: str) -> list[str]:
        return script_of(program) if program != "warm" else script_of("polite")

    def question(self, starts: bool) -> ProgramRequest:
        return ProgramRequest(program=["sh" if starts else "/no/such/program"])

    async def until_deaf(self, run: Incarnation) -> None:
        ref = ref_of(self.settings, run.job, run.uid, run.member)
        async with asyncio.timeout(PATIENCE_S):
            while "deaf" not in await self.api.log_tail(ref, MAIN, 10, 1000):  # noqa: ASYNC110 - it is a log
                await asyncio.sleep(0.1)

    async def knows(self, run: Incarnation) -> str:
        raise AssertionError("only spares become a member that is asked this")

    def kill_spare(self, spare: Spare) -> None:
        raise AssertionError("there are none")

    def close(self) -> None:
        return
