"""The headers of an event: CloudEvents in the NATS binding (binary mode, `ce-*`), plus JetStream's own message id.

The body stays self-describing (its `type` tag), because translators never see headers; headers serve filters and foreign tools.
"""

from __future__ import annotations

from dataclasses import dataclass

from rover_bus.events.bus import MESSAGE_ID, Headers

CONTENT_TYPE = "application/msgpack"


@dataclass(frozen=True, slots=True)
class Envelope:
    """What stands around an event: `id` dedupes, `cause` is the id of the event that caused it, `time` is RFC 3339."""

    id: str
    type: str
    source: str
    time: str = ""
    job: str = ""
    term: int = 0
    cause: str = ""
    traceparent: str = ""
    digest: str = ""  # of the body, where a log makes the event (events/reading.py)

    def headers(self) -> dict[str, str]:
        """Return the headers that carry this envelope; empty fields are left out."""
        pairs = {
            MESSAGE_ID: self.id,
            "ce-specversion": "1.0",
            "ce-id": self.id,
            "ce-type": f"rover.{self.type}",
            "ce-source": self.source,
            "ce-time": self.time,
            "ce-roverjob": self.job,
            "ce-roverterm": str(self.term) if self.term else "",
            "ce-rovercause": self.cause,
            "ce-datacontenttype": CONTENT_TYPE,
            "ce-roverdigest": self.digest,
            "traceparent": self.traceparent,
        }
        return {key: value for key, value in pairs.items() if value}


def read_envelope(headers: Headers) -> Envelope:
    """Take headers apart; what is missing is empty, because foreign publishers may leave anything out."""
    term = headers.get("ce-roverterm", "")
    return Envelope(
        id=headers.get("ce-id", headers.get(MESSAGE_ID, "")),
        type=headers.get("ce-type", "").removeprefix("rover."),
        source=headers.get("ce-source", ""),
        time=headers.get("ce-time", ""),
        job=headers.get("ce-roverjob", ""),
        term=int(term) if term.isdecimal() else 0,
        cause=headers.get("ce-rovercause", ""),
        traceparent=headers.get("traceparent", ""),
        digest=headers.get("ce-roverdigest", ""),
    )
