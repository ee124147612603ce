"""Streams and buckets as data: one file says what JetStream keeps, and for how long. `rover doctor` says what differs.

A handful for all jobs, the job in the subject. Created idempotently by the adapters (`ensure`). Durability in writing: the
log and the facts must survive a power cut where the server runs with `sync: always` (`rover up --sync always`); with the
broker's default they survive the death of the broker's process, and up to two minutes may be lost with the machine
(protocol P21 says what happens then). Leadership and presence live in memory: they are true only while somebody renews them (P20).
"""

from __future__ import annotations

from typing import Literal

from rover_bus.events.invariants import Checked, Count, Seconds


class StreamSpec(Checked, frozen=True, kw_only=True):
    """One stream. 0 means no limit."""

    name: str
    subjects: list[str]
    storage: Literal["file", "memory"] = "file"
    discard: Literal["old", "new"] = "old"  # new: a full stream refuses, and never drops (P21)
    max_age_s: Seconds = 0
    max_bytes: Count = 0
    max_messages_a_subject: Count = 0
    dedupe_window_s: Seconds = 120
    description: str = ""


class BucketSpec(Checked, frozen=True, kw_only=True):
    """One key-value bucket, history 1. `expires`: entries may carry a time to live."""

    name: str
    storage: Literal["file", "memory"] = "file"
    expires: bool = False
    description: str = ""


LOG = "ROVER_LOG"
FACTS = "ROVER_FACTS"
PROFILES = "ROVER_PROFILES"
LEADERS = "ROVER_LEADERS"
PRESENCE = "ROVER_PRESENCE"
ROUTING = "ROVER_ROUTING"

STREAMS: tuple[StreamSpec, ...] = (
    StreamSpec(
        name=LOG,
        subjects=["rover.job.*.log", "rover.brain.log"],
        discard="new",
        description="decision logs, one writer a subject; kept until a snapshot covers them",
    ),
    StreamSpec(
        name=FACTS,
        subjects=["rover.job.*.*.*", "rover.host.*.*", "rover.cluster.*"],
        discard="new",
        description="readable facts of jobs, hosts and the cluster",
    ),
    StreamSpec(
        name=PROFILES,
        subjects=["rover.profile.>"],
        max_age_s=3600,
        max_bytes=256 << 20,
        description="samples: short-lived, high volume",
    ),
)

BUCKETS: tuple[BucketSpec, ...] = (
    BucketSpec(name=LEADERS, storage="memory", expires=True, description="who leads a job, and its term"),
    BucketSpec(name=PRESENCE, storage="memory", expires=True, description="which hosts are there"),
    BucketSpec(name=ROUTING, description="which server holds which slots of a job"),
)
