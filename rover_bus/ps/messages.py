"""What workers and servers say to each other: the headers; array contents follow in the body (`frame`), in the order of the fields.

Every request bears a fence; the server looks at it before anything else. Headers are msgpack arrays tagged by name, decoded and
bounded by msgspec: new fields go to the end, with a default. Nothing that arrives here can name code.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import BadMessage
from rover_bus.events.requests import RoutingTable
from rover_bus.ps.admission import Fence
from rover_bus.ps.catalogue import Keys
from rover_bus.ps.frame import BodyReader, Buffer, pack
from rover_bus.ps.spec import Hashed, Table

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Names = tuple[str, ...]
UNKNOWN_MOVE = (
    "unknown_move"  # the refusal of a fetch whose order has not reached the source yet, or any more
)
ROOM_TO_COME = (
    "room_to_come"  # other servers are about to take slots over: what found no room may find it then
)
FORGOTTEN = "forgotten"  # the refusal of a push whose pull the server no longer remembers


class MessageSection(msgspec.Struct, frozen=True, array_like=True):
    """Distinct keys of tables of one family, ascending a table. Body: the keys; in a push then the gradients (keys, width)."""

    names: Names
    counts: tuple[Annotated[int, msgspec.Meta(ge=0, le=2**40)], ...]
    pulled: int = -1  # in a push: the keys are those of this section of the pull named by `Push.pull`, and are not sent again


class _Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """Base of all headers."""


class Declare(_Message, frozen=True, kw_only=True, tag="declare"):
    """These are the tables. Answer: Declared, or a refusal with the difference."""

    fence: Fence
    tables: tuple[Table, ...]


class Pull(_Message, frozen=True, kw_only=True, tag="pull"):
    """The values of these keys, and these dense arrays. Answer: Values. `counted` is False for evaluation."""

    fence: Fence
    sections: tuple[MessageSection, ...] = ()
    dense: tuple[Names, ...] = ()
    counted: bool = True


class Push(_Message, frozen=True, kw_only=True, tag="push"):
    """One batch (protocol P2). `pull` and `version`: what the server said at the pull it belongs to (-1: none). Answer: Acked.

    Body: for each section keys and gradients, then for each family of dense arrays the lines held by this server.
    """

    fence: Fence
    epoch: Number
    number: Number
    pull: int = -1
    version: int = -1
    rate_scale: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 1.0
    sections: tuple[MessageSection, ...] = ()
    dense: tuple[Names, ...] = ()


class Dump(_Message, frozen=True, kw_only=True, tag="dump"):
    """A page of a table: its ids here, ascending, beyond `after`. Answer: Dumped."""

    fence: Fence
    table: str
    after: int | None = None


class Fetch(_Message, frozen=True, kw_only=True, tag="fetch"):
    """A server that slots move to asks for the next rows of them. Answer: Fetched, or a refusal.

    `number` counts up from 1; a number is repeated when its answer was lost. `hand_over`: everything that is left, and from then
    on the source takes no pushes until the log has decided.
    """

    fence: Fence
    move: Number
    number: Number
    target: tuple[int, int]  # index and incarnation of the server that asks
    most_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 26)] = 1 << 20
    hand_over: bool = False


class Follow(_Message, frozen=True, kw_only=True, tag="follow"):
    """The log has decided: this is the routing now. From the server that has just taken slots over. Answer: Acked."""

    fence: Fence
    routing: RoutingTable


class Inspect(_Message, frozen=True, kw_only=True, tag="inspect"):
    """How are you? No fence: it changes nothing. Answer: Statistics."""


class Declared(_Message, frozen=True, kw_only=True, tag="declared"):
    """All tables that are declared now."""

    tables: tuple[Table, ...] = ()


class Values(_Message, frozen=True, kw_only=True, tag="values"):
    """Body: for each section the values (keys, width), then for each family of dense arrays its lines (lines, 64).

    `pull`: a number under which the server remembers the keys for a while, so that the push need not send them again.
    """

    version: int = 0
    pull: int = -1


class Acked(_Message, frozen=True, kw_only=True, tag="acked"):
    """The batch is in the tables. `repeated`: it was already. `staleness_batches`: applied here since the pull."""

    repeated: bool = False
    staleness_batches: int = 0


class AppliedSets(msgspec.Struct, frozen=True, array_like=True):
    """What some slots have applied: batches by data epoch (P3)."""

    slots: tuple[tuple[int, int], ...]
    batches: dict[int, tuple[tuple[int, int], ...]]


class Fetched(_Message, frozen=True, kw_only=True, tag="fetched"):
    """Rows of moving slots. Body: for each section ids int64 (rows,), then every piece of the rows' state (rows, columns).

    `tables`: declared since the answer before, the first time all. `copied`: every row was sent once; from then on only changed
    ones are, and `left` of them are still to be sent (at least), after so many `rounds` of looking for them. With the hand-over
    come the applied sets, and `closed_before`: earlier data epochs are settled.
    """

    number: Number
    tables: tuple[Table, ...] = ()
    sections: tuple[MessageSection, ...] = ()
    copied: bool = False
    applied: tuple[AppliedSets, ...] = ()
    closed_before: int = 0
    left: Number = 0
    rounds: Number = 0


class Dumped(_Message, frozen=True, kw_only=True, tag="dumped"):
    """Body: ids int64 (rows,) ascending, then values (rows, width). `more`: further pages follow."""

    rows: Number
    more: bool


class ServerStatistics(_Message, frozen=True, kw_only=True, tag="statistics"):
    """Counters since this incarnation was admitted, by name."""

    values: dict[str, float] = {}


class RefusedMessage(_Message, frozen=True, kw_only=True, tag="refused"):
    """Nothing changed. `retry_s` above 0: ask again after this time. `routing`: what the server goes by, when that differs."""

    code: str
    message: str
    retry_s: float = 0.0
    routing: RoutingTable | None = None


Request = Declare | Pull | Push | Dump | Inspect | Fetch | Follow
Reply = Declared | Values | Acked | Dumped | ServerStatistics | Fetched | RefusedMessage

_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Request)
_replies = msgspec.msgpack.Decoder(Reply)
_fetches = msgspec.msgpack.Decoder(Fetch)
_FETCH = _encoder.encode("fetch")  # what follows the first byte of a Fetch: an array that begins with its tag
_PULL = _encoder.encode("pull")


def encode(message: Request | Reply, arrays: list[npt.NDArray[Any]] | None = None) -> list[Buffer]:
    """Return the buffers of a frame."""
    return pack(_encoder.encode(message), arrays or [])


def decode_request(header: Buffer) -> Request:
    """Return a worker's message. Raises BadMessage."""
    return _decode(_requests, header)  # type: ignore[no-any-return]


