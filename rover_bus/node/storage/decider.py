"""What a daemon does next for the checkpoints of its host: the decider of the persister (protocol P12, P14).

Fed with the state of evolution.py; gives tasks to persister.py, which runs them on threads. Its rules, each in one place:

- What is ordered is pinned at once (a reader's lock): its slot is not overwritten while it waits for the disk.
- Digests come first, of the youngest cut of each part before any other: without them it is no source, and nothing is stored,
  copied or gone back to. They have a lane of their own, copies between memories another, so that neither a fetch nor a slow disk
  holds them up, and no rate limits them.
- What belongs to a cut that has ended (ready, superseded, failed) is not begun, and is called off if it runs.
- Pruning follows the log: only the host that wrote the manifest prunes, only when `checkpoint.ready` is stored.
- An ended job's memory is swept after the last of its tasks has left its thread: a copy that comes later would stay for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType

from rover_bus.events.deciding import Turn, TurnDecider, WakeAt
from rover_bus.events.settings import StorageSettings
from rover_bus.node.storage.evolution import evolve
from rover_bus.node.storage.holders import ParityGroup, choose_groups, choose_holders
from rover_bus.node.storage.state import Cut, Happening, HeldPart, JobCheckpoints, Persisting, StorageTask

Input = Happening | Turn


@dataclass(frozen=True, slots=True)
class Begin:
    """Run the task on a thread of its lane."""

    task: StorageTask


@dataclass(frozen=True, slots=True)
class CallOff:
    """End the task as soon as it can: its cut has ended."""

    task: StorageTask


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Publish that the step failed for good."""

    task: StorageTask
    reason: str


Effect = Begin | CallOff | GiveUp | WakeAt


class StorageDecider(TurnDecider[Persisting, Happening, Effect]):
    """The persister's decider."""

    def __init__(self, host: str, patient: StorageSettings, run: str = "") -> None:
        super().__init__(Persisting(host, patient, run), evolve, decide)


def decide(state: Persisting, now_s: float, leave_out: Collection[str] = ()) -> list[Effect]:
    """Return what is to be done now: at most one new task a lane. leave_out: jobs on which nothing is decided."""
    state = without(state, leave_out) if leave_out else state
    wanted = _all_wanted(state)
    effects: list[Effect] = [CallOff(task) for task in sorted(state.running - set(wanted))]
    effects += [
        GiveUp(task, state.troubles[task].reason)
        for task in wanted
        if task in state.troubles and state.troubles[task].hopeless and task not in state.done
    ]
    busy = {task.lane for task in state.running}
    worked_on = {task.uid for task in state.running}
    for task in wanted:
        if task.step == "sweep" and task.uid in worked_on:
            continue
        if task.lane not in busy and _may_begin(state, task, now_s):
            busy.add(task.lane)
            effects.append(Begin(task))
    return effects + _wake(state, wanted)


def _wake(state: Persisting, wanted: Collection[StorageTask]) -> list[Effect]:
    """When the next failed task is to be tried again."""
    waiting = [state.troubles[task] for task in wanted if task in state.troubles]
    again_s = min((trouble.again_s for trouble in waiting if not trouble.hopeless), default=None)
    return [] if again_s is None else [WakeAt(again_s)]


def without(state: Persisting, jobs: Collection[str]) -> Persisting:
    """Return the state without some jobs and their running tasks: nothing is decided on them."""
    return replace(
        state,
        jobs=MappingProxyType({job: about for job, about in state.jobs.items() if job not in jobs}),
        ended=MappingProxyType({uid: job for uid, job in state.ended.items() if job not in jobs}),
        running=frozenset(task for task in state.running if task.job not in jobs),
    )


def _all_wanted(state: Persisting) -> list[StorageTask]:
    wanted = [task for job, about in state.jobs.items() for task in _wanted(state, job, about)]
    return wanted + [StorageTask(job, uid, "sweep") for uid, job in state.ended.items()]


