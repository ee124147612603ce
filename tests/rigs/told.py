"""Facts as the outbox of a log publishes them, for tests and measurements that speak for a master."""

from __future__ import annotations

from rover_bus.events.codec import encode
from rover_bus.events.fact import JobFact
from rover_bus.events.outbox import FactOut, write_headers
from rover_bus.events.reading import ASKED

HISTORY = 0x0123456789AB


def told(fact: JobFact, number: int, term: int = 1) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a fact out of batch `number` of its job's log; what people state has no place there."""
    if isinstance(fact, ASKED):
        return encode(fact), {}
    place = fact.position or (number, 0)
    body = encode(fact.replace(position=place))
    return body, write_headers(FactOut(fact, place, term), body, fact.job, HISTORY, "master")
