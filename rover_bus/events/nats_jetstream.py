"""JetStream's API as data: what is sent to `$JS.API.>`, what comes back, and which of our errors its error codes mean.

Fed by nats_bus.py and nats_follow.py with specs and answers; feeds them request bodies, typed answers and exceptions. It speaks
the documented JSON API and imports no client: nats-py's JetStream context brings the traps that docs/design/0002-the-bus.md
lists, the API itself does not. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn

import msgspec

from rover_bus.events.bus import Entry, Headers, Stored
from rover_bus.events.errors import MAKE_ROOM, AccessDenied, BusError, InputError, StreamFull, WrongSequence
from rover_bus.events.streams import FACTS, PROFILES, BucketSpec, StreamSpec
from rover_bus.events.subjects import copied_of_tenant, of_tenant

API = "$JS.API"
EXPECTED_STREAM = "Nats-Expected-Stream"
EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"
TTL = "Nats-TTL"
OPERATION = "KV-Operation"
MARKER = "Nats-Marker-Reason"
STATUS = "Status"
SOURCE = (
    "Nats-Stream-Source"  # `<stream>:<account> <sequence> <filter> <transform> ...`, on what a stream copied
)
START = "opt_start_seq"  # of a source
LEAST_TTL_S = 1.0  # the server's least time to live

WRONG_SEQUENCE = frozenset({10071, 10070, 10164})
# Insufficient resources (account, server, memory, storage), store failed (limits reached, disk full), message limits reached.
FULL = frozenset({10002, 10023, 10028, 10047, 10077, 10122})
# A cluster that has no leader now, of all or of this stream, says so and does nothing.
ELECTING = frozenset({10008, 10009})
NO_MESSAGE = 10037
END_OF_BATCH = "204"  # the status that ends the answers to a direct get of many
NOT_THERE = "503"  # of what no stream answers
PENDING = "Nats-Num-Pending"  # how many more there are
NO_STREAM = 10059
NAME_IN_USE = 10058  # a stream of that name with another configuration
_COPIED = {FACTS: ("rover.job.>", "rover.host.>"), PROFILES: ("rover.profile.>",)}  # of tenants
SUBJECTS_A_PAGE = 100_000  # of an answer that lists subjects
MAX_CONSUMERS = 100_000  # the server allows 1000 where nothing is said, and -1 does not lift that


class ApiError(msgspec.Struct, frozen=True):
    """What the server says when it refuses."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class Delivered(msgspec.Struct, frozen=True):
    stream_seq: int = 0
    consumer_seq: int = 0


class RawMessage(msgspec.Struct, frozen=True):
    """A stored message as the API gives it (`bytes` fields are base64 on the wire)."""

    subject: str
    seq: int
    time: datetime
    data: bytes = b""
    hdrs: bytes = b""


class StreamState(msgspec.Struct, frozen=True):
    last_seq: int = 0
    subjects: dict[str, int] | None = None  # only where a filter asked for them, and found some
    messages: int = 0
    bytes: int = 0


class StoreUsage(msgspec.Struct, frozen=True):
    """Bytes on disk of all streams, and the account's limit; 0: it has none of its own."""

    stored_bytes: int
    limit_bytes: int

    @property
    def share(self) -> float:
        """How much of the limit is stored; 0 where there is none."""
        return self.stored_bytes / self.limit_bytes if self.limit_bytes else 0.0


class ApiAnswer(msgspec.Struct, frozen=True):
    """Any answer of the API: every field that one of our calls reads, and the error instead of it."""

    error: ApiError | None = None
    seq: int = 0
    message: RawMessage | None = None
    name: str = ""
    num_pending: int = 0
    delivered: Delivered = Delivered()
    config: dict[str, Any] = {}
    state: StreamState = StreamState()
    storage: int = 0
    limits: dict[str, Any] = {}


_decoder = msgspec.json.Decoder(ApiAnswer)
encode = msgspec.json.encode


