"""What a policy's mechanisms make of its wishes and of what strikes a job: starts, changes, failures, kills, remedies.

Fed by the engine (`cluster`), works on `jobs` and `machines`. Apart from the engine because this is where rivals differ:
restart and checkpoint for those without elastic mechanisms, members that come and go for ours (`port.Mechanisms`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from bench.simulation.jobs import Job
from bench.simulation.nodes import Machines
from bench.simulation.port import FloatArray, Mechanisms, Size, Wanted
from bench.simulation.weather import Weather

_OOM_RESTARTS = 3
_DETECTED_S = 10.0  # until a lost member is known to be lost
_RESTORED_S = 10.0  # until a new server holds what the lost one held
_TOGETHER_S = 10.0  # members that are ready within this time join together
_LAST_CUT_S = 60.0  # age of the cut that lost slots come back from, on average
NOWHERE: Mapping[int, int] = {}
Lost = Callable[[Job, int, int], Size | None]


class Runtime:
    """The mechanisms of one run. `now` is set by the engine before each call; a job that ends is told by `ends`."""

    def __init__(self, how: Mechanisms, machines: Machines, weather: Weather) -> None:
        self.how, self.machines, self.weather = how, machines, weather
        self.now = 0.0

    @property
    def checkpoint_s(self) -> float | None:
        """How often jobs are saved; None where a failure does not go back to a checkpoint."""
        return self.how.checkpoint_s if not self.how.elastic or self.how.failures_restart else None

    def touch(self, job: Job) -> None:
        """Bring a job's account up to now."""
        held = self.machines.beside.get(job.case.name, [])
        beside = sum(cores for _, cores, _ in held), sum(gib for *_, gib in held)
        job.touch(self.now, self.machines.sizes.get(job.case.name), self.checkpoint_s, beside)

    def _crew(self, job: Job, workers: int) -> None:
        job.crew(workers, self.weather, self.machines.where[job.case.name])

    # -- wishes --------------------------------------------------------------------------------------------------------

    def apply(self, job: Job, wanted: Wanted) -> None:
        """Try to make a job hold a size; refused (and counted) where there is no room."""
        self.touch(job)
        size, held = wanted.size, self.machines.sizes.get(job.case.name)
        if held is None:
            if self.machines.seat(wanted) or self.machines.start(job.case.name, size):
                self.start(job, size)
            return
        if size == held or (job.joins and not self.how.free and size[:4] != held[:4]):
            return
        if size[:4] == held[:4]:
            self._change_limits(job, size)
            return
        in_place = self.machines.seat(wanted) or self.machines.change(job.case.name, size)
        if in_place is None:
            job.result.refused += 1
            return
        job.result.rescales += 1
        if self.how.free:
            self._crew(job, size.workers)
            job.live, job.changed_at = size, self.now
        elif not self.how.elastic:
            self.restart(job, size)
        elif job.state == "starting":
            self.start(job, size)
        else:
            self._bring_in(job, size, moved=not in_place, stays_on=Counter(wanted.stays_on))

    def start(self, job: Job, size: Size) -> None:
        """Members start. An elastic job trains as soon as its servers and one worker do; the others join when they are ready."""
        job.changed_at = self.now
        ready = np.sort(self.weather.start_s(job.rng, size.workers))
        servers = float(self.weather.start_s(job.rng, size.servers).max())
        job.live, job.joins, job.state = size, [], "starting"
        if self.how.free:
            job.state, job.until = "running", math.inf
            job.result.started_s = self.now
        elif self.how.elastic:
            first = max(float(ready[0]), servers)
            job.until = self.now + first
            here = int(np.searchsorted(ready, first + _TOGETHER_S, side="right"))
            job.live = size._replace(workers=here)
            job.joins = self._arrivals(job.live, size, ready[here:], 0.0)
        else:
            job.until = self.now + max(float(ready[-1]), servers)
        self._crew(job, job.live.workers)

    def restart(self, job: Job, size: Size, lose: bool = False) -> None:
        """Save, stop, start, load: what everybody without elastic mechanisms pays. Slow pods add to it."""
        self.machines.leave_beside(job.case.name)
        job.leaving = []
        if lose:
            job.repeat(job.done - job.checkpointed)
        else:
            job.checkpointed = job.done
        if self.how.balances:
            job.hot, job.hot_until = 1.0, 0.0
        pods = float(self.weather.start_s(job.rng, size.members).max())
        job.disband()
        self._crew(job, size.workers)
        job.live, job.joins, job.state, job.changed_at = size, [], "stopped", self.now
        job.failed = lose
        job.until = self.now + max(self.how.restart_s, pods + self.how.restart_s / 3)

    def _change_limits(self, job: Job, size: Size) -> None:
        """Memory limits change in place (`pods/resize`) where the nodes have room; else the whole job moves to where there is."""
        before = dict(self.machines.where[job.case.name])
        in_place = self.machines.change(job.case.name, size)
        if in_place is None:
            job.result.refused += 1
        elif self.how.elastic and not (in_place or self.how.free or job.joins):
            self._bring_in(job, size, moved=True)
        elif not self.how.elastic and self.machines.where[job.case.name] != before:
            self.restart(job, size)
        elif job.live is not None:
            limit = max(size.server_gib, job.live.server_gib) if job.joins else size.server_gib
            job.live = job.live._replace(worker_gib=size.worker_gib, server_gib=limit)
            job.joins = [
                (at, s._replace(worker_gib=size.worker_gib, server_gib=max(size.server_gib, s.server_gib)))
                if s.servers < size.servers
                else (at, s._replace(worker_gib=size.worker_gib, server_gib=size.server_gib))
                for at, s in job.joins
            ]

    def _bring_in(self, job: Job, size: Size, moved: bool, stays_on: Mapping[int, int] = NOWHERE) -> None:
        """Elastic change: what shrinks shrinks now, cores change in place, newcomers join as they are ready.

        Workers whose hosts hold none of the job any more are followed by newcomers. On hosts that may keep them (`stays_on`) they
        train on until these come, else they leave at once.
        """
        live = job.live or size
        staying = job.staying(self.machines.where[job.case.name])
        new_workers = size.workers if moved else size.workers - min(staying, size.workers)
        new_servers = size.servers if moved else max(size.servers - live.servers, 0)
        if moved:
            now = live  # the old members train on until the new ones are there
        else:
            servers = min(live.servers, size.servers)
            # Servers keep their larger limit until the tables are spread over more of them.
            limit = max(live.server_gib, size.server_gib)
            now = size._replace(workers=min(staying, size.workers), servers=servers, server_gib=limit)
        former = None if moved else self._stay(job, live, now, size, stays_on)
        if now.workers and former is None:
            self.go_live(job, now)
        workers = np.sort(self.weather.start_s(job.rng, new_workers)) if new_workers else np.zeros(0)
        server_s = float(self.weather.start_s(job.rng, new_servers).max()) if new_servers else 0.0
        job.joins = []
        if moved:
            job.disband()
            job.joins.append((self.now + max(server_s, float(workers[-1])), size))
            self._crew(job, live.workers)
        elif new_workers or new_servers:
            job.joins = self._arrivals(now, size, workers, server_s)
        if former is not None:
            old, last = job.ideal(former).speed, job.joins[-1]
            job.joins = [each for each in job.joins if each is last or job.ideal(each[1]).speed > old]
        elif not now.workers:
            self._stand_still(job)

    def _stay(self, job: Job, live: Size, now: Size, size: Size, stays_on: Mapping[int, int]) -> Size | None:
        """Let workers that move train on where they are.

        Return what trains until newcomers alone are faster than that, all as they were: a lower bound of a cluster where workers
        that stay on their hosts grow at once, and those that move leave one by one. None: nothing moves, may stay, or would be
        faster than what is left without it.
        """
        if job.state != "running":
            return None
        name, here = job.case.name, Counter(job.on)
        where = self.machines.where[name]
        kept = {node: min(count, where.get(node, (0, 0))[0]) for node, count in here.items()}
        coming, stays = max(size.workers - sum(kept.values()), 0), dict.fromkeys(here, 0)
        for node in here:
            # Beyond those that come, workers do not move: they leave.
            count = min(here[node] - kept[node], stays_on.get(node, 0), coming)
            if not count:
                continue
            stays[node], coming = count, coming - count
            if not self.machines.stay_beside(name, node, count * live.worker_cores, count * live.worker_gib):
                stays[node] = 0
        old = live._replace(workers=sum(kept.values()) + sum(stays.values()))
        if not any(stays.values()) or job.ideal(old).speed <= (job.ideal(now).speed if now.workers else 0.0):
            self.machines.leave_beside(name)
            return None
        job.remain({node: kept[node] + stays[node] for node in here})
        job.live, job.changed_at = old, self.now
        return old

    def _stand_still(self, job: Job) -> None:
        """All workers left their hosts at once: the job trains on when the first successor is there."""
        first = next(i for i, (_, live) in enumerate(job.joins) if live.workers)
        at, live = job.joins[first]
        job.disband()
        self._crew(job, live.workers)
        job.live, job.joins, job.changed_at = live, job.joins[first + 1 :], self.now
        job.state, job.until, job.failed = "stopped", at, False

    def _arrivals(
        self, now: Size, size: Size, workers: FloatArray, server_s: float
    ) -> list[tuple[float, Size]]:
        """Who joins when: every worker as it is ready (`workers`, ascending), servers together at `server_s`, 0: none are new."""
        times = sorted({*workers.tolist(), server_s} - {0.0})
        joins = list[tuple[float, Size]]()
        for i, at in enumerate(times):
            if i + 1 < len(times) and times[i + 1] <= at + _TOGETHER_S:
                continue  # the next one takes this one along
            with_servers = size if at >= server_s else now
            count = now.workers + int(np.searchsorted(workers, at, side="right"))
            joins.append((self.now + at, with_servers._replace(workers=count)))
        return joins

    def go_live(self, job: Job, live: Size) -> None:
        """What trains from now on; another number of servers stops the job for a moment."""
        self.machines.leave_beside(job.case.name)
        servers_change = job.live is not None and job.live.servers != live.servers
        self._crew(job, live.workers)
        job.live, job.changed_at = live, self.now
        if servers_change and job.state == "running" and not self.how.free:
            job.state, job.until, job.failed = "stopped", self.now + self.how.server_change_s, False

    # -- blows ---------------------------------------------------------------------------------------------------------

    def lose(self, job: Job, workers: int, servers: int, wanted: Size | None) -> None:
        """Members of a job are gone at once; `wanted`: the size that shall be, None for as it was."""
        job.result.failures += 1
        job.leaving = []
        held = self.machines.sizes[job.case.name]
        if self.checkpoint_s is not None:
            self.restart(job, held, lose=True)
            return
        live, wanted = job.live or held, wanted or held
        if job.case.name in self.machines.beside:  # what stays goes too, and what was on its way begins again
            self.machines.leave_beside(job.case.name)
            live = live._replace(workers=max(job.staying(self.machines.where[job.case.name]), 1))
        if wanted != held and self.machines.change(job.case.name, wanted) is None:
            wanted = held
        left = max(live.workers - workers, 1)
        job.joins = []
        ready = float(self.weather.start_s(job.rng, max(workers + servers, 1)).max()) + _DETECTED_S
        if servers or live.workers - workers < 1:
            # Lost slots come back from the last cut once the new server is there.
            job.repeat(min(job.rate * _LAST_CUT_S, job.done))
            job.live, job.changed_at = wanted, self.now
            self._crew(job, wanted.workers)
            job.state, job.until, job.failed = "stopped", self.now + ready + _RESTORED_S, True
        else:
            self._crew(job, min(left, wanted.workers))
            job.live, job.changed_at = wanted._replace(workers=min(left, wanted.workers)), self.now
            if wanted.workers > left:
                job.joins = [(self.now + ready, wanted)]

    def out_of_memory(self, job: Job) -> bool:
        """Kill a server that outgrew its limit. True: that ended the job."""
        held, live = self.machines.sizes[job.case.name], job.live
        if live is None or job.state != "running" or self.how.free:
            return False
        limit = held.server_gib if live.servers == held.servers else max(held.server_gib, live.server_gib)
        if job.case.server_need_gib(live.servers, job.share) <= limit:
            return False
        job.result.oom_kills += 1
        if self.how.fatal or (not self.how.doubles_memory and job.result.oom_kills >= _OOM_RESTARTS):
            return True
        wanted = held
        if self.how.doubles_memory:
            # The public code's rule: x2 capped at +8 GiB an incident [code].
            wanted = held._replace(server_gib=min(held.server_gib * 2, held.server_gib + 8))
            if self.machines.change(job.case.name, wanted) is None:
                wanted = held
        if self.checkpoint_s is not None:
            self.restart(job, wanted, lose=True)
        else:
            self.lose(job, 0, 1, wanted)
        return False

    def remedy(self, job: Job, kind: str, member: int) -> None:
        """What stage 3 asks for at once."""
        self.touch(job)
        if kind == "move_slots":
            self._move_slots(job)
        elif kind == "smaller_leases" and member < len(job.slow):
            job.less_work.add(member)

    def replace(self, job: Job, hosts: Mapping[int, int]) -> None:
        """Start workers in others' places, each on a host of its own (`hosts`, by worker; -1: any); one plan has them all.

        Where there is room a worker stays until all successors are there; else it leaves at once, and is followed where it was.
        """
        self.touch(job)
        live, held = job.live, self.machines.sizes[job.case.name]
        hosts = {member: host for member, host in hosts.items() if member < len(job.slow)}
        if job.joins or not hosts or live is None or live[:4] != held[:4]:
            return
        ready = self.now + float(self.weather.start_s(job.rng, len(hosts)).max())
        job.less_work.clear()
        job.joins, job.changed_at = [(ready, live)], self.now
        beside = {m: self._is_followed(job, m, host, held) for m, host in hosts.items()}
        gone = [member for member, both in beside.items() if not both]
        job.leaving = [m - sum(each < m for each in gone) for m, both in beside.items() if both]
        for member in sorted(gone, reverse=True):
            job.discharge(member)
        if len(gone) == live.workers:
            self._stand_still(job)
        elif gone:
            job.live = live._replace(workers=live.workers - len(gone))

    def _is_followed(self, job: Job, member: int, host: int, held: Size) -> bool:
        """Whether a worker's successor has a place of its own: then it has the worker's, who stays beside."""
        name, node = job.case.name, job.on[member]
        if host == node or not self.machines.add_worker(name, host):
            return False
        self.machines.leave(name, node)
        self.machines.stay_beside(name, node, held.worker_cores, held.worker_gib)
        return True

    def replaced(self, job: Job) -> None:
        """Successors are there: those that they are for go."""
        for member in sorted(job.leaving, reverse=True):
            job.discharge(member)
        job.leaving = []

    def _move_slots(self, job: Job) -> None:
        """Level the servers: while training goes on, or by a restart that assigns parameters anew."""
        if self.how.elastic:
            job.hot, job.hot_until = 1.0, 0.0
        elif self.how.balances and job.state == "running":
            self.restart(job, self.machines.sizes[job.case.name])
