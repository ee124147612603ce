"""The whole state of a job as its log tells it, and the snapshot of it. Changed by evolution.py only.

Phases: waiting (for a plan) -> starting (servers come up) -> training -> closed (every epoch is done; the result is computed)
-> finishing (servers write their parts) -> ended.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rover_bus.events.checkpoints import RestoreOrder
from rover_bus.events.facts import PlanProposed
from rover_bus.events.identity import DesiredMember, MasterSeat, Member
from rover_bus.events.job import Dataset, JobSpec
from rover_bus.events.requests import RoutingTable
from rover_bus.master.charges import Charges
from rover_bus.master.cut import Cut
from rover_bus.master.ledger import Ledger

Phase = Literal["waiting", "starting", "training", "closed", "finishing", "ended"]


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


class State:
    """Everything that replay rebuilds."""

    def __init__(self) -> None:
        self.spec: JobSpec | None = None
        self.uid = ""
        self.history = 0
        self.generation = 0
        self.phase: Phase = "waiting"
        self.term = 0
        self.plan = 0
        self.proposal = 0  # the last plan that was carried out
        self.heard = 0  # the last plan that was decided on: a lower number is stale
        self.brain_term = 0
        self.mode = ""  # what a person set; "": as the job file says
        self.waiting: PlanProposed | None = None  # for a person's word
        self.settling = 0  # the plan whose members are not all there yet
        self.paused = False
        self.gaps: list[str] = []  # places of lost workers that nobody was named for yet
        self.repairing: list[str] = []  # places whose next life was named and is not there yet
        self.hosts: list[str] = []
        self.masters: list[MasterSeat] = []  # by index
        self.away: list[str] = []  # hosts that are lost: nobody is started there
        self.leaving: dict[
            str, int
        ] = {}  # hosts that will be gone soon, and the newest cut when they said so
        self.planned: dict[str, DesiredMember] = {}  # by place
        self.dropped: dict[str, DesiredMember] = {}  # of the plan, but done: a rewind needs them again (P24)
        self.lives: dict[str, Life] = {}  # by place
        self.incarnations: dict[str, int] = {}  # last one allocated, by place
        self.dataset: Dataset | None = None
        self.ledger: Ledger | None = None
        self.routing: RoutingTable | None = None
        self.acking: list[
            list[int]
        ] = []  # incarnations of every set of servers that was routed in this generation
        self.rollout: Rollout | None = None
        self.interrupted: Rollout | None = None  # by a rewind, to be begun again when everybody is back
        self.rollouts = 0  # the last one's number
        self.moves = 0  # the last one's number
        self.charges = Charges()
        self.tasks: dict[str, Task] = {}
        self.parts: dict[int, Part] = {}
        self.cuts: dict[int, Cut] = {}  # those that can still be used, by number
        self.last_cut = 0
        self.cut_cost_s = 0.0  # how long a server stands still for one, smoothed
        self.owners: list[
            tuple[int, int, int]
        ] = []  # of slots, as last routed: a rewind does not change them
        self.going_back: dict[int, int] = {}  # servers on their way back to a cut, by index
        self.restoring: RestoreOrder | None = None  # that cut
        self.stop: str = ""
        self.stop_reason = ""
        self.end: tuple[str, str, str] = ("", "", "")  # state, reason, detail
        self.counts = Counts()

    def workers(self) -> list[Life]:
        """The admitted workers."""
        return [life for life in self.lives.values() if life.member.role == "worker"]

    def servers(self) -> list[Life]:
        """The admitted servers."""
        return [life for life in self.lives.values() if life.member.role == "ps"]

    def dump(self) -> bytes:
        """Return the whole state as bytes: the body of a snapshot."""
        plain = msgspec.to_builtins
        return msgspec.msgpack.encode(
            {
                "spec": plain(self.spec),
                "uid": self.uid,
                "history": self.history,
                "generation": self.generation,
                "phase": self.phase,
                "term": self.term,
                "plan": self.plan,
                "proposal": self.proposal,
                "heard": self.heard,
                "brain_term": self.brain_term,
                "mode": self.mode,
                "waiting": plain(self.waiting),
                "settling": self.settling,
                "paused": self.paused,
                "gaps": self.gaps,
                "repairing": self.repairing,
                "hosts": self.hosts,
                "masters": plain(self.masters),
                "away": self.away,
                "leaving": self.leaving,
                "planned": plain(self.planned),
                "dropped": plain(self.dropped),
                "lives": plain(self.lives),
                "incarnations": self.incarnations,
                "dataset": plain(self.dataset),
                "ledger": None if self.ledger is None else self.ledger.dump(),
                "routing": plain(self.routing),
                "acking": self.acking,
                "rollout": plain(self.rollout),
                "interrupted": plain(self.interrupted),
                "moves": [self.rollouts, self.moves],
                "charges": self.charges.dump(),
                "tasks": plain(self.tasks),
                "parts": plain(self.parts),
                "cuts": plain(self.cuts),
                "cutting": [self.last_cut, self.cut_cost_s, self.owners, plain(self.going_back)],
                "restoring": plain(self.restoring),
                "stop": [self.stop, self.stop_reason],
                "end": self.end,
                "counts": plain(self.counts),
            }
        )

    @classmethod
    def load(cls, body: bytes) -> State:
        """Rebuild a state from `dump`."""
        dump = msgspec.msgpack.decode(body, strict=False)
        state = cls()
        for field in _PLAIN:
            setattr(state, field, dump[field])
        for field in _LATER:
            setattr(state, field, dump.get(field, getattr(state, field)))
        for field, kind in _TYPED.items():
            if field in dump:
                setattr(state, field, msgspec.convert(dump[field], kind, strict=False))
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
    "counts": Counts,
}
