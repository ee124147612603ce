"""The whole state of a job as its log tells it, and the snapshot of it. Changed by evolution.py only.

Phases: waiting (for a plan) -> starting (servers come up) -> training -> closed (every epoch is done; the result is computed)
-> finishing (servers write their parts) -> ended. A job that lost its model is `searching` until it knows what to go back to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from rover_bus.events.checkpoints import RestoreOrder
from rover_bus.events.facts import PlanProposed
from rover_bus.events.identity import DesiredMember, MasterSeat, Member
from rover_bus.events.job import Dataset, JobSpec, PlanMode
from rover_bus.events.requests import RoutingTable
from rover_bus.master.charges import Charges
from rover_bus.master.cut import Cut
from rover_bus.master.ledger import Ledger

Phase = Literal["waiting", "starting", "searching", "training", "closed", "finishing", "ended"]


class Life(msgspec.Struct):
    """An admitted member."""

    member: Member
    nonce: str
    host: str = ""
    pid: int = 0
    addresses: list[str] = []
    planned: bool = True
    state: str = ""  # what a server started from (P5)


class Task(msgspec.Struct):
    """Something that one worker does for all."""

    member: Member | None = None
    done: bool = False
    values: dict[str, Any] = {}


class Part(msgspec.Struct):
    """A server's part of the final state on disk."""

    member: Member
    path: str
    size_bytes: int = 0
    statistics: dict[str, float] = {}


class Move(msgspec.Struct):
    """Slots on their way. The routing of the log still gives them to the source."""

    number: int
    source: Member
    target: Member
    slots: list[tuple[int, int]]


class Rollout(msgspec.Struct):
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
    proposal: int = 0
    again: int = 0  # how often it was begun before


class Search(msgspec.Struct):
    """For a checkpoint on storage: see searching.py. `asking`: none is usable, and a person decides what becomes of the job."""

    number: int
    host: str
    detail: str
    wanted: int = 0
    tries: int = 1
    asking: bool = False
    problems: list[str] = []
    servers: list[DesiredMember] = []  # that come again when a person has decided


class Tried(msgspec.Struct):
    """A checkpoint that could not be restored since the last one that could."""

    generation: int
    cut: int
    reason: str


class RuleOff(msgspec.Struct):
    """A rule that is left out: see guarding.py."""

    release: str
    why: str = ""
    exact: bool = False


class Unfit(msgspec.Struct, frozen=True):
    """Why no worker is placed on a host, and the incarnation of the daemon that found out."""

    daemon: str
    problem: str


class Counts(msgspec.Struct):
    """What happened so far; `rover jobs` and the job's summary read them."""

    workers_lost: int = 0
    servers_lost: int = 0
    masters_elected: int = 0
    commits_refused: int = 0
    speculated: int = 0
    batches_dead_lettered: int = 0
    rewinds: int = 0
    moves: int = 0  # of slots, done


