"""Streams and buckets as data: one file says what JetStream keeps, and for how long. `rover doctor` says what differs.

A handful for all jobs, the job in the subject. Created idempotently by the adapters (`ensure`). Durability in writing: the
log and the facts must survive a power cut where the server runs with `sync: always` (`rover up --sync always`); with the
broker's default they survive the death of the broker's process, and up to two minutes may be lost with the machine
(protocol P21 says what happens then). Leadership and presence live in memory: they are true only while renewed (P20).
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
POSITIONS = "ROVER_POSITIONS"
PURGED = "ROVER_PURGED"
SETTINGS = "ROVER_SETTINGS"
TENANTS = "ROVER_TENANTS"
OF_THE_CLUSTER = "cluster"  # its key, written by the Brain's service
FORMAT_KEY = "format"  # and this one the format that the stack writes (formats.py)
TIMELINE_KEY = "timeline"  # and this one which timeline it is in, since a restore (timelines.py)
JOINED = "joined"  # and below this one what each token to join was used for, written by the registrar

STREAMS: tuple[StreamSpec, ...] = (
    StreamSpec(
        name=LOG,
        subjects=["rover.job.*.log", "rover.brain.log"],
        discard="new",
        description="decision logs, one writer a subject; what a snapshot covers is kept for retention.log_age",
    ),
    StreamSpec(
        name=FACTS,
        subjects=["rover.job.*.*.*", "rover.host.*.*", "rover.cluster.*"],
        discard="new",
        description="readable facts of jobs, hosts and the cluster; FACTS_KEPT says for how long",
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
    BucketSpec(
        name=LEADERS, storage="memory", expires=True, description="the master that leads a job, and its term"
    ),
    BucketSpec(name=PRESENCE, storage="memory", expires=True, description="which hosts are there"),
    BucketSpec(name=ROUTING, description="which server holds which slots of a job"),
    BucketSpec(
        name=POSITIONS,
        storage="memory",
        expires=True,
        description="how far each living follower of a stream is",
    ),
    BucketSpec(name=PURGED, description="below which sequence a subject of FACTS was purged"),
    BucketSpec(name=SETTINGS, description="what was set for the processes and jobs of the cluster, by name"),
    BucketSpec(name=TENANTS, description="tenants beside `default`: the public keys of their accounts"),
)

OF_CONTROL = (PRESENCE, SETTINGS, TENANTS)  # buckets of the control account alone
LOOKED_UP = (PRESENCE, SETTINGS)  # buckets of the control account in which tenants look
OF_TENANT = tuple(each for each in BUCKETS if each.name not in OF_CONTROL)


class Kept(Checked, frozen=True, kw_only=True):
    """How long facts of a kind stay: the newest so many of a job or a host, or by age. Neither: for ever.

    The newest one of a subject always stays: a follower looks there whether a power cut took something (P21).
    """

    newest: Count = 0
    age_s: Seconds = 0


FOR_EVER = Kept()
A_FEW, MANY = Kept(newest=100), Kept(newest=1000)
A_MONTH, A_WEEK = Kept(age_s=30 * 86_400.0), Kept(age_s=7 * 86_400.0)

# By `Parsed.noun_verb`. What says what a job was and what became of its samples is kept as long as the job; what is said again and
# again, and counts only as long as it is the newest, is kept in numbers; what hosts say of single processes and parts, by age.
FACTS_KEPT: dict[str, Kept] = {
    **dict.fromkeys(
        (
            "job.submitted",
            "job.opened",
            "job.stop_requested",
            "job.ended",
            "job.restored",
            "job.forgotten",
            "dataset.registered",
            "batch.dead_lettered",
            "rows.skipped",
            "ledger.rewound",
            "epoch.opened",
            "epoch.closed",
            "plan.mode_set",
            "cluster.mode_set",
            "cluster.quota_set",
            "cluster.freeze_set",
            "cluster.freeze_lifted",
        ),
        FOR_EVER,
    ),
    **dict.fromkeys(
        (
            "job.reported",
            "job.paused",
            "job.resumed",
            "job.pause_requested",
            "job.resume_requested",
            "master.elected",
            "members.desired",
            "members.displaced",
            "members.unheard",
            "member.admitted",
            "member.lost",
            "member.left",
            "worker.failed",
            "group.formed",
            "group.broken",
            "commit.refused",
            "lease.speculated",
            "result.reported",
            "routing.changed",
            "rollout.opened",
            "rollout.closed",
            "slots.move_requested",
            "slots.moved",
            "move.refused",
            "move.failed",
            "plan.requested",
            "plan.proposed",
            "plan.checked",
            "plan.refused",
            "plan.withheld",
            "plan.approved",
            "plan.rejected",
            "plan.applied",
            "plan.settled",
            "plan.measured",
            "plan.kept",
            "plan.rolled_back",
            "straggler.found",
            "straggler.recovered",
            "incident.opened",
            "incident.closed",
            "checkpoint.opened",
            "checkpoint.staged",
            "checkpoint.redundant",
            "checkpoint.ready",
            "checkpoint.superseded",
            "checkpoint.failed",
            "checkpoint.none_usable",
            "checkpoint.requested",
            "checkpoint.declined",
            "rule.switched_off",
            "rule.switched_on",
            "part.staged",
            "server.restored",
            "host.service_ended",
            "host.slow",
            "host.recovered",
        ),
        MANY,
    ),
    **dict.fromkeys(
        (
            "job.forecast",
            "dataset.refused",
            "checkpoint.persist_ordered",
            "checkpoint.manifest_ordered",  # each holds a ledger
            "checkpoint.search_ordered",
            "host.registered",
            "host.storage_opened",
            "host.leaving",
            "host.left",
        ),
        A_FEW,
    ),
    **dict.fromkeys(
        (
            "host.started",
            "host.exited",
            "host.checkpoint_damaged",
            "host.turn_failed",
            "host.program_refused",
            "host.adjust_refused",
            "host.member_stalled",
            "host.member_taken",
            "host.program_mended",
            "host.spare_failed",
            "host.spare_mended",
        ),
        A_MONTH,
    ),
    **dict.fromkeys(
        (
            "host.part_digested",
            "host.part_mirrored",
            "host.part_persisted",
            "host.part_failed",
            "host.manifest_written",
            "host.storage_searched",
            "host.storage_blocked",
        ),
        A_WEEK,
    ),
}
