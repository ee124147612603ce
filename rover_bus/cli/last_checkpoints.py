"""A last checkpoint of every running job, before a stack goes down (docs/design/0022).

Asked for by `rover down`, and by `rover up` when it is told to end. It is taken while everything still runs, so that a stack that
is not to end after all goes on as it was; what is trained after it is in the cut that the daemon waits for when it leaves (0019).
Which jobs run, and what becomes of their checkpoints, is read from the FACTS stream; nothing is decided here but when to give up.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import click

from rover_bus.cli.connection import Address, visit
from rover_bus.cli.submission import asker, request_checkpoint
from rover_bus.cli.views.history import Happened, read_facts, read_happened
from rover_bus.events import checkpoint_facts as cuts
from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.errors import RoverError
from rover_bus.events.facts import JobEnded, JobFact, JobSubmitted, MembersDesired
from rover_bus.events.streams import FACTS

LOOK_S = 0.1
KINDS: tuple[type[JobFact], ...] = (
    JobSubmitted,
    JobEnded,
    MembersDesired,
    cuts.CheckpointDeclined,
    cuts.CheckpointOpened,
    cuts.CheckpointStaged,
    cuts.CheckpointReady,
    cuts.CheckpointFailed,
)


@dataclass(slots=True)
class Keeping:
    """One running job, as far as its last checkpoint has come. `why`: none can be had, and for what reason."""

    job: str
    storage: str = ""  # as its job file names it; "": the stack's own
    copied: bool = False  # its parts are in the memory of other hosts as well
    own_model: bool = False  # it has no servers: its model is the program's own
    hosts: frozenset[str] = frozenset()  # of its servers
    planned: bool = False
    ready_before: bool = False
    asked: bool = False
    opened: int = 0
    size_bytes: int = 0
    kept: bool = False
    ending: bool = False
    why: str = ""

    @property
    def open(self) -> bool:
        """Whether it is still to be waited for."""
        return not (self.kept or self.why)

    def take(self, fact: JobFact) -> None:
        """Take in what became of it."""
        match fact:
            case JobSubmitted(spec=spec):
                wanted = spec.checkpoint
                self.storage = wanted.path if wanted else ""
                self.copied = bool(wanted and (wanted.copies or wanted.parity))
                self.own_model = not spec.has_servers
            case MembersDesired(members=members):
                self.planned = True
                self.hosts = frozenset(each.host for each in members if each.member.role == "ps")
            case JobEnded():
                self.kept = True
            case cuts.CheckpointReady() if not self.asked:
                self.ready_before = True
            case _:
                if self.asked:
                    self._observe(fact)

    def _observe(self, fact: JobFact) -> None:
        match fact:
            case cuts.CheckpointDeclined(samples=0):
                self.kept = True  # nothing is trained: it begins again as it began
            case cuts.CheckpointDeclined() if self.own_model:
                self.why = (
                    "it has no servers: its model is the program's own, and what that has not stored is lost"
                )
            case cuts.CheckpointDeclined():
                self.ending = True  # its result is what is kept
            case cuts.CheckpointOpened(cut=cut, requested=True):
                self.opened = self.opened or cut
            case cuts.CheckpointStaged(cut=cut, parts=parts) if self.opened and cut >= self.opened:
                self.size_bytes = sum(part.size_bytes for part in parts)
            case cuts.CheckpointReady(cut=cut) if self.opened and cut >= self.opened:
                self.kept = True
            case cuts.CheckpointFailed(cut=cut, reason=reason) if self.opened and cut >= self.opened:
                self.why = reason

    def judge_room(self, own: Path) -> None:
        """See whether what is staged can fit its storage at all. A job with an older checkpoint there adds what changed since."""
        from rover_bus.flash.location import parse_location

        place = parse_location(self.storage or own)
        if not self.size_bytes or self.ready_before or not isinstance(place, Path):
            return
        while not place.exists() and place != place.parent:
            place = place.parent
        free = shutil.disk_usage(place).free
        if free < self.size_bytes:
            self.why = f"it needs {_mib(self.size_bytes)}, and {_mib(free)} are free below {place}"

    def give_up(self, within_s: float) -> None:
        """Say why it was not kept in time."""
        if self.ending:
            self.why = f"it computes its result, and has not ended within {within_s:g} s"
        elif self.size_bytes:
            self.why = f"its {_mib(self.size_bytes)} were not stored within {within_s:g} s"
        elif self.opened:
            self.why = f"cut {self.opened} was not staged within {within_s:g} s"
        else:
            self.why = f"its master opened none within {within_s:g} s"


@dataclass(slots=True)
class LastCheckpoints:
    """The running jobs of a stack, and what became of the checkpoint that was asked of each."""

    jobs: dict[str, Keeping] = field(default_factory=dict)

    def take(self, happened: Happened) -> None:
        """Take a stored fact in."""
        if isinstance(happened.fact, KINDS):
            known = self.jobs.setdefault(happened.fact.job, Keeping(happened.fact.job))
            known.take(happened.fact)

    def lost(self) -> list[tuple[str, str]]:
        """Return the jobs whose model goes with the stack, and why no checkpoint could be had."""
        return [(each.job, each.why) for each in self.jobs.values() if each.why]


@dataclass(frozen=True, slots=True)
class KeepOrder:
    """What is asked for. `own`: where checkpoints go that name no place; `host`: only jobs with servers there (the broker is
    elsewhere and stays).
    """

    own: Path
    reason: str
    within_s: float
    host: str = ""


def keep_all(
    stack: Address,
    order: KeepOrder,
    *,
    say: Callable[[str], None] = lambda _: None,
    enough: Callable[[], bool] = lambda: False,
) -> list[tuple[str, str]]:
    """Like `keep_models`, on a connection of its own. A broker that cannot be asked is named in place of the jobs.

    `say` is told before anything is waited for.
    """
    try:
        return visit(stack, lambda bus: keep_models(bus, order, say=say, enough=enough))
    except RoverError as error:
        return [("whatever runs", f"no job can be asked: {error}")]


def print_lost(lost: list[tuple[str, str]]) -> None:
    """Name the jobs whose models go with the stack."""
    for job, why in lost:
        click.echo(f"{job} cannot have a last checkpoint: {why}", err=True)


async def keep_models(
    bus: Bus,
    order: KeepOrder,
    *,
    say: Callable[[str], None] = lambda _: None,
    enough: Callable[[], bool] = lambda: False,
) -> list[tuple[str, str]]:
    """Have a last checkpoint taken of every running job; return the jobs that cannot have one, each with its reason.

    `enough`: asked every tenth of a second; True gives up at once.
    """
    found = LastCheckpoints()
    filters = subjects.everywhere(*(subjects.job_facts("*", cls.kind()) for cls in KINDS))
    last = 0
    async for happened in read_facts(bus, filters):
        found.take(happened)
        last = happened.stored.sequence
    concerned = [each for each in found.jobs.values() if each.open and each.planned]
    if order.host:
        concerned = [each for each in concerned if order.host in each.hosts and not each.copied]
    found.jobs = {each.job: each for each in concerned}
    if not concerned:
        return []
    say(f"last checkpoints of {', '.join(found.jobs)}, within {order.within_s:g} s")
    for each in concerned:
        each.asked = True
    subscription = await bus.follow(
        FACTS,
        filters,
        lambda stored: found.take(read_happened(stored)) if _is_of(stored.subject, found.jobs) else None,
        start=last + 1,
    )
    try:
        for each in concerned:
            await _request(bus, each, order.reason, alone=bool(order.host))
        end_s = time.monotonic() + order.within_s
        while any(each.open for each in concerned) and time.monotonic() < end_s and not enough():
            await asyncio.sleep(LOOK_S)
            for each in concerned:
                if each.open:
                    each.judge_room(order.own)
    finally:
        await subscription.stop()
    for each in concerned:
        if each.open:
            each.give_up(order.within_s)
    return found.lost()


async def _request(bus: Bus, each: Keeping, reason: str, *, alone: bool) -> None:
    if alone and not each.storage:
        each.why = (
            "its checkpoint would lie on this host alone: move its servers away first (`rover move --off`)"
        )
        return
    try:
        await request_checkpoint(bus, each.job, reason, asker())
    except RoverError as error:
        each.why = f"its master cannot be asked: {error}"


def _is_of(subject: str, jobs: Iterable[str]) -> bool:
    parsed = subjects.parse(subject)
    return parsed is not None and parsed.full_job in jobs


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.1f} MiB"
