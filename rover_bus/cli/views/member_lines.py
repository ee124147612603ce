"""What members wrote, put together by line from pieces of their logs: of this host's files, and of other hosts by their daemons.

Feeds `rover logs`. Whichever way a piece comes, a line is printed once, whole, with the incarnation that wrote it before it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rover_bus.cli.views.history import read_facts, read_happened
from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Stored, Subscription
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import AccessDenied, BadMessage, BusError
from rover_bus.events.fact import Fact
from rover_bus.events.host_facts import HostStarted
from rover_bus.events.log_requests import MOST_BYTES, MemberLogReply, MemberLogRequest
from rover_bus.events.streams import FACTS, PRESENCE
from rover_bus.node.local.layout import list_members
from rover_bus.node.local.reading_logs import read_log_pieces

ANSWER_S = 5.0
MOST_REPLY_BYTES = 2 * MOST_BYTES


class MemberLines:
    """The lines of a job's members, or of one, each printed once. `found`: whether there was a log at all."""

    def __init__(self, job: str, member: str, say: Callable[[str], None]) -> None:
        self.job, self.member, self._say = job, member, say
        self._read: dict[tuple[str, str], int] = {}  # bytes, by host and log
        self._begun: dict[tuple[str, str], bytes] = {}  # a line whose end is not there yet

    @property
    def found(self) -> bool:
        return bool(self._read)

    def asks(self, host: str) -> MemberLogRequest:
        """Return what to ask of a host."""
        have = {log: read for (of, log), read in self._read.items() if of == host}
        return MemberLogRequest(job=self.job, member=self.member, have=have)

    def take(self, host: str, reply: MemberLogReply) -> None:
        """Print what a host's answer adds."""
        for piece in reply.pieces:
            key = host, piece.log
            if piece.start != self._read.get(key, 0):
                continue  # it belongs elsewhere: asked again, it comes right
            self._read[key] = piece.start + len(piece.data)
            *lines, self._begun[key] = (self._begun.get(key, b"") + piece.data).split(b"\n")
            for line in lines:
                self._print(piece.log, line)

    def take_local(self, node: Path) -> None:
        """Print what this host's own files add."""
        more = True
        while more:
            reply = read_log_pieces(node, self.asks(""))
            self.take("", reply)
            more = reply.more

    def end(self) -> None:
        """Print lines that were never ended."""
        for (_, log), line in self._begun.items():
            if line:
                self._print(log, line)

    def _print(self, log: str, line: bytes) -> None:
        self._say(f"{log} | {line.decode(errors='replace').rstrip()}")


class LogsElsewhere:
    """The logs of members on other hosts: which hosts these are says the bus, what is in the logs their daemons."""

    def __init__(self, bus: Bus, written: MemberLines, complain: Callable[[str], None]) -> None:
        self._bus, self._written, self._complain = bus, written, complain
        self._hosts: set[str] = set()
        self._here: set[str] = set()
        self._following: Subscription | None = None

    async def find(self, node: Path | None) -> None:
        """Learn on which hosts members of the job were started, and of each new one. Raises BusError."""
        if node is not None:
            self._here = {status.host for status in list_members(node, self._written.job)}
        filters, newest = subjects.everywhere(subjects.host_facts(fact=HostStarted.kind())), 0
        async for each in read_facts(self._bus, filters):
            self._note(each.fact)
            newest = each.stored.sequence

        def take(stored: Stored) -> None:
            self._note(read_happened(stored).fact)

        present = await self._bus.entries(PRESENCE, "*")
        for host in sorted(self._hosts - set(present)):
            self._complain(f"host {host} is not there: what members wrote on it is not shown")
        self._hosts &= set(present)
        self._following = await self._bus.follow(FACTS, filters, take, start=newest + 1)

    def _note(self, fact: Fact | None) -> None:
        if not isinstance(fact, HostStarted) or fact.job != self._written.job:
            return
        process, wanted = fact.process, self._written.member
        if wanted in ("", process.member.name, str(process.member)) and process.host not in self._here:
            self._hosts.add(process.host)

    async def take(self) -> None:
        """Print what has come on every host. One that does not answer is named once and left."""
        for host in sorted(self._hosts):
            try:
                while (await self._ask(host)).more:
                    pass
            except (BusError, BadMessage, AccessDenied) as error:
                self._complain(f"host {host} does not show what members wrote on it: {error}")
                self._hosts.discard(host)

    async def _ask(self, host: str) -> MemberLogReply:
        asked = encode(self._written.asks(host))
        answer = await self._bus.request(subjects.daemon(host, "log"), asked, timeout_s=ANSWER_S)
        reply = decode(answer.body, MemberLogReply, most_bytes=MOST_REPLY_BYTES)
        if reply.problem:
            raise BadMessage(reply.problem)
        self._written.take(host, reply)
        return reply

    async def close(self) -> None:
        if self._following is not None:
            await self._following.stop()
