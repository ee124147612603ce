"""Any bytes to JSON, without a schema: `rover decode`, and every command that shows what is on the bus.

Fed by `nats sub --translate "rover decode"` (one body on stdin) and `nats sub --dump=-` (NUL-separated JSON objects with the body
in base64). It is apart, and imports msgpack and little else, because the nats CLI starts it once a message. It reads
events of any release, and what it cannot read it describes: foreign bytes are no error.
"""

from __future__ import annotations

import json
from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64

import msgpack

TYPE_CHECKING = False  # typing itself would cost a quarter of the start
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

MAX_BODY_BYTES = 8 << 20  # the broker's own limit of a message
MAX_DUMP_BYTES = 2 * MAX_BODY_BYTES  # base64 and headers around it
MAX_DEPTH = 64
SHOWN_BYTES = 48
READ_BYTES = 1 << 16


def describe(body: bytes) -> dict[str, Any]:
    """Return what a body says as JSON can say it: an event as its map, a packed batch with its records, the rest as what it is.

    Never raises: foreign bytes come back as {"foreign": what they are, "size_bytes", "starts_with"}.
    """
    if len(body) > MAX_BODY_BYTES:
        return _foreign(body, f"oversized: at most {MAX_BODY_BYTES} bytes are read")
    if not body:
        return {"foreign": "empty", "size_bytes": 0}
    try:
        value = _unpack(body)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        return _describe_text(body) or _foreign(body, f"not msgpack: {error or type(error).__name__}")
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        return {str(key): _plain(item) for key, item in value.items()}
    return _describe_text(body) or _foreign(body, f"msgpack, but {type(value).__name__} without a type")


def _unpack(body: bytes) -> Any:
    return msgpack.unpackb(
        body,
        raw=False,
        strict_map_key=False,
        unicode_errors="replace",
        max_str_len=MAX_BODY_BYTES,
        max_bin_len=MAX_BODY_BYTES,
        max_array_len=1 << 20,
        max_map_len=1 << 16,
        max_ext_len=1 << 16,
    )


def _describe_text(body: bytes) -> dict[str, Any] | None:
    """Return JSON of others (buckets and services speak it) as the value it is, None for anything else."""
    if body[:1] not in (b"{", b"["):
        return None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return {"foreign": "json", "size_bytes": len(body), "value": _plain(value)}


def _foreign(body: bytes, what: str) -> dict[str, Any]:
    start = body[:SHOWN_BYTES]
    text = start.decode("ascii", "replace")
    return {
        "foreign": what,
        "size_bytes": len(body),
        "starts_with": text if text.isprintable() and "\ufffd" not in text else start.hex(" "),
    }


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value in JSON's types: bytes in base64 as in schemas/, numbers that JSON lacks by name, bounded in depth."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if -1e400 < value < 1e400 else str(value)
    if isinstance(value, bytes):
        return b2a_base64(value, newline=False).decode()
    if depth >= MAX_DEPTH:
        return "..."
    if isinstance(value, dict):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    return str(value)


def to_line(value: Any) -> str:
    """Return one line of JSON that any terminal and any program can take (lone surrogates are escaped, never raised)."""
    line = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    return line.encode("utf-8", "backslashreplace").decode()


# -- the command -------------------------------------------------------------------------------------------------------


def run(source: BinaryIO, sink: BinaryIO) -> None:
    """Decode what comes on `source` until it ends: one body, or a dump of many, each written as one line as soon as it is whole."""
    first = source.read1(READ_BYTES)  # type: ignore[attr-defined]
    if first[:1] == b"{":  # no event of ours begins so: a map is 0x80 to 0x8f, 0xde or 0xdf
        for described in _decode_dump(first, source):
            _write(sink, described)
    else:
        _write(sink, describe(first + source.read(MAX_BODY_BYTES + 1 - len(first))))


def _write(sink: BinaryIO, described: dict[str, Any]) -> None:
    sink.write(to_line(described).encode() + b"\n")
    sink.flush()


def _decode_dump(piece: bytes, source: BinaryIO) -> Iterator[dict[str, Any]]:
    pending = bytearray()
    while piece:
        pending += piece
        if b"\0" in piece:
            *whole, rest = bytes(pending).split(b"\0")
            yield from map(_describe_dumped, whole)
            pending = bytearray(rest)
        if len(pending) > MAX_DUMP_BYTES:
            yield _foreign(bytes(pending), "oversized: no end of this message in sight")
            return
        piece = source.read1(READ_BYTES)  # type: ignore[attr-defined]
    if pending.strip():
        yield _describe_dumped(bytes(pending))


def _describe_dumped(text: bytes) -> dict[str, Any]:
    """Return one message of a dump, its body decoded under `body`; what is no dump is described as the body it is."""
    try:
        message = json.loads(text)
        data = message["Data"]
        subject = message["Subject"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return describe(text)
    try:
        body = a2b_base64(data or "")
    except (NotBase64, ValueError, TypeError):
        return _foreign(text, "a dump whose Data is not base64")
    headers = _plain(message.get("Header") or {})
    return {"subject": _plain(subject), "headers": headers, "body": describe(body)}
