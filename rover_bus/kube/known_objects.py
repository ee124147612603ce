"""What is known of RoverJobs: the objects as they are, the runs of their jobs, answers to plans, and what is on its way for each.

Fed by service.py with what the API server holds and what FACTS says; read by objects.py and answering.py, which decide on it. Pure.

Seconds are Unix time throughout: deadlines and TTLs are counted from what brokers and API servers stamped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar, assert_never

from rover_bus.events.errors import InputError
from rover_bus.events.facts import JobForgotten
from rover_bus.events.job import JobSpec
from rover_bus.events.subjects import DEFAULT_TENANT, qualified, split_job
from rover_bus.events.written_settings import Chosen
from rover_bus.kube.kinds import Ref
from rover_bus.kube.object import job_of
from rover_bus.kube.plan_answers import PlanAnswer
from rover_bus.kube.roverjobs import RoverJob, uid_of
from rover_bus.kube.runs import FollowedRun, HeardFact, shown, take
from rover_bus.kube.templates import check_templates

ASKERS = "kubernetes/"  # before the namespace, in `by` of what objects ask for
NONE_YET = PlanAnswer()
FIRST_REST_S, MOST_REST_S = 0.5, 60.0  # after a write that failed, doubled


# -- inputs ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObjectSeen:
    """An object is so now; None: it is gone."""

    ref: Ref
    object: RoverJob | None


@dataclass(frozen=True, slots=True)
class Acting:
    """The effects for an object are being carried out."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class Acted:
    """They are done, at second `at_s`. `problem`: why the rest of them was left out.

    `version`: of the object as it was written last; `sequence`: of the last fact that was stored for it; 0: none that will be seen.
    """

    ref: Ref
    at_s: float
    version: int = 0
    sequence: int = 0
    problem: str = ""
    wrote_status: bool = False


@dataclass(frozen=True, slots=True)
class Chose:
    """What was set for the jobs of the stack: a spec may leave it out."""

    chosen: Chosen


@dataclass(frozen=True, slots=True)
class TenantsKnown:
    """The tenants beside `default`: objects of a namespace of such a name are jobs of that tenant."""

    tenants: frozenset[str]


@dataclass(frozen=True, slots=True)
class AnswerSeen:
    """An answer is so now; None: it is gone."""

    ref: Ref
    answer: PlanAnswer | None


@dataclass(frozen=True, slots=True)
class AnswerActing:
    """The effect for an answer is being carried out. `states`: it is its word on a plan."""

    ref: Ref
    states: bool


@dataclass(frozen=True, slots=True)
class PolicyRead:
    """The policy that pins names was looked at for an answer, which is all of that effect. `since_s`: Unix time from which on they
    are pinned; None: they are not.
    """

    ref: Ref
    since_s: float | None


@dataclass(frozen=True, slots=True)
class AnswerActed:
    """It is done, as of an object."""

    done: Acted


Happening = (
    ObjectSeen
    | HeardFact
    | Acting
    | Acted
    | Chose
    | TenantsKnown
    | AnswerSeen
    | AnswerActing
    | PolicyRead
    | AnswerActed
)

# -- state -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OnItsWay:
    """What is being done for something. `version`, `sequence`: what must have been seen before anything else is decided on it."""

    acting: bool = False
    version: int = 0
    sequence: int = 0
    failures: int = 0
    not_before_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KnownObject(OnItsWay):
    """An object, the job that it means (or why it means none). `object` None: it is gone, and its job is asked to end."""

    object: RoverJob | None = None
    job: JobSpec | None = None
    invalid: str = ""
    status_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KnownAnswer(OnItsWay):
    """An answer. `states`: its word was stated, or may have been; it may not have been received yet. `name`: whether the name in it
    is its user's, because it was created under a policy that is in force; `early`: before that.
    """

    answer: PlanAnswer = NONE_YET
    states: bool = False
    name: Literal["unread", "pinned", "early", "free"] = "unread"


Way = TypeVar("Way", bound=OnItsWay)