def read_answer(body: bytes) -> ApiAnswer:
    """Decode an answer of the API. Raises BusError when it is none."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise BusError(f"the broker answered something that is no JetStream answer: {error}") from error


def is_electing(answer: ApiAnswer) -> bool:
    """Whether an answer says that nothing was done because there is no leader now."""
    return answer.error is not None and answer.error.err_code in ELECTING


def refuse(error: ApiError, what: str) -> NoReturn:
    """Raise what an API error means, by its code (its text is for people only)."""
    said = f"{error.description} (JetStream error {error.err_code})"
    if error.err_code in WRONG_SEQUENCE:
        raise WrongSequence(f"{what}: {said}: read the tail before going on")
    if error.err_code in FULL:
        raise StreamFull(f"{what}: {said}: nothing was stored. {MAKE_ROOM}")
    if error.err_code == NO_STREAM:
        raise BusError(
            f"{what}: the stream or bucket does not exist: call ensure first (`rover doctor` says what is missing)"
        )
    if error.err_code in ELECTING:
        raise BusError(f"{what}: {said}: its servers choose a leader, repeat it")
    if error.code in (401, 403):
        raise AccessDenied(f"{what}: {said}")
    raise BusError(f"{what}: {said}")


def stream_config(spec: StreamSpec, replicas: int = 1) -> dict[str, Any]:
    """Return the server's configuration of a stream. `replicas`: on so many servers of a cluster it is kept."""
    return {
        **_common(spec.name, spec.subjects, spec.storage, spec.description, replicas),
        "discard": spec.discard,
        "max_age": _ns(spec.max_age_s),
        "max_bytes": spec.max_bytes or -1,
        "max_msgs_per_subject": spec.max_messages_a_subject or -1,
        "duplicate_window": _ns(spec.dedupe_window_s),
    }


def copying_config(
    spec: StreamSpec, tenants: Iterable[str], replicas: int = 1, starts: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return the configuration of the control account's stream that holds what those of these tenants hold, under their names.

    `starts`: by tenant, the sequence of its stream from which copies are made where the server does not know what it copied: it
    knows a stream by when that was made, and one that was restored is another to it (2.15).
    """
    starts = starts or {}
    sources = [
        {
            "name": spec.name,
            "external": {"api": of_tenant(tenant, API), "deliver": copied_of_tenant(tenant)},
            "subject_transforms": [
                {"src": each, "dest": of_tenant(tenant, each)} for each in _COPIED[spec.name]
            ],
            **({START: starts[tenant]} if starts.get(tenant) else {}),
        }
        for tenant in tenants
    ]
    return {**stream_config(spec, replicas), "sources": sources}


def read_starts(present: dict[str, Any], tenants: Iterable[str]) -> dict[str, int]:
    """Return the starts that a present configuration has for these tenants, as `copying_config` takes them."""
    of = {of_tenant(tenant, API): tenant for tenant in tenants}
    return {
        of[source["external"]["api"]]: int(source[START])
        for source in present.get("sources") or ()
        if source.get(START) and source.get("external", {}).get("api") in of
    }


def copied_sequence(headers: Headers) -> int:
    """Return the sequence that a copied message had in the stream that it was copied from; 0 for one that was not copied."""
    try:
        return int(headers[SOURCE].split(" ")[1])
    except (KeyError, IndexError, ValueError):
        return 0


def bucket_config(spec: BucketSpec, replicas: int = 1) -> dict[str, Any]:
    """Return the server's configuration of a bucket, readable by every KV client.

    Without `subject_delete_marker_ttl`: with markers, reads after an expiry are wrong in nats-py.
    """
    return {
        **_common(bucket_stream(spec.name), [f"$KV.{spec.name}.>"], spec.storage, spec.description, replicas),
        "discard": "new",
        "max_msgs_per_subject": 1,
        "duplicate_window": _ns(120),
        "deny_delete": True,
        "allow_rollup_hdrs": True,
        "allow_msg_ttl": spec.expires,
    }


def bucket_stream(bucket: str) -> str:
    return f"KV_{bucket}"


def compare(wanted: dict[str, Any], present: dict[str, Any] | None) -> list[str]:
    """Return what differs between a wanted and a present configuration, one line each, with what to do."""
    if present is None:
        return [
            f"{wanted['name']} is missing: a Brain or a daemon makes it at its next start, empty; `rover restore` brings back "
            "what it held"
        ]
    return [
        f"{wanted['name']}: {key} is {present.get(key)!r}, should be {value!r}: the owner of the account changes it "
        f"back (`nats stream edit {wanted['name']}`)"
        for key, value in wanted.items()
        if _absent_as_zero(present.get(key)) != _absent_as_zero(value)
    ]


def read_stored(raw: RawMessage) -> Stored:
    return Stored(raw.seq, raw.subject, raw.data, read_headers(raw.hdrs), int(raw.time.timestamp() * 1000))


def read_direct(headers: Headers, body: bytes, what: str) -> Stored | None:
    """Return what a direct get was answered with; None when there is no message. Raises BusError for any other refusal."""
    status = headers.get(STATUS, "")
    if status == "404":
        return None
    if status or "Nats-Sequence" not in headers:
        raise BusError(f"{what}: the broker answered {status or 'something that is no stored message'}")
    time = datetime.fromisoformat(re.sub(r"\.(\d{0,6})\d*", r".\1", headers["Nats-Time-Stamp"]))
    subject, sequence = headers["Nats-Subject"], int(headers["Nats-Sequence"])
    return Stored(sequence, subject, body, dict(headers), int(time.timestamp() * 1000))


def read_entry(bucket: str, stored: Stored) -> Entry:
    """Turn a stored message of a bucket into its entry; deletions have no value."""
    removed = OPERATION in stored.headers or MARKER in stored.headers
    key = stored.subject.removeprefix(f"$KV.{bucket}.")
    value = None if removed else stored.body
    return Entry(key, value, stored.sequence, expires=not removed and TTL in stored.headers)


def source_sequence(headers: Headers) -> int:
    """Return the number of a copied message in the stream that it was copied from; 0 of one that was not copied."""
    words = headers.get(SOURCE, "").split(" ")
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0


def read_headers(block: bytes) -> dict[str, str]:
    """Decode a header block as the API gives it (`NATS/1.0`, then a line each)."""
    pairs = (line.partition(":") for line in block.decode(errors="replace").split("\r\n")[1:])
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def write_headers(headers: Headers, *, stream: str, expected_last: int | None = None) -> dict[str, str]:
    """Return a copy of the headers with JetStream's own: clients change what they are given."""
    written = {**headers, EXPECTED_STREAM: stream}
    if expected_last is not None:
        written[EXPECTED_LAST] = str(expected_last)
    return written


def write_ttl(ttl_s: float) -> str:
    """Return a time to live in the server's form. Raises InputError below its least, 1 s."""
    if ttl_s < LEAST_TTL_S:
        raise InputError(f"a time to live of {ttl_s} s is too short: the broker keeps 1 s at least")
    return f"{round(ttl_s * 1000)}ms"


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s|)")
_UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "": 1.0}


