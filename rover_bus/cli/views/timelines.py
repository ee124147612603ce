"""What a job's charts show over time, kept bounded: sums in steps of time that grow wider as the job grows older.

Fed by picture.py with the facts of one job and with samples; read by what serves HTTP. Nothing here is exact, and nothing
exact rests on it: samples are lossy, and what a chart shows of a long job is coarser than what it shows of a short one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rover_bus.cli.views.own_words import own_word
from rover_bus.events import facts
from rover_bus.events.checkpoint_facts import PartStaged
from rover_bus.events.data_facts import LedgerRewound
from rover_bus.events.fact import Fact
from rover_bus.events.profiles import ProcessSample, ServerProfile, WorkerProfile

STEP_MS = 1000  # the narrowest step
MOST_STEPS = 120  # of a timeline; at more all become twice as wide
MOST_SPREAD = 30  # steps that one sample may cover
MOST_TRACKS = 600  # members or metrics of one job
MOST_METRICS = 8
MOST_MARKS = 300
MOST_REPORTS = 1000  # as many as the stream keeps of a job
MOST_SPANS = 40  # of one member


@dataclass(slots=True)
class _Step:
    """The sums of one step. `known_ms`: when the newest sample that is in them was stored, Unix milliseconds."""

    sums: list[float]
    known_ms: int

    def add(self, values: Iterable[float], known_ms: int) -> None:
        for index, value in enumerate(values):
            self.sums[index] += value
        self.known_ms = max(self.known_ms, known_ms)

    def copy(self) -> _Step:
        return _Step(list(self.sums), self.known_ms)


class Timeline:
    """Sums by track and step. `width_ms`: of a step; all tracks have the same steps."""

    def __init__(self, most_tracks: int = MOST_TRACKS) -> None:
        self.width_ms = STEP_MS
        self.tracks: dict[str, dict[int, _Step]] = {}
        self._most_tracks = most_tracks
        self._first, self._last = 0, -1

    def add(self, track: str, time_ms: int, values: tuple[float, ...], known_ms: int = 0) -> None:
        """Add values to the step that holds a moment; a track beyond the most there may be is left out.

        `known_ms`: when they became known, where that was later than the moment.
        """
        steps = self.tracks.get(track)
        if steps is None:
            if len(self.tracks) >= self._most_tracks:
                return
            steps = self.tracks[track] = {}
        at = time_ms // self.width_ms
        if self._last < self._first:
            self._first = self._last = at
        self._first, self._last = min(self._first, at), max(self._last, at)
        while self._last - self._first >= MOST_STEPS:
            self._widen()
        _sum_into(self.tracks[track], time_ms // self.width_ms, values, max(time_ms, known_ms))

    def spread(self, track: str, until_ms: int, window_s: float, values: tuple[float, ...]) -> None:
        """Add values of a window that ends at a moment to the steps that it covers, to each its share."""
        begin_ms = until_ms - round(1000 * window_s)
        self.add(track, until_ms, tuple(0.0 for _ in values))
        begin_ms = max(begin_ms, until_ms - MOST_SPREAD * self.width_ms, self._first * self.width_ms)
        whole_ms, at_ms = until_ms - begin_ms, begin_ms
        while at_ms < until_ms:
            next_ms = min(until_ms, (at_ms // self.width_ms + 1) * self.width_ms)
            share = (next_ms - at_ms) / whole_ms
            self.add(track, at_ms, tuple(share * value for value in values), until_ms)
            at_ms = next_ms

    def _widen(self) -> None:
        self.width_ms *= 2
        self._first, self._last = self._first // 2, self._last // 2
        for track, steps in self.tracks.items():
            wider = self.tracks[track] = dict[int, _Step]()
            for at, step in steps.items():
                _sum_into(wider, at // 2, step.sums, step.known_ms)

    def steps(self, track: str) -> list[tuple[int, list[float]]]:
        """Return when each step of a track begins, Unix milliseconds, and its sums, in their order."""
        return [(at * self.width_ms, step.sums) for at, step in sorted(self.tracks[track].items())]

    def known_by(self, moment_ms: int) -> Timeline:
        """Return what was known of it at a moment: the steps in which nothing lies that was stored later. To be read alone."""
        then = Timeline(self._most_tracks)
        then.width_ms = self.width_ms
        for track, steps in self.tracks.items():
            known = {at: step.copy() for at, step in steps.items() if step.known_ms <= moment_ms}
            if known:
                then.tracks[track] = known
        return then


def _sum_into(steps: dict[int, _Step], at: int, values: Iterable[float], known_ms: int) -> None:
    step = steps.get(at)
    if step is None:
        steps[at] = _Step(list(values), known_ms)
    else:
        step.add(values, known_ms)


class Mark(NamedTuple):
    """Something that happened to the whole job at one moment. `sequence`: of its fact."""

    time_ms: int
    kind: Literal["scale", "fault"]
    text: str
    sequence: int


class Report(NamedTuple):
    """What a job's master reported."""

    time_ms: int
    samples_per_second: float


