"""One worker of a job, spoken for by hand: the load of bench/leases.py, in processes of their own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from typing import Any

from rover_bus.events import subjects
from rover_bus.events.asking import Master
from rover_bus.events.codec import decode, encode
from rover_bus.events.identity import Member
from rover_bus.events.job import Dataset
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.requests import (
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaseReply,
    LeaseRequest,
    Progress,
    RegisterRequest,
)

PROCESSES, BATCH = 2, 100
START_S = 30.0
HEARTBEAT_S = 1.0


class Client:
    """One worker of a job, spoken for by hand."""

    def __init__(self, bus: NatsBus, job: str, index: int) -> None:
        self.bus, self.job, self.master = bus, job, Master(bus, job)
        self.member = Member("worker", index, 1)
        self.timeline = 0
        self.subject = ""

    async def join(self, dataset: Dataset) -> None:
        """Become a member, however late a master comes."""
        async with asyncio.timeout(START_S):
            ask = JoinRequest(member=self.member, nonce=f"bench-{self.member}")
            while not isinstance(joined := await self.master.ask(ask), JoinReply):  # noqa: ASYNC110 - time is waited for
                await asyncio.sleep(0.05)
            self.timeline = joined.timeline
            await self.master.ask(
                RegisterRequest(member=self.member, timeline=joined.timeline, dataset=dataset)
            )
        self.subject = subjects.rpc(self.job, self.master.term, "lease")

    async def lease(self, number: int, wanted: int, progress: Progress, held: list[int]) -> LeaseReply:
        request = LeaseRequest(
            member=self.member,
            timeline=self.timeline,
            request=number,
            wanted=wanted,
            rate=0.01,
            progress=progress,
            held=held,
        )
        return decode((await self.bus.request(self.subject, encode(request), timeout_s=10)).body, LeaseReply)

    async def work(self, shards: int, until: float) -> tuple[int, list[float]]:
        """Lease and commit until the time is up; returns the shards committed and the latency of every call."""
        progress, number, committed, latencies = Progress(), 0, 0, []
        while not number or time.monotonic() < until or progress.tokens:
            number += 1
            wanted = shards if time.monotonic() < until else 0
            began = time.perf_counter()
            reply = await self.lease(number, wanted, progress, [])
            latencies.append(time.perf_counter() - began)
            committed += reply.answers.count(0)
            progress = Progress(
                tokens=reply.tokens, uptos=[a + n for a, n in zip(reply.firsts, reply.counts, strict=True)]
            )
        return committed, latencies

    async def wait(self, until: float) -> int:
        """Ask for a lease again and again, beating as a worker does; returns how many requests brought nothing."""
        held: list[int] = []
        empty = 0
        while time.monotonic() < until:
            asking = asyncio.create_task(self.lease(1 + len(held), 1, Progress(), held))
            done, _ = await asyncio.wait({asking}, timeout=HEARTBEAT_S)
            if done:
                held += asking.result().tokens
                empty += not asking.result().tokens
            else:
                asking.cancel()
                empty += 1
            beat = HeartbeatRequest(
                member=self.member, timeline=self.timeline, request=1 + len(held), held=held
            )
            await self.master.ask(beat)
        return empty if not held else 0


def result_of(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return what a process of clients printed last. Raises SystemExit when it failed; what it said stands on stderr."""
    lines = process.communicate()[0].splitlines()
    if process.returncode or not lines:
        raise SystemExit(f"clients ended with exit code {process.returncode} and no result")
    return dict(json.loads(lines[-1]))
