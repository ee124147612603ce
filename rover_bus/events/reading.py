"""A stored fact as it may be believed: its subject, its body and its headers must say one thing.

Used by every reader of FACTS: the shell, the outbox of a new leader, daemons, commands. Subjects are trusted, because the broker
grants rights by subject; bodies are checked against them. A fact of a tenant's job is named after both (tenancy.py). A fact that a
log makes bears in its headers the id of its place there and a digest of its body. What does not fit raises BadMessage: its reader
passes it over, counts it, and goes on.
"""

from __future__ import annotations

import xxhash

from rover_bus.events.bus import Stored
from rover_bus.events.checkpoint_facts import CheckpointRequested
from rover_bus.events.codec import decode_any
from rover_bus.events.envelope import read_envelope
from rover_bus.events.errors import BadMessage, NameRefused
from rover_bus.events.fact import Fact, JobFact, MasterFact, Position
from rover_bus.events.facts import (
    BrainFact,
    JobForgotten,
    JobPauseRequested,
    JobResumeRequested,
    JobStopRequested,
    JobSubmitted,
    PlanApproved,
    PlanModeSet,
    PlanProposed,
    PlanRejected,
    PlanRequested,
    SlotsMoveRequested,
)
from rover_bus.events.host_facts import BrainHostFact, ClusterFact, HostFact
from rover_bus.events.subjects import Parsed, name, parse
from rover_bus.events.tenancy import of_control

FAMILIES: dict[str, type[Fact]] = {"fact": JobFact, "host": HostFact, "cluster": ClusterFact}
# Facts of a job that people (or the Brain) state. Every other one comes out of the log of the job's master, or of the Brain.
ASKED: tuple[type[Fact], ...] = (
    JobSubmitted,
    JobStopRequested,
    JobPauseRequested,
    JobResumeRequested,
    PlanProposed,
    PlanRequested,
    PlanApproved,
    PlanRejected,
    PlanModeSet,
    SlotsMoveRequested,
    JobForgotten,
    CheckpointRequested,
)
BRAIN = "brain"  # the origin of the Brain's facts, in their ids
NAMES = ("job", "uid", "part")  # of a host's fact: they become paths


def read_fact(stored: Stored) -> Fact:
    """Return the fact that is stored. Raises BadMessage, saying what does not fit."""
    at = parse(stored.subject)
    base = FAMILIES.get(at.family) if at is not None else None
    if at is None or base is None:
        raise BadMessage(f"{stored.subject} is no subject of a fact")
    fact = decode_any(stored.body)
    if not isinstance(fact, Fact) or not isinstance(fact, base) or fact.kind() != at.kind:
        raise BadMessage(f"{fact.__struct_config__.tag} on {stored.subject}")
    try:
        _check_names(fact, at)
    except NameRefused as error:
        raise BadMessage(f"on {stored.subject}: {error}") from None
    _check_origin(fact, stored)
    return of_control(fact, at.tenant)


def event_id(origin: str, timeline: int, term: int, position: Position) -> str:
    """Return the id of a fact that a log makes: its place there."""
    return f"{origin}/{timeline}/{term}/{position[0]}/{position[1]}"


def digest(body: bytes) -> str:
    """Return what the headers of a fact out of a log say of its body."""
    return xxhash.xxh3_64_hexdigest(body)


def _check_names(fact: Fact, at: Parsed) -> None:
    if isinstance(fact, JobFact):
        of = fact.spec.name if isinstance(fact, JobSubmitted) else fact.job
        if {name(at.job, "job"), of} != {fact.job}:
            raise BadMessage(f"a fact of job {fact.job!r} ({of!r}) on a subject of {at.job!r}")
        if uid := getattr(fact, "uid", ""):
            name(uid, "uid")
    elif isinstance(fact, HostFact):
        if name(at.host, "host") != fact.host:
            raise BadMessage(f"a fact of host {fact.host!r} on a subject of {at.host!r}")
        for each in NAMES:
            if value := getattr(fact, each, ""):
                name(value, each)


def _check_origin(fact: Fact, stored: Stored) -> None:
    if not isinstance(fact, JobFact | BrainHostFact):
        return
    brain = getattr(fact, "brain_position", None)
    asks_for_brain = bool(getattr(fact, "brain_term", 0)) and not isinstance(fact, MasterFact)
    of_brain = isinstance(fact, BrainFact | BrainHostFact) or brain is not None or asks_for_brain
    origin, place = BRAIN, brain
    if isinstance(fact, JobFact) and not of_brain:
        origin, place = fact.job, fact.position
    if place is None and not of_brain and isinstance(fact, ASKED):
        return
    envelope = read_envelope(stored.headers)
    timeline = (
        envelope.id.split("/")[1] if envelope.id.count("/") == 4 else ""
    )  # the log's own: not known here
    if not timeline.isdecimal() or place is None:
        raise BadMessage(f"{fact.tag()} on {stored.subject} does not come out of a log")
    if envelope.id != event_id(origin, int(timeline), envelope.term, place):
        raise BadMessage(f"{fact.tag()} on {stored.subject} does not stand where its id {envelope.id} says")
    if envelope.digest != digest(stored.body):
        raise BadMessage(f"{fact.tag()} on {stored.subject} is not what was published as {envelope.id}")
