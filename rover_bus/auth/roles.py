"""Roles and their rights as one table: the server's permissions, the page docs/rights.md and the test of every cell come from it.

A process kind is a role; a process is a user of its role, and what stands for job, host and user in a right is filled in by that
user's token. Whose fact a kind is, is read from the classes of facts (events/fact.py): a new fact needs no new line here.
Two principles: a right is to exact subjects of the grammar (events/subjects.py), and a program of a user stands in an account that
holds no stream. In one account everything that the server itself sends (answers of streams, stored messages) goes to whatever reply
subject was named, whatever the rights of the asker: behind an import it comes back to the account that asked, and no further.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import get_args

from rover_bus.auth.rights import HOST, JOB, USER, Right, Role, RoleName, filled
from rover_bus.events import subjects
from rover_bus.events.checkpoint_facts import CHECKPOINT_FACTS, CheckpointRequested
from rover_bus.events.fact import Fact, MasterFact
from rover_bus.events.facts import (
    FACTS,
    BrainFact,
    JobForgotten,
    JobStopRequested,
    PlanApproved,
    PlanProposed,
    PlanRejected,
    RuleSwitchedOff,
    RuleSwitchedOn,
    SlotsMoveRequested,
)
from rover_bus.events.host_facts import (
    BrainHostFact,
    ClusterFact,
    HostFact,
    HostStorageOpened,
    HostTurnFailed,
)
from rover_bus.events.nats_jetstream import API, bucket_stream
from rover_bus.events.reading import ASKED
from rover_bus.events.streams import (
    BUCKETS,
    FORMAT_KEY,
    JOINED,
    LEADERS,
    LOG,
    LOOKED_UP,
    OF_TENANT,
    POSITIONS,
    PRESENCE,
    PROFILES,
    PURGED,
    ROUTING,
    SETTINGS,
    STREAMS,
    TENANTS,
)
from rover_bus.events.streams import FACTS as FACT_STREAM

MEMBER_ROLES: tuple[RoleName, ...] = ("master", "worker", "ps")
RUN_ROLES: tuple[RoleName, ...] = (
    *MEMBER_ROLES,
    "spare",
    "sidecar",
)  # whose users are signed by keys of one run
ASKING_ROLES: tuple[RoleName, ...] = ("joiner", "applicant")  # what has no rights yet, and may ask for some
TENANT_ROLES: tuple[RoleName, ...] = ("submitter", "viewer")  # people, and programs for people, of one tenant


def _entry(bucket: str, key: str) -> str:
    return f"$KV.{bucket}.{key}"


def _publish(purpose: str, *named: str) -> tuple[Right, ...]:
    return tuple(Right("publish", subject, purpose) for subject in named)


def _subscribe(purpose: str, *named: str) -> tuple[Right, ...]:
    return tuple(Right("subscribe", subject, purpose) for subject in named)


def _request(purpose: str, *named: str) -> tuple[Right, ...]:
    return tuple(Right("request", subject, purpose) for subject in named)


def _call(purpose: str, *calls: str) -> tuple[Right, ...]:
    return tuple(Right("stream API", f"{API}.{call}", purpose) for call in calls)


def _call_of_control(purpose: str, *calls: str) -> tuple[Right, ...]:
    return tuple(Right("stream API", f"{subjects.CONTROL}{API}.{call}", purpose) for call in calls)


def _in_tenants(rights: Iterable[Right]) -> tuple[Right, ...]:
    """Return rights in the control account to the same of every tenant's account."""
    stored = [
        replace(each, subject=subjects.into_tenant("*", each.subject))
        for each in rights
        if each.action == "publish"
    ]
    others = [
        replace(each, subject=subjects.of_tenant("*", each.subject))
        for each in rights
        if each.action != "publish"
    ]
    return (*stored, *others)


def _looking_up(*buckets: str) -> tuple[Right, ...]:
    """Look up a bucket of the control account, without a consumer: it would deliver to whatever subject its maker names."""
    each = [f"{subjects.CONTROL}{API}.DIRECT.GET.{bucket_stream(bucket)}" for bucket in buckets]
    named = [subject for one in each for subject in (one, f"{one}.>")]
    return tuple(Right("stream API", subject, "hosts and settings of the cluster") for subject in named)


