"""What daemons say of their hosts, what the Brain finds of them, and what people decide for the whole cluster: facts of no one job.

On `rover.host.<host>.<fact>` and `rover.cluster.<fact>`. What a daemon did with staged parts is in checkpoint_facts.py.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from rover_bus.events.fact import Fact, Position
from rover_bus.events.identity import Exit, ExitReason, HostCapacity, Member, Process, Resources
from rover_bus.events.invariants import Bytes, Count, Seconds, Told
from rover_bus.events.job import PlanMode


class HostFact(Fact, frozen=True, kw_only=True):
    """A fact that a daemon states about its host."""

    host: str

    @classmethod
    def kind(cls) -> str:
        """Return `<fact>`: the last token of its subject."""
        return super().kind().removeprefix("host.")


class HostRegistered(HostFact, frozen=True, kw_only=True, tag="host.registered.v1"):
    """A daemon is there and says what its host can give. `daemon` is the incarnation of the daemon.

    `sample_s`: how often its samples may be expected; 0: it takes none, or a release said nothing of it. `settings`: what its
    operator set, by name, in seconds or bytes.
    """

    capacity: HostCapacity
    daemon: str
    processes: list[Process] = []
    jobs: list[str] = []
    sample_s: Seconds = 0.0
    settings: dict[str, float] = {}


class HostStarted(HostFact, frozen=True, kw_only=True, tag="host.started.v1"):
    """A member's process runs. `warm`: it is what a spare became, with its imports behind it."""

    job: str
    process: Process
    adopted: bool = False
    warm: bool = False


class HostExited(HostFact, frozen=True, kw_only=True, tag="host.exited.v1"):
    """A member's process ended: the proof of death (P19). What it used is the kernel's own count, 0 where it could not be asked.

    `last`: later incarnations ended here as well, up to this one; the log that wants `member` has forgotten them (P21).
    """

    job: str
    member: Member
    exit: Exit
    ran_s: Seconds = 0.0
    cpu_s: Seconds = 0.0  # of the whole group
    peak_memory_bytes: Bytes = 0  # the largest resident set of one process of the group
    last: Told = 0


class HostLeaving(HostFact, frozen=True, kw_only=True, tag="host.leaving.v1"):
    """The host will be gone soon, its daemon was told to stop: its workers drain now, its servers after a last cut (S29)."""

    within_s: Seconds = 0.0
    reason: str = ""


class HostTurnFailed(HostFact, frozen=True, kw_only=True, tag="host.turn_failed.v1"):
    """A daemon cannot decide on a job: its members here stay as they are, other jobs go on. Said once an error."""

    job: str
    why: str


class HostProgramRefused(HostFact, frozen=True, kw_only=True, tag="host.program_refused.v1"):
    """The program of a job does not start on this host: no worker of it is started here until it does. It is tried again.

    `path`: what is missing or fails; `problem`: why, the last line of stderr where an import failed. `daemon`: its incarnation.
    """

    job: str
    uid: str
    daemon: str
    path: str
    problem: str


class HostProgramMended(HostFact, frozen=True, kw_only=True, tag="host.program_mended.v1"):
    """A program that did not start on this host would start now."""

    job: str
    uid: str


class HostAdjustRefused(HostFact, frozen=True, kw_only=True, tag="host.adjust_refused.v1"):
    """A running member cannot be given these limits where it runs: it keeps those that it has."""

    job: str
    uid: str
    member: Member
    resources: Resources
    why: str


class HostMemberStalled(HostFact, frozen=True, kw_only=True, tag="host.member_stalled.v1"):
    """A member could not start within its patience: no node takes it, or its image cannot be had. It stays ordered, and starts once
    that has passed, until it is desired no more.

    `reason`: the scheduler's, or the kubelet's, own constant; `why`: its words.
    """

    job: str
    uid: str
    member: Member
    reason: str
    why: str


class HostMemberTaken(HostFact, frozen=True, kw_only=True, tag="host.member_taken.v1"):
    """Another than its job begins to take a member away: it has its grace to leave, and `host.exited` follows.

    `reason`: what its end will be called; `why`: the platform's own constant and words.
    """

    job: str
    uid: str
    member: Member
    reason: ExitReason
    why: str


class HostSpareFailed(HostFact, frozen=True, kw_only=True, tag="host.spare_failed.v1"):
    """A spare of a job ended by itself, or was not ready in time: workers start cold there. Another is made after `again_s`.

    `number`: the spare's, of its daemon. `failures`: so many in a row, since a worker was last what a spare became. `why`: how it
    ended, with the last line that it wrote.
    """

    job: str
    uid: str
    daemon: str
    number: Count
    failures: Count
    why: str
    again_s: Seconds = 0.0


