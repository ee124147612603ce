"""Platforms of pods as tests build them: one a daemon, on a real API server, with a kubelet that runs pods as processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from patience import PATIENCE_S
from platform_contract import SECRET, script_of

from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.programs import ProgramRequest
from rover_bus.kube.api import Api
from rover_bus.kube.cluster import KubeCluster
from rover_bus.kube.kinds import Ref
from rover_bus.kube.platform import KubePlatform
from rover_bus.kube.pods import PodSettings, SparePods, order_of, ref_of
from rover_bus.kube.spare_line import answer_spares
from rover_bus.kube.templates import MAIN
from rover_bus.node.port import Incarnation, Observation, Platform, Spare

WARM = """
import asyncio, os, signal, sys
from rover_bus.client.loaded import SpareHost, keep_told, pack_loaded
from rover_bus.events.identity import Member
from rover_bus.events.nats_bus import NatsBus

index, incarnation = int(os.environ["ROVER_INDEX"]), int(os.environ["ROVER_INCARNATION"])
trusted = "trusted" if os.environ.get("ROVER_CREDENTIAL") == THE_WORD else "not trusted"
print(f"I am worker {index}.{incarnation}, {trusted}", flush=True)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the first process of a container hears no signal that it does not handle


async def live():
    if at := os.environ.get("ROVER_SPARES_AT"):
        with open(os.environ["ROVER_SECRET_FILE"]) as file:
            bus = await NatsBus.connect(os.environ["ROVER_URL"], secret=file.read().strip())
        host = SpareHost(bus, at, os.environ["ROVER_JOB"], os.environ["ROVER_UID"])
        await keep_told(host, Member("worker", index, incarnation), pack_loaded())
    await asyncio.sleep(600)


asyncio.run(live())
"""


class Pods:
    """Each daemon has caches of its own, as in another process."""

    measures, remembers_loaded = False, False

    def __init__(self, config: str, node: str, namespace: str, **settings: Any) -> None:
        self.host, self._config, self.namespace = node, config, namespace
        self.settings = PodSettings(
            "example.com/any", lambda _tenant: namespace, python=sys.executable, **settings
        )
        self._following: dict[int, asyncio.Task[None]] = {}
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._broker: EmbeddedBroker | None = None
        self._warm = Path()

    def with_spares(self, broker: EmbeddedBroker, folder: Path, priority_class: str) -> Pods:
        """Make spares of it: these and their workers talk to a daemon over this broker."""
        self._broker, self._warm = broker, folder / "warm.py"
        self._warm.write_text(WARM.replace("THE_WORD", repr(SECRET)))
        said = {"ROVER_URL": broker.url, "ROVER_SECRET_FILE": str(broker.secret_file)}
        credential = SparePods(
            priority_class=priority_class,
            credential_of=lambda _spare, _host: "",
            member_credential_of=lambda _run, _host: SECRET,
        )
        self.settings = replace(self.settings, spares=credential, environment=said)
        return self

    @property
    def makes_spares(self) -> bool:
        return self._broker is not None

    def attach(self, observe: Callable[[Observation], None]) -> Platform:
        seen = self._seen = KubeCluster(self.api, self.settings, [self.namespace])
        platform = KubePlatform(seen, self.host, observe)
        if self._broker is not None:
            if not self._following:
                self._begun = asyncio.create_task(platform.adopt())  # what a former daemon left: nothing
            answering = answer_spares(self.bus, self.host, platform)
            self._answering[id(platform)] = asyncio.create_task(answering)
        self._following[id(platform)] = asyncio.create_task(seen.run())
        return platform

    def kill_daemon(self, platform: Platform) -> None:
        platform.release()
        self._following[id(platform)].cancel()
        if id(platform) in self._answering:
            self._answering[id(platform)].cancel()

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
            if self._broker is not None:
                self.bus = await NatsBus.connect(self._broker.url, secret=self._broker.secret)
            try:
                await main
            finally:
                others = asyncio.all_tasks() - {asyncio.current_task()}
                for each in others:
                    each.cancel()
                await asyncio.gather(*others, return_exceptions=True)
                await self.api.close()
                if self._broker is not None:
                    await self.bus.close()

        asyncio.run(scene())

    def command(self, program: str) -> list[str]:
        return ["python", str(self._warm)] if program == "warm" else script_of(program)

    def question(self, starts: bool) -> ProgramRequest:
        return ProgramRequest(program=["sh" if starts else "/no/such/program"])

    async def until_deaf(self, run: Incarnation) -> None:
        ref = ref_of(self.settings, run.job, run.uid, run.member)
        async with asyncio.timeout(PATIENCE_S):
            while "deaf" not in await self.api.log_tail(ref, MAIN, 10, 1000):  # noqa: ASYNC110 - it is a log
                await asyncio.sleep(0.1)

    def _pods_of(self, run: Incarnation) -> list[Ref]:
        """The pods that are an incarnation by the order on them: that of a spare has another name."""
        orders = {ref: order_of(each.metadata) for ref, each in self._seen.pods.objects.items()}
        return [ref for ref, order in orders.items() if order and order.incarnation.key == run.key]

    def orders(self) -> list[Ref]:
        """The pods that are incarnations."""
        return [ref for ref, each in self._seen.pods.objects.items() if order_of(each.metadata) is not None]

    async def until_ordered(self, run: Incarnation) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self._pods_of(run):  # noqa: ASYNC110 - it is the API server that is waited for
                await asyncio.sleep(0.02)

    async def knows(self, run: Incarnation) -> str:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for ref in self._pods_of(run):
                    said = await self.api.log_tail(ref, MAIN, 10, 1000)
                    if "I am " in said:
                        return said.partition("I am ")[2].strip()
                await asyncio.sleep(0.1)

    def kill_spare(self, spare: Spare) -> None:
        [process] = [each for each in psutil.process_iter() if _is_of(each, spare)]
        process.kill()

    def close(self) -> None:
        return


def _is_of(process: psutil.Process, spare: Spare) -> bool:
    """Whether it is the launcher of a spare: it has the pod's words, and asks nothing itself."""
    with suppress(psutil.Error):
        words = process.cmdline()
        return "-c" in words and any("launcher.py" in each for each in words)
    return False
