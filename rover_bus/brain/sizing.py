"""The first plan of a job from the capacity that daemons report. Pure; the real mind (models/, decisions/) will replace the rule.

What the user fixed stays. What he left open is sized to the machines: one server to every four cores, workers on the rest, and
two workers at least, so that the loss of one never stops training.
"""

from __future__ import annotations

from collections.abc import Mapping

from rover_bus.events.facts import PlanProposed
from rover_bus.events.identity import HostCapacity
from rover_bus.events.job import JobSpec


def size_job(job: str, spec: JobSpec, hosts: Mapping[str, HostCapacity], plan: int) -> PlanProposed:
    """Return the first plan of a job. `hosts` must not be empty; the largest host comes first."""
    order = sorted(hosts, key=lambda host: (-hosts[host].cores, host))
    cores = sum(capacity.cores for capacity in hosts.values())
    servers = spec.servers.count or max(1, round(cores / 4))
    workers = spec.workers.count or min(spec.workers.max_count, max(2, int(cores) - servers))
    fixed = "as the job asks" if spec.workers.count and spec.servers.count else "by the rule for new jobs"
    return PlanProposed(
        job=job,
        plan=plan,
        workers=workers,
        servers=servers,
        worker_cores=spec.workers.cores,
        server_cores=spec.servers.cores,
        worker_memory_bytes=spec.workers.memory_bytes,
        server_memory_bytes=spec.servers.memory_bytes,
        hosts=order,
        masters=[order[0], order[1 % len(order)]],
        reason=f"{workers} workers and {servers} servers on {cores:g} cores of {len(order)} host(s), {fixed}",
    )
