"""What an operator may set for the processes of a cluster: durations and sizes, each with its default, range and reason.

What concerns one job is a key of its job file instead (job.py), and stands in the job's log. Nothing here is: two masters may
differ in it, and no `evolve` whose state a log rebuilds reads it. Filled by cli/settings.py from the environment, `rover up --set`
and these defaults; read by the services that cli/serve.py puts together.
"""

from __future__ import annotations

from typing import Annotated

from rover_bus.events.invariants import Checked, between


class LeadershipSettings(Checked, frozen=True, kw_only=True):
    """How long a leader may be silent before another one leads."""

    master_ttl_s: Annotated[
        float,
        between(1, 60, "a standby master leads after it; 15 s or more where the broker is replicated"),
    ] = 1.0
    brain_ttl_s: Annotated[
        float, between(1, 60, "nothing waits for a Brain, and renewals are cheaper the longer it is")
    ] = 3.0


class HostSettings(Checked, frozen=True, kw_only=True):
    """How a host is noticed, and what becomes of members without a daemon."""

    presence_s: Annotated[
        float, between(1, 120, "a host whose daemon is silent for longer is not counted")
    ] = 3.0
    sample_every_s: Annotated[
        float,
        between(
            0, 60, "between two samples of a host; it is silent when two in a row are missed; 0 is never"
        ),
    ] = 5.0
    notice_s: Annotated[
        float, between(0, 600, "what the platform grants a host that is taken away: a last cut must fit in")
    ] = 10.0
    orphan_after_s: Annotated[
        float, between(1, 3600, "members whose daemon is gone drain after it; a daemon restarts in seconds")
    ] = 30.0
    first_member_uid: Annotated[
        int,
        between(
            0, (1 << 32) - 4, "above 0 each run of a job is a user of its own, from this uid on; needs root"
        ),
    ] = 0
    member_uids: Annotated[
        int, between(2, 1 << 24, "so many uids: runs whose members or files are on one host, and one more")
    ] = 65_536
    slow_memory_s: Annotated[
        float,
        between(10, 7 * 86_400, "what members showed of a slow host halves in it; then it is used again"),
    ] = 3600.0


class RestartSettings(Checked, frozen=True, kw_only=True):
    """How members that end are started again."""

    restart_pause_s: Annotated[
        float,
        between(
            0.01,
            60,
            "the pause after a first end of a master, or of what its memory limit killed, doubled at each one in a row",
        ),
    ] = 0.1
    most_restart_pause_s: Annotated[
        float, between(0.1, 600, "the longest pause: a broken image costs little, a mended one starts soon")
    ] = 5.0
    healthy_after_s: Annotated[
        float, between(1, 3600, "an incarnation that lasted so long clears the pause")
    ] = 10.0


class StorageSettings(Checked, frozen=True, kw_only=True):
    """How patient a host is with the storage of checkpoints."""

    patience_s: Annotated[
        float, between(1, 3600, "a storage that refuses a part for so long fails its checkpoint")
    ] = 60.0
    most_retry_s: Annotated[
        float, between(1, 600, "the longest pause between two tries, which begin a second apart")
    ] = 10.0


class RetentionSettings(Checked, frozen=True, kw_only=True):
    """What the broker keeps."""

    log_age_s: Annotated[
        float, between(0, 10 * 366 * 86_400, "log records behind a snapshot: any kept moment can be replayed")
    ] = 7 * 86_400.0
    log_size_bytes: Annotated[
        int, between(0, 1 << 44, "the same by size, of one job; a lease takes 245 bytes; the smaller holds")
    ] = 256 << 20
    snapshot_batches: Annotated[
        int, between(1, 1 << 20, "batches of a log between two snapshots: what a take-over reads at most")
    ] = 2000
    jobs_age_s: Annotated[
        float, between(0, 10 * 366 * 86_400, "a job is forgotten so long after its end; 0 is never")
    ] = 0.0
    store_size_bytes: Annotated[
        int, between(0, 1 << 50, "the job that ended first is forgotten above it; 0 is half of the store")
    ] = 0


class SizingSettings(Checked, frozen=True, kw_only=True):
    """What the Brain sizes jobs for."""

    fair_share: Annotated[
        float,
        between(
            -10, 0, "0: throughput, short jobs first; below: this power mean of gains over the fair share"
        ),
    ] = 0.0


class StackSettings(Checked, frozen=True, kw_only=True):
    """How `rover down` and Ctrl-C end a stack."""

    last_checkpoints_s: Annotated[
        float, between(1, 3600, "`rover down` waits so long for last checkpoints of all jobs")
    ] = 30.0
    down_s: Annotated[
        float, between(5, 3600, "`rover down` waits so long for the stack's processes to end")
    ] = 60.0
    replicas: Annotated[
        int,
        between(0, 5, "servers that keep each stream; 0 is three where the broker is a cluster, else one"),
    ] = 0


class Settings(Checked, frozen=True, kw_only=True):
    """The whole tree. A name is `table.key`, without the unit: `retention.log_age`."""

    leadership: LeadershipSettings = LeadershipSettings()
    hosts: HostSettings = HostSettings()
    members: RestartSettings = RestartSettings()
    storage: StorageSettings = StorageSettings()
    retention: RetentionSettings = RetentionSettings()
    stack: StackSettings = StackSettings()
    sizing: SizingSettings = SizingSettings()


DEFAULTS = Settings()
UNITS = ("_s", "_bytes")


def key_of(field: str) -> str:
    """Return how a field is written by people: without its unit."""
    return next((field.removesuffix(unit) for unit in UNITS if field.endswith(unit)), field)


def changed(settings: Settings) -> dict[str, float]:
    """Return what differs from the defaults, by name (`hosts.presence`), in seconds or bytes."""
    found: dict[str, float] = {}
    for table in Settings.__struct_fields__:
        ours, default = getattr(settings, table), getattr(DEFAULTS, table)
        for field in ours.__struct_fields__:
            if (value := getattr(ours, field)) != getattr(default, field):
                found[f"{table}.{key_of(field)}"] = value
    return found