@dataclass(frozen=True, slots=True)
class Objects:
    """Everything that is known. `namespaces`: whose objects are followed, "": all; `cluster`: what tells this cluster from others
    on the bus, "": nothing; `forgotten`: runs, by their uids; `heard`: the newest fact received; `policy`: that pins the name
    in an answer to the user who created it, "": none. `declared`: tenants that are made with the stack, whether they are
    there already or not: no object of theirs becomes a job of `default` meanwhile.
    """

    namespaces: frozenset[str] = frozenset({""})
    cluster: str = ""
    known: Mapping[Ref, KnownObject] = field(default_factory=dict)
    runs: Mapping[str, FollowedRun] = field(default_factory=dict)
    chosen: Chosen = field(default_factory=dict)
    tenants: frozenset[str] = frozenset()
    forgotten: frozenset[str] = frozenset()
    heard: int = 0
    answers: Mapping[Ref, KnownAnswer] = field(default_factory=dict)
    policy: str = ""
    declared: frozenset[str] = frozenset()

    def tenant_of(self, ref: Ref) -> str:
        """Return whose job an object means. What began as a job of no tenant stays one, whatever tenant comes later."""
        began = self.runs.get(ref.name)
        if ref.namespace not in self.tenants | self.declared or (
            began is not None and began.by == self.asker_of(ref)
        ):
            return DEFAULT_TENANT
        return ref.namespace

    def lacking(self, ref: Ref) -> str:
        """Return the tenant that an object waits for; "" where it is there."""
        tenant = self.tenant_of(ref)
        return "" if tenant in {DEFAULT_TENANT, *self.tenants} else tenant

    def job_name(self, ref: Ref) -> str:
        """Return what the bus calls the job of an object."""
        return qualified(self.tenant_of(ref), ref.name)

    def run_of(self, ref: Ref) -> FollowedRun | None:
        return self.runs.get(self.job_name(ref))

    def asker_of(self, ref: Ref) -> str:
        """Return in whose name an object asks: its namespace's, in this cluster. Another cluster may have one of its name."""
        return f"{ASKERS}{ref.namespace}{f'/{self.cluster}' if self.cluster else ''}"

    def orphans(self) -> Iterator[Ref]:
        """Yield where objects of jobs that have not ended would be, and are not: their finalizer was taken off by force."""
        for run in self.runs.values():
            namespace = run.by.removeprefix(ASKERS).partition("/")[0]
            ref = Ref(namespace, split_job(run.job)[1])
            ours = run.by == self.asker_of(ref) and not self.namespaces.isdisjoint((namespace, ""))
            if run.end is None and ours and ref not in self.known and self.job_name(ref) == run.job:
                yield ref


# -- evolve ----------------------------------------------------------------------------------------------------------------


def evolve(state: Objects, happening: Happening) -> Objects:
    """Return the state after one happening."""
    match happening:
        case ObjectSeen(ref, object_):
            return _see(state, ref, object_)
        case HeardFact():
            return _hear(state, happening)
        case Acting(ref):
            return _with(state, ref, replace(state.known.get(ref, KnownObject()), acting=True))
        case Acted():
            return _act(state, happening)
        case Chose(chosen):
            return _read_again(replace(state, chosen=chosen))
        case TenantsKnown(tenants):
            return _read_again(replace(state, tenants=tenants))
        case AnswerSeen(ref, answer):
            return _see_answer(state, ref, answer)
        case AnswerActing(ref, states):
            known = state.answers.get(ref)
            return _with_answer(
                state, ref, known and replace(known, acting=True, states=known.states or states)
            )
        case PolicyRead(ref, since_s):
            known = state.answers.get(ref)
            read = known and replace(known, acting=False, failures=0, name=_name_under(known.answer, since_s))
            return _with_answer(state, ref, read)
        case AnswerActed(done):
            known = state.answers.get(done.ref)
            return _with_answer(state, done.ref, known and _after(known, done))
        case _:
            assert_never(happening)


