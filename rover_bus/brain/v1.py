"""The Brain as a library, version 1: hosts, jobs, samples and ends in; placements of all jobs out. Needs no bus.

    from rover_bus.brain.v1 import Brain, ClusterHost, Measurement, TrainingJob

What decides is `BrainDecider`, the very one that the service runs. Here stands what surrounds it on a cluster: samples become
profiles, and what the scheduler carried out becomes the facts of a master. Nothing here is read from a clock: `now_s` is seconds of
any clock that never goes back. A name or a meaning of this module changes only in a `v2` beside it. docs/brain-library.md;
examples/scheduler.py is a whole scheduler. Units: seconds, samples, cores (or whatever hosts are counted in: GPUs), bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from rover_bus.brain.decider import NO_QUOTAS, BrainDecider
from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.decisions.warm_start import PastJob
from rover_bus.brain.models.hazard import LossCount
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import FamilySample
from rover_bus.brain.told import (
    ClusterHost,
    JobPlacement,
    Measurement,
    MemberRemedy,
    TrainingJob,
    profiles_of,
)
from rover_bus.events import facts, host_facts
from rover_bus.events.errors import InputError
from rover_bus.events.identity import DesiredMember, HostCapacity, Member, Resources
from rover_bus.events.inputs import Continued, Input, Observed, Sampled, Ticked, TookOver
from rover_bus.events.job import JobSpec, is_synchronous
from rover_bus.events.outbox import FactOut

__all__ = ["Brain", "ClusterHost", "JobPlacement", "Measurement", "MemberRemedy", "TrainingJob"]
SWITCHED_OFF = "the scheduler does without it"
COARSE = 3  # of a run's first windows that say nothing: one may be a start in its last second
MOST_LOOKS = 4  # in one decision: what one makes room for, the next one begins


class BrainMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What a Brain remembers of runs that ended, and of members that were lost."""

    past: list[PastJob]
    families: dict[str, list[FamilySample]]
    losses: LossCount = LossCount()
    version: Literal[1] = 1


@dataclass
class _Run:
    """What was told of a job: its last placement, and where its members are (`members_plan` counts that)."""

    spec: JobSpec
    placed: JobPlacement
    workers: list[str] = field(default_factory=list)
    servers: list[str] = field(default_factory=list)
    plan: int = 0
    members_plan: int = 0
    settled: bool = True
    sequence: int = 0
    fresh: list[Member] = field(default_factory=list)  # members whose first sample is still to come
    replaced: set[int] = field(default_factory=set)  # workers whose successors are on their way,
    former: dict[int, str] = field(default_factory=dict)  # and where those are that may train until then
    incarnations: dict[int, int] = field(default_factory=dict)  # of workers that were replaced
    coarse: int = 0  # windows without a whole sample, before the first that has one

    def worker(self, index: int) -> Member:
        """A worker as it is now: one that was replaced is another one."""
        return Member("worker", index, self.incarnations.get(index, 1))


