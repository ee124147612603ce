"""Golden scripts of the master: commands in, records and replies out, in text that a person can check line by line.

A script is blocks of `> command` lines, each followed by what the decider did. ROVER_REWRITE_GOLDEN=1 makes the tests write the
outputs anew, and read the diff before committing it: that is the review.
"""

from __future__ import annotations

import shlex
from typing import Any

import msgspec
from words import Words, made, part, renamed

from rover_bus.events.checkpoint_facts import (
    CheckpointRequested,
    HostManifestWritten,
    HostPartDigested,
    HostPartFailed,
    HostPartMirrored,
    HostPartPersisted,
    HostStorageSearched,
)
from rover_bus.events.checkpoints import (
    CutOrder,
    ManifestContent,
    PartPlace,
    PartReport,
    RestoreReport,
    StoredCheckpoint,
    StoredFile,
)
from rover_bus.events.codec import decode, encode
from rover_bus.events.deciding import Hold
from rover_bus.events.facts import (
    Fact,
    JobPauseRequested,
    JobRestored,
    JobResumeRequested,
    JobStopRequested,
    JobSubmitted,
    MembersDesired,
    MembersUnheard,
    PlanApproved,
    PlanModeSet,
    PlanProposed,
    PlanRejected,
    Size,
    SlotsMoveRequested,
)
from rover_bus.events.host_facts import (
    HostAdjustRefused,
    HostExited,
    HostLeaving,
    HostLeft,
    HostMemberStalled,
    HostMemberTaken,
    HostProgramMended,
    HostProgramRefused,
    HostRegistered,
)
from rover_bus.events.identity import DesiredMember, Exit, HostCapacity, MasterSeat, Member, Resources
from rover_bus.events.inputs import BusLost, BusRegained, Observed, Requested, Ticked, TookOver
from rover_bus.events.job import (
    CheckpointSpec,
    Dataset,
    DataSpec,
    JobSpec,
    LeaseSpec,
    MoveSpec,
    RoleSpec,
    WorkersSpec,
)
from rover_bus.events.log import LogBatch, Record
from rover_bus.events.requests import (
    ElectRequest,
    FailureRequest,
    FinishedRequest,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaseRequest,
    LeaveRequest,
    MoveOrder,
    Progress,
    RegisterRequest,
    Reply,
    Request,
    ServerAddress,
    SkippedRow,
    SlotTraffic,
)
from rover_bus.master.checks import broken
from rover_bus.master.decider import MasterDecider
from rover_bus.master.lifecycle import order_for
from rover_bus.master.phases import Searching, name_of
from rover_bus.master.publishing import manifest_of
from rover_bus.master.state import Seats, State

UID = "0123456789ab"
HIDDEN = {
    "cause",
    "command",
    "environment",
    "directory",
    "grace_s",
    "spec",
    "summary",
    "timeline",
    "nonce",
    "uid",
    "found",
}


def place(text: str) -> tuple[str, int]:
    role, _, index = text.partition("-")
    return role, int(index)


