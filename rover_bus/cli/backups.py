"""What a stack stored, as a directory, and back: `rover backup`, `rover restore` (docs/design/0071).

    DIR/backup.json                 what this is: format, release, when, which tenants; written last
    DIR/<STREAM>/                   the control account's streams, as `nats account backup` writes them (events/snapshots.py)
    DIR/tenants/<T>/<STREAM>/       a tenant's

Both work as the owner of each account, with the keys of the stack's own machine. Facts come first and logs last: a log that knows
more than the facts is what every take-over expects, one that knows less has lost its tail. Samples and what memory holds are left
out. A broker of another owner has one account, which what its owner gave opens (docs/design/0082). Keys are no part of it: `auth`
of the state directory is to be kept apart, where fewer people can read it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from rover_bus import __version__
from rover_bus.auth.account_keys import AccountKeys
from rover_bus.brain.log import BrainBatch, BrainTermBegun
from rover_bus.cli.tenants import copy_restored, of_registrar
from rover_bus.cli.views.history import read_jobs
from rover_bus.events import snapshots
from rover_bus.events.bus import Bus
from rover_bus.events.errors import AccessDenied, BusError, InputError, RoverError
from rover_bus.events.facts import JobRestored
from rover_bus.events.formats import FORMAT, NewerFormat, explain, noted_format
from rover_bus.events.journal import Journal
from rover_bus.events.log import LogBatch, Record
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import FACTS, LOG, PROFILES, SETTINGS, TENANTS
from rover_bus.events.subjects import BRAIN_LOG, DEFAULT_TENANT, job_log, split_job
from rover_bus.events.timelines import note_timeline

ABOUT = "backup.json"
TIMELINE_BITS = 48
_LAST = (FACTS, LOG)  # of an account, in this order
_FIRST = tuple(f"KV_{bucket}" for bucket in (SETTINGS, TENANTS))


class BackupAbout(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup is. `taken_ms`: Unix milliseconds when it began; `bytes`: of all snapshots."""

    format: int
    release: str
    taken_ms: int
    tenants: list[str]
    bytes: int


