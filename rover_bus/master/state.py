"""The state of a job as its log tells it, a tree of plain Structs: evolution.py alone changes it, one msgspec line stores it.

    Unopened                 before the log knows its job
    State                    from `job.opened` on
        job                  what was submitted
        phase                waiting -> starting -> training -> closed -> finishing -> ended; searching (phases.py)
        seats                members: wanted, admitted, lost; hosts
        plans                the Brain's and people's plans, by number
        ledger, charges      which batches are done; what failed on them
        slots                which server has which slots; the rollout that changes it
        cuts                 checkpoints, and the way back to one
        ending               what asks the job to stop, and tasks that one worker does for all

What a master remembers without logging it is one struct beside this tree: unlogged.py.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rover_bus.events.checkpoints import RestoreOrder
from rover_bus.events.facts import PlanProposed
from rover_bus.events.identity import DesiredMember, ExitReason, MasterSeat, Member
from rover_bus.events.job import JobSpec, PlanMode
from rover_bus.events.routing import RoutingTable
from rover_bus.events.starts import ServerStart
from rover_bus.master.charges import Charges
from rover_bus.master.cut import Cut
from rover_bus.master.ledger import Ledger
from rover_bus.master.phases import Phase, Waiting


class OpenedJob(msgspec.Struct, frozen=True):
    """What was submitted. `timeline`: part of every id, drawn once a job and again after a restore from a backup (P21).

    `former`: those before, whose checkpoints may still be gone back to.
    """

    spec: JobSpec
    uid: str
    timeline: int
    former: list[int] = []


# -- members -----------------------------------------------------------------------------------------------------------


class Admitted(msgspec.Struct, omit_defaults=True):
    """An admitted member. `planned`: by the plan of that time, not by itself.

    `taken`: by what it is being taken away, "" while it is not; `taken_cause`: the fact that said so.
    """

    member: Member
    nonce: str
    host: str = ""
    pid: int = 0
    addresses: list[str] = []
    planned: bool = True
    start: ServerStart | None = None  # of a server (P5)
    stages_at: str = ""
    taken: ExitReason | Literal[""] = ""
    taken_cause: str = ""
    release: str = ""  # what it runs, "" of one that does not say it
    format: int = 1  # and the last format that it reads

    @property
    def keeper(self) -> str:
        """What keeps the parts that it stages."""
        return self.stages_at or self.host


class Unfit(msgspec.Struct, frozen=True):
    """Why no worker is placed on a host, and the incarnation of the daemon that found out."""

    daemon: str
    problem: str


class Hosts(msgspec.Struct, omit_defaults=True):
    """The hosts that the plan names, and what is known against them."""

    named: list[str] = []
    away: list[str] = []  # lost: no member is started there
    unheard: list[str] = []  # others do not hear them
    unfit: dict[str, Unfit] = {}  # the program does not start there
    slow: list[str] = []  # the Brain measured it: the last to be taken
    leaving: dict[str, int] = {}  # gone soon, and the newest cut when they said so

    def living(self, hosts: list[str]) -> list[str]:
        """Return those of these hosts that are not lost; all of them where none is left."""
        return [host for host in hosts if host not in self.away] or hosts


class Seats(msgspec.Struct, omit_defaults=True):
    """Members that shall take part, and those that do. Keys are member names."""

    plan: int = 0  # the number of the member set
    wanted: dict[str, DesiredMember] = {}
    done: dict[str, DesiredMember] = {}  # were wanted, and are done: a rewind needs them again (P24)
    admitted: dict[str, Admitted] = {}
    incarnations: dict[str, int] = {}  # the last one allocated
    left: dict[str, Member] = {}  # whose last goodbye counts as a failure of the program
    gaps: list[str] = []  # lost workers whose successors are not named yet
    repairing: list[str] = []  # members whose next incarnation was named and is not there yet
    former: dict[str, DesiredMember] = {}  # workers that train on until the incarnation that is wanted comes,
    moved_by: dict[str, int] = {}  # and the plans that moved them
    masters: list[MasterSeat] = []  # by index
    hosts: Hosts = msgspec.field(default_factory=Hosts)

    def workers(self) -> list[Admitted]:
        """The admitted workers."""
        return [each for each in self.admitted.values() if each.member.role == "worker"]

    def lasting_workers(self) -> list[Admitted]:
        """The admitted workers that no successor follows, and that are not to leave."""
        return [each for each in self.workers() if not each.planned or self.wants(each.member)]

    def servers(self) -> list[Admitted]:
        """The admitted servers."""
        return [each for each in self.admitted.values() if each.member.role == "ps"]

    def wanted_servers(self) -> dict[int, DesiredMember]:
        """The wanted servers, by index."""
        return {each.member.index: each for each in self.wanted.values() if each.member.role == "ps"}

    def wants(self, member: Member) -> bool:
        """Whether this very incarnation is wanted: not one whose successor is planned already."""
        desired = self.wanted.get(member.name)
        return desired is not None and desired.member == member

    def stays(self, member: Member) -> bool:
        """Whether this very incarnation is to go on: it is wanted, or trains until its successor comes."""
        former = self.former.get(member.name)
        return self.wants(member) or (former is not None and former.member == member)

    def drops(self, seated: Admitted) -> bool:
        """Whether an admitted member is to leave."""
        return seated.planned and not self.stays(seated.member)

    def has_former(self, name: str) -> bool:
        """Whether a former incarnation of a wanted worker is there and trains on."""
        former = self.former.get(name)
        return former is not None and self.has(former.member)

    def has(self, member: Member) -> bool:
        """Whether this very incarnation is admitted."""
        known = self.admitted.get(member.name)
        return known is not None and known.member == member

    def on(self, host: str) -> list[Member]:
        """The members that are wanted on a host."""
        return [desired.member for desired in self.wanted.values() if desired.host == host]

    def holds(self, host: str) -> bool:
        """Whether a member is wanted on a host, or stays there until its successor comes."""
        return bool(self.on(host)) or any(former.host == host for former in self.former.values())


# -- plans -------------------------------------------------------------------------------------------------------------


class Plans(msgspec.Struct, omit_defaults=True):
    """Plans by number. `seen`: the last one that was decided on; a lower number is stale."""

    seen: int = 0
    brain_term: int = 0
    applied: int = 0  # the last one that was carried out
    settling: int = 0  # the one whose members are not all there yet
    waiting: PlanProposed | None = None  # for a person's word, or for the job to be known
    mode: PlanMode | None = None  # what a person set; None: as the job file says


# -- slots -------------------------------------------------------------------------------------------------------------


class Move(msgspec.Struct, omit_defaults=True):
    """Slots on their way. The routing of the log still gives them to the source."""

    number: int
    source: Member
    target: Member
    slots: list[tuple[int, int]]


class Rollout(msgspec.Struct, omit_defaults=True):
    """Servers change while training goes on: see rollout.py."""

    number: int
    goal: list[tuple[int, int, int]]
    joins: list[int] = []
    drops: list[int] = []
    move: Move | None = None
    moved: int = 0  # moves that are done
    failures: int = 0
    reason: str = ""
    by: str = ""
    plan: int = 0
    again: int = 0  # how often it was begun before
    first: bool = False  # of a job that began with its first servers: slots move to the others as they arrive


class Slots(msgspec.Struct, omit_defaults=True):
    """Which server holds which slots. `owners`: as last routed; a rewind does not change them."""

    routing: RoutingTable | None = None
    owners: list[tuple[int, int, int]] = []
    acking: list[list[int]] = []  # incarnations of every set of servers that was routed in this generation
    rollout: Rollout | None = None
    interrupted: Rollout | None = None  # by a rewind, to be begun again when every server is back
    last_rollout: int = 0
    last_move: int = 0


# -- checkpoints -------------------------------------------------------------------------------------------------------


class TriedCheckpoint(msgspec.Struct, omit_defaults=True):
    """A checkpoint that could not be restored since the last one that could. `stored`: nor from storage: a search skips it."""

    generation: int
    cut: int
    reason: str
    stored: bool = False


class Return(msgspec.Struct, omit_defaults=True):
    """Servers on their way back to a cut, by index. `samples_again`: what the way costs, over all cuts that were tried."""

    servers: dict[int, int] = {}
    order: RestoreOrder | None = None
    samples_again: int = 0


class Cuts(msgspec.Struct, omit_defaults=True):
    """Checkpoints that can still be used, by number, and what the next one is decided by."""

    known: dict[int, Cut] = {}
    last: int = 0
    last_ready: int = 0  # the newest that was ever on storage, since the job began from nothing
    failed: int = 0  # in a row, before they were staged
    asked: str = ""  # what wants one as soon as it can be opened; "": none does
    cost_s: float = 0.0  # how long a server stands still for one, smoothed
    back: Return = msgspec.field(default_factory=Return)
    tried: list[TriedCheckpoint] = []
    last_search: int = 0
    not_before: int = (
        0  # the generation in which the job last began from nothing: what is older is another model
    )

    def newest(self, *states: str) -> Cut | None:
        """Return the newest cut in one of these states, or in any."""
        found = [cut for cut in self.known.values() if not states or cut.state in states]
        return max(found, key=lambda cut: cut.number, default=None)


# -- the rest ----------------------------------------------------------------------------------------------------------


class Task(msgspec.Struct, omit_defaults=True):
    """Something that one worker does for all."""

    member: Member | None = None
    done: bool = False
    values: dict[str, Any] = {}


class Ending(msgspec.Struct, omit_defaults=True):
    """Whether the job is asked to stop, and how: `stop` is "", "finish", "drain" or "cancel"."""

    stop: str = ""
    reason: str = ""
    tasks: dict[str, Task] = {}


class RuleOff(msgspec.Struct, omit_defaults=True):
    """A rule that is left out: see guarding.py."""

    release: str
    why: str = ""
    exact: bool = False


class Counts(msgspec.Struct, omit_defaults=True):
    """What happened so far; `rover jobs` and the job's summary read them."""

    workers_lost: int = 0
    servers_lost: int = 0
    servers_taken: int = 0  # of these, by the cluster: preempted, evicted, or lost with their node
    masters_elected: int = 0
    commits_refused: int = 0
    speculated: int = 0
    rewinds: int = 0
    moves: int = 0  # of slots, done


