"""The Brain as a service: its decider behind the shared shell. `cli/serve.py` runs it; so does the simulation."""

from __future__ import annotations

from collections.abc import Mapping

from rover_bus.brain import publishing
from rover_bus.brain.decider import NO_QUOTAS, BrainDecider
from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.log import BrainBatch
from rover_bus.brain.spans import BrainSpans, RoundSpans
from rover_bus.events import subjects, traces
from rover_bus.events.bus import Bus
from rover_bus.events.deciding import ServiceProcess, Wiring
from rover_bus.events.inputs import Input
from rover_bus.events.intake import Respond
from rover_bus.events.job import PlanMode
from rover_bus.events.poison import Cause
from rover_bus.events.settings import DEFAULTS, Settings
from rover_bus.events.shell import TICK, Shell

FOLLOWED = (
    "job.submitted",
    "job.ended",
    "job.forgotten",
    "job.reported",
    "job.paused",
    "job.resumed",
    "job.stop_requested",
    "member.lost",
    "members.desired",
    "members.displaced",
    "plan.applied",
    "plan.checked",
    "plan.refused",
    "plan.settled",
    "plan.requested",
    "plan.mode_set",
)
TICK_S = 1.0
LEADER_KEY = "brain.leader"  # a dot: no job can have this name


def build_brain(
    bus: Bus,
    process: ServiceProcess,
    *,
    timeline: int,
    mode: PlanMode = "auto",
    quotas: Mapping[str, Budget] = NO_QUOTAS,
    settings: Settings = DEFAULTS,
) -> tuple[Shell, BrainDecider]:
    """Return a Brain ready to run (`await shell.run()`). `timeline` is a fresh random number, used when the log is new.

    `mode`: what becomes of plans cluster-wide, the strictest of it and a job's holds. `quotas` are by tenant.
    """
    hosts, sizing = settings.hosts, settings.sizing
    decider = BrainDecider(timeline, mode, quotas, hosts.slow_memory_s, sizing.fair_share)
    wiring = Wiring(
        log_subject=subjects.BRAIN_LOG,
        leader_key=LEADER_KEY,
        job="brain",
        batch_type=BrainBatch,
        follows=[
            *subjects.everywhere(*(subjects.job_facts(kind=kind) for kind in FOLLOWED)),
            subjects.host_facts(fact="registered"),
            subjects.host_facts(fact="left"),
            subjects.host_facts(fact="member_stalled"),
            subjects.cluster_facts(),
        ],
        publishes=publishing.SUBJECTS,
        purges=[subjects.host_facts(), subjects.of_tenant("*", "rover.>")],
        of_all_jobs=True,
        spans=lambda brain: BrainSpans(lambda: brain.state),
        keep=settings.retention,
        leader_ttl_s=settings.leadership.brain_ttl_s,
        samples=subjects.everywhere("rover.profile.>"),
        tick_s=TICK_S,
    )
    if not traces.is_on():
        return Shell(bus, decider, wiring, process), decider
    return TracedShell(bus, decider, wiring, process), decider


class TracedShell(Shell):
    """A shell that makes a span of each round of all jobs: when it began and ended is no record, and nothing is decided by it."""

    def __init__(self, bus: Bus, decider: BrainDecider, wiring: Wiring, process: ServiceProcess) -> None:
        super().__init__(bus, decider, wiring, process)
        self._wall_ms, self._rounds = process.wall_ms, RoundSpans(lambda: decider.rounds)

    def submit(self, input: Input, respond: Respond | None = None, cause: Cause = TICK) -> None:
        began_ms, before = self._wall_ms(), len(self._pending)
        super().submit(input, respond, cause)
        for span in self._rounds.decided(self._pending[before:], began_ms, self._wall_ms()):
            traces.emit(span)