def _reading(*streams: str) -> tuple[Right, ...]:
    """Read streams and buckets, whole: a consumer's filter stands in a body, which no broker checks."""
    return (*_reading_calls(*streams), *_publish("keep up with a stream that is read", "$JS.FC.>"))


def _reading_calls(*streams: str) -> tuple[Right, ...]:
    calls = [
        call
        for stream in streams
        for call in (
            f"STREAM.INFO.{stream}",
            f"STREAM.MSG.GET.{stream}",
            f"CONSUMER.CREATE.{stream}",
            f"CONSUMER.CREATE.{stream}.>",
            f"CONSUMER.MSG.NEXT.{stream}.*",
            f"CONSUMER.DELETE.{stream}.*",
        )
    ]
    return _call("read", *calls)


def _looking(*streams: str) -> tuple[Right, ...]:
    """Read streams and buckets without making anything: no consumer."""
    looked_up = [bucket_stream(bucket) for bucket in LOOKED_UP]  # by single gets (accounts.py)
    calls = [
        call
        for stream in streams
        for call in (
            f"STREAM.INFO.{stream}",
            f"STREAM.MSG.GET.{stream}",
            *(() if stream in looked_up else (f"DIRECT.GET.{stream}", f"DIRECT.GET.{stream}.>")),
        )
    ]
    return (*_call("read", *calls), *_call("what the store holds", *STORE))


def _declaring() -> tuple[Right, ...]:
    """Create what is missing, under our names only; one that is there is never changed by it."""
    return _call("declare streams and buckets", *(f"STREAM.CREATE.{name}" for name in EVERY_STREAM))


def _purging() -> tuple[Right, ...]:
    return _call("purge what is over", *(f"STREAM.PURGE.{name}" for name in (LOG, FACT_STREAM, PROFILES)))


def _job_kinds(job: str, kinds: Iterable[type[Fact]]) -> tuple[str, ...]:
    return tuple(subjects.job_facts(job, kind.kind()) for kind in kinds)


def _host_kinds(host: str, kinds: Iterable[type[Fact]]) -> tuple[str, ...]:
    return tuple(subjects.host_facts(host, kind.kind()) for kind in kinds)


OF_TENANTS = (*(each.name for each in STREAMS), *(bucket_stream(each.name) for each in OF_TENANT))
EVERY_STREAM = (*(each.name for each in STREAMS), *(bucket_stream(each.name) for each in BUCKETS))
_EVERY_FACT = (*FACTS, *CHECKPOINT_FACTS)
OF_MASTERS = tuple(each for each in _EVERY_FACT if issubclass(each, MasterFact))
OF_BRAIN: tuple[type[Fact], ...] = (
    *(each for each in _EVERY_FACT if issubclass(each, BrainFact)),
    PlanProposed,
    JobStopRequested,
    SlotsMoveRequested,
    RuleSwitchedOff,
    RuleSwitchedOn,
    JobForgotten,
)
OF_BRAIN_ON_HOSTS = tuple(each for each in _EVERY_FACT if issubclass(each, BrainHostFact))
OF_DAEMONS = tuple(
    each for each in _EVERY_FACT if issubclass(each, HostFact) and not issubclass(each, BrainHostFact)
)
OF_PEOPLE = tuple(each for each in ASKED if each is not PlanProposed)
OF_SUBMITTERS = tuple(each for each in OF_PEOPLE if each is not JobForgotten)
OF_PAGE: tuple[type[Fact], ...] = (PlanApproved, PlanRejected)  # what people say on the page
OF_PEOPLE_ON_CLUSTER = tuple(each for each in _EVERY_FACT if issubclass(each, ClusterFact))
ABOUT_SERVICES = "$SRV.>"  # `nats micro ls | info | stats`
PURGE, FORGET = "purge", "forget"  # methods of the keeper
JOIN, AGENT_JOINS = "join", "agent"  # of registrars: of a host's daemon, of a node's agent
STORE = ("INFO", "STREAM.NAMES", "STREAM.LIST")