class HostSpareMended(HostFact, frozen=True, kw_only=True, tag="host.spare_mended.v1"):
    """A spare of a job is ready again where some had failed."""

    job: str
    uid: str
    number: Count


class HostServiceEnded(HostFact, frozen=True, kw_only=True, tag="host.service_ended.v1"):
    """The Brain, the daemon or the broker of a host's stack ended without being asked to. Its stack starts it again, and says this
    once the bus is there. `exit` has the signal or the status, and the last lines that it wrote; `ran_s`: how long it had run.
    """

    service: Literal["brain", "daemon", "broker"]
    pid: Count
    exit: Exit
    ran_s: Seconds = 0.0


class HostStorageOpened(HostFact, frozen=True, kw_only=True, tag="host.storage_opened.v1"):
    """What is staged on a host is digested, held and stored from here on. `daemon`: the incarnation that does it.

    `serves_parts_at`: the address (`host:port`) where it serves staged parts to other daemons; "": nowhere yet. `domain`: what
    fails together with this host; "": the host alone. `run`: the uid of the only run for which it does that; "": for all.
    """

    daemon: str
    serves_parts_at: str = ""
    domain: str = ""
    run: str = ""


class HostLeft(HostFact, frozen=True, kw_only=True, tag="host.left.v1"):
    """The daemon goes away on purpose."""

    reason: str = ""


class BrainHostFact(HostFact, frozen=True, kw_only=True):
    """What the Brain found of a host: its term, and its place in the Brain's own log. `share`: of the usual speed."""

    share: float
    brain_term: Count = 0
    brain_position: Position | None = None


class HostSlow(BrainHostFact, frozen=True, kw_only=True, tag="host.slow.v1"):
    """Members of a host are slower than what is usual for their jobs: plans avoid it, and jobs leave it where that pays.

    `members`: those that showed it, as `<job>/<incarnation>`, the slowest first.
    """

    members: list[str] = []


class HostRecovered(BrainHostFact, frozen=True, kw_only=True, tag="host.recovered.v1"):
    """A slow host is as fast as usual again, or what was seen there is too old to count: it is used again."""


class ClusterFact(Fact, frozen=True, kw_only=True):
    """What a person (`by`) decided for the whole cluster. It holds until a person says otherwise, over restarts of everything."""

    @classmethod
    def kind(cls) -> str:
        """Return `<fact>`: the last token of its subject."""
        return super().kind().removeprefix("cluster.")


class ClusterModeSet(ClusterFact, frozen=True, kw_only=True, tag="cluster.mode_set.v1"):
    """What becomes of every job's plans from now on; a job's own mode can only be stricter."""

    mode: PlanMode
    reason: str = ""


class QuotaSet(ClusterFact, frozen=True, kw_only=True, tag="cluster.quota_set.v1"):
    """What the jobs of a tenant may use together from now on; -1: as much as they like."""

    tenant: str
    cores: float = -1.0
    memory_bytes: int = -1
    reason: str = ""


class FreezeSet(ClusterFact, frozen=True, kw_only=True, tag="cluster.freeze_set.v1"):
    """Between two moments no running job is changed by the Brain's own choice; what saves one is still done.

    `begins_s`, `ends_s`: Unix time. `repeats_s`: again and again so many seconds later, 0: once. `tenant` "": jobs of all tenants.
    The same name again replaces it.
    """

    since_format: ClassVar[int] = 2
    freeze: str
    begins_s: float
    ends_s: float
    repeats_s: Seconds = 0.0
    tenant: str = ""
    reason: str = ""


class FreezeLifted(ClusterFact, frozen=True, kw_only=True, tag="cluster.freeze_lifted.v1"):
    """A freeze is over, or never comes."""

    since_format: ClassVar[int] = 2
    freeze: str
    reason: str = ""


# What narrates these (cli/views/narration.py) must know each.
AboutHosts = (
    HostRegistered
    | HostStarted
    | HostExited
    | HostServiceEnded
    | HostLeaving
    | HostTurnFailed
    | HostProgramRefused
    | HostProgramMended
    | HostAdjustRefused
    | HostMemberStalled
    | HostMemberTaken
    | HostSpareFailed
    | HostSpareMended
    | HostSlow
    | HostRecovered
    | HostStorageOpened
    | HostLeft
)
AboutCluster = ClusterModeSet | QuotaSet | FreezeSet | FreezeLifted
