"""The grammar of subjects: built and parsed here, concatenated nowhere else.

    rover.job.<job>.log                         a job's decision log (one writer)
    rover.job.<job>.<noun>.<verb>               its readable facts
    rover.brain.log                             the Brain's own chained log
    rover.host.<host>.<fact>                    what a daemon says of its host
    rover.cluster.<fact>                        what people say of the whole cluster
    rover.profile.<job>.<role>.<index>          samples of a member
    rover.profile.host.<host>                   samples of a host
    rover.rpc.<job>.<term>.<method>             requests to the master of that term (protocol P15)
    rover.daemon.<host>.<method>                requests to a node daemon
    rover.keeper.<job>.<method>                 requests of a job's master to what may purge for it
    rover.registrar.<user>.<method>             requests to where the keys of the stack are: the user is the asker

Names become one NATS token each, so they are checked: letters, digits, `_` and `-`, at most 64, and a first letter or digit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from rover_bus.events.errors import NameRefused

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_RESERVED = frozenset({"host"})  # rover.profile.host.<host> would be ambiguous


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


def rpc(job: str, term: int, method: str) -> str:
    return f"rover.rpc.{name(job, 'job')}.{term}.{name(method)}"


def rpcs(job: str) -> str:
    """Filter for all requests to the masters of a job."""
    return f"rover.rpc.{name(job, 'job')}.*.*"


def daemon(host: str, method: str) -> str:
    return f"rover.daemon.{host if host == '*' else name(host, 'host')}.{method if method == '*' else name(method)}"


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

    Absent parts are empty.
    """

    family: str
    job: str = ""
    host: str = ""
    kind: str = ""
    role: str = ""
    index: int = -1
    term: int = -1
    user: str = ""

    @property
    def noun_verb(self) -> str:
        """The type of a fact without its version, as `rover events -k` takes it: `plan.applied`, `host.registered`."""
        return f"{self.family}.{self.kind}" if self.family in ("host", "cluster") else self.kind


def parse(subject: str) -> Parsed | None:
    """Take a subject apart; None when it is not one of ours."""
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
        case ["rover", "profile", job, role, index] if index.isdecimal():
            return Parsed("profile", job=job, role=role, index=int(index))
        case ["rover", "rpc", job, term, method] if term.isdecimal():
            return Parsed("rpc", job=job, term=int(term), kind=method)
        case ["rover", "daemon", host, method]:
            return Parsed("daemon", host=host, kind=method)
        case ["rover", "keeper", job, method]:
            return Parsed("keeper", job=job, kind=method)
        case ["rover", "registrar", user, method]:
            return Parsed("registrar", user=user, kind=method)
        case _:
            pass  # the others do not matter here
    return None