def _name_under(answer: PlanAnswer, since_s: float | None) -> Literal["pinned", "early", "free"]:
    made = answer.metadata.creation_timestamp
    if since_s is None or made is None:
        return "free"
    return "pinned" if made.timestamp() >= since_s else "early"


def _see(state: Objects, ref: Ref, object_: RoverJob | None) -> Objects:
    former = state.known.get(ref, KnownObject())
    if object_ is None:
        run = state.run_of(ref)
        lives = run is not None and run.end is None
        kept = replace(former, object=None, job=None, invalid="")
        return _with(state, ref, kept if former.acting or lives else None)
    known = replace(former, object=object_)
    if former.object is None or _meaning(former.object) != _meaning(object_):
        known = _read(state, ref, known)
    state = _with(state, ref, known)
    if (run := state.run_of(ref)) is not None and run.uid == uid_of(object_.metadata):
        return _with_run(state, shown(run, object_.observed))
    return state


def _read_again(state: Objects) -> Objects:
    return replace(state, known={ref: _read(state, ref, known) for ref, known in state.known.items()})


def _meaning(object_: RoverJob) -> tuple[str, int]:
    return object_.metadata.uid, object_.metadata.generation


def _read(state: Objects, ref: Ref, known: KnownObject) -> KnownObject:
    """Find out which job an object means, or why it means none."""
    if known.object is None:
        return known
    try:
        check_templates(known.object.spec)
        job = job_of({"metadata": {"name": ref.name}, "spec": known.object.spec}, state.chosen)
    except InputError as error:
        return replace(known, job=None, invalid=str(error))
    return replace(known, job=job.replace(plan=job.plan.replace(tenant=state.tenant_of(ref))), invalid="")


def _hear(state: Objects, heard: HeardFact) -> Objects:
    fact = heard.fact
    state = replace(state, heard=max(state.heard, heard.sequence))
    run = state.runs.get(fact.job, FollowedRun(fact.job))
    if isinstance(fact, JobForgotten):
        runs = {job: each for job, each in state.runs.items() if job != fact.job or each.uid != fact.uid}
        return replace(state, runs=runs, forgotten=state.forgotten | {fact.uid})
    return _with_run(state, take(run, heard))


def _act(state: Objects, acted: Acted) -> Objects:
    known = _after(state.known.get(acted.ref, KnownObject()), acted)
    known = replace(known, status_s=acted.at_s if acted.wrote_status else known.status_s)
    run = state.run_of(acted.ref)
    over = known.object is None and (run is None or run.end is not None)
    return _with(state, acted.ref, None if over else known)


def _after(known: Way, acted: Acted) -> Way:
    """Return what is known once something was done, or failed: what failed rests, longer each time."""
    failures = known.failures + 1 if acted.problem else 0
    rest_s = min(FIRST_REST_S * 2 ** (failures - 1), MOST_REST_S) if failures else 0.0
    if not acted.version and not acted.sequence:
        rest_s = max(rest_s, FIRST_REST_S)  # nothing says when it has been seen
    return replace(
        known,
        acting=False,
        version=max(known.version, acted.version),
        sequence=max(known.sequence, acted.sequence),
        failures=failures,
        not_before_s=acted.at_s + rest_s,
    )


def _see_answer(state: Objects, ref: Ref, answer: PlanAnswer | None) -> Objects:
    known = state.answers.get(ref, KnownAnswer())
    if answer is None:
        return _with_answer(state, ref, None)
    if known.answer.metadata.uid != answer.metadata.uid:
        known = KnownAnswer()
    return _with_answer(state, ref, replace(known, answer=answer))


def _with_answer(state: Objects, ref: Ref, known: KnownAnswer | None) -> Objects:
    others = {each: value for each, value in state.answers.items() if each != ref}
    return replace(state, answers=others if known is None else {**others, ref: known})


def _with(state: Objects, ref: Ref, known: KnownObject | None) -> Objects:
    others = {each: value for each, value in state.known.items() if each != ref}
    return replace(state, known=others if known is None else {**others, ref: known})


def _with_run(state: Objects, run: FollowedRun) -> Objects:
    return replace(state, runs={**state.runs, run.job: run})