def read_ttl(text: str) -> float | None:
    """Read a time to live in the server's form, in seconds; None when there is none."""
    parts = _DURATION.findall(text)
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts) if parts else None


class Ack:
    """Where a delivered message stands, from its reply subject.

    `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<count>.<stream seq>.<consumer seq>.<time ns>.<pending>[.<random>]`
    """

    __slots__ = ("consumer_sequence", "pending", "stream_sequence", "time_ms")

    def __init__(self, reply: str) -> None:
        tokens = reply.split(".")
        first = 5 if len(tokens) == 9 else 7
        self.stream_sequence = int(tokens[first])
        self.consumer_sequence = int(tokens[first + 1])
        self.time_ms = int(tokens[first + 2]) // 1_000_000
        self.pending = int(tokens[first + 3])


def consumer_config(subjects: list[str], **options: Any) -> dict[str, Any]:
    """Return the configuration of a reader that is never acked and leaves no trace."""
    filters = {"filter_subject": subjects[0]} if len(subjects) == 1 else {"filter_subjects": subjects}
    return {
        "ack_policy": "none",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": _ns(5),
        **filters,
        **options,
    }


def heartbeat(seconds: float) -> dict[str, Any]:
    return {"idle_heartbeat": _ns(seconds), "flow_control": True}


def _common(
    name: str, subjects: Iterable[str], storage: str, description: str, replicas: int
) -> dict[str, Any]:
    return {
        "name": name,
        "subjects": list(subjects),
        "storage": storage,
        "description": description,
        "retention": "limits",
        "max_consumers": MAX_CONSUMERS,
        "num_replicas": replicas,
        "allow_direct": True,
    }


def _ns(seconds: float) -> int:
    return int(seconds * 1_000_000_000)


def _absent_as_zero(value: object) -> object:
    return value if value not in (None, False, "", 0) else 0