class Brain:
    """One cluster's Brain. `fair_share` 0: throughput, short jobs first; below 0: the power mean of gains over the fair share (-1:
    as Pollux). `memory`: of a former Brain (`memory()`). `quotas` by tenant: (cores, bytes).

    `at_once`: what `decide()` returns is carried out before the next call, as by a scheduler that is called at each tick; otherwise
    say `placed()` and `settled()` as members come and go.

    `without`: rules to do without, by the names that `rover explain` gives them. `models` makes what predicts, of `StandingModels`.
    """

    def __init__(
        self,
        *,
        fair_share: float = 0.0,
        memory: bytes = b"",
        quotas: Mapping[str, tuple[float, float]] | None = None,
        at_once: bool = True,
        without: Iterable[str] = (),
        models: Callable[[], StandingModels] = StandingModels,
    ) -> None:
        if not -10 <= fair_share <= 0:
            raise InputError(f"fair_share is {fair_share}, outside -10..0")
        budgets = {tenant: Budget(*limits) for tenant, limits in quotas.items()} if quotas else NO_QUOTAS
        self._decider = BrainDecider(1, quotas=budgets, fair_share=float(fair_share), models=models)
        if memory:
            known = _remembered(memory)
            self._decider.state.past, self._decider.state.families = known.past, known.families
            self._decider.state.losses = known.losses
        self._at_once, self._now_s, self._position = at_once, float("-inf"), 0
        self._runs: dict[str, _Run] = {}
        self._submitted = 0
        self._remedies: list[MemberRemedy] = []
        self._changed: dict[str, JobPlacement] = {}
        self._hosts: dict[str, ClusterHost] = {}
        self._decide(TookOver("library", 1, failing=dict.fromkeys(without, SWITCHED_OFF)), 0.0)

    # -- what is told --------------------------------------------------------------------------------------------------

    def set_hosts(self, hosts: Mapping[str, ClusterHost], now_s: float) -> None:
        """Say which hosts there are: all of them. Those that are not named any more are gone."""
        now_s = self._time(now_s)
        for name, host in hosts.items():
            if self._hosts.get(name) != host:
                room = HostCapacity(
                    cores=host.cores, memory_bytes=int(host.memory_bytes), cores_bind=host.cores_bind
                )
                self._notice(host_facts.HostRegistered(host=name, daemon="library", capacity=room), now_s)
        left = self._hosts.keys() - hosts.keys()
        for name in [each for each in self._hosts if each in left]:
            self._notice(host_facts.HostLeft(host=name), now_s)
        self._hosts = dict(hosts)
        for run in list(self._runs.values()):
            if gone := sum(host in left for host in (*run.workers, *run.servers)):
                self.lost(run.spec.name, now_s, members=gone)
            self._drop_lost(run, now_s)

    def submit(self, job: TrainingJob | JobSpec, now_s: float) -> None:
        """Say that a job waits. Raises InputError for a name that is taken."""
        spec = job.spec() if isinstance(job, TrainingJob) else job
        if spec.name in self._runs:
            raise InputError(f"{spec.name!r} is submitted already: say end() of it first")
        self._submitted += 1
        self._runs[spec.name] = _Run(spec, JobPlacement(job=spec.name))
        submitted = facts.JobSubmitted(job=spec.name, spec=spec, uid=f"{self._submitted:012x}")
        self._notice(submitted, self._time(now_s))

    def observe(self, sample: Measurement, now_s: float) -> None:
        """Hand a measurement over. With `at_once` the first of a new size says that all its members are there."""
        now_s, run = self._time(now_s), self._run(sample.job)
        workers = len(run.workers)
        rates = [float(rate) for rate in sample.worker_samples_per_s]
        rates = rates or [sample.samples_per_s / workers] * workers if workers else rates
        if self._at_once and not run.settled and sample.samples_per_s > 0:
            self._settle(run, now_s - sample.seconds)
        if rates and sample.samples_per_s > 0:
            _check_units(run, sample, rates)
        by_worker = {run.worker(index): rate for index, rate in enumerate(rates)}
        fresh = [member for member in run.fresh if member in by_worker]
        run.fresh = [member for member in run.fresh if member not in by_worker]
        batches = _batches(run.spec, sample.seconds, rates)
        for profile in profiles_of(sample, by_worker, len(run.servers), fresh, batches):
            self._decide(Sampled(profile), now_s)
        left, done = sample.samples_left, int(sample.samples_done)
        total = 0 if left is None else done + int(left)
        self._say(
            run,
            facts.JobReported(job=sample.job, epoch=0, committed=done, dead_lettered=0, total=total),
            now_s,
        )

    def placed(self, job: str, worker_hosts: list[str], server_hosts: list[str], now_s: float) -> None:
        """Say where a job's members are, where that is not what was decided."""
        run, now_s = self._run(job), self._time(now_s)
        if (worker_hosts, server_hosts) != (run.workers, run.servers):
            run.workers, run.servers = list(worker_hosts), list(server_hosts)
            self._tell_members(run, now_s)

    def hold(self, placement: JobPlacement, now_s: float) -> None:
        """Say that a job gets another size than was decided, one that its scheduler chose: `settled()` says when it is live."""
        run, now_s = self._run(placement.job), self._time(now_s)
        run.placed, run.settled, run.former = placement, False, {}
        run.workers, run.servers = list(placement.worker_hosts), list(placement.server_hosts)
        self._apply(run, now_s)

    def killed(self, job: str, now_s: float) -> None:
        """Say that a server of a job was killed because it outgrew its memory limit: the next decision raises that."""
        run, now_s = self._run(job), self._time(now_s)
        self._say(run, facts.MemberLost(job=job, member=Member("ps", 0, 1), reason="out_of_memory"), now_s)

    def lost(self, job: str, now_s: float, *, members: int = 1) -> None:
        """Say that members were taken from a job from outside (a host failed, a process was killed), whether or not others take
        their places: the Brain learns how often that happens here. Members of hosts that go (`set_hosts`) are counted without it.
        """
        run, now_s = self._run(job), self._time(now_s)
        for _ in range(members):
            self._say(run, facts.MemberLost(job=job, member=Member("worker", 0, 1), reason="killed"), now_s)

    def settled(self, job: str, now_s: float) -> None:
        """Say that what was decided of a job is carried out, and all its members take part."""
        run = self._run(job)
        if not run.settled:
            self._settle(run, self._time(now_s))

    def end(self, job: str, now_s: float, *, completed: bool = True) -> None:
        """Say that a job ended. What it showed is remembered for its family."""
        self._run(job)
        ended = facts.JobEnded(job=job, state="completed" if completed else "failed")
        self._notice(ended, self._time(now_s))
        del self._runs[job]
        self._changed.pop(job, None)

    # -- what is decided -----------------------------------------------------------------------------------------------

    def decide(self, now_s: float) -> dict[str, JobPlacement]:
        """Size all jobs; return the placements that changed, by job. Call it when something was told, or at each tick."""
        now_s = self._time(now_s)
        for _ in range(MOST_LOOKS if self._at_once else 1):
            before = self._position
            self._decide(Ticked(), now_s)
            if self._position == before:
                break
        changed, self._changed = self._changed, {}
        return changed

    @property
    def placements(self) -> dict[str, JobPlacement]:
        """What each job holds by the last decisions."""
        return {name: run.placed for name, run in self._runs.items()}

    def take_remedies(self) -> list[MemberRemedy]:
        """Return what members need since the last call."""
        taken, self._remedies = self._remedies, []
        return taken

    def memory(self) -> bytes:
        """What this Brain knows of runs that ended and of losses, for another one: `Brain(memory=...)`. Say `end` of what still
        runs first.
        """
        state = self._decider.state
        return msgspec.msgpack.encode(
            BrainMemory(past=state.past, families=state.families, losses=state.losses)
        )

    # -- the master ----------------------------------------------------------------------------------------------------

    def _carry_out(self, plan: facts.PlanProposed, now_s: float) -> None:
        run = self._runs[plan.job]
        if plan.mode == "observe" and run.plan:  # what comes after the first plan is only said
            self._say(run, facts.PlanChecked(job=plan.job, plan=plan.plan, outcome="observed"), now_s)
            return
        workers, size = len(run.workers), plan.size
        moved = {member.index for member in plan.replaces if member.role == "worker"}
        run.replaced |= moved
        stays = () if self._at_once else plan.stays  # what is carried out at once has nothing to wait for
        run.former = {member.index: run.workers[member.index] for member in stays}
        if plan.step == "replace":
            self._remedies += [
                MemberRemedy(kind="replace_worker", job=plan.job, index=index) for index in sorted(moved)
            ]
        run.workers = _seated(run.workers, plan.workers, moved, plan.worker_hosts, plan.hosts)
        run.servers = _seated(run.servers, plan.servers, set(), plan.server_hosts, plan.hosts)
        run.placed = JobPlacement(
            job=plan.job,
            worker_hosts=run.workers,
            server_hosts=run.servers,
            stays_on=[*run.former.values()],
            worker_cores=plan.worker_cores,
            server_cores=plan.server_cores,
            worker_memory_bytes=plan.worker_memory_bytes,
            server_memory_bytes=plan.server_memory_bytes,
            samples_per_s=plan.predicted,
            low_90=plan.predicted_low_90,
            high_90=plan.predicted_high_90,
            reason=plan.constant,
            detail=plan.reason,
        )
        run.plan, run.settled, self._changed[plan.job] = plan.plan, False, run.placed
        self._say(run, facts.PlanChecked(job=plan.job, plan=plan.plan, outcome="passed"), now_s)
        applied = facts.PlanApplied(
            job=plan.job, plan=plan.plan, workers=plan.workers, servers=plan.servers, size=size
        )
        self._say(run, applied, now_s)
        self._tell_members(run, now_s)
        if self._at_once and len(run.workers) <= workers:
            self._settle(run, now_s)  # what is given back is free at once

    def _apply(self, run: _Run, now_s: float) -> None:
        """Say that a job holds what its placement says, whatever plan that was of."""
        placed = run.placed
        size = facts.Size(
            workers=len(run.workers),
            servers=len(run.servers),
            worker_cores=placed.worker_cores,
            server_cores=placed.server_cores,
            worker_memory_bytes=placed.worker_memory_bytes,
            server_memory_bytes=placed.server_memory_bytes,
        )
        run.plan += 1
        applied = facts.PlanApplied(
            job=run.spec.name, plan=run.plan, workers=size.workers, servers=size.servers, size=size
        )
        self._say(run, applied, now_s)
        self._tell_members(run, now_s)

    def _drop_lost(self, run: _Run, now_s: float) -> None:
        """What is left of a job whose hosts went; a ring of which a part is gone stands still. The next decision sizes it anew."""
        was, present = run.placed, self._hosts
        workers, servers = [h for h in run.workers if h in present], [h for h in run.servers if h in present]
        if (workers, servers) == (run.workers, run.servers) or not self._at_once:
            return  # else the scheduler says `placed()`
        if servers != run.servers or not run.spec.has_servers:
            workers = []  # without its tables, or its ring, no worker goes on
        rest = servers or list(present)
        run.servers = [h if h in present else rest[i % len(rest)] for i, h in enumerate(run.servers) if rest]
        run.workers, servers = workers, run.servers
        run.placed = self._changed[run.spec.name] = was.replace(worker_hosts=workers, server_hosts=servers)
        self._apply(run, now_s)
        self._settle(run, now_s)
        if not workers:  # it stands still, and asks for what it had
            for stands in (facts.JobPaused(job=run.spec.name), facts.JobResumed(job=run.spec.name)):
                self._say(run, stands, now_s)

    def _tell_members(self, run: _Run, now_s: float, proposal: int = 0) -> None:
        run.members_plan += 1
        seats = [(Member("ps", i, 1), host) for i, host in enumerate(run.servers)]
        seats += [(run.worker(i), host) for i, host in enumerate(run.workers)]
        members = [_desired(member, host) for member, host in seats]
        run.fresh = [member for member, _ in seats if member.role == "worker"]
        name = run.spec.name
        desired = facts.MembersDesired(
            job=name,
            term=1,
            plan=run.members_plan,
            members=members,
            proposal=proposal,
            former=[_desired(run.worker(index), host) for index, host in run.former.items()],
        )
        self._say(run, desired, now_s)

    def _settle(self, run: _Run, now_s: float) -> None:
        run.settled = True
        if run.replaced:  # not sooner: until its successor is there, what is measured is the slow one
            run.incarnations |= {index: run.worker(index).incarnation + 1 for index in run.replaced}
            run.replaced, run.former = set(), {}
            self._tell_members(run, now_s, proposal=run.plan)
        settled = facts.PlanSettled(job=run.spec.name, plan=run.plan, members_plan=run.members_plan)
        self._say(run, settled, now_s)

    def _say(self, run: _Run, fact: facts.JobFact, now_s: float) -> None:
        run.sequence += 1
        self._notice(fact.replace(position=(run.sequence, 0)), now_s)

    def _run(self, job: str) -> _Run:
        if job not in self._runs:
            raise InputError(f"{job!r} is not submitted, or ended")
        return self._runs[job]

    # -- the decider ---------------------------------------------------------------------------------------------------

    def _time(self, now_s: float) -> float:
        if not now_s >= self._now_s:
            raise InputError(f"now_s is {now_s}, before {self._now_s}: time does not go back")
        self._now_s = float(now_s)
        return self._now_s

    def _notice(self, fact: facts.Fact, now_s: float) -> None:
        self._decide(Observed(fact, "library"), now_s)

    def _decide(self, input: Input, now_s: float) -> None:
        """Decide one input to its end."""
        unfinished: Input | None = input
        while unfinished is not None:
            decision = self._decider.decide(unfinished, now_s)
            for record in decision.effects:
                self._position += 1
                for item in self._decider.outgoing(record, (self._position, 0), 1):
                    if isinstance(item, FactOut):
                        self._obey(item.fact, now_s)
            unfinished = Continued() if decision.unfinished else None

    def _obey(self, fact: facts.Fact, now_s: float) -> None:
        """Do what the master of a job does with a fact of the Brain."""
        match fact:
            case facts.PlanProposed():
                self._carry_out(fact, now_s)
            case facts.StragglerFound(job=job, member=member):
                self._remedies.append(MemberRemedy(kind="smaller_leases", job=job, index=member.index))
            case facts.SlotsMoveRequested(job=job, source=source):
                index = int(source.removeprefix("ps-"))
                self._remedies.append(MemberRemedy(kind="move_slots", job=job, index=index))
            case _:
                pass  # told for others


