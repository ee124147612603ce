"""The grammar of subjects: built and parsed here, concatenated nowhere else.

    rover.job.<job>.log                         a job's decision log (one writer)
    rover.job.<job>.<noun>.<verb>               its readable facts
    rover.brain.log                             the Brain's own chained log
    rover.host.<host>.<fact>                    what a daemon says of its host
    rover.cluster.<fact>                        what people say of the whole cluster
    rover.profile.<job>.<role>.<index>          samples of a member
    rover.profile.host.<host>                   samples of a host
    rover.profile.operator.<operator>           what an operator on Kubernetes counted of itself
    rover.rpc.<job>.<term>.<method>             requests to the master of that term (protocol P15)
    rover.daemon.<host>.<method>                requests to a node daemon
    rover.keeper.<job>.<method>                 requests of a job's master to what may purge for it
    rover.registrar.<user>.<method>             requests to where the keys of the stack are: the user is the asker

A tenant's subjects are these in its own account. The control account has them under its name (docs/design/0050):

    tenant.<t>.rover....                        facts that the tenant's account stored, samples and requests of it
    tenant.<t>.into.<subject>                   what the control account stores there
    tenant.<t>.$JS.API....                      the API of its streams and buckets
    tenant.<t>.seen.>  tenant.<t>.copy.>        where its streams deliver to the control account's readers, and to its copy of facts

There a job of a tenant is called `<t>/<job>`; one of the tenant `default`, whose streams are the control account's own, has its
bare name everywhere. A tenant has under `control.$JS.API....` what it may look up in the control account.

Names become one NATS token each, so they are checked: letters, digits, `_` and `-`, at most 64, and a first letter or digit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from rover_bus.events.errors import NameRefused

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_RESERVED = frozenset({"host"})  # rover.profile.host.<host> would be ambiguous
DEFAULT_TENANT = "default"
_TENANT = "tenant"  # the first token of what the control account has of tenants
CONTROL = "control."  # before what a tenant may look up in the control account


def name(value: str, what: str = "name") -> str:
    """Return `value` if a subject can hold it as one token. Raises NameRefused saying what is allowed."""
    if not _NAME.fullmatch(value) or value in _RESERVED:
        raise NameRefused(
            f"{what} {value!r} cannot be used: take letters, digits, '-' and '_' (at most 64, the first a letter or digit"
            f"{', and not a reserved word' if value in _RESERVED else ''}), for example {suggest(value)!r}"
        )
    return value


def suggest(value: str) -> str:
    """Return a name close to `value` that a subject can hold."""
    cleaned = re.sub(r"[^A-Za-z0-9_-]+", "-", value).strip("-_")[:64]
    return cleaned if cleaned and cleaned not in _RESERVED else (f"job-{cleaned}" if cleaned else "my-job")


# -- tenants -----------------------------------------------------------------------------------------------------------


def qualified(tenant: str, job: str) -> str:
    """Return what the control account calls a job of a tenant ("" and `default`: a job of its own)."""
    return job if tenant in ("", DEFAULT_TENANT) else f"{tenant}/{job}"


def split_job(job: str) -> tuple[str, str]:
    """Return tenant and bare name of a job as the control account calls it."""
    tenant, slash, bare = job.partition("/")
    return (tenant, bare) if slash else (DEFAULT_TENANT, job)


def as_seen_by(tenant: str, job: str) -> str:
    """Return what the people of a tenant may read of a job: its name where it is theirs; those of `default` read all names."""
    whose, bare = split_job(job)
    if tenant in ("", DEFAULT_TENANT):
        return job
    return bare if whose == tenant else "a job of another tenant"


def job_name(job: str) -> str:
    """Return a job's name, with or without its tenant's. Raises NameRefused like `name`."""
    tenant, slash, bare = job.partition("/")
    return f"{name(tenant, 'tenant')}/{name(bare, 'job')}" if slash else name(job, "job")


def file_name(job: str) -> str:
    """Return a job's name, with or without its tenant's, as one name of a file. Raises NameRefused like `name`."""
    return job_name(job).replace("/", "@")


def job_of_file(file: str) -> str:
    """Return the job that `file_name` named a file after."""
    return file.replace("@", "/", 1)


def of_tenant(tenant: str, subject: str) -> str:
    """Return where the control account has a subject of a tenant's account; `*`: of every tenant's."""
    return f"{_TENANT}.{tenant if tenant == '*' else name(tenant, 'tenant')}.{subject}"


def into_tenant(tenant: str, subject: str = "") -> str:
    """Return where the control account publishes what a tenant's account has under `subject`; "": what stands before it."""
    return of_tenant(tenant, f"into.{subject}")


def seen_of_tenant(tenant: str, subject: str) -> str:
    """Return where a tenant's streams deliver what the control account reads there."""
    return of_tenant(tenant, f"seen.{subject}")


def copied_of_tenant(tenant: str, subject: str = "") -> str:
    """Return where a tenant's facts are delivered to the control account's copy of them; "": what stands before it."""
    return of_tenant(tenant, f"copy{'.' * bool(subject)}{subject}")


def everywhere(*filters: str) -> list[str]:
    """Return filters for the account's own subjects, and for those of all tenants."""
    return [*filters, *(of_tenant("*", each) for each in filters)]


# -- subjects ----------------------------------------------------------------------------------------------------------


def job_log(job: str) -> str:
    return f"rover.job.{name(job, 'job')}.log"


def job_fact(job: str, kind: str) -> str:
    """Subject of a fact of a job; `kind` is `<noun>.<verb>`."""
    noun, verb = kind.split(".")
    return f"rover.job.{name(job, 'job')}.{name(noun)}.{name(verb)}"


