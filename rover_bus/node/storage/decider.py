"""What a daemon does next for the checkpoints of its host: the decider of the persister (protocol P12, P14).

Fed with the facts of jobs (what is staged, what shall be stored, what became of a cut), with what is found in shared memory
after a restart, and with what its own tasks came to; gives tasks to `persister.py`, which runs them on threads. The rules:

- What is ordered is pinned at once (a reader's lock): its slot is not overwritten while it waits for the disk.
- Digests come first, of the youngest cut of each part before any other: without them it is no source, and nothing is stored,
  copied or gone back to. They have a lane of their own, copies between memories another, so that neither a fetch nor a slow disk
  holds them up, and no rate limits them.
- Orders are absolute. A lower term is stale. What belongs to a cut that is over (ready, superseded, failed) is not begun, and
  is called off if it runs.
- A failure that may pass (a full disk, a mount that is gone) is tried again with a growing delay, and given up after a
  while, so that the master can go on with a newer cut. What was ready is never touched by it.
- Pruning follows the log: only the host that wrote the manifest prunes, only when `checkpoint.ready` is stored.
- An ended job's memory is swept by its uid, after the last of its tasks has left its thread: a copy that comes later would stay
  for ever. A newer job of the same name waits for nothing of it, and what is still published about the former changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from rover_bus.events.checkpoint_facts import (
    CheckpointFailed,
    CheckpointManifestOrdered,
    CheckpointOpened,
    CheckpointPersistOrdered,
    CheckpointReady,
    CheckpointRedundant,
    CheckpointSearchOrdered,
    CheckpointStaged,
    CheckpointSuperseded,
    HostPartDigested,
    HostPartMirrored,
    HostStorageSearched,
    PartStaged,
)
from rover_bus.events.facts import Fact, HostFact, HostLeft, HostRegistered, JobEnded, JobFact, JobSubmitted
from rover_bus.events.job import CheckpointSpec
from rover_bus.node.storage.holders import Group, choose_groups, choose_holders
from rover_bus.node.storage.state import (
    Asked,
    Begun,
    CalledOff,
    Cut,
    Done,
    Failed,
    Found,
    GivenUp,
    Held,
    JobCheckpoints,
    Observation,
    Peer,
    Persisting,
    Task,
    Trouble,
)

RETRY_FIRST_S, RETRY_MAX_S = 1.0, 10.0
PATIENCE_S = 60.0  # a storage that fails for so long fails the cut
FETCH_PATIENCE_S = (
    4.0  # a server waits: daemons that start again are found within this, else it goes back to storage
)
CLOSED_KEPT = 64
SWEPT_KEPT = 256  # ended jobs whose late facts are known as such

K = TypeVar("K")
V = TypeVar("V")


def evolve(state: Persisting, event: Fact | Observation) -> Persisting:
    """Take a fact or an observation in."""
    if isinstance(event, HostFact):
        return state if _is_past_job(state, event) else _hear_host(state, event)
    if isinstance(event, JobFact):
        return state if _is_past_job(state, event) else _hear_job(state, event)
    return _observe(state, event)


def _is_past_job(state: Persisting, fact: HostFact | JobFact) -> bool:
    """Whether a fact belongs to a run that has ended, or to one before the submission that is known."""
    uid = getattr(fact, "uid", "")
    if not uid or isinstance(fact, JobSubmitted):
        return False
    about = state.jobs.get(getattr(fact, "job", ""))
    newer = about is not None and about.submitted and about.uid != uid
    return newer or uid in state.ended or uid in state.swept


def _hear_job(state: Persisting, fact: JobFact) -> Persisting:
    match fact:
        case JobSubmitted(job=job, uid=uid, spec=spec):
            return _submit(state, job, uid, spec.checkpoint or CheckpointSpec())
        case JobEnded(job=job) if job in state.jobs:
            return _end(state, job)
        case PartStaged(job=job, uid=uid, place=place, cut=cut, generation=generation):
            if place.host != state.host:
                return state
            state = _begin_again(state, Task(job, uid, "digest", cut, generation, place.part))
            return _stage(state, job, uid, place.part, (generation, cut))
        case CheckpointOpened(job=job, uid=uid):
            about = _known(state, job, uid)
            return _with_job(state, job, replace(about, opened=(fact.generation, fact.cut)))
        case CheckpointStaged(job=job, uid=uid, parts=parts):
            about = _known(state, job, uid)
            where = {place.part: place.host for place in parts}
            complete = fact.generation, fact.cut
            return _with_job(state, job, replace(about, complete=where, complete_cut=complete))
        case CheckpointRedundant(job=job, uid=uid):
            about = _known(state, job, uid)
            return _with_job(state, job, replace(about, safe=max(about.safe, (fact.generation, fact.cut))))
        case CheckpointPersistOrdered() | CheckpointManifestOrdered():
            return _order(state, fact)
        case CheckpointReady() | CheckpointSuperseded() | CheckpointFailed():
            return _close(state, fact)
        case CheckpointSearchOrdered(job=job, uid=uid):
            about = _known(state, job, uid)
            return _with_job(state, job, replace(about, search=_newer(about.search, fact)))
        case _:
            pass  # the others do not matter here
    return state


def _submit(state: Persisting, job: str, uid: str, spec: CheckpointSpec) -> Persisting:
    """Begin to know a job. One of the same name before it is over; this one, if it had ended, ends once more after this fact."""
    about = state.jobs.get(job)
    if about is not None and about.uid != uid:
        state, about = _end(state, job), None
    ended = MappingProxyType({of: name for of, name in state.ended.items() if of != uid})
    state = replace(state, ended=ended, swept=tuple(of for of in state.swept if of != uid))
    return _with_job(state, job, replace(about or JobCheckpoints(uid), spec=spec, submitted=True))


def _end(state: Persisting, job: str) -> Persisting:
    """Nothing is done for the job any more, but its memory is to be swept."""
    about = state.jobs[job]
    others = MappingProxyType({name: other for name, other in state.jobs.items() if name != job})
    return replace(state, jobs=others, ended=_put(state.ended, about.uid, job) if about.uid else state.ended)


def _newer(
    known: CheckpointSearchOrdered | None, fact: CheckpointSearchOrdered
) -> CheckpointSearchOrdered | None:
    return known if known is not None and fact.search < known.search else fact


def _hear_host(state: Persisting, fact: HostFact) -> Persisting:
    match fact:
        case HostRegistered(host=host, lends=lends, domain=domain):
            return replace(state, peers=_put(state.peers, host, Peer(lends, domain or host)))
        case HostLeft(host=host):
            left = {name: peer for name, peer in state.peers.items() if name != host}
            return replace(state, peers=MappingProxyType(left))
        case HostPartDigested() | HostPartMirrored():
            return _hold(state, fact)
        case HostStorageSearched(job=job, uid=uid, search=search):
            return _answered(state, job, uid, search)
        case _:
            pass  # the others do not matter here
    return state


def _observe(state: Persisting, seen: Fact | Observation) -> Persisting:
    match seen:
        case Found(uid=uid, part=part, cut=cut, generation=generation):
            for job, about in state.jobs.items():
                if about.uid == uid:
                    return _stage(state, job, uid, part, (generation, cut))
        case Asked():
            return _ask(state, seen)
        case Begun(task):
            return replace(state, running=state.running | {task})
        case Done(task) if task.step == "sweep":
            return _forget(state, task.uid)
        case Done(task):
            return _settle(replace(_answer(state, task), done=state.done | {task}), task)
        case GivenUp(task):
            state = _observe(state, Done(task))
            return replace(state, given_up=state.given_up | {task})
        case CalledOff(task):
            return _settle(state, task)
        case Failed():
            return _fail(state, seen)
        case _:
            pass  # the others do not matter here
    return state


def _with_job(state: Persisting, job: str, about: JobCheckpoints) -> Persisting:
    return replace(state, jobs=_put(state.jobs, job, about))


def _put(mapping: Mapping[K, V], key: K, value: V) -> Mapping[K, V]:
    return MappingProxyType({**mapping, key: value})


def _known(state: Persisting, job: str, uid: str) -> JobCheckpoints:
    """What is known of the job, or a beginning: as long as no submission is known, facts of another run replace what there was."""
    about = state.jobs.get(job)
    return about if about and (about.uid == uid or not uid) else JobCheckpoints(uid)


def _stage(state: Persisting, job: str, uid: str, part: str, cut: Cut) -> Persisting:
    about = _known(state, job, uid)
    if cut < about.staged.get(part, (-1, 0)):
        return state
    return _with_job(state, job, replace(about, staged=_put(about.staged, part, cut)))


def _begin_again(state: Persisting, task: Task) -> Persisting:
    """A part may be staged twice for one cut (P10): what was done with the first says nothing of the second."""
    done, given_up = state.done - {task}, state.given_up - {task}
    troubles = {key: value for key, value in state.troubles.items() if key != task}
    return replace(state, done=done, given_up=given_up, troubles=MappingProxyType(troubles))


def _hold(state: Persisting, fact: HostPartDigested | HostPartMirrored) -> Persisting:
    """Note who has the part in memory. A newer cut replaces the older one: copies of that are overwritten soon."""
    about, cut = _known(state, fact.job, fact.uid), (fact.generation, fact.cut)
    held = about.held.get(fact.part)
    if held and cut < held.cut:
        return state
    if isinstance(fact, HostPartMirrored):
        held = held if held and held.cut == cut else Held(cut, fact.of)
        held = replace(held, holders=tuple(dict.fromkeys([*held.holders, fact.host])))
    elif not held or held.cut != cut or held.owner != fact.host:
        held = Held(cut, fact.host)
    return _with_job(state, fact.job, replace(about, held=_put(about.held, fact.part, held)))


def _ask(state: Persisting, asked: Asked) -> Persisting:
    """A server needs a part: fetch it, whatever became of a former fetch."""
    if is_over(state, asked.job, asked.uid):
        return state
    about, cut = _known(state, asked.job, asked.uid), (asked.generation, asked.cut)
    task = Task(asked.job, asked.uid, "fetch", asked.cut, asked.generation, asked.part)
    state = replace(_settle(state, task) if task not in state.running else state, done=state.done - {task})
    return _with_job(state, asked.job, replace(about, asked=about.asked | {(asked.part, cut)}))


def _answer(state: Persisting, task: Task) -> Persisting:
    """A fetch that is done, or given up, is wanted again only when a server asks again."""
    about = state.jobs.get(task.job)
    if task.step != "fetch" or about is None:
        return state
    return _with_job(state, task.job, replace(about, asked=about.asked - {(task.part, task.of)}))


def _answered(state: Persisting, job: str, uid: str, search: int) -> Persisting:
    """Whoever answered: nobody waits for this search any more."""
    about = state.jobs.get(job)
    if about is None or about.uid != uid or about.search is None or about.search.search > search:
        return state
    return _with_job(state, job, replace(about, search=None))


def _order(state: Persisting, order: CheckpointPersistOrdered | CheckpointManifestOrdered) -> Persisting:
    about = _known(state, order.job, order.uid)
    known = about.order if isinstance(order, CheckpointPersistOrdered) else about.manifest
    if known and known.history == order.history and order.term < known.term:
        return replace(state, stale=state.stale + 1)
    if isinstance(order, CheckpointPersistOrdered):
        return _with_job(state, order.job, replace(about, order=order))
    return _with_job(state, order.job, replace(about, manifest=order))


def _close(state: Persisting, fact: CheckpointReady | CheckpointSuperseded | CheckpointFailed) -> Persisting:
    about, cut = _known(state, fact.job, fact.uid), (fact.generation, fact.cut)
    ready = max(about.ready, cut) if isinstance(fact, CheckpointReady) else about.ready
    closed = (*about.closed, cut)[-CLOSED_KEPT:]
    safe = max(about.safe, ready)
    if isinstance(fact, CheckpointFailed) and fact.restoring:
        about = replace(about, suspects=about.suspects | {cut})
    about = replace(about, ready=ready, safe=safe, closed=closed)
    over = {task for task in state.done if task.job == fact.job and _is_past(about, task, cut)}
    state = _with_job(state, fact.job, about)
    return replace(state, done=state.done - over, given_up=state.given_up - over)


def _is_past(about: JobCheckpoints, task: Task, cut: Cut) -> bool:
    """Whether nobody asks for it any more. A newer cut may be over while the one that is ordered is still being stored.

    Digests are asked for as long as the part holds no newer cut.
    """
    if task.step == "digest" and about.staged.get(task.part) == task.of:
        return False
    ordered = [order for order in (about.order, about.manifest) if order is not None]
    open_cuts = {(order.generation, order.cut) for order in ordered} - set(about.closed)
    return task.cut > 0 and task.step != "search" and task.of < cut and task.of not in open_cuts


def _settle(state: Persisting, task: Task) -> Persisting:
    """The task is out of the threads' hands, and out of trouble."""
    troubles = {key: value for key, value in state.troubles.items() if key != task}
    return replace(state, running=state.running - {task}, troubles=MappingProxyType(troubles))


