"""Facts that nobody should have stored: mutated, spliced, hostile in one value, on the subjects of every kind of fact.

Used by the fuzz of facts in the simulation and on a real stack. What is drawn comes from one generator: a seed names it for ever.
Facts in due form by which people command a job to end or to rest are left out: rights are the broker's affair.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import msgpack

from rover_bus.cli.samples import sample
from rover_bus.events.bus import Stored
from rover_bus.events.checkpoint_facts import CHECKPOINT_FACTS
from rover_bus.events.codec import encode
from rover_bus.events.errors import BadMessage
from rover_bus.events.facts import FACTS, Fact, JobPauseRequested, JobStopRequested, PlanModeSet
from rover_bus.events.host_facts import ClusterFact, ClusterModeSet, HostFact, QuotaSet
from rover_bus.events.reading import ASKED, read_fact
from rover_bus.events.subjects import cluster_fact, host_fact, job_fact

KINDS: tuple[type[Fact], ...] = (*FACTS, *CHECKPOINT_FACTS)
STATED = tuple(
    cls for cls in KINDS if issubclass(cls, HostFact | ClusterFact) or cls in ASKED
)  # not out of a log
OF_A_LOG = ("position", "brain_position", "brain_term")
COMMANDS = (JobStopRequested, JobPauseRequested, ClusterModeSet, PlanModeSet, QuotaSet)
NUMBERS = [0, 1, 2, 3, 7, -1, 1 << 31, 1 << 40, 1 << 53, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1]
VALUES: list[Any] = [
    *NUMBERS,
    1e308,
    float("nan"),
    float("inf"),
    True,
    None,
    "",
    "x" * 300,
    "../..",
    b"\0",
    [],
    [[]],
    {},
]
VALUES += [[-1], ["a"], [1 << 62], {"a": 1}, "h1", "ps-0", "worker-0"]


def mutant(chance: random.Random, seen: Mapping[str, Stored], job: str, host: str) -> Stored:
    """Return a fact of any kind, made of one that was stored (by its tag) or of its example, as nobody should store it."""
    while True:
        cls = chance.choice(STATED if chance.random() < 0.5 else KINDS)
        known = seen.get(cls.tag())
        made = _mutate(chance, cls, known, seen, job, host)
        if not _commands(made):
            return made


def _mutate(
    chance: random.Random,
    cls: type[Fact],
    known: Stored | None,
    seen: Mapping[str, Stored],
    job: str,
    host: str,
) -> Stored:
    subject, body, headers = (
        (known.subject, known.body, dict(known.headers)) if known else (*_example(cls, job, host), {})
    )
    if cls in ASKED and chance.random() < 0.7:
        body = _as_a_person_states_it(body)
    body = chance.choice(MUTATIONS)(chance, body, [stored.body for stored in seen.values()] or [body])
    if chance.random() < 0.2:
        subject = chance.choice([stored.subject for stored in seen.values()] or [subject])
    headers = (
        {key: value for key, value in headers.items() if not key.startswith("Nats-")}
        if chance.random() < 0.5
        else {}
    )
    return Stored(0, subject, body, headers)


def _as_a_person_states_it(body: bytes) -> bytes:
    try:
        plain = msgpack.unpackb(body)
    except ValueError:  # of a mutant that was stored before
        return body
    if not isinstance(plain, dict):
        return body
    packed: bytes = msgpack.packb({key: value for key, value in plain.items() if key not in OF_A_LOG})
    return packed


def _example(cls: type[Fact], job: str, host: str) -> tuple[str, bytes]:
    fact: Any = sample(cls)
    if isinstance(fact, HostFact):
        fact = fact.replace(host=host)
        subject = host_fact(host, fact.kind())
    elif isinstance(fact, ClusterFact):
        subject = cluster_fact(fact.kind())
    else:
        subject = job_fact(job, fact.kind())
    return subject, encode(fact.replace(job=job) if hasattr(fact, "job") else fact)


def _commands(made: Stored) -> bool:
    try:
        return isinstance(read_fact(made), COMMANDS)
    except BadMessage:
        return False


def _as_it_is(chance: random.Random, body: bytes, others: list[bytes]) -> bytes:
    return body


def _cut_short(chance: random.Random, body: bytes, others: list[bytes]) -> bytes:
    return body[: chance.randrange(len(body))]


def _flip(chance: random.Random, body: bytes, others: list[bytes]) -> bytes:
    flipped = bytearray(body)
    for _ in range(chance.randint(1, 4)):
        flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
    return bytes(flipped)


def _splice(chance: random.Random, body: bytes, others: list[bytes]) -> bytes:
    other = chance.choice(others)
    return body[: chance.randrange(len(body))] + other[chance.randrange(len(other)) :]


def _change_a_value(chance: random.Random, body: bytes, others: list[bytes]) -> bytes:
    plain = msgpack.unpackb(body, strict_map_key=False)
    for _ in range(chance.randint(1, 2)):
        place: Any = plain
        while True:
            keys = [key for key in (place if isinstance(place, dict) else range(len(place))) if key != "type"]
            key = chance.choice(keys)
            if not isinstance(place[key], dict | list) or not place[key] or chance.random() < 0.3:
                break
            place = place[key]
        alike = [value for value in VALUES if type(value) is type(place[key])] or VALUES
        place[key] = deepcopy(chance.choice(alike if chance.random() < 0.8 else VALUES))
    packed: bytes = msgpack.packb(plain)
    return packed


Mutation = Callable[[random.Random, bytes, list[bytes]], bytes]
MUTATIONS: list[Mutation] = [_as_it_is, _cut_short, _flip, _splice, *[_change_a_value] * 6]
