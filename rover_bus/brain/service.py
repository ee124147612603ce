"""The Brain as a service: its decider behind the shared shell. `cli/serve.py` runs it; so does the simulation."""

from __future__ import annotations

from collections.abc import Callable

from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.log import BrainBatch
from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.shell import Shell, Wiring

LEADER_KEY = "brain.leader"  # a dot: no job can have this name


def build_brain(
    bus: Bus,
    *,
    holder: str,
    history: int,
    clock: Callable[[], float],
    wall_ms: Callable[[], int],
    leader_ttl_s: float = 1.0,
) -> tuple[Shell, BrainDecider]:
    """Return a Brain ready to run (`await shell.run()`). `history` is a fresh random number, used when the log is new."""
    decider = BrainDecider(history)
    wiring = Wiring(
        log_subject=subjects.BRAIN_LOG,
        leader_key=LEADER_KEY,
        job="brain",
        batch_type=BrainBatch,
        follows=[
            subjects.job_facts(kind="job.submitted"),
            subjects.job_facts(kind="job.ended"),
            subjects.host_facts(fact="registered"),
            subjects.host_facts(fact="left"),
        ],
        publishes=subjects.job_facts(kind="plan.proposed"),
        tick_s=1.0,
    )
    shell = Shell(
        bus, decider, wiring, holder=holder, clock=clock, wall_ms=wall_ms, leader_ttl_s=leader_ttl_s
    )
    return shell, decider
