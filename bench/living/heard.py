"""What was heard of a job: its facts, samples and log, and what can be counted in them.

Fed by the streams that stage.py follows, asked by plays.py. Everything is seen from outside.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rover_bus.events import facts
from rover_bus.events.bus import Stored
from rover_bus.events.codec import decode, decode_any
from rover_bus.events.errors import RoverError
from rover_bus.events.log import Committed, Granted, LogBatch
from rover_bus.events.profiles import WorkerProfile

PATIENCE_S = 240.0


class Heard:
    """All facts, samples and log batches of the job, each with the monotonic second at which it came."""

    def __init__(self) -> None:
        self.facts: list[tuple[float, Any]] = []
        self.samples: list[tuple[float, WorkerProfile]] = []
        self.batches: list[tuple[float, LogBatch]] = []

    def fact(self, stored: Stored) -> None:
        with suppress(RoverError):
            self.facts.append((time.monotonic(), decode_any(stored.body)))

    def sample(self, stored: Stored) -> None:
        with suppress(RoverError):
            sample = decode_any(stored.body)
            if isinstance(sample, WorkerProfile):
                self.samples.append((time.monotonic(), sample))

    def log(self, stored: Stored) -> None:
        self.batches.append((time.monotonic(), decode(stored.body, LogBatch)))

    def all(self, kind: type[Any]) -> list[Any]:
        return [fact for _, fact in self.facts if isinstance(fact, kind)]

    async def wait(
        self, kind: type[Any], true: Callable[[Any], bool] = lambda fact: True
    ) -> tuple[float, Any]:
        """Wait for a fact. Raises TimeoutError saying what never came."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for at, fact in self.facts:
                if isinstance(fact, kind) and true(fact):
                    return at, fact
            if ended := self.all(facts.JobEnded):
                raise TimeoutError(f"the job is {ended[0].state} ({ended[0].detail}) before {kind.tag()}")
            await asyncio.sleep(0.1)
        raise TimeoutError(f"never came: {kind.tag()}")

    async def first_commit(self, worker: int) -> float:
        """Wait for the first commit of a worker; return when it came. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for at, batch in self.batches:
                    if any(isinstance(each, Committed) and each.worker == worker for each in batch.records):
                        return at
                await asyncio.sleep(0.05)

    def granted(self, worker: int, since: float, until: float) -> float:
        """Share of the batches leased in a span of time that went to one worker."""
        counts: dict[int, int] = {}
        for at, batch in self.batches:
            for record in batch.records:
                if isinstance(record, Granted) and since <= at < until:
                    counts[record.worker] = counts.get(record.worker, 0) + sum(record.counts)
        return counts.get(worker, 0) / max(sum(counts.values()), 1)

    def commits(self, since: float, until: float) -> int:
        """Batches committed in a span of time."""
        done: dict[int, int] = {}
        counted = 0
        for at, batch in self.batches:
            for record in batch.records:
                if isinstance(record, Granted):
                    for number, first in enumerate(record.firsts):
                        done[record.first_token + number] = first
                elif isinstance(record, Committed):
                    for token, upto in zip(record.tokens, record.uptos, strict=True):
                        counted += (upto - done.get(token, upto)) if since <= at < until else 0
                        done[token] = upto
        return counted


def pid_of(heard: Heard, place: str) -> int:
    """Return the process of a place's newest life."""
    admitted = [fact for fact in heard.all(facts.MemberAdmitted) if fact.member.name == place]
    return int(admitted[-1].pid)


def plans_of(heard: Heard) -> list[dict[str, Any]]:
    """Return a row a plan: what it was, what it predicted, what was measured, how it ended."""
    measured = {fact.plan: fact for fact in heard.all(facts.PlanMeasured)}
    ends = {fact.plan: "kept" for fact in heard.all(facts.PlanKept)}
    ends |= {fact.plan: "rolled back" for fact in heard.all(facts.PlanRolledBack)}
    rows = []
    for plan in heard.all(facts.PlanProposed):
        verdict = measured.get(plan.plan)
        rows.append(
            {
                "plan": plan.plan,
                "step": plan.step,
                "constant": plan.constant,
                "workers": plan.workers,
                "servers": plan.servers,
                "predicted": round(plan.predicted),
                "measured": round(verdict.after) if verdict else None,
                "end": ends.get(plan.plan, ""),
            }
        )
    return rows