def _spans() -> deque[tuple[int, int]]:
    return deque(maxlen=MOST_SPANS)


@dataclass(slots=True)
class Spells:
    """When one member was being followed by its next incarnation, and when it stood still for a checkpoint: Unix milliseconds."""

    lost_ms: int = 0  # 0: it is there
    restarts: deque[tuple[int, int]] = field(default_factory=_spans)
    checkpoints: deque[tuple[int, int]] = field(default_factory=_spans)


class JobTimelines:
    """The timelines of one job."""

    def __init__(self) -> None:
        self.reports: deque[Report] = deque(maxlen=MOST_REPORTS)
        self.marks: deque[Mark] = deque(maxlen=MOST_MARKS)
        self.spells: dict[str, Spells] = {}  # by member name
        self.lanes = Timeline()  # by member name: seconds computing, waiting, pulling, and in all
        self.memory = Timeline()  # by member name: bytes, and how many samples
        self._by_host: set[str] = set()  # members whose memory their host says
        self.program = Timeline(MOST_METRICS)  # by metric: value times samples, and samples

    def with_samples_of(self, other: JobTimelines, moment_ms: int) -> None:
        """Have what another one knew of samples at a moment; what facts say stays."""
        self.lanes = other.lanes.known_by(moment_ms)
        self.memory = other.memory.known_by(moment_ms)
        self.program = other.program.known_by(moment_ms)

    def take(self, fact: Fact, time_ms: int, sequence: int) -> None:
        """Take a fact of the job in."""
        match fact:
            case facts.JobReported(samples_per_second=rate):
                self.reports.append(Report(time_ms, rate))
            case facts.PlanApplied(plan=plan, workers=workers, servers=servers):
                text = f"plan {plan} is carried out: {workers} x {servers}"
                self.marks.append(Mark(time_ms, "scale", text, sequence))
            case facts.MemberLost(member=member, reason=reason):
                self.marks.append(Mark(time_ms, "fault", f"{member} is lost: {reason}", sequence))
                spells = self._spells(member.name)
                spells.lost_ms = spells.lost_ms or time_ms
            case facts.MemberAdmitted(member=member):
                spells = self._spells(member.name)
                if spells.lost_ms:
                    spells.restarts.append((spells.lost_ms, time_ms))
                    spells.lost_ms = 0
            case facts.MembersDesired(members=members):
                wanted = {each.member.name for each in members}
                for name, spells in self.spells.items():
                    if name not in wanted:
                        spells.lost_ms = 0  # nothing follows it
            case LedgerRewound(reason=reason):
                self.marks.append(Mark(time_ms, "fault", f"the ledger went back: {reason}", sequence))
            case PartStaged(place=place, blocked_s=blocked_s):
                span = time_ms - round(1000 * blocked_s), time_ms
                self._spells(f"ps-{place.index}").checkpoints.append(span)
            case _:
                pass  # is on no chart

    def _spells(self, name: str) -> Spells:
        return self.spells.setdefault(name, Spells())

    def take_worker(self, sample: WorkerProfile, time_ms: int) -> None:
        """Take a worker's sample in."""
        pulling_s = sample.pull_s + sample.push_s + sample.read_s
        spent = sample.compute_s, sample.wait_s + sample.barrier_s, pulling_s, sample.window_s
        self.lanes.spread(sample.member.name, time_ms, sample.window_s, spent)
        self._take_own_word(sample, time_ms)
        if not sample.samples:
            return
        said = {**({"loss": sample.loss} if sample.loss else {}), **sample.metrics}
        for metric, value in said.items():
            if math.isfinite(value):
                self.program.add(metric, time_ms, (value * sample.samples, float(sample.samples)))

    def take_server(self, sample: ServerProfile, time_ms: int) -> None:
        """Take a server's sample in: what it did not compute it waited for requests."""
        busy_s = min(sample.busy_s, sample.window_s)
        spent = busy_s, sample.window_s - busy_s, 0.0, sample.window_s
        self.lanes.spread(sample.member.name, time_ms, sample.window_s, spent)
        self._take_own_word(sample, time_ms)

    def take_process(self, sample: ProcessSample, time_ms: int) -> None:
        """Take in what a host saw of a member."""
        self._by_host.add(sample.member.name)
        self._add_memory(sample, time_ms)

    def _take_own_word(self, sample: WorkerProfile | ServerProfile, time_ms: int) -> None:
        if sample.member.name not in self._by_host and (said := own_word(sample)) is not None:
            self._add_memory(said, time_ms)

    def _add_memory(self, sample: ProcessSample, time_ms: int) -> None:
        self.memory.add(sample.member.name, time_ms, (float(sample.memory_bytes), 1.0))
