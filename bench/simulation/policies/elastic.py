"""An elastic scheduler and the public Brain's rules: what one gets without a model.

`ElasticScheduler` keeps the user's containers and spreads the cluster by fair share: everybody's workers shrink when jobs wait
and grow when there
is room. `PublicRules` follows the public code's thresholds [recalled]: workers until the busiest server is at 80 %, more cores
for a server above it.
Both pay a restart a change, like all that is not ours; `equipped` gives the first our mechanisms.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.simulation.policies.static import NoIntervention, Patience
from bench.simulation.port import ClusterView, JobView, Mechanisms, Remedy, Setting, Size, Window

_WORTH, _WORTH_ELASTIC = 1.5, 1.1
_BUSY = 0.8


class ElasticScheduler(NoIntervention):
    """Fair share in whole workers, between one and the job's maximum; a change must be worth a restart (half as many again).

    `elastic`: a change is cheap, and a tenth is worth it.
    """

    name = "elastic scheduler"
    round_s = 600.0

    def __init__(self, setting: Setting, elastic: bool = False) -> None:
        super().__init__(setting)
        self.patience = Patience()
        self.worth = _WORTH_ELASTIC if elastic else _WORTH
        self.mechanisms = Mechanisms(restart_s=setting.restart_s)

    def plan(self, cluster: ClusterView, now_s: float, regular: bool) -> list[tuple[str, Size]]:
        """Water-filling over workers at the round's time; in between, starts from what is free."""
        jobs = [job for job in cluster.jobs if regular or job.state == "waiting"]
        free = cluster.cores * 0.95 if regular else cluster.free_cores
        counts = dict.fromkeys((job.case.name for job in jobs), 0)
        most = {job.case.name: self.patience.most_workers(job) for job in jobs}
        for job in jobs:
            least = self._sized(job, 1).cores
            if least <= free:
                counts[job.case.name], free = 1, free - least
        growing = [job for job in jobs if counts[job.case.name]]
        while growing:
            growing.sort(key=lambda job: counts[job.case.name] * job.case.asked.worker_cores)
            job = growing[0]
            cores = job.case.asked.worker_cores
            if cores > free or counts[job.case.name] >= most[job.case.name]:
                growing.pop(0)
                continue
            counts[job.case.name], free = counts[job.case.name] + 1, free - cores
        wishes = [(job, self._sized(job, counts[job.case.name])) for job in jobs if counts[job.case.name]]
        changed = [(job, size) for job, size in wishes if self._is_worth(job, size)]
        changed.sort(key=lambda wish: wish[1].cores - (wish[0].held or wish[1]).cores)
        named = [(job.case.name, size) for job, size in changed]
        self.patience.remember(jobs, named)
        return named

    def _sized(self, job: JobView, workers: int) -> Size:
        memory = max(job.case.asked.server_gib, job.held.server_gib if job.held else 0.0)
        return job.case.asked._replace(workers=workers, server_gib=memory)

    def _is_worth(self, job: JobView, size: Size) -> bool:
        if job.held is None:
            return True
        ratio = size.workers / job.held.workers
        return ratio >= self.worth or ratio <= 1 / self.worth


class PublicRules(NoIntervention):
    """The public optimiser: one adjustment from the servers' CPU use, more cores when a server is hot, x2 after an OOM kill."""

    name = "public Brain's rules"
    round_s = 300.0

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.mechanisms = Mechanisms(restart_s=setting.restart_s)
        self.busy: dict[str, float] = {}
        self.adjusted: set[str] = set()

    def observe(self, windows: Sequence[Window]) -> list[Remedy]:
        """Remember how busy the busiest server is."""
        for window in windows:
            self.busy[window.job] = float(window.server_busy.max())
        return []

    def plan(self, cluster: ClusterView, now_s: float, regular: bool) -> list[tuple[str, Size]]:
        """Starts as the user asked; later one change a job."""
        wishes = super().plan(cluster, now_s, regular)
        if not regular:
            return wishes
        for job in cluster.jobs:
            name, held = job.case.name, job.held
            if held is None or name not in self.busy or name in self.adjusted or job.state != "running":
                continue
            self.adjusted.add(name)
            if self.busy[name] > _BUSY:
                wishes.append((name, held._replace(server_cores=min(held.server_cores * 2, 16.0))))
                continue
            workers = min(int(held.workers * _BUSY / max(self.busy[name], 0.05)), job.case.max_workers)
            if workers > held.workers:
                wishes.append((name, held._replace(workers=workers)))
        return wishes
