"""Golden scripts of the master: commands in, records and replies out, in text that a person can check line by line.

A script is blocks of `> command` lines, each followed by what the decider did. ROVER_REWRITE_GOLDEN=1 makes the tests write the
outputs anew, and read the diff before committing it: that is the review.
"""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

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
    HostExited,
    HostLeaving,
    HostLeft,
    HostProgramMended,
    HostProgramRefused,
    HostRegistered,
    JobPauseRequested,
    JobResumeRequested,
    JobStopRequested,
    JobSubmitted,
    MembersUnheard,
    PlanApproved,
    PlanModeSet,
    PlanProposed,
    PlanRejected,
    Size,
    SlotsMoveRequested,
)
from rover_bus.events.identity import DesiredMember, Exit, HostCapacity, MasterSeat, Member
from rover_bus.events.inputs import BusLost, BusRegained, Observed, Requested, Ticked, TookOver
from rover_bus.events.job import CheckpointSpec, Dataset, DataSpec, JobSpec, LeaseSpec
from rover_bus.events.log import LogBatch, Record
from rover_bus.events.requests import (
    ElectRequest,
    FailureRequest,
    FinishedRequest,
    HeartbeatRequest,
    JoinRequest,
    LeaseRequest,
    LeaveRequest,
    MoveOrder,
    MoveStatus,
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
        self._take_over()

    def run(self, line: str) -> str:
        """Run one command and return what happened, a line each."""
        verb, *words = shlex.split(line)
        names = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        result = getattr(self, f"do_{verb}")(*plain, **names)
        return "\n".join(result) if isinstance(result, list) else str(result or "")

    # -- commands ------------------------------------------------------------------------------------------------------

    def do_submit(self, **names: str) -> list[str]:
        leases = {key: float(names.pop(key)) for key in ("heartbeat_s", "target_s") if key in names}
        counts = {
            key: int(names.pop(key))
            for key in (
                "failures_per_batch",
                "deterministic_failures",
                "max_batches",
                "relaunches",
                "preemptions",
            )
            if key in names
        }
        spec = JobSpec(
            name="j",
            program=["train"],
            data=DataSpec(
                train="t",
                evaluate=names.pop("evaluate", ""),
                epochs=int(names.get("epochs", 1)),
                batch_size=int(names.pop("batch", 100)),
            ),
            leases=LeaseSpec(**leases, **counts),
            on_server_lost=names.pop("on_server_lost", "fail"),  # type: ignore[arg-type]
            on_no_usable_checkpoint=names.pop("on_no_usable_checkpoint", "ask"),  # type: ignore[arg-type]
            checkpoint=CheckpointSpec(
                every_s=float(names.pop("checkpoint_s")),
                persist=names.pop("persist", "true") == "true",
                copies=int(names.pop("copies", 0)),
                keep=int(names.pop("keep", 3)),
            )
            if "checkpoint_s" in names
            else None,
        )
        return self._notice(JobSubmitted(job="j", spec=spec, uid=UID))

    def do_plan(
        self,
        workers: str = "0",
        servers: str = "0",
        plan: str = "1",
        reason: str = "",
        term: str = "0",
        mode: str = "auto",
        members_plan: str = "0",
        hosts: str = "h",
        replaces: str = "",
        masters: str = "",
    ) -> list[str]:
        lives = [self.decider.state.seats.wanted[who].member for who in replaces.split(",") if who]
        return self._notice(
            PlanProposed(
                job="j",
                plan=int(plan),
                workers=int(workers),
                servers=int(servers),
                hosts=hosts.split(","),
                masters=[host for host in masters.split(",") if host],
                reason=reason,
                brain_term=int(term),
                mode=mode,  # type: ignore[arg-type]
                members_plan=int(members_plan),
                replaces=lives,
            )
        )

    def do_answer(self, what: str, plan: str = "0", by: str = "ann") -> list[str]:
        said = PlanApproved if what == "approve" else PlanRejected
        return self._notice(said(job="j", plan=int(plan), by=by))

    def do_mode(self, mode: str) -> list[str]:
        return self._notice(PlanModeSet(job="j", mode=mode, by="ann"))  # type: ignore[arg-type]

    def do_checkpoint(self) -> list[str]:
        """A stack that is going down asks for a last checkpoint."""
        return self._notice(CheckpointRequested(job="j", reason="rover down", by="ann"))

    def do_pause(self) -> list[str]:
        return self._notice(JobPauseRequested(job="j", by="ann"))

    def do_resume(self, what: str = "", checkpoint: str = "0") -> list[str]:
        choice = {"from_nothing": what == "from_nothing", "checkpoint": int(checkpoint)}
        return self._notice(JobResumeRequested(job="j", by="ann", **choice))  # type: ignore[arg-type]

    def do_join(self, who: str, incarnation: str = "", nonce: str = "") -> list[str]:
        role, index = place(who)
        planned = self.decider.state.seats.wanted.get(who)
        number = int(incarnation) if incarnation else planned.member.incarnation if planned else 0
        member = Member(role, index, number)  # type: ignore[arg-type]
        host = planned.host if planned else "h"
        return self._ask(JoinRequest(member=member, nonce=nonce or f"n-{member}", host=host))

    def do_register(
        self, who: str, records: str, batch: str = "100", epochs: str = "1", partitions: str = ""
    ) -> list[str]:
        dataset = Dataset(
            records=int(records),
            batch_size=int(batch),
            epochs=int(epochs),
            partitions=partitions.split(",") if partitions else [],
        )
        return self._ask(RegisterRequest(**self._who(who), dataset=dataset))

    def do_lease(
        self,
        who: str,
        request: str = "",
        wanted: str = "1",
        rate: str = "0.1",
        progress: str = "",
        held: str = "",
        skipped: str = "",
        high: str = "",
        sealed: str = "",
        **fences: str,
    ) -> list[str]:
        number = int(request) if request else self.requests.get(who, 0) + 1
        self.requests[who] = max(number, self.requests.get(who, 0))
        return self._ask(
            LeaseRequest(
                **self._who(who, fences),
                request=number,
                wanted=int(wanted),
                rate=float(rate),
                progress=self._progress(progress, skipped, fences),
                held=[int(token) for token in held.split(",") if token],
                high_water={p: int(n) for p, n in (item.split(":") for item in high.split(",") if item)},
                sealed=[item for item in sealed.split(",") if item],
            )
        )

    def do_beat(
        self, who: str, progress: str = "", held: str = "", request: str = "", moves: str = "", **fences: str
    ) -> list[str]:
        traffic = [item.split(":") for item in fences.pop("hottest", "").split(",") if item]
        keys_per_s = float(fences.pop("keys_per_s", 0))
        sizes = {name: float(fences.pop(name)) for name in ("memory_bytes", "row_bytes") if name in fences}
        routing = int(fences.pop("routing", 0))
        return self._ask(
            HeartbeatRequest(
                **self._who(who, fences),
                request=int(request) if request else self.requests.get(who, 0),
                progress=self._progress(progress, "", fences),
                held=[int(token) for token in held.split(",") if token],
                moves=[
                    MoveStatus(move=int(number), phase=phase)  # type: ignore[arg-type]
                    for number, phase in (item.split(":") for item in moves.split(",") if item)
                ],
                traffic=SlotTraffic(
                    keys_per_s=keys_per_s, hottest=[(int(slot), float(rate)) for slot, rate in traffic]
                )
                if keys_per_s
                else None,
                statistics=sizes,
                routing_epoch=routing,
            )
        )

    def do_move(self, **names: str) -> list[str]:
        """Somebody asks for slots to be moved."""
        wish: dict[str, Any] = dict(names)
        if "share" in wish:
            wish["share"] = float(wish["share"])
        if "slots" in wish:
            wish["slots"] = [(int(a), int(b)) for a, b in (r.split("-") for r in wish["slots"].split(","))]
        wish["hot"] = bool(names.get("hot"))
        return self._notice(SlotsMoveRequested(job="j", **wish))

    def do_leave(self, who: str, progress: str = "", reason: str = "done") -> list[str]:
        return self._ask(LeaveRequest(**self._who(who), reason=reason, progress=self._progress(progress)))

    def do_fail(
        self, who: str, token: str = "0", exception: str = "ValueError", at: str = "f:1"
    ) -> list[str]:
        return self._ask(
            FailureRequest(
                **self._who(who),
                token=int(token),
                exception=exception,
                message="boom",
                fingerprint=f"{exception}@{at}",
            )
        )

    def do_elect(self, who: str, task: str = "evaluate", done: str = "") -> list[str]:
        return self._ask(
            ElectRequest(**self._who(who), task=task, done=bool(done), values={"auc": 0.7} if done else {})
        )

    def do_finished(self, who: str) -> list[str]:
        return self._ask(FinishedRequest(**self._who(who), path=f"{who}.part"))

    def do_exit(
        self, who: str, reason: str = "killed", incarnation: str = "", job: str = "j", last: str = "0"
    ) -> list[str]:
        role, index = place(who)
        number = int(incarnation) if incarnation else self.decider.state.seats.incarnations.get(who, 0)
        member = Member(role, index, number)  # type: ignore[arg-type]
        exit = Exit(reason=reason)  # type: ignore[arg-type]
        return self._notice(HostExited(host="h", job=job, member=member, exit=exit, last=int(last)))

    # -- cuts ------------------------------------------------------------------------------------------------------------

    def do_stage(
        self, who: str, cut: str, round: str = "0", slots: str = "", problem: str = "", wanted: str = "0"
    ) -> list[str]:
        """A server says that it staged its part, by default all that it owns; or why it could not."""
        _, index = place(who)
        owners = self.decider.state.slots.owners
        own = [(first, end) for owner, first, end in owners if owner == index]
        given = [tuple(map(int, pair.split(":"))) for pair in slots.split(",") if pair]
        known = self.decider.state.cuts.known.get(int(cut))
        identity = known.identity if known is not None else 0
        if problem:
            staged = PartReport(
                cut=int(cut),
                identity=identity,
                round=int(round),
                problem=problem,
                wanted_bytes=int(wanted) << 20,
            )
        else:
            staged = PartReport(
                cut=int(cut), identity=identity, round=int(round), slots=given or own, size_bytes=100
            )  # type: ignore[arg-type]
        return self._ask(HeartbeatRequest(**self._who(who), staged=staged))

    def do_restored(self, who: str, cut: str, problem: str = "") -> list[str]:
        report = RestoreReport(cut=int(cut), source="" if problem else "memory", rows=7, problem=problem)
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

    def do_searched(
        self, found: str = "0", there: str = "0", refused: str = "", problem: str = "", search: str = ""
    ) -> list[str]:
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
        return self._notice(
            HostStorageSearched(
                host=on.host if on is not None else "h",
                job="j",
                uid=self.decider.state.job.uid,
                search=int(search) if search else on.number if on is not None else 0,
                found=stored,
                there=int(there),
                refused=[line for line in refused.split(";") if line],
                problem=problem,
            )
        )

    def do_digested(self, part: str, cut: str) -> list[str]:
        """A daemon has made the digests of a staged part."""
        cuts = self.decider.state.cuts.known
        parts = cuts[int(cut)].parts.values() if int(cut) in cuts else []
        host = next((place.host for place in parts if place.part == part), "h")
        return self._notice(HostPartDigested(**{**self._of_cut(cut, part), "host": host}))

    def do_mirrored(self, part: str, cut: str, host: str) -> list[str]:
        """A daemon holds a copy of a part."""
        return self._notice(HostPartMirrored(**{**self._of_cut(cut, part), "host": host}, of="h"))

    def do_program(self, host: str, problem: str = "", daemon: str = "d", uid: str = UID) -> list[str]:
        """A daemon says that the job's program does not start there and why, or without a problem that it starts now."""
        if not problem:
            return self._notice(HostProgramMended(job="j", uid=uid, host=host))
        refused = HostProgramRefused(
            job="j", uid=uid, host=host, daemon=daemon, path="train.py", problem=problem
        )
        return self._notice(refused)

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

    def do_lose(self, part: str, cut: str, step: str = "persist") -> list[str]:
        return self._notice(HostPartFailed(**self._of_cut(cut, part), step=step, reason="the disk is full"))

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
        batch = LogBatch(job="j", timeline=1, term=self.term, holder="m", number=1, records=self.log)  # type: ignore[arg-type]
        former = self.decider.dump()
        self.decider = MasterDecider("j")
        for record in decode(encode(batch), LogBatch).records:
            self.decider.evolve(record)
        same = self.decider.dump() == former
        return [f"replayed {len(self.log)} records, same state: {same}", *self._take_over()]

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
            lines.append(f"watermarks {ledger.streams.watermarks()}")
        return lines

    # -- the machinery -------------------------------------------------------------------------------------------------

    def _take_over(self) -> list[str]:
        self.term += 1
        return self._decide(TookOver("m", self.term, len(self.log)))

    def _who(self, who: str, fences: dict[str, str] | None = None) -> dict[str, Any]:
        role, index = place(who)
        state = self.decider.state
        seats = state.seats if isinstance(state, State) else Seats()
        life = seats.admitted.get(who)
        number = life.member.incarnation if life else seats.incarnations.get(who, 0)
        fences = fences or {}
        return {
            "member": Member(role, index, int(fences.get("incarnation", number))),  # type: ignore[arg-type]
            "timeline": self.decider.timeline,
            "generation": int(fences.get("generation", getattr(state, "generation", 0))),
        }

    def _progress(self, text: str, skipped: str = "", fences: dict[str, str] | None = None) -> Progress:
        pairs = [item.split(":") for item in text.split(",") if item]
        servers = (fences or {}).get("servers", "")
        return Progress(
            tokens=[int(token) for token, _ in pairs],
            uptos=[int(upto) for _, upto in pairs],
            servers=[int(n) for n in servers.split(",") if n],
            skipped=[SkippedRow(int(p), int(p), int(p) + 2, "bad label") for p in skipped.split(",") if p],
            skipped_file="t" if skipped else "",
        )

    def _notice(self, fact: Fact) -> list[str]:
        return self._decide(Observed(fact, "F:1"))

    def _ask(self, request: Request) -> list[str]:
        return self._decide(Requested(request))

    def _decide(self, input: Any) -> list[str]:
        records, reply, released = self.decider.decide(input, self.now)
        self.log += records
        assert broken(self.decider.state) == []
        said = [f"  log   {show(record)}" for record in records]
        if isinstance(reply, Hold):
            said.append(f"  holds the request of {reply.key}")
        elif reply is not None:
            said.append(f"  reply {show(reply)}")
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
        ):
            continue
        parts.append(f"{field.name}={plain(item)}")
    members = getattr(value, "members", None)
    if members and hasattr(members[0], "member"):
        parts.append("members=" + " ".join(map(show_place, members)))
    elif members:
        parts.append("members=" + " ".join(map(str, members)))
    return " ".join([tag, *parts])


def show_place(desired: DesiredMember) -> str:
    """A life and its host, where that is not the usual one."""
    return str(desired.member) + (f"@{desired.host}" if desired.host != "h" else "")


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
