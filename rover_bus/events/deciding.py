"""The one dialect of decider: inputs in, effects out, no await, no clock, no id made. And what the shared shell needs beside it.

`Decider` is what every decider of the package is: the master's and the Brain's (below as `LogDecider`, run by shell.py), the node
daemon's and the persister's (run by their own shells, because no log rebuilds them). Apart, because the author of a decider reads
this page and not a shell's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from rover_bus import __version__
from rover_bus.events import inputs
from rover_bus.events.bus import Message
from rover_bus.events.codec import encode
from rover_bus.events.fact import Caused, Fact, Position, Record
from rover_bus.events.outbox import FactOut, Outgoing
from rover_bus.events.requests import AnyRequest, Reply
from rover_bus.events.settings import DEFAULTS, RetentionSettings
from rover_bus.events.tracing import SpanMaker

State = TypeVar("State", covariant=True)
Input = TypeVar("Input", contravariant=True)
Effect = TypeVar("Effect", covariant=True)
Known = TypeVar("Known")
Happening = TypeVar("Happening")


@dataclass(frozen=True, slots=True)
class Hold:
    """No reply yet: the shell keeps the request under `key`, until a decision releases it or the lead ends."""

    key: Hashable


class Decision(NamedTuple, Generic[Effect]):
    """What came of one input: effects in order, and what is answered.

    `reply`: of the input's own request, a Hold, or None when no answer is wanted. `released`: replies to requests that were held,
    by key; None for one whose asker waits no more. `unfinished`: there is more to decide, so `Continued` is the next input but what
    has arrived by then.
    """

    effects: Sequence[Effect]
    reply: Reply | Hold | None = None
    released: Sequence[tuple[Hashable, Reply | None]] = ()
    unfinished: bool = False


class Decider(Protocol[State, Input, Effect]):
    """A pure function of everything that was put in, in order. Live, in replay, in the simulator and in what-if it is the same."""

    @property
    def state(self) -> State:
        """What is known. Only `evolve` changes it."""

    def decide(self, input: Input, now: float) -> Decision[Effect]:
        """Decide one input. `now`: seconds of one monotonic clock."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The input of a decider without a log: all that arrived is taken in, so decide. `leave_out`: jobs on which nothing is decided.

    One fact may take back another of the same turn of the loop: what lies between them must begin nothing.
    """

    leave_out: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class WakeAt:
    """The effect of a Turn: put in another one at this second."""

    at_s: float


class TurnDecider(Generic[Known, Happening, Effect]):
    """A decider without a log: what happens is taken in as it comes, a Turn decides on all of it."""

    def __init__(
        self,
        state: Known,
        evolve: Callable[[Known, Happening], Known],
        decide: Callable[[Known, float, frozenset[str]], Sequence[Effect]],
    ) -> None:
        self._state, self._evolve, self._decide = state, evolve, decide

    @property
    def state(self) -> Known:
        """What is known. Only `evolve` changes it."""
        return self._state

    def decide(self, input: Happening | Turn, now: float) -> Decision[Effect]:
        """Take in what happened, or decide at a Turn. `now`: seconds of one monotonic clock."""
        if isinstance(input, Turn):
            return Decision(self._decide(self._state, now, input.leave_out))
        self._state = self._evolve(self._state, input)
        return Decision(())


class LogDecider(Decider[State, inputs.Input, Record], Protocol[State]):
    """A decider whose effects are records, and whose state its log rebuilds. `decide` has evolved the records that it returns."""

    @property
    def timeline(self) -> int:
        """Part of every id, drawn once a log and again after a restore from a backup (P21)."""

    def anew(self) -> Self:
        """Return a decider of this kind that knows nothing: it replays the log beside this one."""

    def evolve(self, record: Record) -> None:
        """Apply one record: the same function live and in replay. Raises ValueError or LookupError where it does not fit."""

    def dump(self) -> bytes:
        """Return the state as a snapshot holds it."""

    def restore(self, body: bytes) -> None:
        """Replace the state by a snapshot's."""

    def outgoing(self, record: Record, position: Position, term: int) -> list[Outgoing]:
        """Return what leaves because of a record that was just evolved: facts and bucket values (P18)."""

    def position_of(self, fact: Fact) -> Position | None:
        """Return where in this log a published fact came from, None when it came from elsewhere."""

    def standing(self) -> list[Outgoing]:
        """Return the absolute values that a new leader writes again."""


def try_to_write(decider: LogDecider[Any], records: Sequence[Record], term: int) -> None:
    """Find out now what could not be stored or published later, when nothing could be charged for it.

    Hot records hold nothing but what `Told` bounds. Raises what encoding raises.
    """
    for record in records:
        if isinstance(record, Caused | Fact):
            encode(record)
            for item in decider.outgoing(record, (0, 0), term):
                if isinstance(item, FactOut):
                    encode(item.fact)


class Serving(Protocol):
    """How a service reads requests, names them and refuses them."""

    def read(self, message: Message) -> AnyRequest:
        """Decode a request by its method. Raises BadMessage."""

    def name_of(self, request: AnyRequest) -> str:
        """Name a request as its refusals do: its method and the member that asks."""

    def refuse(self, code: str, text: str) -> Reply:
        """Return a typed refusal."""


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """One process of a service: the name under which it leads, its monotonic clock, and Unix milliseconds for people to read."""

    holder: str
    clock: Callable[[], float]
    wall_ms: Callable[[], int]


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
    keep: RetentionSettings = DEFAULTS.retention
    spans: Callable[[Any], SpanMaker] | None = None  # what makes spans of the log, of its decider
    samples: list[str] = field(default_factory=list)  # of PROFILES, heard while leading; lost ones are lost
    service: str = ""
    endpoints: Callable[[int], Iterable[str]] = lambda _term: ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    release: str = __version__  # whose failures count (poison.py)
    tick_s: float = 0.25
    leader_ttl_s: float = DEFAULTS.leadership.master_ttl_s
