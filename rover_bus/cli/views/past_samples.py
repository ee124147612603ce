"""What was sampled last of a job's members, now or at a moment that is gone.

Fed by a picture's present samples, or by the stream of samples from a place that the picture remembers by its time; feeds what
serves HTTP. Apart because samples are kept for an hour, and facts far longer: a moment may have the ones without the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass, field

from rover_bus.cli.views.own_words import own_word
from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Stored
from rover_bus.events.codec import decode_any
from rover_bus.events.errors import BadMessage
from rover_bus.events.looks import open_read
from rover_bus.events.profiles import HostProfile, ProcessSample, ServerProfile, WorkerProfile
from rover_bus.events.streams import PROFILES
from rover_bus.events.tenancy import of_control

PLACE_EVERY_MS = 1000
MOST_PLACES = 4000  # more than an hour: no sample is kept longer


@dataclass(slots=True)
class LastSamples:
    """The last samples of a job's members, by member with its incarnation."""

    workers: dict[str, WorkerProfile] = field(default_factory=dict)
    servers: dict[str, ServerProfile] = field(default_factory=dict)
    processes: dict[str, ProcessSample] = field(default_factory=dict)

    def take_own_word(self, sample: WorkerProfile | ServerProfile) -> None:
        """Take in what a member says of itself; what its host says is read later, and wins."""
        if (said := own_word(sample)) is not None:
            self.processes[str(sample.member)] = said


class SamplePlaces:
    """Where in the stream the samples of each second begin."""

    def __init__(self) -> None:
        self._times: deque[int] = deque(maxlen=MOST_PLACES)
        self._sequences: deque[int] = deque(maxlen=MOST_PLACES)

    def note(self, stored: Stored) -> None:
        """A sample was stored."""
        if self._sequences and stored.sequence <= self._sequences[-1]:
            self._times.clear()  # the stream lost what it had, and its numbers are used again
            self._sequences.clear()
        if not self._times or stored.time_ms >= self._times[-1] + PLACE_EVERY_MS:
            self._times.append(stored.time_ms)
            self._sequences.append(stored.sequence)

    def before(self, time_ms: int) -> int | None:
        """Return a sequence from which on all samples since a moment lie; None where it is not known: they may be among those that
        were stored before the first place, unless that is the stream's first sample.
        """
        at = bisect_left(self._times, time_ms)
        if at == 0:
            known = self._times and (self._times[0] == time_ms or self._sequences[0] == 1)
            return self._sequences[0] if known else None
        return self._sequences[at - 1]


async def read_samples(
    bus: Bus, job: str, first: int, span_ms: tuple[int, int], hosts: frozenset[str] = frozenset()
) -> LastSamples:
    """Return the last samples of a job in a span of time, from a sequence on, and what `hosts` measured of its processes.

    Raises BusError.
    """
    tenant, bare = subjects.split_job(job)
    own = subjects.member_profiles(bare)
    filters = [own if tenant == subjects.DEFAULT_TENANT else subjects.of_tenant(tenant, own)]
    filters += [subjects.host_profile(host) for host in sorted(hosts)]
    found = LastSamples()
    for each in filters:
        async with aclosing(open_read(bus, PROFILES, each, first)) as reading:
            async for stored in reading:
                if stored.time_ms > span_ms[1]:
                    break
                if stored.time_ms >= span_ms[0]:
                    _take(found, stored, job)
    return found


def read_sample(stored: Stored) -> object:
    """Return what was measured, its names those of the control account; None where it cannot be read."""
    try:
        sample = decode_any(stored.body)
    except BadMessage:
        return None
    at = subjects.parse(stored.subject)
    return of_control(sample, at.tenant if at is not None else "")


def _take(found: LastSamples, stored: Stored, job: str) -> None:
    match read_sample(stored):
        case HostProfile(processes=processes):
            found.processes |= {str(each.member): each for each in processes if each.job == job}
        case WorkerProfile(member=member) as sample if sample.window_s > 0:
            found.workers[str(member)] = sample
            found.take_own_word(sample)
        case ServerProfile(member=member) as sample if sample.window_s > 0:
            found.servers[str(member)] = sample
            found.take_own_word(sample)
        case _:
            pass  # is on no chart
