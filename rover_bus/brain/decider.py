"""The Brain's decider: facts and samples in, windows, verdicts and plans out. One change of a job at a time, and measured.

Fed by the shared shell (service.py); what it decides is records, evolved at once (evolution.py). Samples gather in `watch` and are
logged only as closed windows. After each window of a job comes its turn: slow workers, memory, the verdict on a change under way,
its target, and at last a wish for another size, which must pass capacity, quotas and priorities. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Self, assert_never, get_args

import msgspec

from rover_bus.brain import freezing, memory_relief, publishing, remedies, turns
from rover_bus.brain.asked import answer_request
from rover_bus.brain.backlog import Backlog
from rover_bus.brain.cores_seen import see_registered
from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.endings import past_of
from rover_bus.brain.evolution import evolve
from rover_bus.brain.granting import cores_left_for
from rover_bus.brain.hosts import leave_slow_hosts, note_slow_hosts
from rover_bus.brain.judging import judge
from rover_bus.brain.log import (
    BrainRuleSwitched,
    BrainTermBegun,
    ClusterObserved,
    FactObserved,
    FreezeObserved,
    FreezesTurned,
    HostGone,
    HostSeen,
    JobGone,
    JobSeen,
    MembersSeen,
    ObservedFact,
)
from rover_bus.brain.losses import OF_ITS_OWN, give_up_places, lost_workers
from rover_bus.brain.models.hosts import SLOW_MEMORY_S
from rover_bus.brain.replacing import replace_slowest, replace_stragglers
from rover_bus.brain.settling import settle, withhold
from rover_bus.brain.silence import fit_into_what_is_left, note_unheard
from rover_bus.brain.stalled import begin_with_less, note_stalled, say_not_withdrawn
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.brain.totals import keep_totals
from rover_bus.brain.turns import Rounds
from rover_bus.brain.unsettled import take_back_unsettled
from rover_bus.brain.watch import JobSamples
from rover_bus.brain.wishes import CapacityLeft, Wish
from rover_bus.events.deciding import Decision
from rover_bus.events.facts import (
    Fact,
    JobEnded,
    JobFact,
    JobForgotten,
    JobReported,
    JobResumed,
    JobSubmitted,
    MemberLost,
    MembersDesired,
    MembersDisplaced,
    PlanApplied,
    PlanRefused,
    PlanRequested,
    PlanSettled,
    RuleSwitchedOff,
    RuleSwitchedOn,
)
from rover_bus.events.host_facts import (
    ClusterModeSet,
    FreezeLifted,
    FreezeSet,
    HostLeft,
    HostMemberStalled,
    HostRegistered,
    QuotaSet,
)
from rover_bus.events.identity import Member
from rover_bus.events.inputs import (
    BusLost,
    BusRegained,
    Continued,
    Input,
    Observed,
    Requested,
    Sampled,
    Ticked,
    TookOver,
)
from rover_bus.events.job import PlanMode
from rover_bus.events.log import Record
from rover_bus.events.outbox import Outgoing
from rover_bus.events.poison import apart
from rover_bus.events.profiles import AnyProfile, HostProfile, ServerProfile, WorkerProfile

Steps = Generator[Record, None, None]
NOT_IN_A_FREEZE = frozenset({"hot server"})  # of the rules that always look
CHANGES_THE_CLUSTER = (
    JobSeen,
    JobGone,
    HostSeen,
    HostGone,
    ClusterObserved,
    FreezesTurned,
)  # all jobs are sized together after these
NO_QUOTAS: Mapping[str, Budget] = {}
A_WINDOW = 0.25  # what closing one takes, in the units of a round's work (`turns`),
A_LOOK = 0.002  # and to see of each job whether one is due


class BrainDecider:
    """One cluster's deciding, and the state it decides on. `timeline` is drawn once by the shell's owner.

    `mode` is the cluster's, the strictest holds; `quotas` are by tenant: both until a person says otherwise. `models` makes what
    predicts: fits to what jobs have shown, unless they are told more than that (the oracles of `bench/simulation`).
    """

    def __init__(
        self,
        timeline: int,
        mode: PlanMode = "auto",
        quotas: Mapping[str, Budget] = NO_QUOTAS,
        slow_memory_s: float = SLOW_MEMORY_S,
        fair_share: float = 0.0,
        models: Callable[[], StandingModels] = StandingModels,
    ) -> None:
        self.state = BrainState()
        keep_totals(self.state)
        self._evolved = True  # since families were looked at
        self.watch = JobSamples()
        self.models, self._models_anew = models(), models
        budgets = {tenant: Budget(float(b.cores), float(b.memory_bytes)) for tenant, b in quotas.items()}
        self._rounds = Rounds()
        self._looking = (
            False  # a look is under way: windows that are due are still to be closed, or jobs to be sized
        )
        self._due_now, self._turns = deque[str](), list[str]()
        self._backlog = Backlog()
        self._changed_cluster = False  # by the input that is being decided
        self._started_with: tuple[PlanMode, dict[str, Budget], float, float] = (
            mode,
            budgets,
            slow_memory_s,
            fair_share,
        )
        self._new_timeline = timeline

    @property
    def rounds(self) -> tuple[int, bool]:
        """How many rounds of all jobs this process has finished, and whether one is under way."""
        return self._rounds.finished, self._rounds.under_way

    @property
    def timeline(self) -> int:
        return self.state.timeline

    def anew(self) -> Self:
        """Return a decider that was started alike and knows nothing."""
        return type(self)(self._new_timeline, *self._started_with, self._models_anew)

    def dump(self) -> bytes:
        return msgspec.msgpack.encode(self.state)

    def restore(self, body: bytes) -> None:
        self.state = msgspec.msgpack.decode(body, type=BrainState)
        self._evolved = True
        keep_totals(self.state)

    def evolve(self, record: Record) -> None:
        """Apply one record of the Brain's log."""
        self._evolved = self._evolved or isinstance(record, CHANGES_THE_CLUSTER)
        evolve(self.state, record)

    def decide(self, input: Input, now: float) -> Decision[Record]:
        """Decide one input; the records are already evolved."""
        if isinstance(input, Sampled) and isinstance(input.sample, WorkerProfile):
            # Tens of thousands a second, and none of them decides anything: a window does.
            self._observe_worker(input.sample, now)
            return Decision([], unfinished=self._looking or self._rounds.unfinished)
        records: list[Record] = []
        self._changed_cluster = False
        steps = self._steps(input, now)
        for record in steps:
            records.append(record)
            try:
                self.evolve(record)
            except Exception as error:  # noqa: BLE001 - raised again where the record was yielded: that rule is to blame
                steps.throw(error)
            self._changed_cluster = self._changed_cluster or isinstance(record, CHANGES_THE_CLUSTER)
        self._rounds.due = self._rounds.due or self._changed_cluster
        return Decision(records, unfinished=self._looking or self._rounds.unfinished)

    def _steps(self, input: Input, now: float) -> Steps:
        match input:
            case TookOver():
                self.watch, self._looking, self._backlog = JobSamples(), False, Backlog()
                yield self._begin_term(input)
                yield from self._switch_rules(input)
            case Observed(fact, cause):
                yield from self._notice(fact, cause, now)
                if self._changed_cluster:
                    yield from self._rounds.start_in_free_room(self.state, self.models, self._guard)
            case Sampled(sample):
                yield from self._observe(sample, now)
            case Ticked(wall_ms):
                self._rounds.wall_s = wall_ms / 1000
                yield from self._guard("freezes", freezing.turn(self.state, wall_ms))
                yield from self._look(now)
            case Continued() if self._looking:
                yield from self._go_on_looking(now)
            case Continued():
                yield from self._rounds.go_on(self.state, self.models, self._guard)
            case BusLost():
                self.watch.lose_bus()
            case BusRegained():
                self.watch.regain_bus(now)
            case Requested():
                pass  # the Brain serves no requests
            case _:
                assert_never(input)

    def _begin_term(self, input: TookOver) -> BrainTermBegun:
        timeline = self.state.timeline if self.state.timeline and not input.log_lost else self._new_timeline
        mode, quotas, slow_memory_s, fair_share = self._started_with
        return BrainTermBegun(
            term=input.term,
            holder=input.holder,
            timeline=timeline,
            resumed_from=input.log_sequence,
            mode=mode,
            quotas=quotas,
            slow_memory_s=slow_memory_s,
            fair_share=fair_share,
        )

    # -- what is heard -------------------------------------------------------------------------------------------------

    def _observe_worker(self, sample: WorkerProfile, now: float) -> None:
        if sample.job in self.state.jobs:
            self._backlog.count_sample()
            self.watch.observe(sample, now)

    def _observe(self, sample: AnyProfile, now: float) -> Steps:
        if isinstance(sample, ServerProfile):
            self.watch.observe_server(sample)
        elif isinstance(sample, HostProfile):
            self.watch.observe_host(sample, now)
            if (capacity := self.state.displaced.get(sample.host)) is not None:
                sample_s = self.state.sampled_s.get(sample.host, 0.0)
                yield HostSeen(host=sample.host, capacity=capacity, sample_s=sample_s, cause="sample")

    def _notice(self, fact: Fact, cause: str, now: float) -> Steps:
        state = self.state
        match fact:
            case HostRegistered(host=host):
                self.watch.expect_again(host, now)
                yield from see_registered(fact, state, cause)
            case HostLeft(host=host):
                self.watch.forget_host(host)
                if host in state.hosts or host in state.displaced:
                    yield HostGone(host=host, cause=cause)
            case HostMemberStalled(job=job, uid=uid) if job in state.jobs and state.jobs[job].uid == uid:
                yield from note_stalled(state.jobs[job], state, fact, cause)
            case ClusterModeSet() | QuotaSet():
                yield ClusterObserved(fact=fact, cause=cause)
            case FreezeSet() | FreezeLifted():
                yield FreezeObserved(fact=fact, cause=cause)
            case JobSubmitted(job=job, uid=uid, spec=spec):
                known = state.jobs.get(job)
                if known is None or known.uid != uid:
                    yield JobSeen(job=job, uid=uid, spec=spec, cause=cause)
            case JobForgotten(job=job, uid=uid):
                if job in state.jobs and state.jobs[job].uid == uid:  # its end was not heard
                    yield JobGone(job=job, cause=cause)
            case JobFact(job=job) if job in state.jobs:
                yield from self._notice_job(fact, state.jobs[job], cause, now)

    def _notice_job(self, fact: JobFact, known: KnownJob, cause: str, now: float) -> Steps:
        if fact.position is not None:
            self.watch.see(fact.job, fact.position[0], now)
        match fact:
            case MembersDisplaced(host=host):
                # Its samples may be missed first; only a job that lost members there makes others shrink.
                known_lost = host in self.state.displaced and not self.state.shrinks
                if host in self.state.hosts or known_lost:
                    yield HostGone(host=host, displaced=True, cause=cause)
            case JobEnded():
                lost, watched_s = self.watch.taken(fact.job, now)
                past = past_of(fact, known, self.state)
                self.watch.forget(fact.job)
                yield JobGone(job=fact.job, past=past, lost=lost, watched_s=watched_s, cause=cause)
            case JobReported():
                self.watch.report(fact, now)
            case PlanRequested():
                yield from answer_request(fact.job, known, self.state, fact, cause)
            case MembersDesired():
                self.watch.restart(fact.job, now)
                self.watch.lose(fact.job, lost_workers(known, fact))
                yield MembersSeen.of(fact, cause)
            case MemberLost(member=member, reason="out_of_memory"):
                self.watch.kill(fact.job, member)
            case MemberLost(reason=reason) if reason not in OF_ITS_OWN:
                self.watch.take_away(fact.job)
            case PlanSettled():
                self.watch.restart(fact.job, now)
                yield FactObserved(fact=fact, took_s=self.watch.settle(fact, now), cause=cause)
            case PlanRefused():
                self.watch.restart(fact.job, now)
                yield from say_not_withdrawn(known, fact, cause)
                yield FactObserved(fact=fact, cause=cause)
            case _ if isinstance(fact, get_args(ObservedFact)):
                self.watch.restart(fact.job, now)
                if isinstance(fact, PlanApplied):
                    self.watch.carry_out(fact, now)
                elif isinstance(fact, JobResumed):
                    self.watch.resume(fact.job, now)
                yield FactObserved(fact=fact, cause=cause)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _look(self, now: float) -> Steps:
        """Whatever time brings, each rule apart, and each job from the others: one that fails takes nothing with it."""
        self.watch.look(now)
        self._look_at_families()
        unheard = self.watch.unheard(now, self.state.sampled_s)
        yield from self._guard("unheard", note_unheard(self.state, unheard))
        yield from self._guard("stalled", begin_with_less(self.state, self._rounds.wall_s))
        for name, lost in self.watch.take_lost().items():
            if name in self.state.jobs:
                yield from self._guard("loss", self._answer_loss(name, lost), name)
        for name, member in self.watch.take_killed().items():
            if name in self.state.jobs:
                yield from self._guard("memory", self._answer_kill(name, member), name)
        left = len(self._due_now) if self._looking else 0
        yield from self._guard("backlog", self._backlog.look(self.state, left, now))
        self.watch.stretch = self.state.stretch
        self._due_now, self._looking = deque(self._due(now)), True
        yield from self._go_on_looking(now, A_LOOK * len(self.state.jobs))

    def _go_on_looking(self, now: float, spent: float = 0.0) -> Steps:
        """Close windows until the input's work is done: in a large cluster hundreds are due at once. Then size the jobs."""
        while self._due_now and spent < turns.PIECE:
            name, spent = self._due_now.popleft(), spent + A_WINDOW
            if name in self.state.jobs:
                yield from self._guard("window", self._close_window(name, now), name)
        if self._due_now or spent > turns.PIECE / 2:
            return
        self._look_at_families()
        closed, self._turns, self._looking = self._turns, [], False
        yield from self._rounds.look(closed, self.state, self.models, self._guard, now)
        yield from self._guard("what is left", fit_into_what_is_left(self.state, self.watch, now))

    def _look_at_families(self) -> None:
        """Take in what runs have shown, where jobs or hosts came or went since the last time all of them."""
        if self._evolved:
            self._evolved = False
            self.models.look(self.state)
        else:
            self.models.take_in(self.state)

    def _due(self, now: float) -> list[str]:
        """The jobs whose window may be closed, and those that stand still and ask for room again; by priority."""
        due = [
            name
            for name, known in self.state.jobs.items()
            if self.watch.is_due(name, known, now) or (known.held is not None and not known.held.workers)
        ]
        return sorted(due, key=lambda name: -self.state.jobs[name].spec.priority)

    def _close_window(self, name: str, now: float) -> Steps:
        known = self.state.jobs[name]
        window = self.watch.close(name, known, now)
        if window is not None:
            yield window
            self.models.measure(known)
            yield from self._take_turn(name, known)
            self._turns.append(name)
        elif known.held is not None and known.held.workers == 0 and not known.paused:
            self._turns.append(name)

    def _take_turn(self, name: str, known: KnownJob) -> Steps:
        """The rules of a job's turn by name, in order: those that always look, and those that begin a change of their own."""
        always = {
            "hosts": note_slow_hosts(name, known, self.state),
            "stragglers": remedies.note_stragglers(name, known),
            "hot server": remedies.note_hot_server(name, known),
            "forecast": remedies.foresee(name, known),
            "memory": self._relieve(name, known),
            "judge": judge(name, known, self.state),
            "unsettled": take_back_unsettled(name, known, self.state),
        }
        unless_one_is_under_way = {
            "leave hosts": leave_slow_hosts(name, known, self.state),
            "replace": replace_stragglers(name, known, self.state),
            "replace slowest": replace_slowest(name, known, self.state),
            "cool servers": self._cool(name, known),
            "memory limits": self._trim(name, known),
        }
        frozen = freezing.frozen(known, self.state) is not None
        for rule, steps in always.items():
            if not (frozen and rule in NOT_IN_A_FREEZE):
                yield from self._guard(rule, steps, name)
        for rule, steps in unless_one_is_under_way.items():
            if known.change is None and not frozen:
                yield from self._guard(rule, steps, name)

    def _answer_loss(self, name: str, lost: set[str]) -> Steps:
        known = self.state.jobs[name]
        wish = give_up_places(known, lost, self.models)
        if wish is not None:
            yield from settle(name, known, self.state, self.models, wish)

    def _answer_kill(self, name: str, member: Member) -> Steps:
        known = self.state.jobs[name]
        answer = memory_relief.after_a_kill(known, member, self.state)
        if isinstance(answer, CapacityLeft):
            yield from withhold(name, known, answer)
        elif answer is not None:
            yield from settle(name, known, self.state, self.models, answer)

    def _cool(self, name: str, known: KnownJob) -> Steps:
        left = lambda: cores_left_for(name, self.state, self.state.quotas)  # noqa: E731
        wish = remedies.cool_servers(known, left, self.models)
        if wish is not None:
            yield from settle(name, known, self.state, self.models, wish)

    def _guard(self, rule: str, steps: Steps, job: str = "") -> Steps:
        """Run a rule apart from the others (of one job from those of others), unless it is switched off."""
        named = f"{rule} of {job}" if job else rule
        if named in self.state.rules_off:
            steps.close()
            return
        yield from apart(named, steps)

    def _switch_rules(self, input: TookOver) -> Steps:
        """Switch off what has failed, and on again what failed under another release."""
        state, release, jobs = self.state, input.release, list(self.state.jobs)
        for rule, off in list(state.rules_off.items()):
            if off.release != release:
                yield BrainRuleSwitched(rule=rule, off=False, release=release, job=off.job, cause="take-over")
                for job in [off.job] if off.job else jobs:
                    yield RuleSwitchedOn(job=job, rule=f"brain: {rule}", release=release, cause="take-over")
        for rule, why in input.failing.items():
            job = rule.partition(" of ")[
                2
            ]  # it may not be known yet: what failed on its submission was not stored
            yield BrainRuleSwitched(rule=rule, off=True, release=release, why=why, job=job, cause="take-over")
            for each in [job] if job else jobs:
                yield RuleSwitchedOff(
                    job=each, rule=f"brain: {rule}", why=why, release=release, cause="take-over"
                )

    def _relieve(self, name: str, known: KnownJob) -> Steps:
        yield from memory_relief.note_ends(name, known)
        needs = memory_relief.needs_of(name, known, self.state)
        if not needs or (known.change is not None and known.change.step == "relief"):
            return
        held = known.held
        assert held is not None
        limit = max(need.relief.limit_bytes for need in needs)
        number = known.plan + 1 if limit > held.server_memory_bytes else 0
        for need in needs:
            if need.relief.incident != known.incidents.get(need.member.name) or number:
                yield memory_relief.incident_of(name, need, number)
        if number:
            first = needs[0].relief
            wish = Wish(
                size=held.replace(server_memory_bytes=limit),
                step="relief",
                constant=first.reason,
                detail=memory_relief.danger_of(first, needs[0].used_bytes, held.server_memory_bytes),
                at_risk=True,
                measured=known.throughput,
                incident=first.incident,
            )
            yield from settle(name, known, self.state, self.models, wish)

    def _trim(self, name: str, known: KnownJob) -> Steps:
        wish = memory_relief.spare_memory(known, self.state)
        if wish is not None:
            yield from settle(name, known, self.state, self.models, wish)

    # -- what leaves ---------------------------------------------------------------------------------------------------

    def outgoing(self, record: Record, position: tuple[int, int], term: int) -> list[Outgoing]:
        return publishing.outgoing(record, position, term)

    def position_of(self, fact: Fact) -> tuple[int, int] | None:
        return publishing.position_of(fact)

    def standing(self) -> list[Outgoing]:
        return []
