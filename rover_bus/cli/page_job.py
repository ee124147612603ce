"""One job as HTTP shows it, now or at a moment that is gone: the same views on what is known, and what was sampled last.

Fed by page.py with the picture's knowledge of the job, or with that of a moment (views/past_job.py); implements `OneJob` of
`web/port.py`. Apart from page.py because a moment differs from the present only in where these two come from.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any

from rover_bus.cli.figures import seconds_left
from rover_bus.cli.views.charts import heat_of, lanes_of, memory_of, program_of, throughput_of
from rover_bus.cli.views.hindrances import read_present
from rover_bus.cli.views.history import JobRow
from rover_bus.cli.views.job_progress import add_progress
from rover_bus.cli.views.past_job import JobMoment
from rover_bus.cli.views.past_samples import LastSamples, SamplePlaces, read_samples
from rover_bus.cli.views.picture import RATE_MEMORY_S, KnownOfJob, Picture
from rover_bus.cli.views.plans import plan_row
from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.web.bodies import (
    HeatShown,
    JobShown,
    LanesShown,
    MemberShown,
    MemoryShown,
    PlanShown,
    ProgramShown,
    Row,
    ThroughputShown,
)


class ShownJob(ABC):
    """What is shown of a job, whenever. `until_ms`: the moment, Unix milliseconds; infinite: now."""

    until_ms: float = math.inf

    def __init__(self, known: KnownOfJob, sequence: int, bus: Bus) -> None:
        self.known, self._sequence, self.bus = known, sequence, bus

    @property
    def sequence(self) -> int:
        return self._sequence

    @abstractmethod
    async def job(self) -> JobShown:
        """Return its figures."""

    @abstractmethod
    async def samples(self, *, of_hosts: bool) -> LastSamples:
        """Return the last samples of its members; `of_hosts`: what hosts measured too."""

    async def members(self) -> list[MemberShown]:
        said = await self.samples(of_hosts=True)
        shown = []
        for row in self.known.members.rows(leader=self.known.row.leader):
            member = f"{row['role']}-{row['index']}.{row['incarnation']}"
            more: dict[str, Any] = {}
            if (sample := said.workers.get(member)) is not None:
                more = {
                    "samples_per_second": sample.samples / sample.window_s,
                    "compute": sample.compute_s / sample.window_s,
                    "wait": (sample.wait_s + sample.barrier_s) / sample.window_s,
                    "pull": (sample.pull_s + sample.push_s + sample.read_s) / sample.window_s,
                }
            if (process := said.processes.get(member)) is not None:
                more |= {"cores_used": process.cores_used, "memory_bytes": process.memory_bytes}
            named = {key: row[key] for key in ("role", "index", "incarnation", "host", "pid", "leads")}
            shown.append(MemberShown(**named, **more))
        return shown

    def plans(self) -> list[PlanShown]:
        rows = map(plan_row, self.known.plans.by_number.values())
        return [PlanShown(**{key: row[key] for key in PlanShown.__struct_fields__}) for row in rows]

    async def explanation(self, number: int | None) -> Row:
        from rover_bus.cli.views.brain_state import read_brain
        from rover_bus.cli.views.explaining import explain

        job = self.known.row.job
        return explain(self.known.plans, await read_brain(self.bus, job, self.until_ms), job, number)

    def throughput(self) -> ThroughputShown:
        return throughput_of(self.known, self.sequence)

    def lanes(self) -> LanesShown:
        return lanes_of(self.known, self.sequence)

    def program(self) -> ProgramShown:
        left_s = seconds_left(self.known)
        return program_of(self.known, self.sequence, None if math.isinf(left_s) else left_s)

    async def memory(self) -> MemoryShown:
        from rover_bus.cli.views.brain_state import read_brain

        brain = await read_brain(self.bus, until_ms=self.until_ms)
        return memory_of(self.known, self.sequence, brain.job_at(self.known.row.job, None))

    async def heat(self) -> HeatShown:
        return heat_of((await self.samples(of_hosts=False)).servers)


class PresentJob(ShownJob):
    """A job as it is."""

    def __init__(self, known: KnownOfJob, sequence: int, bus: Bus, picture: Picture) -> None:
        super().__init__(known, sequence, bus)
        self._picture = picture

    async def job(self) -> JobShown:
        known = self.known
        if known.row.ended_ms:
            return job_shown(known, known.row, known.state, self.sequence)
        row = _copy(known.row)
        tenant, _ = subjects.split_job(row.job)
        await add_progress(self.bus, row, await read_present(self.bus.of(tenant)))
        return job_shown(known, row, row.state, self.sequence)

    async def samples(self, *, of_hosts: bool) -> LastSamples:
        job, picture = self.known.row.job, self._picture
        found = LastSamples(picture.workers(job), picture.servers(job))
        if of_hosts:
            found.processes = {str(each.member): each for each in picture.processes().get(job, [])}
        return found


class JobThen(ShownJob):
    """A job as it was known at a moment."""

    def __init__(self, known: KnownOfJob, past: JobMoment, bus: Bus, places: SamplePlaces) -> None:
        super().__init__(known, past.sequence, bus)
        self._past, self._places, self.until_ms = past, places, past.moment_ms

    async def job(self) -> JobShown:
        known, row = self.known, _copy(self.known.row)
        if row.ended_ms:
            return job_shown(known, row, known.state, self.sequence)
        state = await self._past.state()
        row.state = "paused" if state.paused else state.phase
        if state.total:
            row.committed, row.dead_lettered, row.total = state.committed, state.dead_lettered, state.total
        if state.ledger is not None:
            row.epoch = state.ledger.epoch
        return job_shown(known, row, row.state, self.sequence)

    async def samples(self, *, of_hosts: bool) -> LastSamples:
        since_ms = self._past.moment_ms - round(1000 * RATE_MEMORY_S)
        first = self._places.before(since_ms)
        if first is None or self.known.row.ended_ms:
            return LastSamples()
        hosts = {each.host for each in self.known.members.running.values()} if of_hosts else set[str]()
        span = since_ms, self._past.moment_ms
        return await read_samples(self.bus, self.known.row.job, first, span, frozenset(hosts))


def _copy(row: JobRow) -> JobRow:
    """Return a row that may be changed without the picture's being changed."""
    copied = JobRow(row.job)
    for each in fields(JobRow):
        setattr(copied, each.name, getattr(row, each.name))
    return copied


def job_shown(known: KnownOfJob, row: JobRow, state: str, sequence: int) -> JobShown:
    """Return a job as it is shown. `row`: its own, or a copy with more in it."""
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