def _desired(member: Member, host: str) -> DesiredMember:
    return DesiredMember(member=member, host=host, command=["library"], resources=Resources())


def _seated(now: list[str], count: int, moved: set[int], named: list[str], rest: list[str]) -> list[str]:
    """The host of each member: those that stay stay, moved and new ones take the hosts named for them, then the rest in turn."""
    coming = iter(named)
    return [
        now[index]
        if index < len(now) and (index not in moved or not named)
        else next(coming, rest[index % len(rest)])
        for index in range(count)
    ]


def _check_units(run: _Run, sample: Measurement, rates: list[float]) -> None:
    """Refuse a job of which no window would count a sample. Once one did, less is a job that stands still. Raises InputError."""
    if any(round(run.spec.plan.window_s * rate) for rate in rates):
        run.coarse = -1
    elif run.coarse >= 0:
        run.coarse += 1
    if run.coarse >= COARSE:
        least = len(rates) / run.spec.plan.window_s
        raise InputError(
            f"samples_per_s is {sample.samples_per_s:g}: count smaller units, {least:g} a second at least"
        )


def _batches(spec: JobSpec, seconds: float, rates: list[float]) -> int:
    """How many batches each worker has done, one at least: all take part in each that is the whole job's, else each has its own."""
    together = is_synchronous(spec) or not rates
    samples = seconds * (sum(rates) if together else sum(rates) / len(rates))
    return max(round(samples / spec.data.batch_size), 1)


def _remembered(memory: bytes) -> BrainMemory:
    try:
        return msgspec.msgpack.decode(memory, type=BrainMemory)
    except msgspec.MsgspecError as error:
        raise InputError(f"memory is not what Brain.memory() of this version returned: {error}") from error
