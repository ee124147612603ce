"""What each job costs on disk: its log and facts at the broker, its checkpoints on storage, and what that will be at its end.

Fed by samples of messages of each subject, by the facts of checkpoints and by a job's progress; printed by `rover disk`. The broker
counts messages by subject and bytes by stream alone, so a subject's bytes are its messages times what some of them weigh.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from rover_bus.cli.views.checkpoints import read_ready
from rover_bus.cli.views.history import JobRow
from rover_bus.cli.views.job_progress import read_with_progress
from rover_bus.cli.views.settings import read_chosen
from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Stored
from rover_bus.events.streams import FACTS, LOG
from rover_bus.events.written_settings import of_processes

COLUMNS = ("job", "state", "log", "facts", "checkpoint", "an_hour", "at_end")
PLACES, A_PLACE = 16, 16  # messages are weighed at so many places of a subject's history, so many at each
RECORD_BYTES = 30  # that the broker's store adds to a message: its length, sequence, time and digest
HEADER_BYTES = 4  # of a header's line, and 16 of the block
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Subject:
    """What is stored under one subject, or some. Bytes are an estimate from a sample unless all of few were weighed."""

    messages: int = 0
    bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0

    @property
    def a_second(self) -> float:
        """Bytes a second, over all that is kept."""
        return self.bytes / max((self.last_ms - self.first_ms) / 1000, 1.0) if self.messages > 1 else 0.0


@dataclass(frozen=True, slots=True)
class JobDisk:
    """What one job costs on disk, in bytes. `an_hour`: of log and facts, as they grew; `at_end`: of all, None where none is known.

    `checkpoint`: of the newest complete one on storage. A log is not larger than the settings `retention.log_*` let it be.
    """

    job: str
    state: str
    log: int
    facts: int
    checkpoint: int
    an_hour: int
    at_end: int | None

    def as_table(self) -> dict[str, Any]:
        """Return it for people."""
        return {
            key: _spell(value) if isinstance(value, int) else value for key, value in asdict(self).items()
        }


async def read_disk(bus: Bus, wanted: Callable[[JobRow], bool] = lambda _: True) -> list[JobDisk]:
    """Return what jobs cost on disk, those of tenants too. Raises BusError."""
    keep = of_processes(await read_chosen(bus)).retention
    found = []
    for row in (await read_with_progress(bus)).values():
        if not wanted(row):
            continue
        tenant, job = subjects.split_job(row.job)
        of_tenant = bus.of(tenant)
        log = await weigh(of_tenant, LOG, subjects.job_log(job))
        facts = await weigh(of_tenant, FACTS, subjects.job_facts(job))
        ready = await read_ready(of_tenant, job)
        newest = ready[max(ready)].size_bytes if ready else 0
        left_s = 0.0 if row.ended_ms else _seconds_left(row)
        most_log = min(keep.log_size_bytes, log.a_second * keep.log_age_s)
        at_end = None
        if left_s is not None:
            grown = max(min(log.bytes + log.a_second * left_s, most_log), log.bytes)
            at_end = round(grown + facts.bytes + facts.a_second * left_s + newest)
        found.append(
            JobDisk(
                job=row.job,
                state=row.state,
                log=log.bytes,
                facts=facts.bytes,
                checkpoint=newest,
                an_hour=0 if row.ended_ms else round((log.a_second + facts.a_second) * HOUR_S),
                at_end=at_end,
            )
        )
    return found


async def weigh(bus: Bus, stream: str, subject: str) -> Subject:
    """Return what is stored under a subject (wildcards allowed). Raises BusError."""
    last = await bus.last(stream, subject)
    first = await _read_some(bus, stream, subject, 1, 1)
    if last is None or not first:
        return Subject()
    messages, begins, ends = await bus.count(stream, subject), first[0].sequence, last.sequence
    weighed: dict[int, int] = {}
    for place in range(PLACES):
        at = begins + (ends - begins) * place // PLACES
        weighed |= {
            each.sequence: size_of(each) for each in await _read_some(bus, stream, subject, at, A_PLACE)
        }
        if len(weighed) >= messages:
            break
    mean = sum(weighed.values()) / max(len(weighed), 1)
    return Subject(messages, round(mean * messages), first[0].time_ms, last.time_ms)


async def _read_some(bus: Bus, stream: str, subject: str, first: int, most: int) -> list[Stored]:
    some: list[Stored] = []
    async with aclosing(bus.read(stream, subject, first=first)) as reading:  # type: ignore[type-var]
        async for each in reading:
            some.append(each)
            if len(some) >= most:
                break
    return some


def size_of(stored: Stored) -> int:
    """Return what a message takes in the broker's store: body, subject, headers, and what the store adds."""
    headers = sum(len(key) + len(value) + HEADER_BYTES for key, value in stored.headers.items())
    return len(stored.body) + len(stored.subject) + RECORD_BYTES + (headers + 16 if headers else 0)


def _seconds_left(row: JobRow) -> float | None:
    if not row.total or not row.samples_per_second:
        return None
    return max(row.total - row.committed - row.dead_lettered, 0) / row.samples_per_second


def _spell(size_bytes: int) -> str:
    if size_bytes < 1 << 20:
        return f"{size_bytes / (1 << 10):,.1f} KiB"
    return (
        f"{size_bytes / (1 << 20):,.1f} MiB" if size_bytes < 1 << 30 else f"{size_bytes / (1 << 30):,.1f} GiB"
    )