class Script:
    """A decider driven by commands; `log` is what a real log would hold."""

    def __init__(self) -> None:
        self.decider = MasterDecider("j")
        self.now = 0.0
        self.term = 0
        self.log: list[Record] = []
        self.requests: dict[str, int] = {}
        self.storage: dict[int, ManifestContent] = {}
        self.told: dict[str, str] = {}  # by server: the storage that its last restore order named
        self._take_over()

    def run(self, line: str) -> str:
        """Run one command and return what happened, a line each."""
        verb, *words = shlex.split(line)
        names = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        result = getattr(self, f"do_{verb}")(*plain, **names)
        return "\n".join(result) if isinstance(result, list) else str(result or "")

    # -- commands ------------------------------------------------------------------------------------------------------

    def do_submit(self, **words: str) -> list[str]:
        words = renamed(words, batch="batch_size", checkpoint_s="every_s")
        servers = (
            {"servers": RoleSpec(max_count=int(words.pop("most_servers")))} if "most_servers" in words else {}
        )
        spec = made(
            JobSpec,
            words,
            name="j",
            program=["train"],
            data=part(DataSpec, words, train="t", batch_size=100),
            leases=part(LeaseSpec, words),
            checkpoint=part(CheckpointSpec, words) if "every_s" in words else None,
            moves=part(MoveSpec, words),
            workers=part(WorkersSpec, words) if "training" in words else WorkersSpec(),
            **servers,
        )
        return self._notice(JobSubmitted(job="j", spec=spec, uid=UID))

    def do_plan(self, *, replaces: str = "", stays: str = "", **words: str) -> list[str]:
        ended, stay = (
            [self.decider.state.seats.wanted[who].member for who in names.split(",") if who]
            for names in (replaces, stays)
        )
        words = renamed(words, term="brain_term")
        wish = made(
            PlanProposed,
            words,
            job="j",
            plan=1,
            workers=0,
            servers=0,
            hosts=["h"],
            replaces=ended,
            stays=stay,
        )
        return self._notice(wish)

    def do_answer(self, what: str, **words: str) -> list[str]:
        said = PlanApproved if what == "approve" else PlanRejected
        return self._notice(made(said, words, job="j", plan=0, by="ann"))

    def do_mode(self, mode: str) -> list[str]:
        return self._notice(PlanModeSet(job="j", mode=mode, by="ann"))  # type: ignore[arg-type]

    def do_checkpoint(self) -> list[str]:
        """A stack that is going down asks for a last checkpoint."""
        return self._notice(CheckpointRequested(job="j", reason="rover down", by="ann"))

    def do_pause(self, what: str = "") -> list[str]:
        return self._notice(JobPauseRequested(job="j", by="ann", release=what == "release"))

    def do_resume(self, what: str = "", **words: str) -> list[str]:
        wish = made(JobResumeRequested, words, job="j", by="ann", from_nothing=what == "from_nothing")
        return self._notice(wish)

    def do_join(self, who: str, incarnation: str = "", nonce: str = "", stages_at: str = "") -> list[str]:
        role, index = place(who)
        planned = self.decider.state.seats.wanted.get(who)
        number = int(incarnation) if incarnation else planned.member.incarnation if planned else 0
        member = Member(role, index, number)  # type: ignore[arg-type]
        host = planned.host if planned else "h"
        nonce = nonce or f"n-{member}"
        return self._ask(JoinRequest(member=member, nonce=nonce, host=host, stages_at=stages_at))

    def do_register(self, who: str, **words: str) -> list[str]:
        words = renamed(words, batch="batch_size")
        dataset = made(Dataset, words, batch_size=100)
        return self._ask(RegisterRequest(**self._who(who), dataset=dataset))

    def do_lease(self, who: str, **words: str) -> list[str]:
        given = {**self._who(who, words), "progress": self._progress(words), "rate": 0.1}
        next_one = self.requests.get(who, 0) + 1
        request = made(LeaseRequest, renamed(words, high="high_water"), **given, request=next_one)
        self.requests[who] = max(request.request, next_one - 1)
        return self._ask(request)

    def do_beat(self, who: str, **words: str) -> list[str]:
        given = {**self._who(who, words), "progress": self._progress(words)}
        given["traffic"] = part(SlotTraffic, words) if "keys_per_s" in words else None
        given["statistics"] = {
            name: float(words.pop(name)) for name in ("memory_bytes", "row_bytes") if name in words
        }
        words = renamed(words, routing="routing_epoch")
        return self._ask(made(HeartbeatRequest, words, **given, request=self.requests.get(who, 0)))

    def do_move(self, **words: str) -> list[str]:
        """Somebody asks for slots to be moved."""
        return self._notice(made(SlotsMoveRequested, words, job="j"))

    def do_leave(self, who: str, **words: str) -> list[str]:
        progress = self._progress(words)
        return self._ask(made(LeaveRequest, words, **self._who(who), progress=progress))

    def do_fail(self, who: str, *, at: str = "f:1", **words: str) -> list[str]:
        exception = words.setdefault("exception", "ValueError")
        given = {"message": "boom", "fingerprint": f"{exception}@{at}"}
        return self._ask(made(FailureRequest, words, **self._who(who), **given))

    def do_elect(self, who: str, **words: str) -> list[str]:
        values = {"auc": 0.7} if "done" in words else {}
        return self._ask(made(ElectRequest, words, **self._who(who), task="evaluate", values=values))

    def do_finished(self, who: str, *, part: str = "") -> list[str]:
        who_is = self._who(who)
        asked = order_for(self.decider.state, who_is["member"])[1]
        return self._ask(FinishedRequest(**who_is, path=f"parts/{part or asked}.npz"))

    def do_exit(self, who: str, reason: str = "killed", *, incarnation: str = "", **words: str) -> list[str]:
        role, index = place(who)
        number = int(incarnation) if incarnation else self.decider.state.seats.incarnations.get(who, 0)
        member = Member(role, index, number)  # type: ignore[arg-type]
        exit = part(Exit, words, reason=reason)
        return self._notice(made(HostExited, words, host="h", job="j", member=member, exit=exit))

    # -- cuts ------------------------------------------------------------------------------------------------------------

    def do_stage(self, who: str, *, wanted: str = "0", **words: str) -> list[str]:
        """A server says that it staged its part, by default all that it owns; or why it could not."""
        _, index = place(who)
        own = [(first, end) for owner, first, end in self.decider.state.slots.owners if owner == index]
        known = self.decider.state.cuts.known.get(int(words["cut"]))
        given = (
            {"wanted_bytes": int(wanted) << 20} if "problem" in words else {"slots": own, "size_bytes": 100}
        )
        identity = known.identity if known is not None else 0
        staged = made(PartReport, words, identity=identity, **given)
        return self._ask(HeartbeatRequest(**self._who(who), staged=staged))

    def do_restored(self, who: str, **words: str) -> list[str]:
        """A server says what became of the order that it was told when it joined."""
        source = "" if "problem" in words else "memory"
        report = made(RestoreReport, words, source=source, rows=7, path=self.told.get(who, ""))
        return self._ask(HeartbeatRequest(**self._who(who), restored=report))

    def _of_cut(self, number: str, part: str) -> dict[str, Any]:
        state = self.decider.state
        generation = state.cuts.known[int(number)].generation if int(number) in state.cuts.known else 0
        return {
            "host": "h",
            "job": "j",
            "uid": state.job.uid,
            "cut": int(number),
            "generation": generation,
            "part": part,
        }

    def do_stored(self, part: str, cut: str) -> list[str]:
        cuts = self.decider.state.cuts.known
        parts = cuts[int(cut)].parts.values() if int(cut) in cuts else []
        host = next((place.host for place in parts if place.part == part), "h")
        file = StoredFile(path=f"{part}.part", digest="d", size_bytes=100, generation=0, cut=int(cut))
        return self._notice(HostPartPersisted(**{**self._of_cut(cut, part), "host": host}, files=[file]))

    def do_manifest(self, host: str, cut: str) -> list[str]:
        if int(cut) in self.decider.state.cuts.known:
            self.storage[int(cut)] = manifest_of(self.decider.state, self.decider.state.cuts.known[int(cut)])
        said = {**self._of_cut(cut, ""), "host": host}
        return self._notice(HostManifestWritten(**said, path="/storage", size_bytes=200))

    def do_searched(self, *, found: str = "0", refused: str = "", **words: str) -> list[str]:
        """The daemon that was asked says what lies on storage: of what became ready the cut `found`."""
        phase = self.decider.state.phase
        on = phase if isinstance(phase, Searching) else None
        content = self.storage.get(int(found))
        stored = None
        if content is not None:
            stored = StoredCheckpoint(
                timeline=content.timeline,
                generation=content.generation,
                cut=content.cut,
                path="/storage",
                ledger=content.ledger,
                parts=content.parts,
            )
        searched = made(
            HostStorageSearched,
            words,
            host=on.host if on is not None else "h",
            job="j",
            uid=self.decider.state.job.uid,
            **({} if "search" in words else {"search": on.open if on is not None else 0}),
            found=stored,
            refused=[line for line in refused.split(";") if line],
        )
        return self._notice(searched)

    def do_digested(self, part: str, cut: str) -> list[str]:
        """A daemon has made the digests of a staged part."""
        cuts = self.decider.state.cuts.known
        parts = cuts[int(cut)].parts.values() if int(cut) in cuts else []
        host = next((place.host for place in parts if place.part == part), "h")
        return self._notice(HostPartDigested(**{**self._of_cut(cut, part), "host": host}))

    def do_mirrored(self, part: str, cut: str, host: str) -> list[str]:
        """A daemon holds a copy of a part."""
        return self._notice(HostPartMirrored(**{**self._of_cut(cut, part), "host": host}, of="h"))

    def do_program(self, host: str, problem: str = "", **words: str) -> list[str]:
        """A daemon says that the job's program does not start there and why, or without a problem that it starts now."""
        given = {"job": "j", "uid": UID, "host": host}
        if not problem:
            return self._notice(made(HostProgramMended, words, **given))
        return self._notice(
            made(HostProgramRefused, words, **given, daemon="d", path="train.py", problem=problem)
        )

    def do_refused(self, who: str, why: str, cores: str = "0", memory: str = "0") -> list[str]:
        """A daemon says that a running member cannot be given these limits there."""
        wanted = self.decider.state.seats.wanted[who]
        limits = Resources(cores=float(cores), memory_bytes=int(memory))
        return self._notice(
            HostAdjustRefused(
                host=wanted.host, job="j", uid=UID, member=wanted.member, resources=limits, why=why
            )
        )

    def do_stalled(self, who: str, why: str) -> list[str]:
        """A daemon says that a member cannot start."""
        wanted = self.decider.state.seats.wanted[who]
        given = {"host": wanted.host, "job": "j", "uid": UID, "member": wanted.member}
        return self._notice(HostMemberStalled(**given, reason="Unschedulable", why=why))

    def do_taken(self, who: str, reason: str = "preempted", incarnation: str = "") -> list[str]:
        """A daemon says that another takes a member away."""
        wanted = self.decider.state.seats.wanted[who].member
        number = int(incarnation) if incarnation else wanted.incarnation
        member = Member(wanted.role, wanted.index, number)
        given = {"host": "h", "job": "j", "uid": UID, "member": member}
        return self._notice(HostMemberTaken(**given, reason=reason, why="PreemptionByScheduler"))

    def do_host(self, host: str, what: str, daemon: str = "d") -> list[str]:
        """A daemon says that its host is there, or that it leaves."""
        capacity = HostCapacity(cores=2, memory_bytes=1 << 30)
        facts: dict[str, Fact] = {
            "registered": HostRegistered(host=host, capacity=capacity, daemon=daemon),
            "leaving": HostLeaving(host=host, within_s=10.0),
            "left": HostLeft(host=host, reason="stopped"),
        }
        return self._notice(facts[what])

    def do_unheard(self, host: str) -> list[str]:
        """The Brain says that it does not hear a host."""
        return self._notice(MembersUnheard(job="j", host=host))

    def do_lose(self, part: str, cut: str, step: str = "persist", host: str = "") -> list[str]:
        """What keeps a part, or another host, says that a step cannot be done."""
        cuts = self.decider.state.cuts.known
        parts = cuts[int(cut)].parts.values() if int(cut) in cuts else []
        host = host or next((place.host for place in parts if place.part == part), "h")
        about = {**self._of_cut(cut, part), "host": host}
        return self._notice(HostPartFailed(**about, step=step, reason="the disk is full"))

    def do_stop(self, mode: str = "drain") -> list[str]:
        return self._notice(JobStopRequested(job="j", mode=mode, reason="enough", by="ann"))  # type: ignore[arg-type]

    def do_wait(self, seconds: str, step: str = "0.25", alive: str = "") -> list[str]:
        """Time passes and the master looks now and then; members are heard where a `beat` says so, or all along (`alive`)."""
        said: list[str] = []
        end = self.now + float(seconds)
        while self.now < end - 1e-9:
            self.now = min(end, self.now + float(step))
            for who in alive.split(",") if alive else []:
                self._decide(Requested(HeartbeatRequest(**self._who(who))))
            said += self._decide(Ticked())
        return said

    def do_bus(self, state: str) -> list[str]:
        return self._decide(BusLost() if state == "lost" else BusRegained())

    def do_takeover(self) -> list[str]:
        """A new master: its state comes from the bytes of the log alone."""
        self.assert_replayed()
        self.decider = self._replayed()
        return [f"replayed {len(self.log)} records, same state: True", *self._take_over()]

    def do_erase(self) -> list[str]:
        """The log is one of a backup from here on: what a restore appends, and a master that leads from it."""
        restored = JobRestored(timeline=77, backup="backups/monday")
        self.log.append(restored)
        self.decider.evolve(restored)
        return self.do_takeover()

    def assert_replayed(self) -> None:
        """What the log gives again is what the master holds: a rule that changes the state itself is found here."""
        again, held = self._replayed().state, self.decider.state
        names = [name for name in held.__struct_fields__ if getattr(again, name) != getattr(held, name)]
        assert not names, (
            f"`decide` changed {names} of the state, not `evolve`: a successor would not know it"
        )

    def _replayed(self) -> MasterDecider:
        batch = LogBatch(job="j", timeline=1, term=self.term, holder="m", number=1, records=self.log)  # type: ignore[arg-type]
        decider = MasterDecider("j")
        for record in decode(encode(batch), LogBatch).records:
            decider.evolve(record)
        return decider

    def do_snapshot(self) -> list[str]:
        """The state goes through a snapshot's bytes."""
        former = self.decider.dump()
        self.decider.restore(former)
        return [f"same state: {self.decider.dump() == former}"]

    def do_ledger(self) -> list[str]:
        ledger = self.decider.state.ledger
        if ledger is None:
            return ["no data set yet"]
        committed, dead = ledger.samples_done()
        lines = [
            f"phase {name_of(self.decider.state.phase)}, epoch {ledger.epoch}, frontier {ledger.frontier} of {ledger.batches}, "
            f"returned {list(ledger.returned)}, done {list(ledger.done)}, samples {committed} committed {dead} dead"
        ]
        for index, holder in ledger.holders.items():
            leases = ", ".join(f"{token}:[{le.first},{le.end})" for token, le in holder.leases.items())
            lines.append(f"worker-{index}.{holder.incarnation} holds {leases or 'nothing'}")
        if ledger.streams is not None:
            watermarks = {name: part.watermark for name, part in ledger.streams.partitions.items()}
            lines.append(f"watermarks {watermarks}")
        return lines

    # -- the machinery -------------------------------------------------------------------------------------------------

    def _take_over(self) -> list[str]:
        self.term += 1
        return self._decide(TookOver("m", self.term, len(self.log)))

    def _who(self, who: str, words: Words | None = None) -> dict[str, Any]:
        """What every request of a member says of itself, unless the words say another incarnation or generation."""
        role, index = place(who)
        state = self.decider.state
        seats = state.seats if isinstance(state, State) else Seats()
        known = seats.admitted.get(who)
        number = known.member.incarnation if known else seats.incarnations.get(who, 0)
        words = {} if words is None else words
        return {
            "member": Member(role, index, int(words.pop("incarnation", number))),  # type: ignore[arg-type]
            "timeline": int(words.pop("timeline", self.decider.timeline)),
            "generation": int(words.pop("generation", getattr(state, "generation", 0))),
        }

    def _progress(self, words: Words) -> Progress:
        """Progress is written `token:upto`, rows that were skipped by their positions."""
        pairs = [item.split(":") for item in words.pop("progress", "").split(",") if item]
        rows = [int(position) for position in words.pop("skipped", "").split(",") if position]
        return part(
            Progress,
            words,
            tokens=[int(token) for token, _ in pairs],
            uptos=[int(upto) for _, upto in pairs],
            skipped=[SkippedRow(p, p, p + 2, "bad label") for p in rows],
            skipped_file="t" if rows else "",
        )

    def _notice(self, fact: Fact) -> list[str]:
        return self._decide(Observed(fact, "F:1"))

    def _ask(self, request: Request) -> list[str]:
        return self._decide(Requested(request))

    def _decide(self, input: Any) -> list[str]:
        records, reply, released, _ = self.decider.decide(input, self.now)
        self.log += records
        assert not (wrong := broken(self.decider.state)), f"master/checks.py: {wrong}"
        said = [f"  log   {show(record)}" for record in records]
        if isinstance(reply, Hold):
            said.append(f"  holds the request of {reply.key}")
        elif reply is not None:
            said.append(f"  reply {show(reply)}")
            if isinstance(reply, JoinReply) and reply.restore is not None:
                self.told[reply.member.name] = reply.restore.path
        said += [f"  to {member}: {show(late)}" for member, late in released if late is not None]
        return said