BRAIN = Role(
    "brain",
    "control",
    "sizes all jobs; purges for masters, which have no right to",
    (
        *_publish("its log", subjects.BRAIN_LOG),
        *_publish("what it decides of jobs", *_job_kinds("*", OF_BRAIN)),
        *_publish("what it decides of hosts", *_host_kinds("*", OF_BRAIN_ON_HOSTS)),
        *_publish("its lead", _entry(LEADERS, "brain.leader")),
        *_publish("how far it is", _entry(POSITIONS, "all.>")),
        *_publish("what it purged", _entry(PURGED, ">")),
        *_publish("what was set", _entry(SETTINGS, "cluster")),
        *_publish("the format of a new stack", _entry(SETTINGS, FORMAT_KEY)),
        *_publish("forgetting a job", _entry(ROUTING, "*"), _entry(LEADERS, "*")),
        *_publish("which tokens to join are used up", _entry(SETTINGS, f"{JOINED}.*")),
        *_subscribe("purges that masters ask for", *subjects.everywhere(subjects.keeper("*", PURGE))),
        *_subscribe(
            "jobs that a tenant's people forget", subjects.of_tenant("*", subjects.keeper("*", FORGET))
        ),
        *_subscribe("hosts that ask to join", subjects.registrar("*", JOIN)),
        *_subscribe("questions about services", ABOUT_SERVICES),
        *_reading(*EVERY_STREAM),
        *_declaring(),
        *_purging(),
        *_in_tenants(
            (
                *_publish("what it decides of jobs of tenants", *_job_kinds("*", OF_BRAIN)),
                *_publish("forgetting a job of a tenant", _entry(ROUTING, "*"), _entry(LEADERS, "*")),
                *_call("what a tenant's jobs store", f"STREAM.INFO.{LOG}", f"STREAM.INFO.{FACT_STREAM}"),
                *_call("whether a job has ended that is to be forgotten", f"STREAM.MSG.GET.{FACT_STREAM}"),
                *_purging(),
            )
        ),
    ),
    answers=True,
)

DAEMON = Role(
    "daemon",
    "control",
    "runs the members of one host; signs the credentials of those that it starts",
    (
        *_publish("what happens on its host", *_host_kinds(HOST, OF_DAEMONS)),
        *_publish("samples of its host", subjects.host_profile(HOST)),
        *_publish("its presence", _entry(PRESENCE, HOST)),
        *_publish("a last checkpoint before its host goes down", *_job_kinds("*", (CheckpointRequested,))),
        *_publish("how far it is", _entry(POSITIONS, f"all.{HOST}.*")),
        *_subscribe("what it is asked", *subjects.everywhere(subjects.daemon(HOST, "*"))),
        *_subscribe("what spares in pods ask", *subjects.everywhere(subjects.spares(HOST, "*"))),
        *_subscribe("what workers have loaded", *subjects.everywhere(subjects.loaded(HOST, "*"))),
        *_subscribe("questions about services", ABOUT_SERVICES),
        *_reading(FACT_STREAM, bucket_stream(PRESENCE), bucket_stream(TENANTS)),
        *_call("the format of the stack", f"STREAM.MSG.GET.{bucket_stream(SETTINGS)}"),
        *_declaring(),
        *_in_tenants(
            (
                *_publish("what happens to a tenant's members", *_host_kinds(HOST, OF_DAEMONS)),
                *_publish("a last checkpoint of a tenant's job", *_job_kinds("*", (CheckpointRequested,))),
                *_call("whether that is still stored", f"STREAM.MSG.GET.{FACT_STREAM}"),
            )
        ),
    ),
    answers=True,
)

OF_AGENTS: tuple[type[Fact], ...] = (
    HostStorageOpened,
    HostTurnFailed,
    *(each for each in OF_DAEMONS if each in CHECKPOINT_FACTS),
)

AGENT = Role(
    "agent",
    "control",
    "keeps the checkpoints that pods stage on one node, whose members an operator runs (0062)",
    (
        *_publish("what its storage does", *_host_kinds(HOST, OF_AGENTS)),
        *_publish("samples of its host", subjects.host_profile(HOST)),
        *_publish("how far it is", _entry(POSITIONS, f"all.{HOST}.*")),
        *_subscribe("parts that servers restore from", *subjects.everywhere(subjects.daemon(HOST, "part"))),
        *_subscribe("questions about services", ABOUT_SERVICES),
        *_reading(FACT_STREAM, bucket_stream(TENANTS)),
        *_in_tenants(
            (
                *_publish("what happens to a tenant's parts", *_host_kinds(HOST, OF_AGENTS)),
                *_call("whether that is still stored", f"STREAM.MSG.GET.{FACT_STREAM}"),
            )
        ),
    ),
    answers=True,
)

