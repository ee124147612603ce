"""Hosts that are lost: which jobs shrink for what was lost with them, and which masters learn that a host of theirs is silent.

Fed by the decider's look at what it heard (`watch`). Apart because it begins with hosts, not with a job. A master hears its
members; hosts are observed by the Brain. Where only a master of a job ran, or where members were named and never came, no other
component notices. Where no host with a master of a job is left, a stand-in is named here, since no other component could.
"""

from __future__ import annotations

from collections.abc import Collection, Generator

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.granting import shrinks_after_loss
from rover_bus.brain.log import HostGone
from rover_bus.brain.proposing import shrink
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.brain.watch import JobSamples
from rover_bus.brain.wishes import declined
from rover_bus.events import causes
from rover_bus.events.facts import MembersUnheard
from rover_bus.events.identity import MasterSeat
from rover_bus.events.log import Record

STAND_IN, NEXT_STAND_IN = 500, 50
INCARNATIONS_A_SEAT = 1000  # how far apart a job's own log names the masters of two hosts


Steps = Generator[Record, None, None]


def fit_into_what_is_left(state: BrainState, watch: JobSamples, now: float) -> Steps:
    """A host is gone, and its members were started on the others: what is too much for these shrinks.

    A job that lost all its members on a host takes it for lost, and so it is counted; but if one process hung there, the host
    goes on sampling. No job shrinks for it before its samples are missing too.
    """
    if not state.shrinks:
        return
    silent = [host for host in state.displaced if watch.is_silent(host, now, state.sampled_s)]
    doubtful = [each for host, each in state.displaced.items() if host not in silent]
    cores = sum(host.cores for host in (*state.hosts.values(), *doubtful))
    for name, size in shrinks_after_loss(state, cores).items():
        known = state.jobs[name]
        if known.change is None and not known.paused and not declined(known, size):
            detail = f"a host is gone, {cores:g} cores are left"
            plan = shrink(name, known, state, size, Reason.SHRINK_AFTER_LOSS, detail)
            gone = sorted(state.displaced)
            cause = causes.timer("room", causes.host(gone[0])) if gone else known.after("room")
            yield plan.replace(cause=cause)


def note_unheard(state: BrainState, unheard: Collection[str]) -> Steps:
    """Yield what follows from hosts that are not heard (any more), once each until they are heard again."""
    known = {**state.displaced, **state.hosts}
    for host in [host for host in unheard if host in known and host not in state.unheard]:
        silence = causes.timer("silence", causes.host(host))
        yield HostGone(host=host, displaced=True, unheard=True, cause=silence)
        for name, job in state.jobs.items():
            if host in job.hosts or any(seat.host == host for seat in job.seats):
                yield MembersUnheard(job=name, host=host, stand_in=_stand_in(job, state), cause=silence)


def _stand_in(job: KnownJob, state: BrainState) -> MasterSeat | None:
    """Where a master runs when no host with one is heard: on one that the job runs on, by a name that its log never gives."""
    if not job.seats or any(seat.host not in state.unheard for seat in job.seats):
        return None
    host = next((host for host in job.hosts if host in state.hosts), None)
    newest = max(seat.first for seat in job.seats)
    step = STAND_IN if newest % INCARNATIONS_A_SEAT < STAND_IN else NEXT_STAND_IN
    return None if host is None else MasterSeat(host=host, first=newest + step)
