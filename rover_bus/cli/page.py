"""What a stack shows over HTTP, put together from the views of commands: the port of `web/port.py`, on a connection to the bus.

Fed by a picture that follows facts and samples, and by looks at what is there now; questions about one job read the streams, as its
command does. It decides nothing, and keeps nothing that a restart does not read again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from typing import Any

from rover_bus.cli.figures import Surroundings, figures_of, seconds_left
from rover_bus.cli.plan_words import answer_plan
from rover_bus.cli.views.charts import heat_of, lanes_of, memory_of, program_of, throughput_of
from rover_bus.cli.views.hindrances import read_present
from rover_bus.cli.views.history import Happened, JobRow, read_happened
from rover_bus.cli.views.job_progress import add_progress
from rover_bus.cli.views.moments import KeptReplays, read_state
from rover_bus.cli.views.picture import KnownOfJob, Picture
from rover_bus.cli.views.plans import plan_row
from rover_bus.cli.views.records import event_record, event_text
from rover_bus.cli.views.stores import read_stores
from rover_bus.cli.views.stories import find_story
from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.errors import BusError, InputError
from rover_bus.events.looks import open_read
from rover_bus.events.streams import FACTS, LOG, PROFILES
from rover_bus.web.bodies import (
    ClusterShown,
    EventShown,
    HeatShown,
    HostShown,
    JobShown,
    LanesShown,
    MemberShown,
    MemoryShown,
    PlanShown,
    ProgramShown,
    Row,
    StateShown,
    StoryStep,
    ThroughputShown,
)
from rover_bus.web.port import Figure

LOOK_S = 2.0  # between looks at what is there
SIZES_S = 15.0  # and at how much is stored
EVERYTHING = ">"
MOST_STEPS = 2000  # of a story
STEP = 256  # facts that are read at once, on the way back


@dataclass(slots=True)
class ShownStack:
    """One stack as HTTP shows it. `bus`: with the rights of what only looks, and of words on plans."""

    bus: Bus
    picture: Picture
    around: Surroundings
    replayed: bool = False
    replays: KeptReplays = field(default_factory=KeptReplays)

    @classmethod
    def on(cls, bus: Bus, store_limit_bytes: int = 0) -> ShownStack:
        """Show what is on a bus. `store_limit_bytes`: of the broker, where it is the stack's own."""
        return cls(bus, Picture(), Surroundings(store_limit_bytes=store_limit_bytes))

    async def run(self) -> None:
        """Follow what happens, for ever. Raises BusError where the streams are not there."""
        await self.picture.follow(self.bus)
        sized_s = -math.inf
        while True:
            try:
                self.around.present = await read_present(self.bus)
                self.picture.hosts_seen |= dict.fromkeys(self.around.present.hosts, _now_ms())
                if time.monotonic() - sized_s >= SIZES_S:
                    self.around.stream_bytes = {
                        each: await self.bus.size(each) for each in (LOG, FACTS, PROFILES)
                    }
                    self.around.stores = await read_stores(self.bus)
                    sized_s = time.monotonic()
                self.replayed = True
            except BusError:
                pass  # the next look may succeed; readiness says that the broker is away
            await asyncio.sleep(LOOK_S)

    # what is there

    @property
    def ready(self) -> bool:
        return self.replayed and self.bus.connected

    @property
    def sequence(self) -> int:
        return self.picture.sequence

    def figures(self) -> list[Figure]:
        self.around.now_ms, self.around.connected = _now_ms(), self.bus.connected
        return figures_of(self.picture, self.around)

    def cluster(self) -> ClusterShown:
        members = Counter(
            process.host for known in self.picture.jobs.values() for process in known.members.running.values()
        )
        hosts = [
            HostShown(
                host=host.host,
                cores=host.cores,
                cores_used=host.cores_used,
                memory_bytes=host.memory_bytes,
                memory_used_bytes=host.memory_used_bytes,
                members=members[host.host],
            )
            for host in self.picture.hosts.values()
            if host.host in self.around.present.hosts
        ]
        return ClusterShown(
            sequence=self.sequence,
            release=version("rover-bus"),
            brain=self.around.present.brain,
            hosts=sorted(hosts, key=lambda each: each.host),
            jobs=dict(Counter(known.state for known in self.picture.jobs.values())),
        )

    # jobs

    def jobs(self) -> list[JobShown]:
        return [_job(known, known.row, known.state, self.sequence) for known in self.picture.jobs.values()]

    async def job(self, job: str) -> JobShown:
        known, sequence = self._known(job), self.sequence
        if known.row.ended_ms:
            return _job(known, known.row, known.state, sequence)
        row = _copy(known.row)
        tenant, _ = subjects.split_job(job)
        await add_progress(self.bus, row, await read_present(self.bus.of(tenant)))
        return _job(known, row, row.state, sequence)

    def members(self, job: str) -> list[MemberShown]:
        known = self._known(job)
        samples = self.picture.workers(job)
        processes = {str(each.member): each for each in self.picture.processes().get(job, [])}
        shown = []
        for row in known.members.rows(leader=known.row.leader):
            member = f"{row['role']}-{row['index']}.{row['incarnation']}"
            more: dict[str, Any] = {}
            if (sample := samples.get(member)) is not None:
                more = {
                    "samples_per_second": sample.samples / sample.window_s,
                    "compute": sample.compute_s / sample.window_s,
                    "wait": (sample.wait_s + sample.barrier_s) / sample.window_s,
                    "pull": (sample.pull_s + sample.push_s + sample.read_s) / sample.window_s,
                }
            if (process := processes.get(member)) is not None:
                more |= {"cores_used": process.cores_used, "memory_bytes": process.memory_bytes}
            named = {key: row[key] for key in ("role", "index", "incarnation", "host", "pid", "leads")}
            shown.append(MemberShown(**named, **more))
        return shown

    def plans(self, job: str) -> list[PlanShown]:
        rows = map(plan_row, self._known(job).plans.by_number.values())
        return [PlanShown(**{key: row[key] for key in PlanShown.__struct_fields__}) for row in rows]

    async def explanation(self, job: str, number: int | None) -> Row:
        from rover_bus.cli.views.explaining import read_explanation

        self._known(job)
        tenant, bare = subjects.split_job(job)
        return await read_explanation(self.bus.of(tenant), bare, number)

    def _known(self, job: str) -> KnownOfJob:
        known = self.picture.jobs.get(job)
        if known is None:
            raise InputError(f"there is no job {job!r} (`rover jobs` lists them)")
        return known

    # charts

    def throughput(self, job: str) -> ThroughputShown:
        return throughput_of(self._known(job), self.sequence)

    def lanes(self, job: str) -> LanesShown:
        return lanes_of(self._known(job), self.sequence)

    def program(self, job: str) -> ProgramShown:
        known = self._known(job)
        left_s = seconds_left(known)
        return program_of(known, self.sequence, None if math.isinf(left_s) else left_s)

    async def memory(self, job: str) -> MemoryShown:
        from rover_bus.cli.views.brain_state import read_brain

        known, sequence = self._known(job), self.sequence
        return memory_of(known, sequence, (await read_brain(self.bus)).job_at(job, None))

    def heat(self, job: str) -> HeatShown:
        self._known(job)
        return heat_of(self.picture.servers(job))

    async def state(self, job: str, at: int | None) -> StateShown:
        self._known(job)
        tenant, bare = subjects.split_job(job)
        return await read_state(self.bus.of(tenant), bare, at, self.replays)

    # events

    async def past(self, job: str, before: int | None, count: int) -> list[EventShown]:
        end = self.sequence + 1 if before is None else before
        at_hand = [each for each in self.picture.recent if each.stored.sequence < end]
        begins = at_hand[0].stored.sequence if at_hand else end
        found = [each for each in at_hand if _is_of(each, job)]
        if len(found) < count:
            found = await self._before(job, begins, count - len(found)) + found
        return [shown(each) for each in _last(found, count)]

    async def _before(self, job: str, end: int, count: int) -> list[Happened]:
        """Return the last facts before a sequence: of a job what its own subject has, without reading what others' have."""
        if job:
            return [each async for each in self._read(1, end, _subject_of(job))]
        found, first = list[Happened](), end
        while len(found) < count and first > 1:
            last, first = first, max(1, first - max(count, STEP))
            found = [each async for each in self._read(first, last)] + found
        return found

    async def _read(self, first: int, end: int, subject: str = EVERYTHING) -> AsyncGenerator[Happened, None]:
        async with aclosing(open_read(self.bus, FACTS, subject, first)) as reading:
            async for stored in reading:
                if stored.sequence >= end:
                    return
                yield read_happened(stored)

    async def events(self, job: str, after: int | None) -> AsyncGenerator[EventShown, None]:
        position = self.sequence if after is None else after
        while True:
            await self.picture.beyond(position)
            recent = list(self.picture.recent)
            if recent and recent[0].stored.sequence > position + 1:
                with suppress(
                    BusError
                ):  # the broker is away: what was read until then is passed on, and the rest is read again
                    async for each in self._read(position + 1, recent[0].stored.sequence):
                        position = each.stored.sequence
                        if _is_of(each, job):
                            yield shown(each)
                    position = max(position, recent[0].stored.sequence - 1)
                if position + 1 < recent[0].stored.sequence:
                    await asyncio.sleep(LOOK_S)
                    continue
            for each in recent:
                if each.stored.sequence > position:
                    position = each.stored.sequence
                    if _is_of(each, job):
                        yield shown(each)

    async def story(self, event: str) -> list[StoryStep]:
        told = await find_story(self.bus, event)
        return [StoryStep(depth=depth, why=why, event=shown(each)) for depth, why, each in told[:MOST_STEPS]]

    # words

    async def answer(self, job: str, number: int, reason: str, by: str, *, yes: bool) -> str:
        self._known(job)
        tenant, bare = subjects.split_job(job)
        return await answer_plan(self.bus.of(tenant), bare, number, (by, reason), yes=yes)