MASTER = Role(
    "master",
    "tenant",
    "leads one job, or stands by",
    (
        *_publish("its log", subjects.job_log(JOB)),
        *_publish("what it decides", *_job_kinds(JOB, OF_MASTERS)),
        *_publish("its lead", _entry(LEADERS, JOB)),
        *_publish("its routing table", _entry(ROUTING, JOB)),
        *_publish("how far it is", _entry(POSITIONS, f"job.{JOB}.>")),
        *_publish("what was purged", _entry(PURGED, subjects.job_facts(JOB))),
        *_subscribe("what members ask", subjects.rpcs(JOB)),
        *_subscribe("questions about services", ABOUT_SERVICES),
        *_request("purges of its job", subjects.keeper(JOB, PURGE)),
        *_reading(LOG, FACT_STREAM, *(bucket_stream(each) for each in (LEADERS, ROUTING, POSITIONS, PURGED))),
        *_call("the format of the stack", f"STREAM.MSG.GET.{bucket_stream(SETTINGS)}"),
        *_call_of_control(
            "the same, of a tenant's job",
            f"DIRECT.GET.{bucket_stream(SETTINGS)}.{_entry(SETTINGS, FORMAT_KEY)}",
        ),
    ),
    answers=True,
)

_FIND_MASTER = _call("find the master", f"DIRECT.GET.{bucket_stream(LEADERS)}.{_entry(LEADERS, JOB)}")

WORKER = Role(
    "worker",
    "members",
    "runs a user's program for one job",
    (
        *_request("leases, commits, heartbeats", subjects.rpcs(JOB)),
        *_FIND_MASTER,
        *_request("what it has loaded, for spares of its job", subjects.loaded(HOST, JOB)),
        *_publish("samples", f"rover.profile.{JOB}.worker.*"),
        *_subscribe("a new master", subjects.job_facts(JOB, "master.elected")),
    ),
)

SERVER = Role(
    "ps",
    "members",
    "serves the parameters of one job",
    (
        *_request("admission, heartbeats, orders", subjects.rpcs(JOB)),
        *_request("parts of checkpoints in the memory of hosts", subjects.daemon(HOST, "part")),
        *_FIND_MASTER,
        *_publish("samples", f"rover.profile.{JOB}.ps.*"),
        *_subscribe(
            "slots that move",
            *(subjects.job_facts(JOB, kind) for kind in ("rollout.opened", "slots.moved", "move.failed")),
        ),
    ),
)

SPARE = Role(
    "spare",
    "members",
    "is made ready in a pod to become a worker of one job (0087)",
    (*_request("what it is to load, and which worker it becomes", subjects.spares(HOST, JOB)),),
)

SIDECAR = Role(
    "sidecar",
    "tenant",
    "keeps the checkpoints of one server of a job, beside it in its pod (0062)",
    (
        *_publish("what its storage does", *_host_kinds(HOST, OF_AGENTS)),
        *_publish("how far it is", _entry(POSITIONS, f"all.{HOST}.*")),
        *_subscribe("parts that its server restores from", subjects.daemon(HOST, "part")),
        *_subscribe("questions about services", ABOUT_SERVICES),
        *_reading(FACT_STREAM),
    ),
    answers=True,
)

OPERATOR = Role(
    "operator",
    "control",
    "a person at the command line of the stack's own machine, or what follows RoverJobs",
    (
        *_publish("what people ask of jobs", *_job_kinds("*", OF_PEOPLE)),
        *_publish(
            "what people say of the cluster",
            *(subjects.cluster_facts(each.kind()) for each in OF_PEOPLE_ON_CLUSTER),
        ),
        *_publish("forgetting a job", _entry(ROUTING, "*"), _entry(LEADERS, "*")),
        *_publish("the format of the stack (`rover upgrade`)", _entry(SETTINGS, FORMAT_KEY)),
        *_publish("how far what follows RoverJobs has read", _entry(POSITIONS, "all.kube.*")),
        *_publish("what an operator on Kubernetes counted of itself", subjects.operator_profile("*")),
        *_request("would a program start", subjects.daemon("*", "program")),
        *_request("what members wrote", subjects.daemon("*", "log")),
        *_request("questions about services", ABOUT_SERVICES),
        *_subscribe("everything", "rover.>"),
        *_reading(*EVERY_STREAM),
        *_call("what the store holds", *STORE),
        *_declaring(),
        *_purging(),
        *_subscribe("what is read of tenants", subjects.seen_of_tenant("*", ">")),
        *_in_tenants(
            (
                *_publish("what people ask of jobs of tenants", *_job_kinds("*", OF_PEOPLE)),
                *_publish("forgetting a job of a tenant", _entry(ROUTING, "*"), _entry(LEADERS, "*")),
                *_reading_calls(*OF_TENANTS),
                *_call("what the store holds", *STORE),
                *_purging(),
            )
        ),
    ),
)

