"""Which release each process of a stack runs, and raising the stack's format once all of them read the next (docs/design/0073).

Feeds `rover upgrade`. What follows a stream says its release with its position (events/positions.py), in the
account of its tenant; servers and workers say theirs when they are admitted, which each job's log has. A process of a release
before 0.4.0 says nothing: it reads format 1.
"""

from __future__ import annotations

import asyncio

import msgspec

from rover_bus.cli.views.history import read_jobs
from rover_bus.cli.views.progress import JobProgress
from rover_bus.events.bus import Bus
from rover_bus.events.errors import AccessDenied, Refused, WrongSequence
from rover_bus.events.formats import FIRST_RELEASES, FORMAT, WrittenFormat, noted_format
from rover_bus.events.positions import REPORT_S, FollowerPosition
from rover_bus.events.streams import FORMAT_KEY, POSITIONS, SETTINGS, TENANTS
from rover_bus.events.subjects import DEFAULT_TENANT, qualified, split_job

# Between noting a format and writing it: a process that looked just before is heard by then, also if its first report was lost.
SETTLE_S = REPORT_S + 5.0
SILENT = "0.3.0"  # of a process that does not say its release
MOST_NAMED = 4


class RunningPart(msgspec.Struct, frozen=True, kw_only=True):
    """A process that takes part. `job`: with its tenant, "" for what is of all jobs. `reads`: the last format that it reads."""

    role: str
    name: str
    job: str
    release: str
    reads: int

    def __str__(self) -> str:
        of = f" of {self.job}" if self.job else ""
        return f"{self.role} {self.name}{of} ({self.release})"


class StackFormat(msgspec.Struct, frozen=True, kw_only=True):
    """What a stack writes, what it is being raised to (0: to nothing), and what this release reads."""

    writes: int
    raising: int
    reads: int
    parts: list[RunningPart]

    @property
    def older(self) -> list[RunningPart]:
        """Processes that do not read what this release does."""
        return [each for each in self.parts if each.reads < self.reads]


async def read_stack(bus: Bus) -> StackFormat:
    """Return a stack's format and its processes. Raises AccessDenied, NewerFormat, BusError."""
    if bus.tenant != DEFAULT_TENANT:
        raise AccessDenied(
            f"the format is of the whole stack: the credentials of the tenant {bus.tenant} have no right to it"
        )
    noted, _ = await noted_format(bus)
    parts: list[RunningPart] = []
    for tenant in (DEFAULT_TENANT, *sorted(await bus.entries(TENANTS, "*"))):
        for key, entry in (await bus.of(tenant).entries(POSITIONS, ">")).items():
            part = _follower(key, entry.value or b"", tenant)
            parts += [part] if part is not None else []
    parts += await _members(bus)
    parts.sort(key=lambda each: (each.reads, each.role, each.job, each.name))
    return StackFormat(
        writes=noted.writes, raising=noted.format if noted.before else 0, reads=FORMAT, parts=parts
    )


def _follower(key: str, value: bytes, tenant: str) -> RunningPart | None:
    """Return what a follower of a stream says of itself: its key names it (events/positions.py)."""
    try:
        said = msgspec.json.decode(value, type=FollowerPosition)
    except (msgspec.DecodeError, RecursionError):
        said = FollowerPosition(stream="", subjects=[], position=0)
    kind, _, rest = key.partition(".")
    release, reads = said.release or SILENT, said.format
    if kind == "job":
        job, _, name = rest.partition(".")
        return RunningPart(role="master", name=name, job=qualified(tenant, job), release=release, reads=reads)
    first, _, last = rest.partition(".")
    if last == "keys":  # of a daemon, which says how far it is beside that
        return None
    role = "brain" if first.startswith("brain-") else "operator" if first == "kube" else "host"
    return RunningPart(role=role, name=rest, job="", release=release, reads=reads)


async def _members(bus: Bus) -> list[RunningPart]:
    """Return the workers and servers of jobs that have not ended, as their logs know them."""
    found: list[RunningPart] = []
    for view in (await read_jobs(bus)).values():
        if view.ended_ms:
            continue
        tenant, job = split_job(view.job)
        progress = JobProgress(bus.of(tenant), job)
        await progress.read()
        admitted = progress.state.seats.admitted.values() if progress.state is not None else ()
        found += [
            RunningPart(
                role="server" if each.member.role == "ps" else each.member.role,
                name=str(each.member),
                job=view.job,
                release=each.release or SILENT,
                reads=each.format,
            )
            for each in admitted
        ]
    return found


async def raise_format(bus: Bus) -> bool:
    """Raise a stack to the format of this release; return whether there was anything to do. May be repeated.

    Raises Refused while a process does not read it, NewerFormat, AccessDenied, BusError.
    """
    noted, revision = await noted_format(bus)
    if noted.writes == FORMAT:
        return False
    before = noted.writes
    if not noted.before:
        _refuse_older(await read_stack(bus))
    release = FIRST_RELEASES[FORMAT]
    step = WrittenFormat(format=FORMAT, release=release, before=before)
    revision = await _note(bus, step, revision)  # from here on nothing older starts
    try:
        await asyncio.sleep(SETTLE_S)
        _refuse_older(await read_stack(bus))
        await _note(bus, WrittenFormat(format=FORMAT, release=release), revision)
    except BaseException:  # nothing was written in it yet
        await _take_back(bus, WrittenFormat(format=before, release=FIRST_RELEASES[before]), revision)
        raise
    return True


async def _take_back(bus: Bus, former: WrittenFormat, revision: int) -> None:
    try:
        await _note(bus, former, revision)
    except Refused:
        return  # another one goes on with it


async def _note(bus: Bus, said: WrittenFormat, revision: int) -> int:
    try:
        return await bus.put(SETTINGS, FORMAT_KEY, msgspec.json.encode(said), expected=revision)
    except WrongSequence:
        raise Refused("another `rover upgrade` changed the format meanwhile: look with --check") from None


def _refuse_older(stack: StackFormat) -> None:
    if stack.older:
        raise Refused(
            f"the stack stays in format {stack.writes}: {name_older(stack)} (`rover upgrade --check`)",
            "older_processes",
        )


def name_older(stack: StackFormat) -> str:
    """Say which processes do not read what this release does, in one line."""
    named = ", ".join(map(str, stack.older[:MOST_NAMED]))
    more = f" and {len(stack.older) - MOST_NAMED} more" if len(stack.older) > MOST_NAMED else ""
    verb = "does" if len(stack.older) == 1 else "do"
    return f"{named}{more} {verb} not read format {stack.reads}"