def show(value: Record | Reply) -> str:
    """One line: the tag, then the fields that differ from their defaults."""
    cls = type(value)
    tag = str(cls.__struct_config__.tag).removesuffix(".v1")
    parts: list[str] = []
    for field in msgspec.structs.fields(cls):
        item = getattr(value, field.name)
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        if (
            field.name in HIDDEN
            or isinstance(item, PlanProposed)
            or item == default
            or field.name in ("ledger", "members", "dataset", "routing", "term", "restore")
            or (isinstance(item, list) and item and isinstance(item[0], DesiredMember))
        ):
            continue
        parts.append(f"{field.name}={plain(item)}")
    if isinstance(value, JoinReply) and value.restore is not None and value.restore.path:
        parts.append(f"storage={value.restore.path}")
    members = getattr(value, "members", None)
    if members and hasattr(members[0], "member"):
        parts.append("members=" + " ".join(map(show_place, members)))
    elif members:
        parts.append("members=" + " ".join(map(str, members)))
    if isinstance(value, MembersDesired) and value.former:
        parts.append("former=" + " ".join(map(show_place, value.former)))
    return " ".join([tag, *parts])


def show_place(desired: DesiredMember) -> str:
    """A life, its host where that is not the usual one, and its limit of cores."""
    cores = desired.resources.cores
    host = f"@{desired.host}" if desired.host != "h" else ""
    return f"{desired.member}{host}" + (f"({cores:g})" if cores else "")


def plain(item: Any) -> str:
    if isinstance(item, Member):
        return str(item)
    if isinstance(item, list):
        return "[" + " ".join(plain(each) for each in item) + "]"
    if isinstance(item, Size):
        each = [f"{value:g}" for value in msgspec.structs.astuple(item)]
        return "/".join(each if any(value != "0" for value in each[2:]) else each[:2])
    if isinstance(item, CutOrder):
        return f"{item.cut}.{item.generation}:{item.round} complete={item.complete}"
    if isinstance(item, PartPlace):
        slots = " ".join(f"{first}-{end}" for first, end in item.slots)
        return f"{item.part}.{item.incarnation}@{item.host}({slots})"
    if isinstance(item, SkippedRow):
        return f"{item.position}"
    if isinstance(item, MasterSeat):
        return f"{item.host}:{item.first}"
    if isinstance(item, MoveOrder):
        return f"move {item.move} of plan {item.plan}: {item.slots} from {item.source.index} to {item.target.index}"
    if isinstance(item, ServerAddress):
        return f"ps-{item.index}.{item.incarnation}"
    return str(item)