async def take_backup(url: str, keys: AccountKeys, directory: Path) -> BackupAbout:
    """Write a backup into a directory that is not there yet. Raises InputError, BusError."""
    _refuse_present(directory)
    taken_ms, tenants = time.time_ns() // 1_000_000, list(keys.tenants)
    part = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}")
    try:
        async with of_registrar(url, keys.owner_credentials()) as owner:
            written = (await noted_format(owner))[0].format  # before what is in it is taken
            if lacking := sorted({*await owner.entries(TENANTS, "*")} - {*tenants}):
                raise InputError(
                    f"the keys in {keys.root} do not open tenant {lacking[0]}, and a backup without it would be half of one: "
                    "use the directory `auth` that the Brain has"
                )
        size = 0
        for is_log in (False, True):
            for tenant in (DEFAULT_TENANT, *tenants):
                async with of_registrar(url, keys.owner_credentials(tenant)) as owner:
                    size += await _take_streams(owner, _place(part, tenant), is_log)
        about = BackupAbout(
            format=written, release=__version__, taken_ms=taken_ms, tenants=tenants, bytes=size
        )
        _finish(part, directory, about)
    except OSError as error:
        raise InputError(f"{part} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)  # it has another name, if it is whole
    return about


async def _take_streams(owner: NatsBus, place: Path, is_log: bool) -> int:
    """Write the log of an account, or all else that it has on disk; return how many bytes."""
    wanted = [each for each in await snapshots.list_stored(owner) if (each == LOG) == is_log]
    return sum(
        [
            await snapshots.take_snapshot(owner, stream, place / stream)
            for stream in wanted
            if stream != PROFILES
        ]
    )


def _refuse_present(directory: Path) -> None:
    if directory.exists():
        raise InputError(f"{directory} is there already: name a new directory for each backup")


def _place(directory: Path, tenant: str) -> Path:
    return directory if tenant == DEFAULT_TENANT else directory / "tenants" / tenant


def _finish(part: Path, directory: Path, about: BackupAbout) -> None:
    """Give a whole backup its name, once it is on the disk: a directory of that name is never half of one."""
    (part / ABOUT).write_bytes(msgspec.json.format(msgspec.json.encode(about), indent=2))
    for path in [*part.rglob("*"), part]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    part.rename(directory)


def read_backup(directory: Path) -> BackupAbout:
    """Return what a backup is. Raises InputError for what is none, NewerFormat."""
    try:
        about = msgspec.json.decode((directory / ABOUT).read_bytes(), type=BackupAbout)
    except OSError:
        raise InputError(f"{directory} is no backup of `rover backup`: it has no {ABOUT}") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{directory / ABOUT}: {error}") from None
    if about.format > FORMAT:
        raise NewerFormat(explain(about.format, str(directory), about.release))
    return about


async def restore(url: str, keys: AccountKeys, directory: Path) -> list[str]:
    """Put a backup into a broker that holds nothing, in a new timeline; return the jobs that go on from it.

    What was put back before something failed is taken away again. Raises InputError, BusError.
    """
    about, timeline, put = read_backup(directory), secrets.randbits(TIMELINE_BITS), list[tuple[str, str]]()
    try:
        return await _put_back(url, keys, directory, about, timeline, put)
    except (RoverError, OSError):
        await _take_away(url, keys, put)
        raise


async def _put_back(
    url: str,
    keys: AccountKeys,
    directory: Path,
    about: BackupAbout,
    timeline: int,
    put: list[tuple[str, str]],
) -> list[str]:
    """Put all of a backup back; `put`: which streams of which tenants are, so far."""
    going_on: list[str] = []
    for tenant in (*about.tenants, DEFAULT_TENANT):  # the control account copies of the others
        async with of_registrar(url, keys.owner_credentials(tenant)) as owner:
            for each in _in_order(_place(directory, tenant)):
                put.append((tenant, each.name))  # a cluster has a stream of it even if it fails
                await snapshots.put_back(owner, each)
            if tenant == DEFAULT_TENANT and about.tenants:
                await copy_restored(owner, about.tenants)
            going_on += [
                f"{tenant}/{job}" if tenant != DEFAULT_TENANT else job
                for job in await _begin_again(owner, timeline, str(directory))
            ]
            if tenant == DEFAULT_TENANT:
                await _begin_brain_again(owner, timeline)
                await note_timeline(owner, timeline)
    return going_on


async def _take_away(url: str, keys: AccountKeys, put: list[tuple[str, str]]) -> None:
    """Leave a broker without a part of a backup, from which a stack would begin as if it were all."""
    for tenant, stream in put:
        with suppress(BusError, AccessDenied):  # what failed before is what is said
            async with of_registrar(url, keys.owner_credentials(tenant)) as owner:
                await owner.api(f"STREAM.DELETE.{stream}", None, f"remove {stream}, half of a backup")


def _in_order(place: Path) -> list[Path]:
    """Return the directories of an account's streams: what others rest on first."""
    streams = [each for each in place.iterdir() if (each / snapshots.ABOUT).is_file()]
    rank = {name: number for number, name in enumerate((*_FIRST, "", *_LAST))}
    return sorted(streams, key=lambda each: (rank.get(each.name, rank[""]), each.name))


async def _begin_again(owner: Bus, timeline: int, backup: str) -> list[str]:
    """Say in the log of each job that has not ended that a new timeline begins; return these jobs."""
    jobs = [
        split_job(name)[1]
        for name, row in (await read_jobs(owner)).items()
        if not row.ended_ms and split_job(name)[0] == DEFAULT_TENANT  # of this account, by its own names
    ]
    for job in jobs:
        journal = Journal(owner, job_log(job), job, "restore", LogBatch, _wall_ms)
        await _append(journal, lambda _, __: JobRestored(timeline=timeline, backup=backup), timeline)
    return jobs


async def _begin_brain_again(owner: Bus, timeline: int) -> None:
    journal = Journal(owner, BRAIN_LOG, "brain", "restore", BrainBatch, _wall_ms)
    await _append(journal, _term_of_brain(timeline), timeline)


def _term_of_brain(timeline: int) -> Callable[[int, int], Record]:
    def begun(term: int, sequence: int) -> Record:
        return BrainTermBegun(term=term, holder="restore", timeline=timeline, resumed_from=sequence)

    return begun


async def _append(journal: Journal, record: Callable[[int, int], Record], timeline: int) -> None:
    """Read a log to its end and append one batch, as its next leader would: of the next term, and of the new timeline."""
    for stored in await journal.replay_from(await journal.beginning()):
        journal.take(stored)
    if not journal.sequence:
        return
    newest = await journal.bus.last(FACTS, ">")
    there = newest.sequence if newest is not None else 0
    inputs = {
        stream: min(read, there) if stream == FACTS else read for stream, read in journal.inputs.items()
    }
    journal.term, journal.timeline, journal.number = journal.term + 1, timeline, 0
    await journal.append([record(journal.term, journal.sequence)], inputs, candidate=True)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
