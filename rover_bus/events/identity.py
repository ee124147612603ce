"""Names: members of a job, their resources, how they ended.

A member is (role, index, incarnation): the incarnation is allocated in the job's log (protocol P5), so that no message
of a former incarnation is taken for one of the present. Used by facts, requests, platforms and deciders alike.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rover_bus.events.invariants import Bytes, Checked, Cores, Count, Seconds
from rover_bus.events.last_words import describe_ending

Role = Literal["master", "worker", "ps"]

ExitReason = Literal[
    "completed",  # exit status 0
    "drained",  # left on our word, lease finished or part-committed
    "failed",  # user code: a non-zero status of its own
    "crashed",  # a signal from inside: SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL
    "killed",  # a signal from outside: SIGKILL, SIGTERM that we did not send
    "out_of_memory",  # the memory watchdog or the kernel
    "preempted",
    "evicted",
    "host_lost",
    "never_started",
    "unknown",
]

IN_ORDER: frozenset[str] = frozenset({"completed", "drained"})

# What the cluster itself did to a member: of a server a budget of its own counts these.
TAKEN: frozenset[str] = frozenset({"preempted", "evicted", "host_lost"})

# What counts against the data and the program; everything else is the cluster's doing (protocol, "Poison and faults").
FAULTS_OF_THE_PROGRAM: frozenset[str] = frozenset({"failed", "crashed"})


class Member(msgspec.Struct, frozen=True, order=True, gc=False):
    """One incarnation of a member of a job. Written `worker-1.3`: role, index, incarnation."""

    role: Role
    index: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.role}-{self.index}.{self.incarnation}"

    @property
    def name(self) -> str:
        """Role and index without the incarnation: what a user calls this member."""
        return f"{self.role}-{self.index}"


class Resources(Checked, frozen=True, kw_only=True):
    """What one member may use. 0 means no limit."""

    cores: Cores = 0.0
    memory_bytes: Bytes = 0


class DesiredMember(Checked, frozen=True, kw_only=True):
    """One line of a platform's absolute desired state: this incarnation of this member shall run here, so.

    `command`: a worker's program. What runs any other role is the platform's to know.
    """

    member: Member
    host: str
    command: list[str] = []
    environment: dict[str, str] = {}
    resources: Resources = Resources()
    directory: str = ""
    grace_s: Seconds = 10.0
    start_patience_s: Seconds = (
        60.0  # of a platform on which it cannot start yet: then it is given up as never started
    )
    restart: bool = False  # True: the platform itself starts it again when it ends (masters; fenced by terms)
    after_loss: bool = False  # the former incarnation is lost and fenced: its last words are not waited for


class MasterSeat(Checked, frozen=True, kw_only=True):
    """Where a job's master of one index runs. `first` is its first incarnation there: the platform counts on from it.

    Every move to another host begins a thousand higher, so that two hosts never have masters of one name, whatever hangs where.
    """

    host: str
    first: Count = 1


class Exit(Checked, frozen=True, kw_only=True):
    """How a member's process ended. `stderr`: the last 50 lines that it wrote, at most 4 KiB; of one that ended in order none."""

    reason: ExitReason
    status: int | None = None
    signal: int | None = None
    detail: str = ""
    stderr: str = ""

    def describe(self) -> str:
        """Return signal or status, the last line that it wrote and what the platform knows of it, in one line; "" for nothing."""
        how = describe_ending(self.status, self.signal, self.stderr) if self.reason not in IN_ORDER else ""
        return f"{how} ({self.detail})" if how and self.detail else how or self.detail


CoresSeen = Literal["host", "members", "none"]


class HostCapacity(Checked, frozen=True, kw_only=True):
    """What a host can give to members. `cores_bind`: a member was seen to be held to the cores that it was given.

    `cores_seen`: what saw that: the host's daemon, by a trial; members, each in its own control group (Kubernetes); "none": no
    member there has said so yet, nor the contrary.
    """

    cores: Cores
    memory_bytes: Bytes
    shared_memory_bytes: Bytes = 0
    cores_bind: bool = False
    cores_seen: CoresSeen = "host"


class Process(Checked, frozen=True, kw_only=True):
    """A running member as the platform sees it."""

    member: Member
    pid: Count
    host: str