def _may_begin(state: Persisting, task: StorageTask, now_s: float) -> bool:
    trouble = state.troubles.get(task)
    waiting = trouble is not None and (trouble.hopeless or now_s < trouble.again_s)
    return not waiting and task not in state.done and task not in state.running


def _wanted(state: Persisting, job: str, about: JobCheckpoints) -> Iterator[StorageTask]:
    """Everything that should be done for a job or is done already, in order of haste."""
    for part, (generation, cut) in about.staged.items():
        yield StorageTask(job, about.uid, "digest", cut, generation, part)
    for part, (generation, cut) in sorted(about.asked):
        yield StorageTask(job, about.uid, "fetch", cut, generation, part)  # a server waits for it
    if about.search is not None and (about.search.host == state.host or state.run):
        yield StorageTask(job, about.uid, "search", about.search.search)
    yield from _wanted_manifest(state, job, about)
    yield from _wanted_parts(state, job, about)
    for part, held in about.held.items():
        if _holds_a_copy(state, about, part, held):
            yield StorageTask(job, about.uid, "mirror", held.cut[1], held.cut[0], part)
    for group in groups(state, about):
        if state.host in group.holders and _is_digested(about, group):
            generation, cut = about.complete_cut
            yield StorageTask(job, about.uid, "parity", cut, generation, group.name)
    order = about.manifest
    if order and order.host == state.host and about.ready == (order.generation, order.cut):
        yield StorageTask(job, about.uid, "prune", order.cut, order.generation)


def _holds_a_copy(state: Persisting, about: JobCheckpoints, part: str, held: HeldPart) -> bool:
    return state.host in choose_holders(part, held.owner, _domains(state, about), about.spec.copies)


def _domains(state: Persisting, about: JobCheckpoints) -> dict[str, str]:
    """The failure domains of hosts that may hold something. Those of one run go with their servers: only such as staged count."""
    there = {held.owner for held in about.held.values()} if state.run else set(state.peers)
    return {host: peer.domain for host, peer in state.peers.items() if host in there}


def groups(state: Persisting, about: JobCheckpoints) -> list[ParityGroup]:
    """The parity groups of the newest complete cut."""
    return choose_groups(about.complete, _domains(state, about), about.spec.parity)


def _is_digested(about: JobCheckpoints, group: ParityGroup) -> bool:
    return all(part in about.held and about.held[part].cut == about.complete_cut for part in group.parts)


def is_being_digested(state: Persisting, task: StorageTask) -> bool:
    """Whether a digest task is still to come, or runs: its part may be a source in a moment."""
    about = state.jobs.get(task.job)
    wanted = about is not None and about.staged.get(task.part) == task.of
    trouble = state.troubles.get(task)
    return wanted and task not in state.done and (trouble is None or not trouble.hopeless)


def sources(state: Persisting, job: str, part: str, cut: Cut) -> list[str]:
    """Addresses of other daemons that have this part in memory, its owner first, then the others that may have it."""
    about = state.jobs.get(job)
    held = about.held.get(part) if about else None
    known = [held.owner, *held.holders] if held and held.cut == cut else []
    hosts = dict.fromkeys([*known, *sorted(state.peers)])
    peers = [state.peers[host].address for host in hosts if host != state.host and host in state.peers]
    return [address for address in peers if address]


def _wanted_parts(state: Persisting, job: str, about: JobCheckpoints) -> Iterator[StorageTask]:
    order = about.order
    if order is None or about.is_closed((order.generation, order.cut)):
        return
    for place in order.parts:
        if place.host == state.host:
            pin = StorageTask(job, about.uid, "pin", order.cut, order.generation, place.part)
            digest = replace(pin, step="digest")
            yield from (pin, digest)
            if {pin, digest} <= state.done - state.given_up:
                yield replace(pin, step="persist")


def _wanted_manifest(state: Persisting, job: str, about: JobCheckpoints) -> Iterator[StorageTask]:
    order = about.manifest
    if order and order.host == state.host and not about.is_closed((order.generation, order.cut)):
        yield StorageTask(job, about.uid, "manifest", order.cut, order.generation)