def asks_for_values(header: Buffer) -> bool:
    """Whether a request is a pull."""
    return bytes(header[1 : 1 + len(_PULL)]) == _PULL


def is_leisurely(header: Buffer) -> bool:
    """Whether a request fetches rows of moving slots before their hand-over."""
    if bytes(header[1 : 1 + len(_FETCH)]) != _FETCH:
        return False
    try:
        return not _fetches.decode(header).hand_over
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def decode_reply(header: Buffer) -> Reply:
    """Return a server's message. Raises BadMessage."""
    return _decode(_replies, header)  # type: ignore[no-any-return]


def _decode(decoder: msgspec.msgpack.Decoder[Any], header: Buffer) -> Any:
    try:
        return decoder.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"the header of a message cannot be read: {error}") from None


def section_of(keys: Keys) -> MessageSection:
    """Return the header's part for some keys."""
    return MessageSection(keys.names, tuple(keys.counts.tolist()))


def wire_keys(keys: Keys, family: Table) -> npt.NDArray[Any]:
    """Return keys as they travel: rows of hashed tables fit 32 bits."""
    return keys.keys.astype(np.uint32) if isinstance(family, Hashed) else keys.keys


def read_keys(section: MessageSection, family: Table, body: BodyReader) -> Keys:
    """Read a section's keys, copied out of the body. Raises BadMessage unless they are distinct and ascending in every table."""
    counts = np.array(section.counts, np.int64)
    if len(counts) != len(section.names) or len(set(section.names)) != len(section.names):
        raise BadMessage("a section's names and counts do not belong together")
    raw = body.read("uint32" if isinstance(family, Hashed) else "int64", (sum(section.counts),))
    keys = raw.astype(np.int64)  # before they are checked: a body in shared memory could still change
    ascends = keys[1:] > keys[:-1]
    bounds = np.cumsum(counts)[:-1] - 1  # between two tables keys may descend
    ascends[bounds[(bounds >= 0) & (bounds < len(ascends))]] = True
    if not ascends.all():
        raise BadMessage(f"keys of {section.names[0]!r} are not ascending")
    return Keys(section.names, counts, keys)
