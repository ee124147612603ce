"""The platform as a port: what it must do for a host's daemon, what it reports, and the words that both sides speak.

Implemented by `local` (processes of this machine), `simulated` (coroutines on a virtual clock) and `kube.platform` (pods of a
cluster); driven by daemon.py, which knows this page only. Every adapter passes one contract (tests/rigs/platform_contract.py).

Nothing here presumes a process id, a control group or a file of this host. A `StartOrder` says what shall run, never that the job's
log admits it: a spare is readied before any admission (`prepare`), and an order may name the one that is to become its member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rover_bus.events.identity import DesiredMember, Exit, ExitReason, HostCapacity, Member, Resources, Role
from rover_bus.events.profiles import HostProfile
from rover_bus.events.programs import ProgramReply, ProgramRequest

Key = tuple[str, str]  # job, member name
SpareKey = tuple[str, int]  # job, number
MasterCommand = Callable[[str, int], list[str]]  # job, index -> command line
EVERY_ROLE: frozenset[Role] = frozenset({"master", "worker", "ps"})


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One run of a member, as it is ordered and observed. `cpus` are the shares that it is pinned to; empty: it may use all."""

    job: str
    uid: str
    desired: DesiredMember
    cpus: Mapping[int, float] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.job, self.desired.member.name

    @property
    def member(self) -> Member:
        return self.desired.member


@dataclass(frozen=True, slots=True)
class StartOrder:
    """What `start` gets. `credential`: this member's own secret, handed to it as ROVER_CREDENTIAL and kept nowhere else.

    `spare`: the number of the spare that becomes this member, 0: none. One that is gone by then makes it a cold start.
    """

    incarnation: Incarnation
    credential: str = field(default="", repr=False)
    spare: int = 0


@dataclass(frozen=True, slots=True)
class Spare:
    """A process made ready for a worker that the log may name later: no member, and never observed as one.

    `desired`: like the workers that it can become; name and host in it mean nothing. `number`: of this daemon, from 1 on.
    """

    job: str
    uid: str
    number: int
    desired: DesiredMember

    @property
    def key(self) -> SpareKey:
        return self.job, self.number


@dataclass(frozen=True, slots=True)
class RoleCommands:
    """What runs the roles that are ours; a worker's command is in the desired state.

    `master`: None: no masters run here. `server`: empty: what the desired state says.
    """

    master: MasterCommand | None = None
    server: tuple[str, ...] = ()

    @property
    def roles(self) -> frozenset[Role]:
        return EVERY_ROLE if self.master else EVERY_ROLE - {"master"}

    def of(self, job: str, desired: DesiredMember) -> list[str]:
        """Return the command line of a member."""
        if desired.member.role == "master" and self.master:
            return self.master(job, desired.member.index)
        if desired.member.role == "ps" and self.server:
            return list(self.server)
        return desired.command


NO_MASTERS = RoleCommands()  # no command of ours: servers run where the desired state says how


