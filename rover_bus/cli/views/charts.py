"""What the charts of one job show, from its timelines, its plans and what the Brain foresees. Feeds what serves HTTP."""

from __future__ import annotations

from rover_bus.brain.memory_relief import foresee_memory
from rover_bus.brain.state import KnownJob
from rover_bus.cli.views.picture import KnownOfJob
from rover_bus.cli.views.timelines import Spells, Timeline
from rover_bus.events.facts import JobForecast, Size
from rover_bus.events.profiles import ServerProfile
from rover_bus.web.bodies import (
    EndShown,
    HeatShown,
    LaneShown,
    LanesShown,
    MarkShown,
    MemberMemoryShown,
    MemoryShown,
    MetricShown,
    ProgramShown,
    PromiseShown,
    ServerHeat,
    ThroughputShown,
)

NEVER = Spells()


def throughput_of(known: KnownOfJob, sequence: int) -> ThroughputShown:
    """Return what was measured, and what the plans promised that were carried out."""
    promises = [
        PromiseShown(
            plan=view.number,
            from_ms=view.applied_ms,
            predicted=view.proposed.predicted,
            low_90=view.proposed.predicted_low_90 or None,
            high_90=view.proposed.predicted_high_90 or None,
        )
        for view in known.plans.by_number.values()
        if view.applied_ms
    ]
    reports = known.timelines.reports
    return ThroughputShown(
        sequence=sequence,
        times_ms=[each.time_ms for each in reports],
        measured=[each.samples_per_second for each in reports],
        promises=sorted(promises, key=lambda each: each.from_ms),
    )


def lanes_of(known: KnownOfJob, sequence: int) -> LanesShown:
    """Return a lane for each member that was ever sampled or lost, workers first."""
    timelines = known.timelines
    lanes = timelines.lanes
    names = sorted({*lanes.tracks, *timelines.spells}, key=_by_role)
    shown = [_lane(name, lanes, timelines.spells.get(name, NEVER)) for name in names]
    begins = [each.times_ms[0] for each in shown if each.times_ms]
    ends = [each.times_ms[-1] + lanes.width_ms for each in shown if each.times_ms]
    marks = timelines.marks
    return LanesShown(
        sequence=sequence,
        width_ms=lanes.width_ms,
        from_ms=min(begins, default=known.row.submitted_ms),
        to_ms=max(ends, default=known.row.submitted_ms),
        lanes=shown,
        marks=[MarkShown(time_ms=m.time_ms, kind=m.kind, text=m.text, event=m.sequence) for m in marks],
    )


def _by_role(name: str) -> tuple[bool, int]:
    role, _, index = name.partition("-")
    return role != "worker", int(index)


def _lane(name: str, lanes: Timeline, spells: Spells) -> LaneShown:
    steps = lanes.steps(name) if name in lanes.tracks else []
    steps = [(at, sums) for at, sums in steps if sums[3] > 0]
    shares = [[round(part / sums[3], 3) for part in sums[:3]] for _, sums in steps]
    return LaneShown(
        member=name,
        times_ms=[at for at, _ in steps],
        compute=[each[0] for each in shares],
        wait=[each[1] for each in shares],
        pull=[each[2] for each in shares],
        restarts=list(spells.restarts),
        checkpoints=list(spells.checkpoints),
        lost_ms=spells.lost_ms or None,
    )


def program_of(known: KnownOfJob, sequence: int, seconds_left: float | None) -> ProgramShown:
    """Return the program's metrics, and when the job will have ended."""
    program, metrics = known.timelines.program, list[MetricShown]()
    for name in sorted(program.tracks, key=lambda each: (each != "loss", each)):
        steps = program.steps(name)
        values = [value / samples for _, (value, samples) in steps]
        metrics.append(MetricShown(name=name, times_ms=[at for at, _ in steps], values=values))
    forecast = known.plans.forecast
    return ProgramShown(
        sequence=sequence,
        width_ms=program.width_ms,
        metrics=metrics,
        seconds_left=seconds_left,
        target=_end(forecast) if forecast is not None else None,
    )


def _end(forecast: JobForecast) -> EndShown:
    def known(value: float) -> float | None:
        return value if value >= 0 else None

    return EndShown(
        constant=forecast.constant,
        metric=forecast.metric,
        value=forecast.value or None,
        target=forecast.target or None,
        eta_s=known(forecast.eta_s),
        low_90_s=known(forecast.low_90_s),
        high_90_s=known(forecast.high_90_s),
    )


def memory_of(known: KnownOfJob, sequence: int, of_brain: KnownJob | None) -> MemoryShown:
    """Return the memory of members, with limits and forecasts. `of_brain`: what the Brain knows of the job, if it does."""
    memory, size = known.timelines.memory, _held(known)
    foreseen = {each.member.name: each for each in foresee_memory(of_brain)} if of_brain is not None else {}
    members = []
    for name in sorted((each for each in memory.tracks if not each.startswith("master")), key=_by_role):
        steps, ahead = memory.steps(name), foreseen.get(name)
        members.append(
            MemberMemoryShown(
                member=name,
                times_ms=[at for at, _ in steps],
                used_bytes=[round(total / count) for _, (total, count) in steps],
                limit_bytes=_limit(size, name) or None,
                ahead_s=ahead.ahead_s if ahead else [],
                expected_bytes=[round(each) for each in ahead.expected_bytes] if ahead else [],
                upper_bytes=[round(each) for each in ahead.upper_bytes] if ahead else [],
            )
        )
    return MemoryShown(sequence=sequence, members=members)


def _held(known: KnownOfJob) -> Size | None:
    carried_out = known.plans.carried_out
    return carried_out.proposed.size if carried_out is not None else None


def _limit(size: Size | None, name: str) -> int:
    if size is None:
        return 0
    return size.worker_memory_bytes if name.startswith("worker") else size.server_memory_bytes


def heat_of(samples: dict[str, ServerProfile]) -> HeatShown:
    """Return how much servers are asked for."""
    servers = [
        ServerHeat(
            index=each.member.index,
            keys_per_s=each.keys_per_s,
            rows=each.rows,
            table_bytes=each.table_bytes,
            hottest=each.hottest,
        )
        for each in samples.values()
    ]
    return HeatShown(servers=sorted(servers, key=lambda each: each.index))