class Unopened(msgspec.Struct, kw_only=True, tag="unopened", omit_defaults=True):
    """What a log says before it knows its job: a plan or a word may come before a submission that was lost (P21)."""

    term: int = 0
    plans: Plans = msgspec.field(default_factory=Plans)
    ending: Ending = msgspec.field(default_factory=Ending)
    rules_off: dict[str, RuleOff] = {}
    counts: Counts = msgspec.field(default_factory=Counts)


class State(msgspec.Struct, kw_only=True, tag="job", omit_defaults=True):
    """Everything that replay rebuilds."""

    job: OpenedJob
    term: int = 0
    generation: int = 0
    phase: Phase = msgspec.field(default_factory=Waiting)
    paused: bool = False
    release: bool = False  # its servers leave too, once a checkpoint holds all that was trained
    erased: bool = (
        False  # the log was restored from a backup, and what servers hold is of what it does not know
    )
    seats: Seats = msgspec.field(default_factory=Seats)
    plans: Plans = msgspec.field(default_factory=Plans)
    ledger: Ledger | None = None
    charges: Charges = msgspec.field(default_factory=Charges)
    slots: Slots = msgspec.field(default_factory=Slots)
    cuts: Cuts = msgspec.field(default_factory=Cuts)
    ending: Ending = msgspec.field(default_factory=Ending)
    rules_off: dict[str, RuleOff] = {}
    counts: Counts = msgspec.field(default_factory=Counts)


AnyState = Unopened | State


def dump(state: AnyState) -> bytes:
    """Return the whole state as bytes: the body of a snapshot."""
    return msgspec.msgpack.encode(state)


def load(body: bytes) -> AnyState:
    """Rebuild a state from `dump`. Raises msgspec.MsgspecError."""
    state: AnyState = msgspec.msgpack.decode(body, type=AnyState)
    return state
