"""How the persister's state changes: with facts of jobs and hosts, with what lies in memory, with what became of tasks (P12, P14).

Fed by persister.py, read by decider.py. The rules of this half, each in one place:

- Orders are absolute. A lower term is stale.
- A failure that may pass (a full disk, a mount that is gone) is tried again with a growing delay, and given up after a
  while, so that the master can go on with a newer cut. What was ready is never touched by it.
- An ended job's memory is swept by its uid. A newer job of the same name waits for nothing of it, and what is still published about
  the former changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
from rover_bus.events.facts import JobEnded, JobSubmitted
from rover_bus.events.host_facts import HostLeft, HostStorageOpened
from rover_bus.events.job import CheckpointSpec
from rover_bus.node.members import HistoryLost
from rover_bus.node.storage.state import (
    Begun,
    CalledOff,
    Cut,
    Done,
    Failed,
    GivenUp,
    Happening,
    HeldPart,
    JobCheckpoints,
    PartFact,
    PartFound,
    PartNeeded,
    Peer,
    Persisting,
    RunFact,
    StorageTask,
    TaskEvent,
    Trouble,
)

RETRY_FIRST_S = 1.0
FETCH_PATIENCE_S = (
    4.0  # a server waits: daemons that start again are found within this, else it goes back to storage
)
CLOSED_KEPT = 64
SWEPT_KEPT = 256  # ended jobs whose late facts are known as such

K = TypeVar("K")
V = TypeVar("V")


def evolve(state: Persisting, input: Happening) -> Persisting:
    """Return the state after a fact or an observation."""
    match input:
        case HistoryLost():
            jobs = {job: replace(about, order=None, manifest=None) for job, about in state.jobs.items()}
            return replace(state, jobs=MappingProxyType(jobs))  # a later order may have a lower term (P21)
        case HostStorageOpened(run=run) if run != state.run:
            return state  # of another run's servers alone, or of nodes while this host is a server's pod
        case HostStorageOpened(host=host, serves_parts_at=address, domain=domain):
            return replace(state, peers=_put(state.peers, host, Peer(address, domain or host)))
        case HostLeft(host=host):
            left = {name: peer for name, peer in state.peers.items() if name != host}
            return replace(state, peers=MappingProxyType(left))
        case JobSubmitted(job=job, uid=uid, spec=spec):
            return _submit(state, job, uid, spec.checkpoint or CheckpointSpec())
        case JobEnded(job=job):
            return _end(state, job) if job in state.jobs else state
        case PartFound() | PartNeeded():
            return _evolve_memory(state, input)
        case Begun() | Done() | GivenUp() | Failed() | CalledOff():
            return _evolve_task(state, input)
        case HostPartDigested() | HostPartMirrored() | HostStorageSearched():
            return state if _is_past_run(state, input) else _evolve_part(state, input)
        case _:
            return state if _is_past_run(state, input) else _evolve_run(state, input)


def _is_past_run(state: Persisting, fact: RunFact | PartFact) -> bool:
    """Whether a fact belongs to a run that has ended, or to one before the submission that is known."""
    if not fact.uid:
        return False
    about = state.jobs.get(fact.job)
    newer = about is not None and about.submitted and about.uid != fact.uid
    return newer or fact.uid in state.ended or fact.uid in state.swept


def _evolve_run(state: Persisting, fact: RunFact) -> Persisting:
    job, about = fact.job, _known(state, fact.job, fact.uid)
    match fact:
        case PartStaged(uid=uid, place=place, cut=cut, generation=generation):
            if place.host != state.host:
                return state
            state = _begin_again(state, StorageTask(job, uid, "digest", cut, generation, place.part))
            return _stage(state, job, uid, place.part, (generation, cut))
        case CheckpointOpened():
            return _with_job(state, job, replace(about, opened=(fact.generation, fact.cut)))
        case CheckpointStaged(parts=parts):
            where = {place.part: place.host for place in parts}
            complete = fact.generation, fact.cut
            return _with_job(state, job, replace(about, complete=where, complete_cut=complete))
        case CheckpointRedundant():
            return _with_job(state, job, replace(about, safe=max(about.safe, (fact.generation, fact.cut))))
        case CheckpointPersistOrdered() | CheckpointManifestOrdered():
            return _order(state, fact)
        case CheckpointReady() | CheckpointSuperseded() | CheckpointFailed():
            return _close(state, fact)
        case CheckpointSearchOrdered():
            return _with_job(state, job, replace(about, search=_newer(about.search, fact)))


def _evolve_part(state: Persisting, fact: PartFact) -> Persisting:
    match fact:
        case HostPartDigested() | HostPartMirrored():
            return _hold(state, fact)
        case HostStorageSearched(job=job, uid=uid, search=search):
            return _note_answer(state, job, uid, search)


def _evolve_memory(state: Persisting, seen: PartFound | PartNeeded) -> Persisting:
    match seen:
        case PartNeeded():
            return _ask(state, seen)
        case PartFound(uid=uid, part=part, cut=cut, generation=generation):
            job = next((job for job, about in state.jobs.items() if about.uid == uid), None)
            return state if job is None else _stage(state, job, uid, part, (generation, cut))


def _evolve_task(state: Persisting, event: TaskEvent) -> Persisting:
    match event:
        case Begun(task):
            return replace(state, running=state.running | {task})
        case Done(task):
            if task.step == "sweep":
                return _forget(state, task.uid)
            return _settle(replace(_answer(state, task), done=state.done | {task}), task)
        case GivenUp(task):
            state = _evolve_task(state, Done(task))
            return replace(state, given_up=state.given_up | {task})
        case CalledOff(task):
            return _settle(state, task)
        case Failed():
            return _fail(state, event)


def _submit(state: Persisting, job: str, uid: str, spec: CheckpointSpec) -> Persisting:
    """Begin to know a job. One of the same name before it has ended; this one, if it had ended, ends once more after this fact."""
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


def _begin_again(state: Persisting, task: StorageTask) -> Persisting:
    """A part may be staged twice for one cut (P10): what was done with the first does not count for the second."""
    done, given_up = state.done - {task}, state.given_up - {task}
    troubles = {key: value for key, value in state.troubles.items() if key != task}
    return replace(state, done=done, given_up=given_up, troubles=MappingProxyType(troubles))


def _hold(state: Persisting, fact: HostPartDigested | HostPartMirrored) -> Persisting:
    """Note which hosts have the part in memory. A newer cut replaces the older one: copies of that are overwritten soon."""
    about, cut = _known(state, fact.job, fact.uid), (fact.generation, fact.cut)
    held = about.held.get(fact.part)
    if held and cut < held.cut:
        return state
    if isinstance(fact, HostPartMirrored):
        held = held if held and held.cut == cut else HeldPart(cut, fact.of)
        held = replace(held, holders=tuple(dict.fromkeys([*held.holders, fact.host])))
    elif not held or held.cut != cut or held.owner != fact.host:
        held = HeldPart(cut, fact.host)
    return _with_job(state, fact.job, replace(about, held=_put(about.held, fact.part, held)))


def _ask(state: Persisting, asked: PartNeeded) -> Persisting:
    """A server needs a part: fetch it, whatever became of a former fetch."""
    if has_ended(state, asked.job, asked.uid):
        return state
    about, cut = _known(state, asked.job, asked.uid), (asked.generation, asked.cut)
    task = StorageTask(asked.job, asked.uid, "fetch", asked.cut, asked.generation, asked.part)
    state = replace(_settle(state, task) if task not in state.running else state, done=state.done - {task})
    return _with_job(state, asked.job, replace(about, asked=about.asked | {(asked.part, cut)}))


def _answer(state: Persisting, task: StorageTask) -> Persisting:
    """A fetch that is done, or given up, is wanted again only when a server asks again."""
    about = state.jobs.get(task.job)
    if task.step != "fetch" or about is None:
        return state
    return _with_job(state, task.job, replace(about, asked=about.asked - {(task.part, task.of)}))


def _note_answer(state: Persisting, job: str, uid: str, search: int) -> Persisting:
    """A host answered: no server waits for this search any more."""
    about = state.jobs.get(job)
    if about is None or about.uid != uid or about.search is None or about.search.search > search:
        return state
    return _with_job(state, job, replace(about, search=None))


def _order(state: Persisting, order: CheckpointPersistOrdered | CheckpointManifestOrdered) -> Persisting:
    about = _known(state, order.job, order.uid)
    known = about.order if isinstance(order, CheckpointPersistOrdered) else about.manifest
    if known and known.timeline == order.timeline and order.term < known.term:
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
    past = {task for task in state.done if task.job == fact.job and _is_past(about, task, cut)}
    state = _with_job(state, fact.job, about)
    return replace(state, done=state.done - past, given_up=state.given_up - past)


def _is_past(about: JobCheckpoints, task: StorageTask, cut: Cut) -> bool:
    """Whether no component asks for it any more. A newer cut may have ended while the one that is ordered is still being stored.

    Digests are asked for as long as the part holds no newer cut.
    """
    if task.step == "digest" and about.staged.get(task.part) == task.of:
        return False
    ordered = [order for order in (about.order, about.manifest) if order is not None]
    open_cuts = {(order.generation, order.cut) for order in ordered} - set(about.closed)
    return task.cut > 0 and task.step != "search" and task.of < cut and task.of not in open_cuts


def _settle(state: Persisting, task: StorageTask) -> Persisting:
    """The task is out of the threads' hands, and out of trouble."""
    troubles = {key: value for key, value in state.troubles.items() if key != task}
    return replace(state, running=state.running - {task}, troubles=MappingProxyType(troubles))


def _forget(state: Persisting, uid: str) -> Persisting:
    """The memory of an ended job is free: keep of it only that it has ended, because facts about it may still come."""
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
    delay_s = min(2 * former.delay_s, state.patient.most_retry_s) if former and not haste else RETRY_FIRST_S
    endless = failed.task.step in ("prune", "sweep")  # nothing waits for them
    patience_s = FETCH_PATIENCE_S if haste else state.patient.patience_s
    hopeless = not endless and (not failed.temporary or failed.at_s - since_s >= patience_s)
    trouble = Trouble(since_s, failed.at_s + delay_s, delay_s, failed.reason, hopeless)
    state = replace(state, running=state.running - {failed.task})
    return replace(state, troubles=_put(state.troubles, failed.task, trouble))


def has_ended(state: Persisting, job: str, uid: str) -> bool:
    """Whether a run of a job has ended, or gave way to a newer one of its name."""
    about = state.jobs.get(job)
    if about is not None and about.uid == uid:
        return False
    return uid in state.ended or uid in state.swept or (about is not None and about.submitted)