def _forget(state: Persisting, uid: str) -> Persisting:
    """The memory of an ended job is free: keep of it only that it is over, because facts about it may still come."""
    return replace(
        state,
        ended=MappingProxyType({of: job for of, job in state.ended.items() if of != uid}),
        swept=(*state.swept, uid)[-SWEPT_KEPT:],
        running=frozenset(task for task in state.running if task.uid != uid),
        done=frozenset(task for task in state.done if task.uid != uid),
        given_up=frozenset(task for task in state.given_up if task.uid != uid),
        troubles=MappingProxyType({task: each for task, each in state.troubles.items() if task.uid != uid}),
    )


def _fail(state: Persisting, failed: Failed) -> Persisting:
    former = state.troubles.get(failed.task)
    since_s = former.since_s if former else failed.at_s
    haste = failed.task.step in ("fetch", "search")
    delay_s = min(2 * former.delay_s, RETRY_MAX_S) if former and not haste else RETRY_FIRST_S
    endless = failed.task.step in ("prune", "sweep")  # nobody waits for them
    patience_s = FETCH_PATIENCE_S if haste else PATIENCE_S
    hopeless = not endless and (not failed.temporary or failed.at_s - since_s >= patience_s)
    trouble = Trouble(since_s, failed.at_s + delay_s, delay_s, failed.reason, hopeless)
    state = replace(state, running=state.running - {failed.task})
    return replace(state, troubles=_put(state.troubles, failed.task, trouble))