@dataclass
class State:
    """Everything that replay rebuilds."""

    spec: JobSpec | None = None
    uid: str = ""
    history: int = 0
    generation: int = 0
    phase: Phase = "waiting"
    term: int = 0
    plan: int = 0
    proposal: int = 0  # the last plan that was carried out
    heard: int = 0  # the last plan that was decided on: a lower number is stale
    brain_term: int = 0
    mode: PlanMode | None = None  # what a person set; None: as the job file says
    waiting: PlanProposed | None = None  # for a person's word
    settling: int = 0  # the plan whose members are not all there yet
    paused: bool = False
    gaps: list[str] = field(default_factory=list)  # places of lost workers that nobody was named for yet
    repairing: list[str] = field(
        default_factory=list
    )  # places whose next life was named and is not there yet
    hosts: list[str] = field(default_factory=list)
    masters: list[MasterSeat] = field(default_factory=list)  # by index
    away: list[str] = field(default_factory=list)  # hosts that are lost: nobody is started there
    unheard: list[str] = field(default_factory=list)  # that others do not hear
    unfit: dict[str, Unfit] = field(default_factory=dict)  # hosts on which the program does not start
    leaving: dict[str, int] = field(
        default_factory=dict
    )  # hosts that will be gone soon, and the newest cut when they said so
    planned: dict[str, DesiredMember] = field(default_factory=dict)  # by place
    dropped: dict[str, DesiredMember] = field(
        default_factory=dict
    )  # of the plan, but done: a rewind needs them again (P24)
    lives: dict[str, Life] = field(default_factory=dict)  # by place
    incarnations: dict[str, int] = field(default_factory=dict)  # last one allocated, by place
    dataset: Dataset | None = None
    ledger: Ledger | None = None
    routing: RoutingTable | None = None
    acking: list[list[int]] = field(
        default_factory=list
    )  # incarnations of every set of servers that was routed in this generation
    rollout: Rollout | None = None
    interrupted: Rollout | None = None  # by a rewind, to be begun again when everybody is back
    rollouts: int = 0  # the last one's number
    moves: int = 0  # the last one's number
    charges: Charges = field(default_factory=Charges)
    tasks: dict[str, Task] = field(default_factory=dict)
    parts: dict[int, Part] = field(default_factory=dict)
    cuts: dict[int, Cut] = field(default_factory=dict)  # those that can still be used, by number
    last_cut: int = 0
    failed_cuts: int = 0  # in a row, before they were staged
    last_ready: int = 0  # the newest cut that was ever on storage, since the job began from nothing
    search: Search | None = None  # on now
    searches: int = 0  # the last one's number
    tried: list[Tried] = field(default_factory=list)
    not_before: int = (
        0  # the generation in which the job last began from nothing: what is older is another model
    )
    asked: str = ""  # who or what wants a cut as soon as one can be opened; "": none does
    cut_cost_s: float = 0.0  # how long a server stands still for one, smoothed
    owners: list[tuple[int, int, int]] = field(
        default_factory=list
    )  # of slots, as last routed: a rewind does not change them
    going_back: dict[int, int] = field(default_factory=dict)  # servers on their way back to a cut, by index
    restoring: RestoreOrder | None = None  # that cut
    rules_off: dict[str, RuleOff] = field(default_factory=dict)  # by name
    samples_again: int = 0  # what the last way back costs, over all cuts that were tried
    stop: str = ""
    stop_reason: str = ""
    end: tuple[str, str, str] = ("", "", "")  # state, reason, detail
    counts: Counts = field(default_factory=Counts)

    def workers(self) -> list[Life]:
        """The admitted workers."""
        return [life for life in self.lives.values() if life.member.role == "worker"]

    def servers(self) -> list[Life]:
        """The admitted servers."""
        return [life for life in self.lives.values() if life.member.role == "ps"]

    def dump(self) -> bytes:
        """Return the whole state as bytes: the body of a snapshot."""
        plain = msgspec.to_builtins
        body = {name: getattr(self, name) for name in (*_PLAIN, *_LATER)}
        body |= {name: plain(getattr(self, name)) for name in _TYPED}
        body |= {
            "ledger": None if self.ledger is None else self.ledger.dump(),
            "acking": self.acking,
            "moves": [self.rollouts, self.moves],
            "charges": self.charges.dump(),
            "cutting": [self.last_cut, self.cut_cost_s, self.owners, plain(self.going_back)],
            "stop": [self.stop, self.stop_reason],
            "end": self.end,
        }
        return msgspec.msgpack.encode(body)

    @classmethod
    def load(cls, body: bytes) -> State:
        """Rebuild a state from `dump`."""
        dump = msgspec.msgpack.decode(body, strict=False)
        state = cls()
        for name in _PLAIN:
            setattr(state, name, dump[name])
        for name in _LATER:
            setattr(state, name, dump.get(name, getattr(state, name)))
        for name, kind in _TYPED.items():
            if name in dump:
                setattr(state, name, msgspec.convert(dump[name], kind, strict=False))
        state.ledger = None if dump["ledger"] is None else Ledger.load(dump["ledger"])
        served = [[s.incarnation for s in state.routing.servers]] if state.routing else []
        state.acking = dump.get("acking", served)
        state.rollouts, state.moves = dump.get("moves", (0, 0))
        state.charges = Charges.load(dump["charges"])
        if "cutting" in dump:
            state.last_cut, state.cut_cost_s, owners, going = dump["cutting"]
            state.owners = msgspec.convert(owners, list[tuple[int, int, int]])
            state.going_back = msgspec.convert(going, dict[int, int], strict=False)
        state.stop, state.stop_reason = dump["stop"]
        state.end = tuple(dump["end"])
        return state


_PLAIN = ("uid", "history", "generation", "phase", "term", "plan", "proposal", "hosts", "incarnations")
_LATER = (
    "heard",
    "brain_term",
    "mode",
    "settling",
    "paused",
    "gaps",
    "repairing",
    "away",
    "leaving",
    "unheard",
    "last_ready",
    "failed_cuts",
    "searches",
    "not_before",
    "samples_again",
    "asked",
)  # not in snapshots of 0.1
_TYPED: dict[str, Any] = {
    "spec": JobSpec | None,
    "waiting": PlanProposed | None,
    "masters": list[MasterSeat],
    "planned": dict[str, DesiredMember],
    "dropped": dict[str, DesiredMember],
    "lives": dict[str, Life],
    "dataset": Dataset | None,
    "routing": RoutingTable | None,
    "rollout": Rollout | None,
    "interrupted": Rollout | None,
    "tasks": dict[str, Task],
    "parts": dict[int, Part],
    "cuts": dict[int, Cut],
    "restoring": RestoreOrder | None,
    "search": Search | None,
    "tried": list[Tried],
    "rules_off": dict[str, RuleOff],
    "unfit": dict[str, Unfit],
    "counts": Counts,
}
