"""What a service brings to the shared shell: its decider, and what it serves and follows.

Implemented by the master's and the Brain's deciders, declared in their `service.py`; used by shell.py. Apart, because
whoever writes a decider reads this page and not the shell's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from rover_bus import __version__
from rover_bus.events.bus import Message
from rover_bus.events.facts import Fact, Position
from rover_bus.events.log import Record
from rover_bus.events.outbox import Outgoing
from rover_bus.events.streams import KEEP_LOG, KeepLog


@dataclass(frozen=True, slots=True)
class Hold:
    """No reply yet: the shell keeps whom to answer under `key`, until a decision releases it or the lead ends."""

    key: Hashable


class Decision(NamedTuple):
    """What came of one input: records, already evolved; its reply, a Hold, or None when no answer is wanted.

    `released`: replies to requests that were held, by key; None for one that is waited for no more.
    """

    records: list[Record]
    reply: Any = None
    released: Sequence[tuple[Hashable, Any]] = ()


class Deciding(Protocol):
    """A decider as the shell sees it. Inputs are the decider's own types; the shell passes them through."""

    @property
    def history(self) -> int: ...

    def anew(self) -> Deciding:
        """Return a decider of this kind that knows nothing: it replays the log beside this one."""

    def evolve(self, record: Record) -> None: ...

    def decide(self, input: Any, now: float) -> Decision: ...

    def dump(self) -> bytes: ...

    def restore(self, body: bytes) -> None: ...

    def outgoing(self, record: Record, position: Position, term: int) -> list[Outgoing]:
        """What leaves because of a record: facts and bucket values."""

    def position_of(self, fact: Fact) -> Position | None:
        """Where in this log a published fact came from, None when it came from elsewhere."""

    def standing(self) -> list[Outgoing]:
        """Absolute values that a new leader writes again."""

    # inputs the shell makes itself
    def took_over(
        self,
        holder: str,
        term: int,
        replayed_records: int,
        log_lost: bool,
        log_sequence: int,
        failing: Mapping[str, str],
        release: str,
    ) -> Any:
        """`failing`: rules to switch off, and why: each has ended three incarnations of this release (poison.py)."""

    def ticked(self) -> Any: ...

    def bus_lost(self) -> Any: ...

    def bus_regained(self) -> Any: ...

    def noticed(self, fact: Fact, cause: str) -> Any: ...

    def sampled(self, sample: Any) -> Any:
        """A sample that was heard. Asked only of those that listen to samples."""

    def asked(self, message: Message) -> Any:
        """Turn a request's bytes into an input. Raises BadMessage."""

    def name_of(self, asked: Any) -> str:
        """Name a request as its refusals do: its method and the member that asks."""

    def refuse(self, code: str, text: str) -> Any:
        """A typed refusal for bytes that are no request."""


@dataclass(frozen=True)
class Wiring:
    """What one kind of service serves and follows."""

    log_subject: str
    leader_key: str
    job: str
    batch_type: type[Any]
    follows: list[str]
    publishes: list[str]  # where facts of this log go: a successor looks there for the last one
    purges: list[str]  # facts whose retention this service carries out (streams.FACTS_KEPT)
    begins: str = (
        ""  # the first fact here begins what this service is for: none before it can matter; "": any can
    )
    of_all_jobs: bool = False
    keep_log: KeepLog = KEEP_LOG
    samples: list[str] = field(default_factory=list)  # of PROFILES, heard while leading; lost ones are lost
    service: str = ""
    endpoints: Callable[[int], Iterable[str]] = lambda term: ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    release: str = __version__  # whose failures count (poison.py)
    tick_s: float = 0.25
    snapshot_every_batches: int = 2000
