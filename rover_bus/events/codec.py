"""Typed events to bytes and back: msgpack maps with a `type` tag, encoded and validated by msgspec.

Fed by every shell; apart because decoding is where untrusted bytes enter: sizes are bounded, nothing executes, and every
failure is a BadMessage that says what the bytes are. The schema-less reader of any bytes is `rover decode` (cli/decode.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec

from rover_bus.events.checkpoint_facts import CHECKPOINT_FACTS
from rover_bus.events.checkpoints import PartReply, PartRequest
from rover_bus.events.errors import BadMessage, TooLarge, UnknownVersion
from rover_bus.events.facts import FACTS
from rover_bus.events.join_requests import AgentJoinRequest, HostJoinReply, HostJoinRequest
from rover_bus.events.later_forms import LATER, as_read, least_format
from rover_bus.events.log import LogBatch
from rover_bus.events.log_requests import MemberLogReply, MemberLogRequest
from rover_bus.events.profiles import PROFILES, AnyProfile
from rover_bus.events.programs import ProgramReply, ProgramRequest
from rover_bus.events.purge_requests import ForgetRequest, PurgeReply, PurgeRequest
from rover_bus.events.requests import REPLIES, REQUESTS
from rover_bus.events.spare_requests import LoadedReport, SpareQuestion, SpareReply

MAX_BODY_BYTES = 8 << 20
HEADROOM_BYTES = 128 << 10  # what a log and a fact add to the input that they come from

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode

_TYPES: tuple[type[msgspec.Struct], ...] = (
    *FACTS,
    *CHECKPOINT_FACTS,
    *PROFILES,
    *REQUESTS,
    *REPLIES,
    PartRequest,
    PartReply,
    ProgramRequest,
    ProgramReply,
    MemberLogRequest,
    MemberLogReply,
    LoadedReport,
    SpareQuestion,
    SpareReply,
    PurgeRequest,
    ForgetRequest,
    PurgeReply,
    HostJoinRequest,
    AgentJoinRequest,
    HostJoinReply,
    LogBatch,
    *LATER,
)
EVENTS: dict[str, type[msgspec.Struct]] = {str(cls.__struct_config__.tag): cls for cls in _TYPES}
assert len(EVENTS) == len(_TYPES), f"{set(_TYPES) - set(EVENTS.values())}: a later event has this tag too"


@cache
def _decoder(cls: type[Any]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(cls)


def decode(body: bytes, cls: type[T], *, most_bytes: int = MAX_BODY_BYTES) -> T:
    """Decode a body that must be a `cls`. Raises BadMessage (truncated, foreign, oversized, another type) or UnknownVersion.

    `most_bytes`: more than one message holds, where several of our own were put together.
    """
    if len(body) > most_bytes:
        raise BadMessage(f"a message of {len(body)} bytes; at most {most_bytes} are read")
    try:
        return _decoder(cls).decode(body)  # type: ignore[no-any-return, arg-type]
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _explain(body, cls.__name__, error) from None


def decode_batch(body: bytes, batch_type: type[Any], most_bytes: int = MAX_BODY_BYTES) -> Any:
    """Decode a batch of a log, its records in the form that deciders know. Raises BadMessage or UnknownVersion."""
    batch = decode(body, batch_type, most_bytes=most_bytes)
    if least_format(batch.records) == 1:
        return batch
    return msgspec.structs.replace(batch, records=[as_read(each) for each in batch.records])


def check_input(body: bytes, what: str, payload_bytes: int) -> None:
    """Raise TooLarge where no service must decide on a body: the record of it would be refused by the broker for ever.

    `payload_bytes`: the most that the broker takes in one message.
    """
    most = payload_bytes - HEADROOM_BYTES
    if len(body) > most:
        raise TooLarge(
            f"{what} of {len(body)} bytes: at most {most} are taken in; say it in parts, or shorter"
        )


def decode_any(body: bytes) -> msgspec.Struct:
    """Decode a body of any known type by its tag; what a later format writes otherwise, in the form that readers know.

    Raises BadMessage or UnknownVersion.
    """
    tag = type_of(body)
    cls = EVENTS.get(tag)
    if cls is None:
        raise _explain(body, "an event", ValueError(f"unknown type {tag!r}"))
    return as_read(decode(body, cls))


def decode_profile(body: bytes) -> AnyProfile:
    """Decode a sample of any kind in one pass: tens of thousands come a second. Raises BadMessage or UnknownVersion."""
    if len(body) > MAX_BODY_BYTES:
        raise BadMessage(f"a message of {len(body)} bytes; at most {MAX_BODY_BYTES} are read")
    try:
        return _decoder(AnyProfile).decode(body)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _explain(body, "a profile", error) from None


class _Tagged(msgspec.Struct):
    type: str = ""


def type_of(body: bytes) -> str:
    """Return the type tag of a body, "" when it has none. Never raises."""
    if len(body) > MAX_BODY_BYTES:
        return ""
    try:
        return str(_decoder(_Tagged).decode(body).type)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return ""


class _Formatted(msgspec.Struct):
    format: int = 0


def format_of(body: bytes) -> int:
    """Return the format that a log batch says it has, 0 when it says none. Never raises."""
    try:
        return _decoder(_Formatted).decode(body).format if len(body) <= MAX_BODY_BYTES else 0
    except (msgspec.DecodeError, ValueError, RecursionError):
        return 0


def _explain(body: bytes, wanted: str, error: Exception) -> BadMessage:
    tag = type_of(body)
    family, _, _ = tag.rpartition(".v")
    known = [other for other in EVENTS if other.rpartition(".v")[0] == family]
    if family and known and tag not in EVENTS:
        newest = max(known)
        return UnknownVersion(f"{tag} is of a newer release; this one reads {newest}. Upgrade rover-bus")
    if not tag:
        return BadMessage(f"{len(body)} bytes that are no event of rover ({error})")
    return BadMessage(f"{tag!r} where {wanted} was expected, or malformed: {error}")
