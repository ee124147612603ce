"""Our three stages as the Brain composes them, every decision taken by the production deciders of `rover_bus.brain.decisions`.

Fed by the engine through `port`; the composition is a shell's: it remembers (`learning`), asks the deciders, and orders what they
answered. {1} warm start, {2} scaling across jobs under capacity, with memory limits that follow the forecast, {3} stragglers, hot
servers, relief before the kill, failures. Without stage 3 a failure costs a restart; without stages 2 and 3 members never change.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from bench.simulation.nodes import allocation_of, size_of
from bench.simulation.policies.learning import LossCount, Memory, Sample, server_loads, slot_owners
from bench.simulation.policies.losses import Losses, decide_failures, member_loss_plans
from bench.simulation.port import ClusterView, JobView, Mechanisms, Remedy, Setting, Size, Window
from rover_bus.brain import rules
from rover_bus.brain.decisions.hot_servers import HOT, decide_hot_servers
from rover_bus.brain.decisions.knapsack import choose_greedily
from rover_bus.brain.decisions.lifecycle import ChangeHistory, judge_change, may_change
from rover_bus.brain.decisions.memory_limits import (
    Means,
    MemoryState,
    decide_relief,
    least_at_start,
    limit_at_start,
    limit_before_forecast,
    needed_limit,
)
from rover_bus.brain.decisions.plans import GIB, Allocation, PlanSpace
from rover_bus.brain.decisions.probes import ProbeView, decide_probe, relieved_anchor
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.rounds import Contender, decide_round, narrowed
from rover_bus.brain.decisions.scaling import JobView as ScalingView
from rover_bus.brain.decisions.scaling import Limits, ScalingRules, plan_front
from rover_bus.brain.decisions.stragglers import SLOW_SHARE, decide_stragglers, evolve_paces
from rover_bus.brain.decisions.warm_start import JobTraits, PastJob, decide_start
from rover_bus.brain.models.core_use import HELD_BACK
from rover_bus.brain.models.forms import ASYNCHRONOUS, SYNCHRONOUS

# Frozen on the development seeds (0..19), before any test seed was run; the live Brain's as well.
RULES, HEADROOM = rules.CLUSTER, rules.HEADROOM
COOLDOWN_S = 60.0
_PROBE_WINDOWS = 2
_MOST_PROBES = 8
ENOUGH_SAMPLES = 4
LONG_S = 2400.0
_WORTH_S = 240.0  # with less to go, a job is left alone
_OWN_SERVER_GIB = 2.0
_OWN_BYTES = _OWN_SERVER_GIB * GIB
_INHERITED = 24
_MARGIN = 1.1
_FORECAST_POINTS = 8  # from so many on a limit may follow the forecast down
_WORTH_SHRINKING = 0.85
_LARGEST_SHARE = 0.25  # of a node's memory: what a server may start with beyond what was asked for it


class Staged:
    """The Brain of some of its stages: `stages` out of {1, 2, 3}."""

    round_s = 60.0

    def __init__(self, setting: Setting, stages: frozenset[int], weights: ScalingRules = RULES) -> None:
        self.setting, self.stages, self.weights = setting, stages, weights
        self.losses = LossCount()
        self.name = "{" + "+".join(str(stage) for stage in sorted(stages)) + "}"
        self.mechanisms = Mechanisms(
            elastic=bool(stages & {2, 3}), failures_restart=3 not in stages, restart_s=setting.restart_s
        )
        menu = setting.menu
        self.space = PlanSpace(menu.workers, menu.servers, menu.worker_cores, menu.server_cores)
        self.memories: dict[str, Memory] = {}
        self.history: list[PastJob] = []
        self.pools: dict[str, list[Sample]] = {}
        self.starts: dict[str, Allocation] = {}
        self.refused: set[str] = set()
        self.now = 0.0
        self.largest_gib = 0.0
        self.select = choose_greedily

    @property
    def rules(self) -> ScalingRules:
        """The weights, with the hazard as it was learned."""
        policy = msgspec.structs.replace(self.weights.policy, hazard=self.losses.hazard)
        return msgspec.structs.replace(self.weights, policy=policy)

    def _share(self, cluster: ClusterView) -> None:
        """What a job's family has shown so far: runs that ended, and those that run beside it."""
        families: dict[str, list[tuple[str, list[Sample]]]] = {}
        for job in cluster.jobs:
            families.setdefault(job.case.family, []).append(
                (job.case.name, self.memories[job.case.name].samples())
            )
        for job in cluster.jobs:
            beside = [
                s for name, samples in families[job.case.family] if name != job.case.name for s in samples
            ]
            ended = self.pools.get(job.case.family, [])
            self.memories[job.case.name].inherited = [*ended, *beside][-_INHERITED:]

    # -- rounds --------------------------------------------------------------------------------------------------------

    def plan(self, cluster: ClusterView, now_s: float, regular: bool) -> list[tuple[str, Size]]:
        """One round: wishes of all jobs, shrinks first."""
        if 3 in self.stages:
            self.losses.watch(sum(job.effective.members for job in cluster.jobs if job.effective), now_s)
        self.now, self.largest_gib = now_s, cluster.largest_gib * _LARGEST_SHARE
        for job in cluster.jobs:
            if job.case.name not in self.memories:
                self.memories[job.case.name] = Memory(job.case)
        if 1 in self.stages:
            self._share(cluster)
        wishes = self.choose(cluster, now_s, regular)
        if self.stages & {2, 3}:
            wishes = self.with_memory(cluster, wishes)
        held = {job.case.name: job.held for job in cluster.jobs}

        def growth(wish: tuple[str, Size]) -> float:
            before = held.get(wish[0])
            return wish[1].cores - (before.cores if before else 0.0)

        return sorted(wishes, key=growth)

    def choose(self, cluster: ClusterView, now_s: float, regular: bool) -> list[tuple[str, Size]]:
        """Sizes, with memory as it was: a round of all jobs, or a start for those who wait."""
        if 2 in self.stages:
            return self._round(cluster)
        return [
            (job.case.name, size_of(start))
            for job in cluster.jobs
            if job.state == "waiting" and (start := self.first(job)).cores <= cluster.free_cores
        ]

    def _round(self, cluster: ClusterView) -> list[tuple[str, Size]]:
        contenders, wishes = list[Contender](), list[tuple[str, Size]]()
        names = list[str]()
        waiting = sum(self.first(job).cores for job in cluster.jobs if job.held is None)
        free_cores = cluster.free_cores - HEADROOM * cluster.cores - waiting
        for job in cluster.jobs:
            memory = self.memories[job.case.name]
            self.know(job, memory)
            if job.case.name in self.refused and job.held is None:
                limits = Limits(max_workers=job.case.max_workers, max_servers=job.case.max_servers)
                start = self.first(job)
                least = self._least_bytes(job, 2 * start.servers)
                self.starts[job.case.name] = narrowed(start, self.space, limits, least)
            self.refused.discard(job.case.name)
            probe = self._probe(job, memory, free_cores)
            if probe is not None:
                assert job.held is not None
                free_cores -= max(probe.cores - job.held.cores, 0.0)
                wishes.append((job.case.name, probe))
            names.append(job.case.name)
            contenders.append(self._contender(job, memory, probing=probe is not None))
        decisions = decide_round(
            contenders,
            cluster.cores * (1 - HEADROOM),
            cluster.gib * (1 - HEADROOM) * GIB,
            self.space,
            self.rules,
            self.select,
        )
        for job, name, contender, decision in zip(cluster.jobs, names, contenders, decisions, strict=True):
            if contender.waiting and decision.allocation.workers:
                self.refused.add(name)  # until it is seen to hold something
            if decision.reason is Reason.BEST_VALUE_UNDER_CAPACITY:
                size = size_of(decision.allocation)
                if contender.waiting:
                    least = self._least_bytes(job, size.servers) / GIB
                    size = size._replace(server_gib=max(size.server_gib, least))
                wishes.append((name, size))
                self._expect(name, contender, decision.scores["throughput"])
        return wishes

    def _contender(self, job: JobView, memory: Memory, probing: bool) -> Contender:
        waiting = job.held is None
        start = self.first(job) if job.held is None else allocation_of(job.held)
        view = ScalingView(
            held=start,
            batch_size=job.case.batch_size,
            remaining_samples=job.remaining,
            table_bytes=self._tables(job, start),
            measured_throughput=self.speed_here(job, memory),
        )
        settled = waiting or (not job.changing and not probing and self.settle(job, memory))
        contender = Contender(
            view=view,
            model=memory.model,
            limits=Limits(max_workers=job.case.max_workers, max_servers=job.case.max_servers),
            waiting=waiting,
            settled=settled,
            usual_throughput=self._usual(job),
        )
        if memory.model is None or not settled:
            return contender
        key = (start, view.table_bytes)
        if memory.front is None or memory.front[0] != key:
            front = plan_front(view, memory.model, self.space, self.rules, contender.limits)
            memory.front = (key, front)
        return msgspec.structs.replace(contender, front=memory.front[1])

    def speed_here(self, job: JobView, memory: Memory) -> float:
        """What was measured at the size held; 0: nothing yet, the model's word stands for it."""
        return memory.measured if job.held is not None and memory.measured_at == job.held[:4] else 0.0

    def know(self, job: JobView, memory: Memory) -> None:
        """Bring a job's model up to date."""
        memory.refit()

    def settle(self, job: JobView, memory: Memory) -> bool:
        """Whether a job may be changed now: it runs, is understood, has rested, and has enough left to do."""
        return (
            job.state == "running"
            and memory.model is not None
            and job.held is not None
            and memory.measured_at == job.held[:4]
            and memory.windows_here
            >= _PROBE_WINDOWS  # what was changed is measured before it is changed again
            and may_change(memory.changes, self.now, COOLDOWN_S) is None
            and job.remaining > _WORTH_S * max(memory.measured, 1e-9)
        )

    def _usual(self, job: JobView) -> float:
        """What the job's predecessors reached, samples a second."""
        speeds = (
            [sample.throughput for sample in self.pools.get(job.case.family, [])] if 1 in self.stages else []
        )
        return float(np.median(speeds)) if speeds else 0.0

    def _tables(self, job: JobView, held: Allocation) -> int:
        """Memory that is split over the servers, of what the limit covers now."""
        return max(int(held.servers * (held.server_memory_bytes - _OWN_SERVER_GIB * GIB)), 0)

    def _expect(self, name: str, contender: Contender, predicted: float) -> None:
        memory = self.memories[name]
        if contender.waiting or not memory.measured:
            return
        before = tuple(memory.speeds.get(memory.measured_at, ()))
        memory.before = (size_of(contender.view.held), before, predicted)
        memory.changes = msgspec.structs.replace(memory.changes, settled_at_s=self.now)

    # -- stage 1 -------------------------------------------------------------------------------------------------------

    def first(self, job: JobView) -> Allocation:
        """The first plan. A cold start takes the user's counts in containers of the menu, and his memory."""
        name, case = job.case.name, job.case
        if name not in self.starts:
            asked = allocation_of(case.asked)
            if 1 in self.stages:
                traits = JobTraits(user=case.user, family=case.family, dataset=case.family, sizes={})
                start = decide_start(traits, self.history, self.now, asked)
                asked = start.allocation
                if start.reason is Reason.COLD_START and 3 in self.stages:
                    limit = limit_at_start(asked.server_memory_bytes, self.largest_gib * GIB)
                    asked = asked.replace(server_memory_bytes=limit)
            if 2 in self.stages or 1 in self.stages:
                asked = asked.replace(
                    workers=min(asked.workers, case.max_workers),
                    servers=min(asked.servers, case.max_servers),
                    worker_cores=_on_menu(self.setting.menu.worker_cores, asked.worker_cores),
                    server_cores=_on_menu(self.setting.menu.server_cores, asked.server_cores),
                )
            if not self.history or 1 not in self.stages:
                return asked
            self.starts[name] = asked
        return self.starts[name]

    def _least_bytes(self, job: JobView, servers: int) -> float:
        """What one of so many servers must start with: what its family needed, or a part of the wish."""
        known = max(
            (a.servers * (a.server_memory_bytes - _OWN_BYTES) for a in self._finals(job)), default=0.0
        )
        if known > 0:
            return _OWN_BYTES + known / min(servers, job.case.max_servers)
        return least_at_start(job.case.asked.server_gib * GIB) if 3 in self.stages else _OWN_BYTES

    def _finals(self, job: JobView) -> list[Allocation]:
        """What runs of the same family held at their end."""
        if 1 not in self.stages:
            return []
        return [old.final for old in self.history if old.traits.family == job.case.family and old.completed]

    def ended(self, job: JobView, now_s: float, completed: bool) -> None:
        """A line of history, and its samples for the jobs that come after it."""
        memory = self.memories.pop(job.case.name, None)
        if memory is None or job.held is None:
            return
        traits = JobTraits(user=job.case.user, family=job.case.family, dataset=job.case.family, sizes={})
        self.history.append(
            PastJob(
                job=job.case.name,
                traits=traits,
                final=allocation_of(job.held),
                ended_at_s=now_s,
                completed=completed,
            )
        )
        self.pools.setdefault(job.case.family, []).extend(memory.samples())

    # -- learning ------------------------------------------------------------------------------------------------------

    def _probe(self, job: JobView, memory: Memory, free_cores: float) -> Size | None:
        """While too little is known: the next configuration to measure."""
        held = job.held
        if (
            held is None
            or job.changing
            or job.state != "running"
            or not self._wants_samples(job, memory)
            or memory.probes >= _MOST_PROBES
            or memory.windows_here < _PROBE_WINDOWS
            or memory.measured_at != held[:4]
            or job.remaining < _WORTH_S * memory.measured
        ):
            return None
        memory.anchor = memory.anchor or held
        worker_use, server_use = memory.used[held[:4]][-1]
        view = ProbeView(
            held=allocation_of(held),
            anchor=allocation_of(memory.anchor),
            batch_size=job.case.batch_size,
            free_cores=free_cores,
            workers_held_back=worker_use >= HELD_BACK * held.worker_cores,
            servers_held_back=server_use >= HELD_BACK * held.server_cores,
            limits=Limits(max_workers=job.case.max_workers, max_servers=job.case.max_servers),
        )
        memory.anchor = size_of(relieved_anchor(view, self.space))
        form = SYNCHRONOUS if job.case.mode == "sync" else ASYNCHRONOUS
        decision = decide_probe(view, self.space, form, memory.observations())
        if decision is None:
            return None
        memory.probes += 1
        return size_of(decision.allocation)

    def _wants_samples(self, job: JobView, memory: Memory) -> bool:
        """No model yet; or a long job, for which some more minutes of probing pay."""
        if memory.model is None:
            return True
        known = len(memory.speeds) + len(memory.inherited)
        return known < ENOUGH_SAMPLES and job.remaining > LONG_S * memory.measured

    def observe(self, windows: Sequence[Window]) -> list[Remedy]:
        """Take windows in; remedies of stage 3 do not wait for a round."""
        remedies = list[Remedy]()
        for window in windows:
            memory = self.memories.get(window.job)
            if memory is None or not memory.take_in(window):
                continue
            if 2 in self.stages:
                self._judge(memory, window)
            if 3 in self.stages:
                remedies += self._remedies(memory, window)
        return remedies

    def _judge(self, memory: Memory, window: Window) -> None:
        """Was the last change worth it? If not, back to what was before, at once."""
        if memory.before is None or not window.steady:
            return
        before, speeds, predicted = memory.before
        after = tuple(memory.speeds.get(window.size[:4], ()))
        if window.size[:4] == before[:4] or len(after) < 3:
            return
        memory.before = None
        verdict = judge_change(speeds, after, predicted, window.size.cores > before.cores)
        if verdict is None:
            return
        rollbacks = memory.changes.rollbacks + (not verdict.keep)
        memory.changes = ChangeHistory(settled_at_s=self.now, rollbacks=rollbacks if not verdict.keep else 0)
        # The refitted model knows both points now: the next round chooses again, the cooldown doubled after a bad change.

    # -- stage 3 -------------------------------------------------------------------------------------------------------

    def _remedies(self, memory: Memory, window: Window) -> list[Remedy]:
        found = list[Remedy]()
        rates = window.worker_rates
        # Nothing slow and nobody watched: the full look would change nothing.
        if any(p.slow or p.straggling for p in memory.paces.values()) or rates.min() < SLOW_SHARE * np.median(
            rates
        ):
            memory.paces = evolve_paces(memory.paces, dict(enumerate(rates.tolist())))
            for slow in decide_stragglers(memory.paces):
                replace = slow.reason is Reason.STRAGGLER_REPLACE
                found.append(
                    Remedy("replace_worker" if replace else "smaller_leases", window.job, slow.worker)
                )
                if replace:
                    memory.paces = {}
                    break
        if window.server_busy.max() >= HOT:
            memory.loads.append(server_loads(window))
            held = allocation_of(window.size)
            limits = Limits(max_workers=memory.case.max_workers, max_servers=memory.case.max_servers)
            hot = decide_hot_servers(list(memory.loads), slot_owners(held.servers), held, limits)
            if hot is not None and hot.moves:
                found.append(Remedy("move_slots", window.job, hot.moves[0].source))
                memory.loads.clear()
        else:
            memory.loads.clear()
        return found

    def lost(self, job: JobView, workers: int, servers: int) -> Size | None:
        """One plan for all that was lost, prepared before where there is a model."""
        self.losses.lost += workers + servers
        if 3 not in self.stages or job.held is None:
            return None
        held, memory = allocation_of(job.held), self.memories.get(job.case.name)
        prepared = {}
        if memory is not None and memory.model is not None and 2 in self.stages:
            view = ScalingView(
                held=held,
                batch_size=job.case.batch_size,
                remaining_samples=job.remaining,
                table_bytes=self._tables(job, held),
            )
            prepared = member_loss_plans(view, memory.model, self.weights.prices)
        decision = decide_failures(held, Losses(workers=workers, servers=servers), prepared)
        return None if decision is None else size_of(decision.allocation)

    def with_memory(self, cluster: ClusterView, wishes: list[tuple[str, Size]]) -> list[tuple[str, Size]]:
        """Memory limits: what the forecast asks for, and relief of whoever would not outlive the reaction (stage 3)."""
        wanted = dict(wishes)
        for job in cluster.jobs:
            memory = self.memories[job.case.name]
            if job.held is None or job.state not in ("running", "stopped"):
                continue
            growth = memory.growth()
            if growth is None or not memory.measured:
                self._before_forecast(job, memory, wanted)
                continue
            runs = job.effective or job.held  # servers on their way carry nothing yet
            state = MemoryState(
                growth=growth,
                limit_bytes=runs.servers * runs.server_gib * GIB,
                samples_per_s=memory.measured,
                remaining_samples=job.remaining,
                incident=memory.incident,
            )
            needed = self._needed(cluster, job, memory, state)
            size = self._limited(job, memory, wanted.get(job.case.name, job.held), state, needed)
            if size is not None:
                wanted[job.case.name] = size
        return list(wanted.items())

    def _needed(self, cluster: ClusterView, job: JobView, memory: Memory, state: MemoryState) -> float:
        """Bytes that all servers together need: more where relief is due, less where the forecast is far below the limit."""
        needed, runs = state.limit_bytes, job.effective or job.held
        assert runs is not None
        if 3 in self.stages:
            largest = cluster.largest_gib * GIB * runs.servers
            means = Means(largest_server_bytes=largest, free_bytes=cluster.free_gib * GIB)
            for relief in decide_relief({0: state}, means, f"incident-{job.case.name}"):
                needed, memory.incident = max(float(relief.limit_bytes), needed), relief.incident
        enough = len(memory.growth_points) >= _FORECAST_POINTS and not job.changing
        if 2 in self.stages and needed <= state.limit_bytes and enough:
            whole = needed_limit(state, job.remaining / max(memory.measured, 1e-9)) * _MARGIN
            needed = whole if whole < _WORTH_SHRINKING * state.limit_bytes else state.limit_bytes
        return needed

    def _limited(
        self, job: JobView, memory: Memory, size: Size, state: MemoryState, needed: float
    ) -> Size | None:
        """A size with the limits that its members need; None where nothing changes."""
        held, runs = job.held, job.effective or job.held
        assert held is not None
        assert runs is not None
        as_it_was = needed == state.limit_bytes
        tight = memory.worker_peak_gib * 1.3 > _WORTH_SHRINKING * held.worker_gib
        if as_it_was and size[:4] == held[:4] and tight:
            return None
        own, total = _OWN_SERVER_GIB, needed / GIB
        server_gib = 1.05 * (own + max(total - runs.servers * own, 0.0) / size.servers)
        if as_it_was and size.servers == held.servers:
            server_gib = held.server_gib
        elif job.changing:
            server_gib = max(held.server_gib, total / runs.servers)
        worker_gib = held.worker_gib
        if 2 in self.stages:
            worker_gib = min(worker_gib, memory.worker_peak_gib * 1.2)
        return size._replace(server_gib=server_gib, worker_gib=worker_gib)

    def _before_forecast(self, job: JobView, memory: Memory, wanted: dict[str, Size]) -> None:
        runs = job.effective or job.held
        if 3 not in self.stages or runs is None or job.held is None or not memory.growth_points:
            return
        used = memory.growth_points[-1][1] / runs.servers
        limit = limit_before_forecast(used, job.held.server_gib)
        if limit > job.held.server_gib:
            size = wanted.get(job.case.name, job.held)
            wanted[job.case.name] = size._replace(server_gib=max(limit, size.server_gib))


def _on_menu(axis: tuple[float, ...], value: float) -> float:
    return min(axis, key=lambda v: abs(np.log(v / value)))