def shown(happened: Happened) -> EventShown:
    """Return one fact as it is shown."""
    record = event_record(happened)
    parsed = subjects.parse(happened.stored.subject)
    return EventShown(
        sequence=happened.stored.sequence,
        id=happened.id,
        subject=happened.stored.subject,
        kind=parsed.noun_verb if parsed is not None else "",
        job=happened.job,
        time_ms=happened.stored.time_ms,
        cause=record["cause"],
        text=event_text(happened),
        body=record["body"],
    )


def _last(found: list[Happened], count: int) -> list[Happened]:
    return found[len(found) - min(count, len(found)) :]


def _subject_of(job: str) -> str:
    """Return the filter for the facts of a job, wherever its account is."""
    tenant, bare = subjects.split_job(job)
    own = subjects.job_facts(bare)
    return own if tenant == subjects.DEFAULT_TENANT else subjects.of_tenant(tenant, own)


def _is_of(happened: Happened, job: str) -> bool:
    return not job or happened.job == job


def _copy(row: JobRow) -> JobRow:
    """Return a row that may be changed without the picture's being changed."""
    copied = JobRow(row.job)
    for each in fields(JobRow):
        setattr(copied, each.name, getattr(row, each.name))
    return copied


def _job(known: KnownOfJob, row: JobRow, state: str, sequence: int) -> JobShown:
    carried_out = known.plans.carried_out
    promised = carried_out.proposed if carried_out is not None and carried_out.proposed.predicted else None
    waits = [view.number for view in known.plans.by_number.values() if view.state == "waits"]
    left_s = seconds_left(known)
    return JobShown(
        job=row.job,
        sequence=sequence,
        uid=row.uid,
        state=state,
        reason=row.reason,
        workers=row.workers,
        servers=row.servers,
        epoch=row.epoch,
        epochs=row.epochs,
        committed=row.committed,
        total=row.total,
        dead_lettered=row.dead_lettered,
        samples_per_second=row.samples_per_second,
        predicted=promised.predicted if promised else None,
        predicted_low_90=(promised.predicted_low_90 or None) if promised else None,
        predicted_high_90=(promised.predicted_high_90 or None) if promised else None,
        seconds_left=None if math.isinf(left_s) else left_s,
        leader=row.leader,
        term=row.term,
        submitted_ms=row.submitted_ms,
        ended_ms=row.ended_ms,
        plan_waits=waits[-1] if waits and not row.ended_ms else None,
        summary=row.summary,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
