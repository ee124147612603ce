"""Whether a job's program starts on the hosts that have room for it, asked of their daemons before it is submitted.

Each daemon tries it as it would start a worker (node/local/trials.py), and never runs it. Fed by the job file and by daemons'
facts on their hosts; feeds `rover submit`. A host that refuses later is the master's to leave out (docs/design/0032).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rover_bus.cli.views.hindrances import read_present
from rover_bus.events.bus import Bus
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import BadMessage, BusError, InputError, NoResponders
from rover_bus.events.facts import JobEnded, MembersDesired
from rover_bus.events.host_facts import HostRegistered
from rover_bus.events.identity import Resources
from rover_bus.events.job import JobSpec, RoleSpec
from rover_bus.events.looks import last_fact
from rover_bus.events.programs import TRY_S, ProgramReply, ProgramRequest
from rover_bus.events.streams import FACTS
from rover_bus.events.subjects import daemon, everywhere, host_fact, job_facts, parse

ANSWER_S = TRY_S + 10.0  # a trial, and one before it in the queue of a busy host
APPEARS_S = 3.0  # a daemon that has just said that it is there answers within this
LOOK_S = 0.1
MOST_NAMED = 5  # hosts in one message

ALIKE = 1e-9  # cores that are lost in adding up


@dataclass(slots=True)
class HostRoom:
    """What is left of a host."""

    cores: float
    memory_bytes: int

    def take(self, resources: Resources) -> None:
        self.cores -= resources.cores
        self.memory_bytes -= resources.memory_bytes

    def holds(self, worker: RoleSpec) -> bool:
        """Whether one more worker fits. One without limits always does."""
        return (not worker.cores or worker.cores <= self.cores + ALIKE) and (
            not worker.memory_bytes or worker.memory_bytes <= self.memory_bytes
        )


async def require_program(bus: Bus, spec: JobSpec, warn: Callable[[str], None]) -> None:
    """Raise InputError where the program does not start on a host that has room: host, path, and why.

    `warn` is told in a line of each host that did not answer in time, or could not tell.
    """
    hosts = await read_hosts_with_room(bus, spec.workers)
    request = ProgramRequest(
        program=spec.program,
        directory=spec.directory,
        environment=spec.environment,
        reads=[spec.data.train],
    )
    replies = await asyncio.gather(*(_ask(bus, host, request) for host in hosts))
    for host, reply in zip(hosts, replies, strict=True):
        if reply.state == "unknown":
            warn(
                f"warning: it is not known whether the program of {spec.name} starts on host {host}: {reply.problem}"
            )
    refused = [
        f"host {host}: {reply.path}: {reply.problem}"
        for host, reply in zip(hosts, replies, strict=True)
        if reply.state == "refused"
    ]
    if refused:
        more = f"; and on {len(refused) - MOST_NAMED} more hosts" if len(refused) > MOST_NAMED else ""
        raise InputError(
            f"the program of {spec.name} does not start on {'; '.join(refused[:MOST_NAMED])}{more}. Nothing was submitted"
        )


async def read_hosts_with_room(bus: Bus, worker: RoleSpec) -> list[str]:
    """Return the hosts that are there and would hold one more worker of this size, by what their jobs' members were granted."""
    left: dict[str, HostRoom | None] = {}
    for host in sorted((await read_present(bus)).hosts):
        fact = await last_fact(bus, host_fact(host, HostRegistered.kind()), HostRegistered)
        known = fact.capacity if fact is not None else None
        left[host] = HostRoom(known.cores, known.memory_bytes) if known is not None else None
    if worker.cores or worker.memory_bytes:
        await _take_what_runs(bus, left)
    return [host for host, room in left.items() if room is None or room.holds(worker)]


async def _take_what_runs(bus: Bus, left: Mapping[str, HostRoom | None]) -> None:
    wanted = [
        subject
        for each in everywhere(job_facts(kind=MembersDesired.kind()))
        for subject in await bus.subjects(FACTS, each)
    ]
    ended = [
        subject
        for each in everywhere(job_facts(kind=JobEnded.kind()))
        for subject in await bus.subjects(FACTS, each)
    ]
    over = {found.full_job for subject in ended if (found := parse(subject)) is not None}
    for subject in wanted:
        found = parse(subject)
        if found is None or found.full_job in over:
            continue
        fact = await last_fact(bus, subject, MembersDesired)
        for member in fact.members if fact is not None else ():
            room = left.get(member.host)
            if room is not None:
                room.take(member.resources)


async def _ask(bus: Bus, host: str, request: ProgramRequest) -> ProgramReply:
    loop = asyncio.get_running_loop()
    appears_s = loop.time() + APPEARS_S
    while True:
        try:
            answer = await bus.request(daemon(host, "program"), encode(request), timeout_s=ANSWER_S)
            return decode(answer.body, ProgramReply)
        except NoResponders:
            if loop.time() > appears_s:
                return ProgramReply(state="unknown", problem="its daemon does not answer")
            await asyncio.sleep(LOOK_S)
        except BadMessage as error:
            return ProgramReply(state="unknown", problem=str(error))
        except BusError:
            return ProgramReply(state="unknown", problem=f"its daemon did not answer within {ANSWER_S:.0f} s")
