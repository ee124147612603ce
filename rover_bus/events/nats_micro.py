"""A NATS micro service in a few counters: what `nats micro ls | info | stats` ask for, and the answers.

Fed by nats_bus.py with requests and their ends; feeds it subjects and JSON bodies (NATS ADR-32, `io.nats.micro.v1`). It is
apart, and not nats-py's `nats.micro`, because our handlers answer later, out of a group commit, and because that one costs
more a request (bench/bus.py). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

QUEUE = "q"  # the protocol's default queue group
ERROR = "Nats-Service-Error"
ERROR_CODE = "Nats-Service-Error-Code"


@dataclass(slots=True)
class Endpoint:
    """One subject of a service and its counters. Times run from arrival to answer."""

    name: str
    subject: str
    requests: int = 0
    errors: int = 0
    processing_ns: int = 0
    last_error: str = ""


@dataclass(slots=True)
class Service:
    """A service as others see it. `started` is RFC 3339."""

    id: str
    name: str
    version: str
    started: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    endpoints: list[Endpoint] = field(default_factory=list)

    def questions(self) -> list[tuple[str, str]]:
        """Return (subject, verb) of everything that may be asked of it."""
        ends = ("", f".{self.name}", f".{self.name}.{self.id}")
        return [(f"$SRV.{verb}{end}", verb) for verb in ("PING", "INFO", "STATS") for end in ends]

    def answer(self, verb: str) -> bytes:
        """Return the JSON body that answers `verb` (PING, INFO, STATS)."""
        body: dict[str, Any] = {
            "type": f"io.nats.micro.v1.{verb.lower()}_response",
            "name": self.name,
            "id": self.id,
            "version": self.version,
            "metadata": dict(self.metadata),
        }
        if verb == "INFO":
            body |= {
                "description": "rover_bus",
                "endpoints": [_info(endpoint) for endpoint in self.endpoints],
            }
        if verb == "STATS":
            body |= {"started": self.started, "endpoints": [_stats(endpoint) for endpoint in self.endpoints]}
        return msgspec.json.encode(body)


def name_endpoints(subjects: Iterable[str]) -> list[Endpoint]:
    """Name endpoints by the last token of their subject, or by all tokens where that is not unique."""
    listed = list(subjects)
    short = [subject.rpartition(".")[2] for subject in listed]
    return [
        Endpoint(name if short.count(name) == 1 else subject.replace(".", "-"), subject)
        for name, subject in zip(short, listed, strict=True)
    ]


def _info(endpoint: Endpoint) -> dict[str, Any]:
    return {"name": endpoint.name, "subject": endpoint.subject, "queue_group": QUEUE, "metadata": {}}


def _stats(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "name": endpoint.name,
        "subject": endpoint.subject,
        "queue_group": QUEUE,
        "num_requests": endpoint.requests,
        "num_errors": endpoint.errors,
        "last_error": endpoint.last_error,
        "processing_time": endpoint.processing_ns,
        "average_processing_time": endpoint.processing_ns // max(1, endpoint.requests),
        "data": {},
    }