def job_facts(job: str = "*", kind: str = "*.*") -> str:
    """Filter for the facts of one job or of all (`*`)."""
    return f"rover.job.{job if job == '*' else name(job, 'job')}.{kind}"


BRAIN_LOG = "rover.brain.log"


def host_fact(host: str, fact: str) -> str:
    return f"rover.host.{name(host, 'host')}.{name(fact)}"


def host_facts(host: str = "*", fact: str = "*") -> str:
    """Filter for the facts of one host or of all (`*`)."""
    return f"rover.host.{host if host == '*' else name(host, 'host')}.{fact}"


def cluster_fact(fact: str) -> str:
    return f"rover.cluster.{name(fact)}"


def cluster_facts(fact: str = "*") -> str:
    """Filter for what people say of the whole cluster."""
    return f"rover.cluster.{fact}"


def member_profile(job: str, role: str, index: int) -> str:
    return f"rover.profile.{name(job, 'job')}.{name(role)}.{index}"


def member_profiles(job: str) -> str:
    """Filter for the samples of all members of a job."""
    return f"rover.profile.{name(job, 'job')}.*.*"


def host_profile(host: str) -> str:
    return f"rover.profile.host.{name(host, 'host')}"


def operator_profile(operator: str) -> str:
    return f"rover.profile.operator.{operator if operator == '*' else name(operator, 'operator')}"


def rpc(job: str, term: int, method: str) -> str:
    return f"rover.rpc.{name(job, 'job')}.{term}.{name(method)}"


def rpcs(job: str) -> str:
    """Filter for all requests to the masters of a job."""
    return f"rover.rpc.{name(job, 'job')}.*.*"


def daemon(host: str, method: str) -> str:
    return f"rover.daemon.{host if host == '*' else name(host, 'host')}.{method if method == '*' else name(method)}"


def spares(host: str, job: str) -> str:
    """Subject of what spares of a job ask a host's daemon; `*`: of any host, of any job."""
    return f"rover.daemon.{host if host == '*' else name(host, 'host')}.spares.{job if job == '*' else name(job, 'job')}"


def loaded(host: str, job: str) -> str:
    """Subject of what workers of a job tell a host's daemon that they had loaded; `*`: of any host, of any job."""
    return f"rover.daemon.{host if host == '*' else name(host, 'host')}.loaded.{job if job == '*' else name(job, 'job')}"


def keeper(job: str, method: str) -> str:
    """Subject of requests to what may purge; `*`: of all jobs."""
    return f"rover.keeper.{job if job == '*' else name(job, 'job')}.{name(method)}"


def registrar(user: str, method: str) -> str:
    """Subject of requests to the registrar of the stack; `*`: of all askers."""
    return f"rover.registrar.{user if user == '*' else name(user, 'user')}.{name(method)}"


@lru_cache(maxsize=65536)
def matches(pattern: str, subject: str) -> bool:
    """Say whether a subject falls under a pattern (`*` one token, `>` the rest, at least one)."""
    if pattern == subject:
        return True
    wanted, given = pattern.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":
            return len(given) > place
        if place >= len(given) or token not in ("*", given[place]):
            return False
    return len(wanted) == len(given)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A subject taken apart. `family`: log | fact | host | cluster | profile | rpc | daemon | keeper | registrar.

    Absent parts are empty. `tenant`: whose it is in the control account, "" of the account's own; `job` is bare.
    """

    family: str
    job: str = ""
    host: str = ""
    kind: str = ""
    role: str = ""
    index: int = -1
    term: int = -1
    user: str = ""
    tenant: str = ""

    @property
    def noun_verb(self) -> str:
        """The type of a fact without its version, as `rover events -k` takes it: `plan.applied`, `host.registered`."""
        return f"{self.family}.{self.kind}" if self.family in ("host", "cluster") else self.kind

    @property
    def full_job(self) -> str:
        """What this account calls the job."""
        return qualified(self.tenant, self.job)


def parse(subject: str) -> Parsed | None:
    """Take a subject apart; None when it is not one of ours."""
    if not subject.startswith("tenant."):
        return _parse_own(subject)
    _, tenant, *rest = subject.split(".", 2)
    found = _parse_own(rest[0]) if rest else None
    return found and replace(found, tenant=tenant)


def _parse_own(subject: str) -> Parsed | None:
    match subject.split("."):
        case ["rover", "brain", "log"]:
            return Parsed("log")
        case ["rover", "job", job, "log"]:
            return Parsed("log", job=job)
        case ["rover", "job", job, noun, verb]:
            return Parsed("fact", job=job, kind=f"{noun}.{verb}")
        case ["rover", "host", host, fact]:
            return Parsed("host", host=host, kind=fact)
        case ["rover", "cluster", fact]:
            return Parsed("cluster", kind=fact)
        case ["rover", "profile", "host", host]:
            return Parsed("profile", host=host)
        case ["rover", "profile", "operator", operator]:
            return Parsed("profile", user=operator)
        case ["rover", "profile", job, role, index] if index.isdecimal():
            return Parsed("profile", job=job, role=role, index=int(index))
        case ["rover", "rpc", job, term, method] if term.isdecimal():
            return Parsed("rpc", job=job, term=int(term), kind=method)
        case ["rover", "daemon", host, method]:
            return Parsed("daemon", host=host, kind=method)
        case ["rover", "daemon", host, "spares" | "loaded" as kind, job]:
            return Parsed("daemon", host=host, job=job, kind=kind)
        case ["rover", "keeper", job, method]:
            return Parsed("keeper", job=job, kind=method)
        case ["rover", "registrar", user, method]:
            return Parsed("registrar", user=user, kind=method)
        case _:
            pass  # the others do not matter here
    return None
