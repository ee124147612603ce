"""Where the time of jobs goes: every second of a completion time is in exactly one item, seconds a job.

Fed by the engine while it runs, feeds `--budget`. A second of training at rate r is r/reference seconds of work (`work`; what is
repeated after a failure counts apart) and the rest is lost to what explains it: another size than the reference, a probe, members
that are on their way, members slower than others for good, slow spells. Items may be negative: a job that holds more than its
reference is faster than it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class Budget:
    """Seconds of one job, or of many. Their sum is the completion time."""

    work_s: float = 0.0  # at the speed of the reference plan
    queue_s: float = 0.0  # holding nothing
    start_s: float = 0.0  # holding members that are not there yet
    change_s: float = 0.0  # stopped for a change of size
    failure_s: float = 0.0  # stopped after a failure or an OOM kill
    repeated_s: float = 0.0  # work done twice
    joining_s: float = 0.0  # training with a part of the members
    probing_s: float = 0.0  # training at a size that was chosen to learn from
    spread_s: float = 0.0  # workers and hosts that are slower than others for good
    slow_s: float = 0.0  # stragglers, hot servers, drift
    size_s: float = 0.0  # training at another size than the reference plan

    @property
    def total_s(self) -> float:
        """The completion time."""
        return float(sum(getattr(self, item.name) for item in fields(self)))

    def train(
        self, span_s: float, rate: float, even: float, live: float, held: float, reference: float, probe: bool
    ) -> None:
        """Account for a span of training: the rate that was, the live size's at the members' own paces (`even`) and in full health,
        and the held size's in full health."""
        self.work_s += span_s * rate / reference
        self.slow_s += span_s * (even - rate) / reference
        self.spread_s += span_s * (live - even) / reference
        self.joining_s += span_s * (held - live) / reference
        missing = span_s * (reference - held) / reference
        if probe:
            self.probing_s += missing
        else:
            self.size_s += missing

    def repeat(self, samples: float, reference: float) -> None:
        """Work that must be done again is no work."""
        self.work_s -= samples / reference
        self.repeated_s += samples / reference


ITEMS = tuple(item.name for item in fields(Budget))