# -- what is observed --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawned:
    """An incarnation is being started, or was found after a restart of the daemon."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Running:
    """The member itself runs. `pid`: of its process, where the platform has one to show; else 0. `warm`: a spare became it."""

    key: Key
    pid: int = 0
    adopted: bool = False
    warm: bool = False


@dataclass(frozen=True, slots=True)
class Leaving:
    """The member was asked to leave; `hurried`: at once."""

    key: Key
    hurried: bool = False


@dataclass(frozen=True, slots=True)
class Adjusted:
    """A running member has other limits now."""

    key: Key
    resources: Resources
    cpus: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class AdjustRefused:
    """A running member cannot have these limits where it runs. It keeps those that it has, until others are wanted."""

    key: Key
    resources: Resources
    why: str


@dataclass(frozen=True, slots=True)
class Stalled:
    """A member that is ordered cannot start, for as long as its patience lasts already. It starts as soon as it can.

    `reason`: a constant of the platform; `why`: its words.
    """

    key: Key
    reason: str
    why: str


@dataclass(frozen=True, slots=True)
class TakenAway:
    """Another than us begins to take a member away: it leaves within its grace, and is Exited then, by this reason."""

    key: Key
    reason: ExitReason
    why: str


@dataclass(frozen=True, slots=True)
class Exited:
    """An incarnation is proven dead, with all that it began. `at_s`: monotonic. `reported`: the bus has its fact already."""

    job: str
    uid: str
    member: Member
    exit: Exit
    ran_s: float
    at_s: float
    reported: bool = False
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WorkerLoaded:
    """A worker said what it had loaded when it joined, `start_s` after its process began: spares of its job can be prepared."""

    key: Key
    uid: str
    start_s: float
    at_s: float


@dataclass(frozen=True, slots=True)
class SpareSpawned:
    """A spare is being prepared. `at_s`: monotonic."""

    spare: Spare
    at_s: float


@dataclass(frozen=True, slots=True)
class SpareReady:
    """A spare has loaded what it is to load, and waits."""

    key: SpareKey


@dataclass(frozen=True, slots=True)
class SpareGone:
    """A spare is none any more: it is a member now, is dead because it was dropped, or ended by itself. `at_s`: monotonic.

    `why`: how one that was no member ended, and the last line that it wrote, where the platform knows.
    """

    key: SpareKey
    how: Literal["used", "dropped", "ended"]
    at_s: float
    why: str = ""


SpareObservation = WorkerLoaded | SpareSpawned | SpareReady | SpareGone
Trouble = AdjustRefused | Stalled | TakenAway  # what is published of a member, beside its start and its end
Observation = Spawned | Running | Leaving | Adjusted | Trouble | Exited | SpareObservation
Observe = Callable[[Observation], None]
Answer = Callable[[ProgramReply], None]


# -- what is to be done ------------------------------------------------------------------------------------------------


class Platform(Protocol):
    """Members of one host. Calls return at once; what came of them is observed, on the event loop, in the order of happening."""

    @property
    def capacity(self) -> HostCapacity:
        """What members may be given here together: the least of the machine and of whatever limits it."""

    async def capacity_changes(self) -> None:
        """Return once `capacity` is another than when this was last called; never, where it stays."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs that members may be pinned to; empty: this platform pins none."""

    @property
    def roles(self) -> frozenset[Role]:
        """The roles that this platform has a command for."""

    def start(self, order: StartOrder) -> None:
        """Start an incarnation; observed as Spawned, then Running, or Exited with `never_started`; Stalled while it cannot.

        An order for a member that runs changes nothing: it is never started while a former incarnation may live.
        Where it names a spare that is ready, that one is SpareGone first, and the member is Running at once.
        """

    def prepare(self, spare: Spare) -> None:
        """Make a process ready for a worker like this one: observed as SpareSpawned, then SpareReady, or SpareGone.

        It stops before the first line of the program and lives no longer than this daemon: no successor adopts it.
        """

    def drop(self, spare: Spare) -> None:
        """End a spare; observed as SpareGone once it is dead. One that is gone already stays unobserved."""

    def stop(self, incarnation: Incarnation, hurried: bool = False) -> None:
        """Ask an incarnation to leave, and end it after its grace, `hurried`: after `exits.HURRY_S`.

        Observed as Leaving, then Exited; proven dead at most `exits.STUCK_S` after that. One that is gone is Leaving only.
        """

    def adjust(self, incarnation: Incarnation, resources: Resources, cpus: Mapping[int, float]) -> None:
        """Change the limits of a running incarnation; observed as Adjusted once they hold, or as AdjustRefused.

        An order for limits that are being changed to already changes nothing.
        """

    def try_program(
        self, request: ProgramRequest, answer: Answer, anew: bool = False, of: tuple[str, str] = ("", ""), /
    ) -> None:
        """Find out whether a worker's program would start here, without running it; `answer` is called once, later.

        What runs a role is the platform's to know, so it is asked and not looked up. anew: nothing remembered counts.
        of: the job and run whose worker it is, which may have an image of its own; "": of none that is known.
        """

    async def measure(self, host: str) -> HostProfile | None:
        """Return what the host and its members used since this was last asked; None the first time, or where that is not known."""

    async def adopt(self) -> None:
        """Take over what a former daemon left: Spawned and Running for the living, Exited for what ended and was not forgotten.

        Returns once all of it was observed: what is kept of members may first have to be asked for.
        """

    def mark_reported(self, ended: Exited) -> None:
        """Note for successors that the fact of this end is stored."""

    def forget(self, job: str) -> None:
        """Drop the records of a job of which nothing runs; its logs stay."""

    def erase(self, job: str, uid: str) -> None:
        """Remove everything that is kept of a run of a job."""

    def release(self) -> None:
        """Let go of everything and observe nothing more; members live on."""