# -- decisions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Do:
    """Run the task on a thread of its lane."""

    task: Task


@dataclass(frozen=True, slots=True)
class CallOff:
    """End the task as soon as it can: its cut is over."""

    task: Task


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Say that the step failed for good."""

    task: Task
    reason: str


Action = Do | CallOff | GiveUp


def decide(state: Persisting, now_s: float) -> list[Action]:
    """What is to be done now: at most one new task a lane."""
    wanted = _all_wanted(state)
    actions: list[Action] = [CallOff(task) for task in sorted(state.running - set(wanted))]
    actions += [
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
            actions.append(Do(task))
    return actions


def without(state: Persisting, jobs: Collection[str]) -> Persisting:
    """Return the state without some jobs and their running tasks: nothing is decided on them."""
    return replace(
        state,
        jobs=MappingProxyType({job: about for job, about in state.jobs.items() if job not in jobs}),
        ended=MappingProxyType({uid: job for uid, job in state.ended.items() if job not in jobs}),
        running=frozenset(task for task in state.running if task.job not in jobs),
    )


def next_wake_s(state: Persisting) -> float | None:
    """When the next failed task is to be tried again; None: only an event can change anything."""
    waiting = [state.troubles[task] for task in _all_wanted(state) if task in state.troubles]
    return min((trouble.again_s for trouble in waiting if not trouble.hopeless), default=None)


def _all_wanted(state: Persisting) -> list[Task]:
    wanted = [task for job, about in state.jobs.items() for task in _wanted(state, job, about)]
    return wanted + [Task(job, uid, "sweep") for uid, job in state.ended.items()]


def _may_begin(state: Persisting, task: Task, now_s: float) -> bool:
    trouble = state.troubles.get(task)
    waiting = trouble is not None and (trouble.hopeless or now_s < trouble.again_s)
    return not waiting and task not in state.done and task not in state.running


def _wanted(state: Persisting, job: str, about: JobCheckpoints) -> Iterator[Task]:
    """Everything that should be done for a job or is done already, in order of haste."""
    for part, (generation, cut) in about.staged.items():
        yield Task(job, about.uid, "digest", cut, generation, part)
    for part, (generation, cut) in sorted(about.asked):
        yield Task(job, about.uid, "fetch", cut, generation, part)  # a server waits for it
    if about.search is not None and about.search.host == state.host:
        yield Task(job, about.uid, "search", about.search.search)
    yield from _wanted_manifest(state, job, about)
    yield from _wanted_parts(state, job, about)
    for part, held in about.held.items():
        if _holds_a_copy(state, about, part, held):
            yield Task(job, about.uid, "mirror", held.cut[1], held.cut[0], part)
    for group in groups(state, about):
        if state.host in group.holders and _is_digested(about, group):
            generation, cut = about.complete_cut
            yield Task(job, about.uid, "parity", cut, generation, group.name)
    order = about.manifest
    if order and order.host == state.host and about.ready == (order.generation, order.cut):
        yield Task(job, about.uid, "prune", order.cut, order.generation)


def _holds_a_copy(state: Persisting, about: JobCheckpoints, part: str, held: Held) -> bool:
    domains = {host: peer.domain for host, peer in state.peers.items()}
    return state.host in choose_holders(part, held.owner, domains, about.spec.copies)


def groups(state: Persisting, about: JobCheckpoints) -> list[Group]:
    """The parity groups of the newest complete cut."""
    domains = {host: peer.domain for host, peer in state.peers.items()}
    return choose_groups(about.complete, domains, about.spec.parity)


def _is_digested(about: JobCheckpoints, group: Group) -> bool:
    return all(part in about.held and about.held[part].cut == about.complete_cut for part in group.parts)


def is_being_digested(state: Persisting, task: Task) -> bool:
    """Whether a digest task is still to come, or runs: its part may be a source in a moment."""
    about = state.jobs.get(task.job)
    wanted = about is not None and about.staged.get(task.part) == task.of
    trouble = state.troubles.get(task)
    return wanted and task not in state.done and (trouble is None or not trouble.hopeless)


def is_over(state: Persisting, job: str, uid: str) -> bool:
    """Whether a run of a job has ended, or gave way to a newer one of its name."""
    about = state.jobs.get(job)
    if about is not None and about.uid == uid:
        return False
    return uid in state.ended or uid in state.swept or (about is not None and about.submitted)


def sources(state: Persisting, job: str, part: str, cut: Cut) -> list[str]:
    """Addresses of other daemons that have this part in memory, its owner first, then whoever else may have it."""
    about = state.jobs.get(job)
    held = about.held.get(part) if about else None
    known = [held.owner, *held.holders] if held and held.cut == cut else []
    hosts = dict.fromkeys([*known, *sorted(state.peers)])
    peers = [state.peers[host].lends for host in hosts if host != state.host and host in state.peers]
    return [address for address in peers if address]


def _wanted_parts(state: Persisting, job: str, about: JobCheckpoints) -> Iterator[Task]:
    order = about.order
    if order is None or about.is_closed((order.generation, order.cut)):
        return
    for place in order.parts:
        if place.host == state.host:
            pin = Task(job, about.uid, "pin", order.cut, order.generation, place.part)
            digest = replace(pin, step="digest")
            yield from (pin, digest)
            if {pin, digest} <= state.done - state.given_up:
                yield replace(pin, step="persist")


def _wanted_manifest(state: Persisting, job: str, about: JobCheckpoints) -> Iterator[Task]:
    order = about.manifest
    if order and order.host == state.host and not about.is_closed((order.generation, order.cut)):
        yield Task(job, about.uid, "manifest", order.cut, order.generation)


def lose_history(state: Persisting) -> Persisting:
    """Return the state when the broker has forgotten what it told: a later order may have a lower term (P21)."""
    jobs = {job: replace(about, order=None, manifest=None) for job, about in state.jobs.items()}
    return replace(state, jobs=MappingProxyType(jobs))