OBSERVER = Role(
    "observer",
    "observers",
    "a person, or a program for people, that only looks",
    (
        *_request("questions about services", ABOUT_SERVICES),
        *_subscribe("everything", "rover.>"),
        *_looking(*EVERY_STREAM),
        *_in_tenants(_looking(*OF_TENANTS)),
    ),
)

WEB = Role(
    "web",
    "observers",
    "serves HTTP: it looks as an observer does, and stores what people say of plans",
    (
        *OBSERVER.rights,
        *_publish("what people say of plans", *_job_kinds("*", OF_PAGE)),
        *_in_tenants(_publish("what people say of plans of tenants", *_job_kinds("*", OF_PAGE))),
    ),
)

JOINER = Role(
    "joiner",
    "members",
    "a host that is not yet one: it has a token (`rover auth token`), and may ask once",
    (*_request("to join", subjects.registrar(USER, JOIN)),),
)

APPLICANT = Role(
    "applicant",
    "members",
    "an agent of a node that has no rights yet: it has the pass that all nodes share, and may ask, by the token of its pod",
    (*_request("to be an agent", subjects.registrar(USER, AGENT_JOINS)),),
)

REGISTRAR = Role(
    "registrar",
    "control",
    "what asks the API server which pod an agent is, beside an operator that leads",
    (
        *_subscribe("agents that ask", subjects.registrar("*", AGENT_JOINS)),
        *_subscribe("questions about services", ABOUT_SERVICES),
    ),
    answers=True,
)

_OF_A_TENANT = (
    *_request("what members wrote", subjects.daemon("*", "log")),
    *_subscribe("everything of its tenant", "rover.>"),
    *_looking_up(*LOOKED_UP),
)

SUBMITTER = Role(
    "submitter",
    "observers",
    "a person, or a scheduler, that submits the jobs of one tenant and asks of them",
    (
        *_publish("what people ask of jobs", *_job_kinds("*", OF_SUBMITTERS)),
        *_request("forgetting a job that has ended", subjects.keeper("*", FORGET)),
        *_request("would a program start", subjects.daemon("*", "program")),
        *_OF_A_TENANT,
        *_looking(*OF_TENANTS),
    ),
)

VIEWER = Role(
    "viewer",
    "observers",
    "a person, or a program for people, that only looks at one tenant",
    (*_OF_A_TENANT, *_looking(*OF_TENANTS)),
)

ROLES: dict[RoleName, Role] = {
    role.name: role
    for role in (
        *(BRAIN, DAEMON, AGENT, MASTER, WORKER, SERVER, SPARE, SIDECAR, OPERATOR, REGISTRAR),
        *(OBSERVER, WEB, JOINER, APPLICANT, SUBMITTER, VIEWER),
    )
}
assert set(ROLES) == set(get_args(RoleName))


def of_page() -> tuple[str, ...]:
    """Return where what people say on the page is stored: subjects of the account that holds the job's facts."""
    return _job_kinds("*", OF_PAGE)


def of_submitters() -> tuple[str, ...]:
    """Return where what submitters say is stored: subjects of their tenant's account."""
    return _job_kinds("*", OF_SUBMITTERS)


def crossings() -> tuple[list[str], list[str]]:
    """Return what members use of the control account: the subjects that they ask and publish, and those that they hear."""
    rights = [right for role in ROLES.values() if role.account == "members" for right in role.rights]
    asked = {filled(right.subject, "*", "*", "*") for right in rights if right.action != "subscribe"}
    heard = {filled(right.subject, "*", "*", "*") for right in rights if right.action == "subscribe"}
    return sorted(asked), sorted(heard)
