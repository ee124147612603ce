"""What a job leaves behind when it ends: the run that warm starts of its family look back to.

Fed by `job.ended` and what was known of the job; feeds `decisions/warm_start`. Pure.
"""

from __future__ import annotations

from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.decisions.warm_start import PastJob
from rover_bus.brain.history import traits_of
from rover_bus.brain.memory_relief import used_by_servers
from rover_bus.brain.sizing import BETWEEN_JOBS_S, asked_of_servers
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.events.facts import JobEnded
from rover_bus.events.job import JobSpec


def past_of(ended: JobEnded, known: KnownJob, state: BrainState) -> PastJob | None:
    """Return what later jobs may learn from one that ended; None of one that never ran."""
    held = known.held or known.released
    if held is None:
        return None
    return PastJob(
        job=ended.job,
        traits=traits_of(known.spec),
        final=known.charge(known.rest or held),
        ended_at_s=len(state.past) * BETWEEN_JOBS_S,
        completed=ended.state == "completed",
        asked=_asked(known.spec) if known.moves else None,
        tables_bytes=used_by_servers(known),
        asked_bytes=asked_of_servers(known.spec),
    )


def _asked(spec: JobSpec) -> Allocation:
    workers, servers = spec.workers, spec.servers
    return Allocation(
        workers=workers.start,
        servers=servers.start,
        worker_cores=workers.start_cores,
        server_cores=servers.start_cores,
    )
