"""The Brain as a service: its decider behind the shared shell. `cli/serve.py` runs it; so does the simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rover_bus.brain import publishing
from rover_bus.brain.decider import NO_QUOTAS, BrainDecider
from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.log import BrainBatch
from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.deciding import Wiring
from rover_bus.events.job import PlanMode
from rover_bus.events.shell import Shell
from rover_bus.events.streams import KEEP_LOG, KeepLog

FOLLOWED = (
    "job.submitted",
    "job.ended",
    "job.forgotten",
    "job.reported",
    "job.paused",
    "job.resumed",
    "job.stop_requested",
    "members.desired",
    "members.displaced",
    "plan.applied",
    "plan.checked",
    "plan.refused",
    "plan.settled",
    "plan.mode_set",
)
LEADER_TTL_S = (
    3.0  # nothing waits for a Brain (S26): its successor may take this long, and renewals cost the less
)
TICK_S = 1.0
LEADER_KEY = "brain.leader"  # a dot: no job can have this name


def build_brain(
    bus: Bus,
    *,
    holder: str,
    timeline: int,
    clock: Callable[[], float],
    wall_ms: Callable[[], int],
    leader_ttl_s: float = LEADER_TTL_S,
    mode: PlanMode = "auto",
    quotas: Mapping[str, Budget] = NO_QUOTAS,
    keep_log: KeepLog = KEEP_LOG,
) -> tuple[Shell, BrainDecider]:
    """Return a Brain ready to run (`await shell.run()`). `timeline` is a fresh random number, used when the log is new.

    `mode`: what becomes of plans cluster-wide, the strictest of it and a job's holds. `quotas` are by tenant.
    """
    decider = BrainDecider(timeline, mode, quotas)
    wiring = Wiring(
        log_subject=subjects.BRAIN_LOG,
        leader_key=LEADER_KEY,
        job="brain",
        batch_type=BrainBatch,
        follows=[
            *(subjects.job_facts(kind=kind) for kind in FOLLOWED),
            subjects.host_facts(fact="registered"),
            subjects.host_facts(fact="left"),
            subjects.cluster_facts(),
        ],
        publishes=[subjects.job_facts(kind=kind) for kind in publishing.KINDS],
        purges=[subjects.host_facts()],
        of_all_jobs=True,
        keep_log=keep_log,
        samples=["rover.profile.>"],
        tick_s=TICK_S,
    )
    shell = Shell(
        bus, decider, wiring, holder=holder, clock=clock, wall_ms=wall_ms, leader_ttl_s=leader_ttl_s
    )
    return shell, decider
